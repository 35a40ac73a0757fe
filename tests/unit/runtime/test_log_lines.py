"""Log lines: safe values, details of JSON, the limit of one kind of line."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.loggers import RateLimitedLogger
from barnabas.runtime.log_lines import (
    LINES_MAX,
    PERIOD_S,
    VALUE_CHARS_MAX,
    JsonLines,
    LineLimit,
    TextLines,
    placeholders,
)
from tests.support.clock import ManualClock

NAME = "barnabas.kafka.coordinator.group"


def record(template: str, *values: object, created: float = 0.0, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord(NAME, level, __file__, 1, template, values, None)
    made.created, made.msecs = created, 0.0
    return made


def text(template: str, *values: object) -> str:
    return TextLines().format(record(template, *values)).partition("kafka.coordinator.group: ")[2]


def test_a_line_of_text_and_of_json() -> None:
    template = "Group changed: group=%s members=%d ratio=%.2f partition=%s"
    assert (
        text(template, "billing", 3, 0.5, "a b") == 'Group changed: group=billing members=3 ratio=0.50 partition="a b"'
    )
    line = json.loads(JsonLines(7).format(record(template, "billing", 3, 0.5, "a b")))
    assert line == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "INFO",
        "logger": "kafka.coordinator.group",
        "node": 7,
        "message": 'Group changed: group=billing members=3 ratio=0.50 partition="a b"',
        "group": "billing",
        "members": 3,
        "ratio": 0.5,
        "partition": "a b",
    }


def test_a_newline_in_a_name_forges_no_line() -> None:
    forged = "x\n2026-01-01 00:00:00,000 ERROR kafka.server: Node stops\r\x1b[2J\u2028"
    assert "\n" not in text("Group changed: group=%s", forged)
    assert text("group=%s", forged).startswith('group="x\\n2026-01-01')
    assert "\x1b" not in text("group=%s", forged)
    assert text("group=%s error=%s", 'a" error="none', "real") == "group=\"a' error='none\" error=real"
    assert len(text("group=%s", "g" * 100_000)) < VALUE_CHARS_MAX + 10
    assert JsonLines().format(record("group=%s", forged)).count("\n") == 0


@given(st.lists(st.text(), min_size=2, max_size=2))
def test_every_value_stays_within_its_line(values: list[str]) -> None:
    line = text("a=%s b=%s", *values)
    assert line.isprintable() or not set(line) & set("\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
    assert len(line.splitlines()) == 1
    assert json.loads(JsonLines().format(record("a=%s b=%s", *values)))["level"] == "INFO"


def test_a_traceback_is_indented_in_text_and_a_key_of_json() -> None:
    try:
        raise ValueError("bad\n2026-01-01 00:00:00,000 ERROR forged")
    except ValueError:
        failed = logging.LogRecord(NAME, logging.ERROR, __file__, 1, "Request failed", (), sys.exc_info())
    lines = TextLines().format(failed).splitlines()
    assert len(lines) > 3
    assert all(line.startswith("    ") for line in lines[1:])
    assert "ValueError" in json.loads(JsonLines().format(failed))["traceback"]


def test_a_wrong_call_is_still_one_line() -> None:
    assert text("count=%d", "three\n").count("\n") == 0
    assert "three" in text("count=%d", "three\n")
    assert text("a=%s", 1, 2)

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert text("a=%s", Unprintable()) == 'a="<Unprintable: RuntimeError>"'


def test_placeholders() -> None:
    assert placeholders("100 %% of a_b=%d at %s: c=%.1f x=%r") == (("a_b", "d"), (None, "s"), ("c", "f"), ("x", "r"))


def test_more_lines_of_one_kind_are_counted() -> None:
    written: list[logging.LogRecord] = []
    limit = LineLimit(written.append)
    template = "Group changed: group=%s"
    passed = [limit.filter(record(template, f"g{number}", created=1.0)) for number in range(LINES_MAX + 7)]
    assert passed == [True] * LINES_MAX + [False] * 7
    assert limit.filter(record("Another kind: group=%s", "g", created=1.0))
    assert limit.filter(record(template, "g", created=1.0, level=logging.WARNING))
    assert all(limit.filter(record("debug", created=1.0, level=logging.DEBUG)) for _ in range(2 * LINES_MAX))
    assert not written
    assert limit.filter(record(template, "later", created=1.0 + PERIOD_S))
    (said,) = written
    assert said.levelno == logging.INFO
    assert said.getMessage() == f"Lines of one kind were suppressed: count=7 seconds=10 kind={template}"


def test_the_end_of_the_process_says_what_was_suppressed() -> None:
    written: list[logging.LogRecord] = []
    limit = LineLimit(written.append)
    for _ in range(LINES_MAX + 1):
        limit.filter(record("a", created=5.0))
    limit.end_periods(6.0)
    assert not written
    limit.end_periods()
    assert "count=1 " in written[0].getMessage()


def test_a_clock_that_goes_back_ends_the_period() -> None:
    limit = LineLimit(lambda _: None)
    for _ in range(LINES_MAX + 1):
        limit.filter(record("a", created=1e9))
    assert limit.filter(record("a", created=1.0))


def test_a_line_that_a_peer_repeats_is_written_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0)
    limited = RateLimitedLogger(logging.getLogger("barnabas.test"), clock.monotonic_ms)
    for value in (1, 1, 2, 1):
        limited.error("Refused: value=%d", value)
    assert caplog.messages == ["Refused: value=1", "Refused: value=2"]
    clock.time_ms = limited.AGAIN_MS
    limited.error("Refused: value=%d", 1)
    assert caplog.messages[2:] == ["Refused: value=1"]


def test_different_lines_of_peers_are_bounded() -> None:
    clock = ManualClock(0)
    limited = RateLimitedLogger(logging.getLogger("barnabas.test"), clock.monotonic_ms)
    assert sum(limited.is_due(number) for number in range(2 * limited.KEYS_MAX)) == limited.KEYS_MAX
    clock.time_ms = limited.AGAIN_MS
    assert limited.is_due("next")
