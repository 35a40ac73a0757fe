"""Tables: text and JSON of one declaration, narrow terminals, colours, and control characters."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from barnabas.cli import record_format, render
from barnabas.cli.record_format import as_lines, for_terminal
from barnabas.cli.render import Cell, Report, as_json, place_columns, shortened
from barnabas.cli.streams import printable
from barnabas.client.types import Record, TopicPartition
from tests.support.processes.cli import called


class Row(NamedTuple):
    partition: TopicPartition
    lag: int | None
    owner: str = "cook"


TABLE = Report[Row](
    *place_columns(lambda row: row.partition),
    Cell("lag", "lag", wrong=lambda row: row.lag),
    Cell("owner", "owner_name", lambda row: row.owner, shrinks=True),
    Cell("", "is_late", lambda row: bool(row.lag)),
)
LONG = "a-rather-long-topic-name.with.many.parts.customer-invoices-of-the-second-version-v2"


def test_one_declaration_gives_text_and_json() -> None:
    rows = [Row(TopicPartition("orders", 0), 12_345), Row(TopicPartition("tea", 1), None)]
    assert TABLE.text(rows).splitlines() == [
        "partition    lag  owner",
        "orders-0   12345  cook",
        "tea-1          -  cook",
    ]
    assert TABLE.documents(rows)[0] == {
        "topic": "orders",
        "partition": 0,
        "lag": 12_345,
        "owner_name": "cook",
        "is_late": True,
    }


@pytest.mark.parametrize("width", [40, 80, 120])
def test_long_names_lose_their_middle_and_numbers_nothing(width: int) -> None:
    rows = [Row(TopicPartition(LONG, number), 10**9 + number, "consumer-" * 20) for number in (7, 8)]
    head, *lines = TABLE.text(rows, width=width).splitlines()
    assert max(map(len, (head, *lines))) <= width
    for number, line in zip((7, 8), lines, strict=True):
        name, lag, owner = line.split()
        assert name.startswith("a-rat")
        assert name.endswith(f"-{number}")
        assert "…" in name
        assert lag == str(10**9 + number)
        assert owner.startswith("consu")
        assert "…" in owner
    assert LONG in TABLE.text(rows), "elsewhere than on a terminal nothing is shortened"


def test_a_terminal_too_narrow_for_the_numbers_still_shows_them() -> None:
    assert "1234567890123456789" in TABLE.text([Row(TopicPartition(LONG, 0), 1234567890123456789)], width=10)
    assert shortened("1234567890", 4) == "1234567890"


def test_what_is_wrong_is_coloured_and_stays_aligned() -> None:
    rows = [Row(TopicPartition("a", 0), 0), Row(TopicPartition("a", 1), 5)]
    plain, coloured = TABLE.text(rows), TABLE.text(rows, colours=True)
    assert coloured.replace("\x1b[31m", "").replace("\x1b[0m", "") == plain
    assert [line.count("\x1b[31m") for line in coloured.splitlines()] == [0, 0, 1]


def test_control_characters_are_shown_and_not_obeyed() -> None:
    hostile = "\x1b]0;owned\x07\nforged\x9b2J\u202e"
    shown = TABLE.text([Row(TopicPartition("a", 0), 0, hostile)])
    assert len(shown.splitlines()) == 2
    assert "\\u001b]0;owned\\u0007\\u000aforged\\u009b2J\\u202e" in shown
    assert json.loads(as_json({"name": hostile})) == {"name": hostile}
    assert as_json({"name": hostile}).isprintable()
    assert printable("ä 日本 \u00a0") == "ä 日本 \u00a0"


def test_an_error_is_one_line_without_control_characters() -> None:
    done = called("topic", "list", "-b", "\x1b[31mkafka\nhost:99999")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_records_are_raw_unless_the_output_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[record_format.Read] = [
        Record(
            topic="t",
            partition=0,
            offset=0,
            timestamp=0,
            key=None,
            value=b"a\tb \xff\x1b[2J\n",
            headers=(),
            timestamp_type=0,
            leader_epoch=0,
        )
    ]
    assert for_terminal(as_lines)(records) == [b"a\tb \xff\x1b[2J\n\n"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert for_terminal(as_lines)(records) == [b"a\tb \\xff\\u001b[2J\n\n"]


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**60, "1024.0 PiB")]
)
def test_sizes(size_bytes: int | None, text: str | None) -> None:
    assert render.as_size(size_bytes) == text
