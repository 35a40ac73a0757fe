"""Huge requests about records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

import struct
from typing import Any, Final

import crc32c

from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.compression import compress
from barnabas.protocol.primitives import encode_varint
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.processes.huge.request import ELEMENTS, HALF, WIDE, Huge, named, names, numbered
from tests.support.requests import Fields

RECORD: Final = b"\x0c\0\0\0\x01\x01\0"  # the first of a batch, without key and value
ZSTD: Final = 4


def record_at(delta: int) -> bytes:
    """The record of an offset delta, without key and value."""
    body = b"\0\0" + encode_varint(delta) + b"\x01\x01\0"
    return encode_varint(len(body)) + body


def small_batch() -> bytearray:
    """A batch of one record."""
    return build_batch([NewRecord(None, b"x", 1)])


def claiming(payload: bytes, count: int, codec: int = 0) -> bytearray:
    """A batch whose header says that this payload is `count` records. Its checksum is right."""
    batch = small_batch()[:HEADER_SIZE] + compress(codec, payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return batch


def produced(topics: list[Fields]) -> Fields:
    return {"acks": -1, "timeout_ms": 30_000, "topic_data": topics}


def produce_topics(count: int) -> Fields:
    return produced(named(names(count), partition_data=[{"index": 0, "records": None}]))


def produce_partitions(
    count: int, records: bytes | bytearray | None, topic: str = WIDE, first: int = 0, step: int = 1
) -> Fields:
    return produced(named([topic], partition_data=numbered(count, first, step, key="index", records=records)))


def produce_batch(batch: bytearray) -> Fields:
    return produce_partitions(1, batch)


def fetch_of(topics: list[Fields], **fields: Any) -> Fields:
    defaults = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
    return {"topics": topics, **defaults, **fields}


def fetch_partitions(count: int, topic: str = WIDE, first: int = 0, step: int = 1, **fields: Any) -> Fields:
    parts = numbered(count, first, step, key="partition", partition_max_bytes=1024)
    return fetch_of([{"topic": topic, "partitions": parts}], **fields)


def fetch_topics(count: int, **fields: Any) -> Fields:
    parts = [{"partition": 0, "partition_max_bytes": 1024}]
    return fetch_of([{"topic": name, "partitions": parts} for name in names(count)], **fields)


def forgotten_partitions() -> Fields:
    forgotten = [{"topic": WIDE, "partitions": list(range(ELEMENTS - 1))}]
    return fetch_of([], session_epoch=0, forgotten_topics_data=forgotten)


def list_offsets(count: int, timestamp: int, first: int = 0, step: int = 1) -> Fields:
    return {"topics": named([WIDE], partitions=numbered(count, first, step, timestamp=timestamp))}


def list_offsets_topics(count: int) -> Fields:
    return {"topics": named(names(count), partitions=[{"partition_index": 0, "timestamp": -1}])}


def epochs_of(count: int, first: int = 0) -> Fields:
    parts = numbered(count, first, key="partition", leader_epoch=0)
    return {"replica_id": -2, "topics": [{"topic": WIDE, "partitions": parts}]}


MANY: Final = ELEMENTS - 1
WAITING: Final[dict[str, Any]] = {"max_wait_ms": 100, "min_bytes": 1 << 30}

RECORDS: Final = (
    Huge("Produce: unknown topics", 9, {3}, lambda w: produce_topics(HALF)),
    Huge("Produce: unknown partitions", 9, {3}, lambda w: produce_partitions(MANY, None, first=w.partitions)),
    Huge("Produce: a record for every partition", 9, {0}, lambda w: produce_partitions(w.partitions, small_batch())),
    Huge("Produce: one partition, often", 9, {0, 42}, lambda w: produce_partitions(HALF, small_batch(), step=0)),
    Huge(
        "Produce: 68 bytes that claim 2^31 - 1 records",
        9,
        {87},
        lambda w: produce_batch(claiming(RECORD, 2**31 - 1)),
    ),
    Huge(
        "Produce: 2,000,000 records in a small zstd batch",
        9,
        {10},
        lambda w: produce_batch(claiming(RECORD * 2_000_000, 2_000_000, ZSTD)),
    ),
    Huge(
        "Produce: 100,000 records in a small zstd batch",
        9,
        {0},
        lambda w: produce_batch(claiming(b"".join(map(record_at, range(100_000))), 100_000, ZSTD)),
    ),
    Huge("Fetch: unknown topics", 12, {0, 3}, lambda w: fetch_topics(HALF)),
    Huge("Fetch: unknown topics in a session", 12, {0, 3}, lambda w: fetch_topics(HALF, session_epoch=0)),
    Huge("Fetch: unknown partitions", 12, {0, 3}, lambda w: fetch_partitions(MANY, first=w.partitions)),
    Huge("Fetch: every partition", 12, {0}, lambda w: fetch_partitions(w.partitions)),
    Huge("Fetch: every partition, waiting", 12, {0}, lambda w: fetch_partitions(w.partitions, **WAITING)),
    Huge("Fetch: one partition, often", 12, {0}, lambda w: fetch_partitions(MANY, step=0)),
    Huge("Fetch: forgotten partitions", 12, {0}, lambda w: forgotten_partitions()),
    Huge("ListOffsets: unknown topics", 7, {3}, lambda w: list_offsets_topics(HALF)),
    Huge("ListOffsets: unknown partitions", 7, {3}, lambda w: list_offsets(MANY, -1, first=w.partitions)),
    Huge("ListOffsets: every partition by time", 7, {0}, lambda w: list_offsets(w.partitions, 1)),
    Huge("ListOffsets: one partition by time, often", 7, {42}, lambda w: list_offsets(MANY, 1, step=0)),
    Huge("OffsetForLeaderEpoch: unknown partitions", 4, {3}, lambda w: epochs_of(MANY, w.partitions)),
    Huge("OffsetForLeaderEpoch: every partition", 4, {0}, lambda w: epochs_of(w.partitions)),
)
