"""What a test's report says about its Kafka, and the trace of the test."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from barnabas import __version__
from barnabas.runtime.clock import SystemClock
from barnabas.testing import kit_thread
from barnabas.testing.errors import KitError
from barnabas.testing.handle import Handle
from barnabas.testing.history.failure import failure_text
from barnabas.testing.history.handles import History
from barnabas.testing.history.trace import SUFFIX

FOLDER: Final = "kafka-traces"
NAME_CHARS_MAX: Final = 150
WRITE_S: Final = 60.0
VALUES_SHOWN: Final = 10


def add_to_report(item: pytest.Item, report: pytest.TestReport, seed: int) -> None:
    """Adds the section "kafka" to the report of a phase that has failed; writes the trace of the test if it is wanted."""
    wanted: str = item.config.getoption("--kafka-trace")
    lines = []
    if report.failed and report.when in ("setup", "call"):
        lines.append(failure_text(item.nodeid, seed))
    if wanted != "off":
        if report.when == "call" and (wanted == "on" or report.failed):
            lines += _traces(item, report, seed)
        elif report.when == "teardown":
            for _, history in _histories():
                history.begin_anew()
    text = "\n".join(filter(None, lines))
    if text:
        report.sections.append(("kafka", text))


def assertion_lines(left: list[bytes], right: list[bytes]) -> list[str]:
    """Tells which values of records differ, in the first line, as pytest's explanation of `left == right`."""
    extra, missing = Counter(left) - Counter(right), Counter(right) - Counter(left)
    told = [
        f"{what} on the left: {_values(found)}" for what, found in (("extra", extra), ("missing", missing)) if found
    ]
    if not told:
        first = next(index for index, (one, two) in enumerate(zip(left, right, strict=True)) if one != two)
        told = [f"other order from index {first}: {left[first]!r}, {right[first]!r}"]
    return [f"records == records; {'; '.join(told)}", f"left:  {left!r}", f"right: {right!r}"]


def _values(found: Counter[bytes]) -> str:
    values = [f"{value!r}{f' {count} times' if count > 1 else ''}" for value, count in found.items()]
    more = f" and {len(values) - VALUES_SHOWN} more" if len(values) > VALUES_SHOWN else ""
    return ", ".join(values[:VALUES_SHOWN]) + more


def _histories() -> list[tuple[Handle, History]]:
    found = [(each, each.noted()) for each in kit_thread.kept() if isinstance(each, Handle)]
    return [(handle, history) for handle, history in found if history is not None and history.level == "all"]


def _traces(item: pytest.Item, report: pytest.TestReport, seed: int) -> list[str]:
    """Writes a file for each Kafka that the test has used; returns a line for each."""
    lines: list[str] = []
    for handle, history in _histories():
        if not history.used:
            continue
        name = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-NAME_CHARS_MAX:]
        folder = item.config.invocation_params.dir / FOLDER
        path = folder / f"{name}{f'-{len(lines) + 1}' if lines else ''}{SUFFIX}"
        header = {
            "barnabas": __version__,
            "test": item.nodeid,
            "outcome": report.outcome,
            "seed": seed,
            "written_ms": SystemClock().now_ms(),
            "brokers": len(handle.backend("trace").broker_ids),
        }
        lines.append(_written(handle, history, path, header))
    return lines


def _written(handle: Handle, history: History, path: Path, header: dict[str, object]) -> str:
    try:
        kit_thread.wait(history.write(path, header), WRITE_S)
    except (OSError, KitError) as error:
        return f"trace {path} was not written: {error}"
    return f"trace: {path}"
