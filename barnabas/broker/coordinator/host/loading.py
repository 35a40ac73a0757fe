"""Loading of a coordinator shard: reads its log and replays it in steps."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    struct_of,
)
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.record_codec import Record, single
from barnabas.protocol.records import CONTROL_ABORT, CONTROL_COMMIT, BatchHeader, read_control, read_header
from barnabas.storage.steps import record_slices, unpacked
from barnabas.work import SLICE, Steps

if TYPE_CHECKING:
    from barnabas.broker.replica.core.machine import Replica

log = logger("kafka.server")

LOAD_SLICE_BYTES = 128 * 1024  # read at once while loading: 2 ms of the loop where every batch has one record
REPLAYED_RECORDS = 256  # decoded and replayed in one step: 2 to 3 ms
_HEADER = struct_of("base_offset", "batch_length", "crc", "attributes", "producer_id", "producer_epoch", "record_count")
_COMMIT_KEY = b"\0\0\0\1"  # of a marker: version 0, COMMIT
_MARKER_VALUE_MIN = 6  # version, coordinator epoch
_UNREAD = (-1, None, None)
_KINDS = COMPRESSION_MASK | ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL


class Replayed(Protocol):
    """The part of a shard that loading uses.

    The last record of each key must have the same effect as all records of the key. `replay_marker` concerns the records that were replayed
    for its producer; records before the marker in the log may be replayed after it.
    """

    def decode(self, key: bytes | None, value: bytes | None) -> Any:
        """None for an unknown kind."""
        ...

    def replay(self, record: Any, producer_id: int, producer_epoch: int) -> None:
        """-1, -1 if its batch is not transactional, or its transaction is committed."""
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None: ...


class _Entry(NamedTuple):
    """A record that is not replayed yet."""

    place: int  # records of the slice before it
    key: bytes | None
    value: bytes | None
    offset: int
    producer_id: int
    producer_epoch: int


def replay_log(shard: Replayed, replica: Replica, end_offset: int) -> Steps[None]:
    """Replays the log of a replica up to `end_offset`, a slice in each step. Raises BrokerError(CORRUPT_MESSAGE), OSError."""
    offset = replica.log.log_start_offset
    while offset < end_offset:
        piece = replica.log.read(offset, LOAD_SLICE_BYTES, end_offset=end_offset)
        if not piece.records:
            return
        try:
            yield from _Slice(shard, offset).replay(piece.records)
        except RemoteProtocolError as error:
            raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batches from offset {offset} on: {error}") from error
        offset = piece.next_offset
        if offset < end_offset:
            yield SLICE


class _Slice:
    """Batches that are replayed together; only the last record of each key is decoded, as if the cleaner had just run.

    A record of a transaction that is committed within the slice counts at its place in the log, like one outside of transactions. Of open
    transactions the last record of each key and producer is replayed. The first batch may begin below `start`.
    """

    __slots__ = ("_open", "_place", "_plain", "_shard", "_start", "_tombstones")

    def __init__(self, shard: Replayed, start: int) -> None:
        self._shard = shard
        self._start = start
        self._place = 0
        self._plain: dict[bytes | None, _Entry] = {}  # outside of transactions, or of committed ones
        self._tombstones: dict[bytes | None, _Entry] = {}
        self._open: dict[int, dict[bytes | None, _Entry]] = {}  # of open transactions, by producer id

    def replay(self, records: Buffer) -> Steps[None]:
        """Replays whole batches; many records or many keys take several steps."""
        data = bytes(records)
        view = memoryview(data)
        end = len(data)
        at = 0
        # A log has hundreds of thousands of batches: this loop avoids calls and objects.
        unpack, start, plain, opened, new = _HEADER.unpack_from, self._start, self._plain, self._open, tuple.__new__
        while end - at >= HEADER_SIZE:
            base_offset, length, checksum, attributes, producer_id, producer_epoch, count = unpack(data, at)
            if length < BATCH_LENGTH_MIN:
                read_header(data, at)  # raises
            after = at + length + LENGTH_OVERHEAD
            if after > end:
                break
            if crc32c(view[at + CRC_COVERS_FROM : after]) != checksum:
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"checksum of the batch at {base_offset} is wrong")
            delta, key, value = -1, None, None
            if count == 1 and base_offset >= start and not attributes & COMPRESSION_MASK:
                delta, key, value = single(data, at + HEADER_SIZE, after) or _UNREAD
            if value is None:  # another form, or a tombstone
                yield from self._batch(view[at + HEADER_SIZE : after], read_header(data, at))
            elif not attributes & _KINDS:
                self._place = place = self._place + 1
                plain[key] = new(_Entry, (place, key, value, base_offset + delta, -1, -1))
            elif not attributes & ATTRIBUTE_CONTROL:
                self._place = place = self._place + 1
                entry = new(_Entry, (place, key, value, base_offset + delta, producer_id, producer_epoch))
                if producer_id in opened:
                    opened[producer_id][key] = entry
                else:
                    opened[producer_id] = {key: entry}
            elif key == _COMMIT_KEY and len(value) >= _MARKER_VALUE_MIN:
                self._commit(producer_id, producer_epoch)
            else:
                yield from self._batch(view[at + HEADER_SIZE : after], read_header(data, at))
            at = after
        yield from self._replay_waiting()

    def _batch(self, packed: Buffer, header: BatchHeader) -> Steps[None]:
        body = yield from unpacked(header.compression, packed)
        for number, (_, records) in enumerate(record_slices(body, header)):
            if number:
                yield from self._replay_waiting()
                yield SLICE
            for record in records:
                if header.is_control:
                    yield from self._control(record, header.producer_id, header.producer_epoch)
                elif record.offset >= self._start:
                    self._take(record, header)

    def _take(self, record: Record, header: BatchHeader) -> None:
        self._place += 1
        entry = _Entry(self._place, record.key, record.value, record.offset, -1, -1)
        if header.is_transactional:
            entry = entry._replace(producer_id=header.producer_id, producer_epoch=header.producer_epoch)
        if record.value is None:
            # A tombstone also deletes what transactions wrote before it, so a later record does not replace it.
            self._plain.pop(record.key, None)
            self._tombstones[record.key] = entry
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, {})[record.key] = entry
        else:
            self._plain[record.key] = entry

    def _control(self, record: Record, producer_id: int, producer_epoch: int) -> Steps[None]:
        kind = read_control(record).type
        if kind == CONTROL_COMMIT:
            self._commit(producer_id, producer_epoch)
        elif kind == CONTROL_ABORT:
            yield from self._replay_waiting()
            self._shard.replay_marker(producer_id, producer_epoch, commit=False)

    def _commit(self, producer_id: int, producer_epoch: int) -> None:
        """Waiting records of the transaction count like those outside of transactions; the shard ends the rest."""
        plain = self._plain
        for key, entry in self._open.pop(producer_id, {}).items():
            known = plain.get(key)
            if known is None or known.place < entry.place:
                plain[key] = entry._replace(producer_id=-1, producer_epoch=-1)
        self._shard.replay_marker(producer_id, producer_epoch, commit=True)

    def _replay_waiting(self) -> Steps[None]:
        groups = [
            self._plain.values(),
            self._tombstones.values(),
            *(entries.values() for entries in self._open.values()),
        ]
        waiting = sorted(chain.from_iterable(groups), key=itemgetter(0))
        self._plain.clear()
        self._tombstones.clear()
        self._open.clear()
        for number, entry in enumerate(waiting, start=1):
            self._replay(entry)
            if not number % REPLAYED_RECORDS:
                yield SLICE

    def _replay(self, entry: _Entry) -> None:
        decoded = self._shard.decode(entry.key, entry.value)
        if decoded is None:
            log.warning(
                "Record of an unknown kind is passed over: shard=%s offset=%d", type(self._shard).__name__, entry.offset
            )
        else:
            self._shard.replay(decoded, entry.producer_id, entry.producer_epoch)
