"""Producer entries of a partition and their files: Kafka's .snapshot, and earlier batches that Kafka does not store."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from barnabas.errors import BarnabasError
from barnabas.limits import SEQUENCE_MAX
from barnabas.ports import Buffer
from barnabas.protocol.checksum import crc32c
from barnabas.work import Steps

NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

_SNAPSHOT_HEADER = struct.Struct(">hIi")  # version, crc32c of the following bytes, number of entries
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_EARLIER_BATCH = struct.Struct(">qiqiq")  # producer id, last sequence, last offset, delta, timestamp
_SNAPSHOT_VERSION = 1
_CRC_END = 6
_PACKED_PER_UNIT: Final = 32
_new = tuple.__new__  # a named tuple's own constructor takes twice as long


class MalformedSnapshot(BarnabasError):
    """A .snapshot file is damaged or has another version: read an older one or the log."""


def wrapped(sequence: int) -> int:
    return sequence if sequence <= SEQUENCE_MAX else sequence - SEQUENCE_MAX - 1


class RetainedBatch(NamedTuple):
    """A batch that is kept to recognise its duplicates."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @classmethod
    def stored(cls, last_sequence: int, last_offset: int, delta: int, timestamp: int) -> RetainedBatch:
        first_sequence = last_sequence - delta
        if last_sequence >= 0 > first_sequence:
            first_sequence += SEQUENCE_MAX + 1
        return cls(first_sequence if last_sequence >= 0 else NO_SEQUENCE, last_sequence, last_offset, delta, timestamp)

    @classmethod
    def of(cls, first_sequence: int, first_offset: int, last_offset: int, timestamp: int) -> RetainedBatch:
        delta = last_offset - first_offset
        last_sequence = first_sequence + delta if first_sequence >= 0 else NO_SEQUENCE
        if last_sequence > SEQUENCE_MAX:
            last_sequence = wrapped(last_sequence)
        return _new(cls, (first_sequence, last_sequence, last_offset, delta, timestamp))


_NO_BATCH: Final = RetainedBatch(NO_SEQUENCE, NO_SEQUENCE, -1, 0, -1)


class ProducerEntry:
    """State of one producer id."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "transaction_first_offset")

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.coordinator_epoch = -1  # of the last marker
        self.last_timestamp = -1
        self.transaction_first_offset = -1  # -1: no transaction open
        self.batches: list[RetainedBatch] = []

    def copy(self) -> ProducerEntry:
        new = ProducerEntry()
        new.epoch, new.coordinator_epoch = self.epoch, self.coordinator_epoch
        new.last_timestamp, new.transaction_first_offset = self.last_timestamp, self.transaction_first_offset
        new.batches = self.batches.copy()
        return new

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of its last data record; -1 if this epoch has no batch."""
        return self.batches[-1].last_offset if self.batches else -1


class PackedProducers(NamedTuple):
    """Producers as bytes: a .snapshot file, and the batches before the last one of each producer."""

    snapshot: bytes
    earlier: bytes


class ProducerCapture:
    """A partition's producers at one moment, packed in slices while the partition changes."""

    __slots__ = ("_captures", "_entries")

    def __init__(self, entries: dict[int, ProducerEntry], captures: list[ProducerCapture]) -> None:
        self._entries = entries.copy()
        self._captures = captures  # of the state, while this one needs `keep`
        captures.append(self)

    def keep(self, producer_id: int, entry: ProducerEntry) -> None:
        if self._entries.get(producer_id) is entry:
            self._entries[producer_id] = entry.copy()

    def packing(self) -> Steps[PackedProducers]:
        try:
            pack, parts, earlier = _SNAPSHOT_ENTRY.pack, [], []
            producers = iter(self._entries.items())
            while chunk := list(islice(producers, _PACKED_PER_UNIT)):
                packed = [
                    pack(
                        producer_id,
                        entry.epoch,
                        (last := entry.batches[-1] if entry.batches else _NO_BATCH).last_sequence,
                        last.last_offset,
                        last.offset_delta,
                        entry.last_timestamp,
                        entry.coordinator_epoch,
                        entry.transaction_first_offset,
                    )
                    for producer_id, entry in chunk
                ]
                parts.append(b"".join(packed))
                packed = [
                    _EARLIER_BATCH.pack(producer_id, *batch[1:])
                    for producer_id, entry in chunk
                    if len(entry.batches) > 1
                    for batch in entry.batches[:-1]
                ]
                earlier.append(b"".join(packed))
                if len(chunk) == _PACKED_PER_UNIT:
                    yield 1 + len(packed) // _PACKED_PER_UNIT
            data = bytearray(_SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, 0, len(self._entries)) + b"".join(parts))
            struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_END:]))
            yield len(parts) // _PACKED_PER_UNIT
            return PackedProducers(bytes(data), b"".join(earlier))
        finally:
            self._captures.remove(self)


def read_earlier(data: Buffer) -> Iterable[tuple[int, RetainedBatch]]:
    """Batches of `PackedProducers.earlier`, oldest first for each producer. Raises MalformedSnapshot."""
    if len(data) % _EARLIER_BATCH.size:
        raise MalformedSnapshot(f"{len(data)} bytes of earlier batches of {_EARLIER_BATCH.size} bytes each")
    for producer_id, *fields in _EARLIER_BATCH.iter_unpack(data):
        yield producer_id, RetainedBatch.stored(*fields)


def read_snapshot(data: Buffer) -> Iterable[tuple[int, ProducerEntry]]:
    if len(data) < _SNAPSHOT_HEADER.size:
        raise MalformedSnapshot(f"{len(data)} bytes, a snapshot has at least {_SNAPSHOT_HEADER.size}")
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise MalformedSnapshot(f"snapshot of version {version}, only {_SNAPSHOT_VERSION} is read")
    if len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        raise MalformedSnapshot(f"{len(data)} bytes for {count} entries")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise MalformedSnapshot("its checksum does not hold")
    for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = fields
        entry = ProducerEntry()
        entry.epoch = epoch
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        entry.transaction_first_offset = first_offset
        if last_offset >= 0:
            entry.batches.append(RetainedBatch.stored(last_sequence, last_offset, delta, timestamp))
        yield producer_id, entry
