"""The layout of a record batch's header: Kafka's offsets, and no second statement of them in the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from barnabas.protocol import batch_layout
from barnabas.protocol.batch_layout import FIELDS, FROM_ATTRIBUTES, HEADER, UP_TO_CRC, offset_of, struct_of
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import BatchHeader, build_batch

PACKAGE = Path(__file__).parents[3] / "barnabas"
# The constants of Kafka's DefaultRecordBatch.
OFFSETS = {
    "base_offset": 0,
    "batch_length": 8,
    "leader_epoch": 12,
    "magic": 16,
    "crc": 17,
    "attributes": 21,
    "last_offset_delta": 23,
    "base_timestamp": 27,
    "max_timestamp": 35,
    "producer_id": 43,
    "producer_epoch": 51,
    "base_sequence": 53,
    "record_count": 57,
}


def test_the_offsets_are_those_of_kafka() -> None:
    assert {name: offset_of(name) for name, _ in FIELDS} == OFFSETS
    assert (batch_layout.HEADER_SIZE, batch_layout.LENGTH_OVERHEAD, batch_layout.CRC_COVERS_FROM) == (61, 12, 21)


def test_the_header_has_the_fields_of_the_layout() -> None:
    assert BatchHeader._fields == tuple(name for name, _ in FIELDS)


def test_a_struct_of_some_fields_reads_what_the_whole_header_has() -> None:
    batch = build_batch(
        [NewRecord(b"k", b"v", 1_000), NewRecord(b"k", b"v", 2_000)],
        base_offset=7,
        leader_epoch=3,
        producer_id=11,
        producer_epoch=5,
        base_sequence=9,
    )
    whole = dict(zip(BatchHeader._fields, HEADER.unpack_from(batch), strict=True))
    for name in BatchHeader._fields:
        assert struct_of(name).unpack_from(batch) == (whole[name],)
    assert struct_of("record_count", "batch_length").unpack_from(batch) == (whole["batch_length"], 2)
    both = UP_TO_CRC.unpack_from(batch) + FROM_ATTRIBUTES.unpack_from(batch, offset_of("attributes"))
    assert both == tuple(whole.values())


@pytest.mark.parametrize("make", [struct_of, offset_of])
def test_an_unknown_field_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(KeyError, match="checksum"):
        make("checksum")


def second_statements(source: str) -> list[int]:
    """Lines of `struct` formats that skip bytes, or that hold a run of the header's fields."""
    formats = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[<>!=][\w?]+", node.value)
    )
    return [each.lineno for each in formats if re.search(r"\dx|qii|hiqqq|qqqhi", str(each.value))]


def test_no_other_module_states_a_part_of_the_layout() -> None:
    assert second_statements('a = Struct(">8xi4xb")\nb = Struct(">qiibI")\nc = Struct(">hh")\n') == [1, 2]
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "batch_layout.py"
        for line in second_statements(path.read_text())
    }
    assert not found, "read the header by protocol/batch_layout.struct_of"
