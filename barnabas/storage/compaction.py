"""Compaction: selects the records of a compacted log to keep and rewrites their batches (KIP-58, KIP-354, KIP-534).
Offsets, sequences, epochs and the offset range of a batch never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from barnabas.protocol.batch_layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_SIZE,
    NO_TIMESTAMP,
)
from barnabas.protocol.record_codec import Record, encode_kept, spans
from barnabas.protocol.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
    decode_records,
    frame_batch,
    read_control,
    read_header,
)
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.steps import packed, record_slices, unpacked
from barnabas.work import SLICE, Steps

# Fields of a batch that only marks the end of a segment: no producer, no transaction, no timestamps.
_PLACEHOLDER: Final = {
    "attributes": 0,
    "base_timestamp": NO_TIMESTAMP,
    "max_timestamp": NO_TIMESTAMP,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "record_count": 0,
}
ENTRY_BYTES: Final = 150  # memory of a key in the map, besides its own bytes


class OffsetMap:
    """The last offset of each key, in bounded memory, of all records up to `latest_offset` (-1 before the first)."""

    __slots__ = ("_offsets", "_size_bytes", "_size_bytes_max", "latest_offset")

    def __init__(self, size_bytes_max: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= self._size_bytes_max

    def put(self, key: bytes, offset: int) -> None:
        """Offsets must ascend."""
        if key not in self._offsets:
            self._size_bytes += ENTRY_BYTES + len(key)
        self._offsets[key] = offset

    def is_last(self, record: Record) -> bool:
        if record.offset > self.latest_offset:
            return True
        return record.key is not None and record.offset >= self._offsets.get(record.key, -1)


class LastRecord(NamedTuple):
    """The last data batch of an active producer: it stays, so that its sequence is not lost."""

    last_offset: int  # of its last data batch, -1 if its epoch has only a marker
    producer_epoch: int


def last_records(producers: PartitionProducers) -> dict[int, LastRecord]:
    return {producer_id: LastRecord(entry.last_offset, entry.epoch) for producer_id, entry in producers.entries.items()}


class CleanedTransactions:
    """Transactions in the batches of one pass; `aborted` are all aborted ones that overlap its range.

    `kept`: those whose data was read, in marker order. Their markers and index entries stay.
    """

    __slots__ = ("_aborted", "_committed", "_ongoing", "kept")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._aborted = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._ongoing: dict[int, tuple[AbortedTxn, bool]] = {}  # by producer id; True if data was read
        self._committed: set[int] = set()  # producer ids with data since their last marker
        self.kept: list[AbortedTxn] = []

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            one = self._aborted.pop()
            self._ongoing.setdefault(one.producer_id, (one, False))

    def on_data(self, header: BatchHeader) -> bool:
        """Returns whether the batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.attributes & ATTRIBUTE_TRANSACTIONAL:
            return False
        ongoing = self._ongoing.get(header.producer_id)
        if ongoing is None:
            self._committed.add(header.producer_id)
            return False
        self._ongoing[header.producer_id] = (ongoing[0], True)
        return True

    def on_control(self, header: BatchHeader, data: memoryview) -> bool:
        """Returns whether no earlier batch needs the marker: it is removed after its delete horizon."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True
        kind = read_control(decode_records(data, 0, header)[0]).type  # record_count > 0, so one exists or it raises
        if kind == CONTROL_ABORT:
            ongoing = self._ongoing.pop(header.producer_id, None)
            if ongoing is None or not ongoing[1]:
                return True
            self.kept.append(ongoing[0])
            return False
        if kind == CONTROL_COMMIT:
            if header.producer_id not in self._committed:
                return True
            self._committed.discard(header.producer_id)
        return False


class Rewriter:
    """Rewrites the batches of one cleaning. Tombstones and markers stay for `delete_retention_ms` after it."""

    __slots__ = ("_delete_retention_ms", "_now_ms", "_offsets", "_transactions", "producers")

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self.producers = producers

    def rewrite(self, data: memoryview, *, last: bool) -> Steps[memoryview | bytearray | None]:
        """Returns the batch, a new one, or None to remove it; a segment's `last` stays. Raises RemoteProtocolError."""
        header = read_header(data)
        kept: memoryview | bytearray | None
        if header.attributes & ATTRIBUTE_CONTROL:
            kept = yield from self._control(header, data)
        elif self._transactions.on_data(header) or not header.record_count:
            kept = None
        else:
            kept = yield from self._records(header, data)
        # The last sequence of an active producer must survive.
        if kept is None and self._is_last_of_producer(header):
            return _without_records(header) if header.record_count else data
        # Kafka 4.3 keeps an empty last batch so that no offsets seem lost.
        if kept is None and last:
            return frame_batch(header._replace(**_PLACEHOLDER), b"")
        return kept

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        known = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if known is None:
            return False
        if known.last_offset >= 0:
            return header.last_offset == known.last_offset
        return header.is_control and header.producer_epoch == known.producer_epoch

    def _horizon_passed(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self._now_ms

    def _control(self, header: BatchHeader, data: memoryview) -> Steps[memoryview | bytearray | None]:
        removable = self._transactions.on_control(header, data)
        if not header.record_count or (removable and self._horizon_passed(header)):
            return None
        # KIP-534: the first cleaning sets the delete horizon, in place of the base timestamp.
        if removable and not header.has_delete_horizon:
            body = yield from unpacked(header.compression, data[HEADER_SIZE:])
            return (yield from self._with_horizon(header, body, lambda _: True))
        return data

    def _records(self, header: BatchHeader, data: memoryview) -> Steps[memoryview | bytearray | None]:
        body = yield from unpacked(header.compression, data[HEADER_SIZE:])
        is_last = self._offsets.is_last
        drops_tombstones = self._horizon_passed(header)
        latest = self._offsets.latest_offset

        def stays(record: Record) -> bool:
            # A record above `latest` is never removed because of its key.
            return is_last(record) and (record.value is not None or not drops_tombstones or record.offset > latest)

        pieces: list[bytes] = []
        count = 0
        max_timestamp = NO_TIMESTAMP
        marks = False  # a tombstone without a delete horizon stays
        for number, (piece, records) in enumerate(record_slices(body, header)):
            if number:
                yield SLICE
            kept = [index for index, record in enumerate(records) if stays(record)]
            if not kept:
                continue
            count += len(kept)
            max_timestamp = max(max_timestamp, *(records[index].timestamp for index in kept))
            marks = marks or (not header.has_delete_horizon and any(records[index].value is None for index in kept))
            at = spans(piece, len(records))
            pieces += [piece[slice(*at[index])] for index in kept]
        if not count:
            return None
        if marks:
            return (yield from self._with_horizon(header, body, stays))
        if count == header.record_count:
            return data
        return (yield from _rebuilt(header, b"".join(pieces), count, max_timestamp))

    def _with_horizon(
        self, header: BatchHeader, body: bytes, stays: Callable[[Record], bool]
    ) -> Steps[memoryview | bytearray | None]:
        horizon_ms = self._now_ms + self._delete_retention_ms
        marked = header._replace(
            attributes=header.attributes | ATTRIBUTE_DELETE_HORIZON,
            base_timestamp=horizon_ms,
        )
        pieces: list[bytes] = []
        count = 0
        max_timestamp = NO_TIMESTAMP
        for number, (_, records) in enumerate(record_slices(body, header)):
            if number:
                yield SLICE
            kept = [record for record in records if stays(record)]
            count += len(kept)
            max_timestamp = max([max_timestamp, *(record.timestamp for record in kept)])
            pieces.append(encode_kept(kept, header.base_offset, horizon_ms))
        return (yield from _rebuilt(marked, b"".join(pieces), count, max_timestamp))


def _rebuilt(header: BatchHeader, payload: bytes, count: int, max_timestamp: int) -> Steps[bytearray]:
    fields = header._replace(record_count=count, max_timestamp=max_timestamp)
    return frame_batch(fields, (yield from packed(header.compression, payload)))


def _without_records(header: BatchHeader) -> bytearray:
    kept = ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    return frame_batch(
        header._replace(attributes=header.attributes & kept, base_timestamp=NO_TIMESTAMP, record_count=0), b""
    )
