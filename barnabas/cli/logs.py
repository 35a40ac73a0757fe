"""The log of a node's process: `--log-level` and `--log-format`, lines to stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from barnabas.loggers import PREFIX, ROOT, TRACE, python_name
from barnabas.runtime.log_lines import PERIOD_S, JsonLines, LineLimit, TextLines

LogLevel = Literal["trace", "debug", "info", "warning", "error"]
LogFormat = Annotated[
    Literal["text", "json"],
    Parameter(help="Log lines as text, or as one JSON object a line: time, level, logger, node, message, details."),
]
_LEVELS: Final = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LogOutput:
    """Writes the log lines of this process to stderr.

    Args:
        level: the least severe level of the node's loggers.
        form: "text" or "json".
    """

    def __init__(self, level: LogLevel, form: Literal["text", "json"] = "text") -> None:
        logging.raiseExceptions = False  # a stderr that cannot be written must not add tracebacks
        # No line shows its place in the code, thread or process; finding them takes most of the time of a line that the limit drops.
        logging._srcfile = None  # documented under "Optimization"
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
        logging.addLevelName(TRACE, "TRACE")
        self._json = JsonLines()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(self._json if form == "json" else TextLines())
        self._limit = LineLimit(handler.emit)
        handler.addFilter(self._limit)
        logging.basicConfig(level="WARNING", handlers=[handler])  # other packages
        logging.getLogger(PREFIX).setLevel(_LEVELS[level])

    def set_levels(self, levels: Mapping[str, int]) -> None:
        """Sets levels of Python's logging by the name of a logger or the beginning of names; "" is the root."""
        for name, level in levels.items():
            logging.getLogger(python_name(name or ROOT)).setLevel(level)

    def of_node(self, node_id: int) -> None:
        """Names the node in the lines of JSON."""
        self._json.node_id = node_id

    def end_periods(self) -> float:
        """Writes how many lines were suppressed in each period that is over; returns seconds until the next call is useful."""
        import time

        self._limit.end_periods(time.time())
        return PERIOD_S

    def close(self) -> None:
        """Writes how many lines were suppressed since."""
        self._limit.end_periods()
