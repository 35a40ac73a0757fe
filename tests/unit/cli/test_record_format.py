"""The text of records: the quick ways to make it agree with the general ones, for any bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.record_format import as_json, as_template, as_values
from barnabas.cli.record_json import record_from_json
from barnabas.client.types import RawRecord, Record

DATA = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace"))
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), DATA), max_size=2).map(tuple)
RECORDS = st.lists(
    st.builds(
        Record[bytes | None, bytes | None],
        offset=st.integers(0, 1 << 62),
        timestamp=st.integers(-1, 1 << 62),
        key=DATA,
        value=DATA,
        headers=HEADERS,
        topic=st.sampled_from(["orders", "a.b-c_D"]),
        partition=st.integers(0, 9),
        timestamp_type=st.integers(0, 1),
        leader_epoch=st.just(3),
    ),
    max_size=4,
)


def raw(records: Sequence[Record[bytes | None, bytes | None]]) -> list[RawRecord]:
    """The same records as raw ones, whose text is always made in the general way."""
    return [RawRecord(*record, -1, -1, False, False) for record in records]


@given(RECORDS, st.booleans())
def test_lines_of_values_are_the_same_for_raw_records(
    records: list[Record[bytes | None, bytes | None]], print_key: bool
) -> None:
    shown = as_values(None, None, print_key=print_key)
    assert shown(records) == shown(raw(records))


@given(RECORDS)
def test_a_json_line_is_what_the_json_module_writes(records: list[Record[bytes | None, bytes | None]]) -> None:
    for record, line, indented in zip(
        records, as_json(None, None)(records), as_json(None, None, indent=2)(records), strict=True
    ):
        document = json.loads(indented)
        assert line.decode() == json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
        _, timestamp, key, value, headers = record_from_json(line)
        assert (timestamp, key, value, tuple(headers)) == (record.timestamp, record.key, record.value, record.headers)


@given(RECORDS)
def test_a_template_prints_each_token(records: list[Record[bytes | None, bytes | None]]) -> None:
    lines = as_template(r"%%d %t\t%p@%o %k%K [%s] %S %T\x00\n", None, None)(records)
    for record, line in zip(records, lines, strict=True):
        key, value = record.key or b"", record.value or b""
        sizes = [-1 if data is None else len(data) for data in (record.key, record.value)]
        head = f"%d {record.topic}\t{record.partition}@{record.offset} ".encode()
        assert line == head + b"%b%d [%b] %d %d\0\n" % (key, sizes[0], value, sizes[1], record.timestamp)


def test_a_template_prints_headers_and_text_alone() -> None:
    record = Record[bytes | None, bytes | None](0, 0, None, b"v", (("a", b"1"), ("b", None)), "t", 0, 0, 0)
    assert as_template("%h", None, None)([record]) == [b"a=1,b=NULL"]
    assert as_template(r"50%%\n", None, None)([record, record]) == [b"50%\n"] * 2
    assert as_template("%s %k", "hex", "base64")([record._replace(key=b"k")]) == [b"76 aw=="]
    with pytest.raises(WrongCall, match="unknown token %q"):
        as_template("%s %q", None, None)
