"""Log line formatters (text, JSON) and rate limiter. A kind of line is a logger, a level and a template.
Control characters are escaped and values with spaces quoted: no value can begin a line or forge a detail.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from barnabas.loggers import shown_name

LINES_MAX: Final = 50  # of one kind within PERIOD_S: a reader can take them in, and a disk does not fill
PERIOD_S: Final = 10.0
KINDS_MAX: Final = 1_000  # remembered; templates are constants of the code, so there are fewer
VALUE_CHARS_MAX: Final = 500
SUPPRESSED: Final = "Lines of one kind were suppressed: count=%d seconds=%d kind=%s"
RESERVED: Final = frozenset({"time", "level", "logger", "node", "message", "traceback"})  # of a JSON line
_PLACEHOLDER = re.compile(r"(?:(?<![\w.])([a-z][\w.]*)=)?%([-#0 +]*\d*(?:\.\d+)?)([sdrifgx%])")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\\]")
_QUOTED = re.compile(r"[\s\"=]")


@lru_cache(maxsize=KINDS_MAX)
def placeholders(template: str) -> tuple[tuple[str | None, str], ...]:
    """(key or None, conversion) of each placeholder."""
    return tuple((key or None, kind) for key, _, kind in _PLACEHOLDER.findall(template) if kind != "%")


def _safe(value: object, conversion: str) -> str:
    """One line without control characters, of limited length."""
    try:
        text = repr(value) if conversion == "r" else str(value)
    except Exception as error:  # a value that cannot be printed must not lose the line
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    if len(text) > VALUE_CHARS_MAX:
        text = text[: VALUE_CHARS_MAX - 1] + "…"
    return _UNSAFE.sub(lambda found: "\\\\" if found[0] == "\\" else found[0].encode("unicode_escape").decode(), text)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "'") + '"' if not text or _QUOTED.search(text) else text


def line_text(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Text of a record with safe values, and its details by key."""
    template = str(record.msg)
    if not record.args or isinstance(record.args, Mapping):
        return _safe(record.getMessage(), "s"), {}
    details: dict[str, Any] = {}
    values: list[object] = []
    for (key, conversion), value in zip(placeholders(template), record.args, strict=False):
        plain = isinstance(value, bool | int | float)
        text = value if plain else _safe(value, conversion)
        if key is not None:
            details[key] = text
        values.append(text if plain or key is None else _quoted(str(text)))
    try:
        return template.replace("%r", "%s") % tuple(values), details
    except (TypeError, ValueError):  # a wrong call of logging: the line still appears
        return _safe(f"{template} {record.args!r}", "s"), {}


class TextLines(logging.Formatter):
    """Lines of text: time, level, logger, message; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        when = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))},{int(record.msecs):03d}"
        line = f"{when} {record.levelname} {shown_name(record.name)}: {line_text(record)[0]}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "".join(f"\n    {_safe(each, 's')}" for each in self.formatException(record.exc_info).splitlines())
        return line


class JsonLines(logging.Formatter):
    """Lines of JSON: time (UTC), level, logger, node, message, and the details as further keys.

    `node_id` is None before the node's configuration is known.
    """

    def __init__(self, node_id: int | None = None) -> None:
        super().__init__()
        self.node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        text, details = line_text(record)
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": shown_name(record.name),
            "node": self.node_id,
            "message": text,
        }
        line.update((f"{key}_" if key in RESERVED else key, value) for key, value in details.items())
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


class LineLimit(logging.Filter):
    """Passes LINES_MAX lines of each kind within PERIOD_S (all below INFO), and writes how many it suppressed.

    `write` writes a record without this filter.
    """

    def __init__(self, write: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._write = write
        # begin of the period in seconds, lines passed, lines suppressed; ordered by the begin
        self._kinds: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        self.end_periods(record.created)
        kind = (record.name, record.levelno, str(record.msg))
        counted = self._kinds.get(kind)
        if counted is None:
            if len(self._kinds) >= KINDS_MAX:
                self._end(*self._kinds.popitem(last=False))
            counted = self._kinds[kind] = [record.created, 0, 0]
        if counted[1] >= LINES_MAX:
            counted[2] += 1
            return False
        counted[1] += 1
        return True

    def end_periods(self, now: float | None = None) -> None:
        """Ends periods that expire before `now` (seconds; None: all), and reports their suppressed lines."""
        while self._kinds:
            kind = next(iter(self._kinds))
            if now is not None and 0 <= now - self._kinds[kind][0] < PERIOD_S:
                break
            self._end(kind, self._kinds.pop(kind))

    def _end(self, kind: tuple[str, int, str], counted: list[float]) -> None:
        if counted[2]:
            name, level, template = kind
            values = (int(counted[2]), int(PERIOD_S), template)
            self._write(logging.LogRecord(name, level, __file__, 0, SUPPRESSED, values, None))
