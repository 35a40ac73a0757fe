"""Records of `__transaction_state` against bytes that Kafka 4.3.1 wrote."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.coordinator.transactions.records import TransactionRecord, decode_record, encode_record
from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.errors import RemoteProtocolError

S = TransactionState
TV1, TV2 = "b1795258283", "x1-1795258403"
T1 = frozenset({("t1", 0)})

# One transactional id of a TV1 client, and one of a TV2 client whose transaction takes the last epoch of its producer id.
FROM_KAFKA: list[tuple[str, str, dict[str, Any]]] = [
    (
        TV1,
        "0001000000000000000400000000ea600000000001a1fdbb778fffffffffffffffff0100080000000000000004",
        {"producer_id": 4, "producer_epoch": 0, "state": S.EMPTY, "started_ms": -1, "updated_ms": 1795258283919},
    ),
    (
        TV1,
        "0001000000000000000400000000ea600102037431020000000000000001a1fdbb77d9000001a1fdbb77d90100080000000000000004",
        {"producer_id": 4, "producer_epoch": 0, "state": S.ONGOING, "partitions": T1, "started_ms": 1795258283993},
    ),
    (
        TV1,
        "0001000000000000000400000000ea600302037431020000000000000001a1fdbb77dd000001a1fdbb77d90100080000000000000004",
        {"state": S.PREPARE_ABORT, "partitions": T1, "updated_ms": 1795258283997, "client_transaction_version": 0},
    ),
    (
        TV1,
        "0001000000000000000400000000ea600501000001a1fdbb77e0000001a1fdbb77d90100080000000000000004",
        {"state": S.COMPLETE_ABORT, "partitions": frozenset(), "previous_producer_id": 4, "next_producer_id": -1},
    ),
    (
        TV2,
        "000100000000000000107ffe0000ea600102037431020000000000000001a1fdbdabe7000001a1fdbdabe7020008000000000000001002020002",
        {"producer_id": 16, "producer_epoch": 32766, "state": S.ONGOING, "client_transaction_version": 2},
    ),
    (
        TV2,
        "000100000000000000107fff0000ea600202037431020000000000000001a1fdbdabed000001a1fdbdabe703000800000000000000100108000000000000001602020002",
        {"producer_epoch": 32767, "state": S.PREPARE_COMMIT, "previous_producer_id": 16, "next_producer_id": 22},
    ),
    (
        TV2,
        "0001000000000000001600000000ea600401000001a1fdbdabed000001a1fdbdabe7020008000000000000001002020002",
        {"producer_id": 22, "producer_epoch": 0, "state": S.COMPLETE_COMMIT, "previous_producer_id": 16},
    ),
]


@pytest.mark.parametrize(("transactional_id", "value", "expected"), FROM_KAFKA)
def test_reads_and_writes_what_kafka_writes(transactional_id: str, value: str, expected: dict[str, Any]) -> None:
    key = b"\0\0" + len(transactional_id).to_bytes(2, "big") + transactional_id.encode()
    record = decode_record(key, bytes.fromhex(value))
    assert record is not None
    assert record.metadata is not None
    assert record.transactional_id == transactional_id
    assert {name: getattr(record.metadata, name) for name in expected} == expected
    assert encode_record(record, 1) == (key, bytes.fromhex(value))


def test_version_0_has_no_tagged_fields() -> None:
    metadata = TransactionMetadata("a", 7, 6, 8, 3, state=S.ONGOING, partitions=frozenset({("t", 1)}), started_ms=5)
    key, value = encode_record(TransactionRecord("a", metadata), 0)
    read = decode_record(key, value)
    assert read is not None
    assert read.metadata == metadata._replace(previous_producer_id=-1, next_producer_id=-1)


def test_partitions_are_written_in_order() -> None:
    partitions = frozenset((topic, number) for topic in "cab" for number in (2, 0, 1))
    metadata = TransactionMetadata("a", 7, state=S.ONGOING, partitions=partitions)
    _, value = encode_record(TransactionRecord("a", metadata), 0)
    assert value is not None
    order = [value.index(name) for name in (b"\0\x01a", b"\0\x01b", b"\0\x01c")]
    assert order == sorted(order)


def test_a_tombstone_is_an_expired_id() -> None:
    key, value = encode_record(TransactionRecord("gone", None), 1)
    assert value is None
    assert decode_record(key, None) == TransactionRecord("gone", None)


def test_other_kinds_of_keys_are_passed_over() -> None:
    assert decode_record(b"\0\x09\0\0", b"") is None
    assert decode_record(None, b"") is None


@pytest.mark.parametrize("state", [6, 7, 8, -1])
def test_a_state_that_is_never_written_is_refused(state: int) -> None:
    metadata = TransactionMetadata("a", 7, state=S.EMPTY)
    key, value = encode_record(TransactionRecord("a", metadata), 0)
    assert value is not None
    damaged = bytearray(value)
    damaged[2 + 8 + 2 + 4] = state & 0xFF
    with pytest.raises(RemoteProtocolError):
        decode_record(key, bytes(damaged))
