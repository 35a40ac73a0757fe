"""Loading of a coordinator shard: its log is read and replayed in steps.

Driven by: the host of the shards, one step in each turn of the loop. Emits: calls of `replay` and `replay_marker`.

Only the last record of each key in a slice is replayed, as if the log had just been cleaned. A batch of many records takes several
steps. A batch whose checksum is wrong ends the loading, because its content cannot be trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.records import HEADER_SIZE, Record, crc_ok, iter_batches, read_control
from barnabas.storage.steps import Steps, record_slices, unpacked

if TYPE_CHECKING:
    from barnabas.broker.replica.machine import Replica

__all__ = ["LOAD_SLICE_BYTES", "Replayed", "replay_log"]

logger = logging.getLogger(__name__)

LOAD_SLICE_BYTES = 256 * 1024  # read and replayed at once while loading: about 10 ms of the loop


class Replayed(Protocol):
    """What loading needs of a shard."""

    def decode(self, key: bytes | None, value: bytes | None) -> Any:
        """A record of the log; None where its kind is unknown."""
        ...

    def replay(self, record: Any, producer_id: int, producer_epoch: int) -> None:
        """Applies a record; -1, -1 where its batch is not transactional."""
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Applies a transaction marker."""
        ...


def replay_log(shard: Replayed, replica: Replica, end_offset: int) -> Steps[None]:
    """Replays the log of a replica up to `end_offset`, a slice in each step.

    Raises:
        BrokerError: CORRUPT_MESSAGE: a batch is damaged.
        OSError: the disk failed.
    """
    offset = replica.log.log_start_offset
    while offset < end_offset:
        piece = replica.log.read(offset, LOAD_SLICE_BYTES, end_offset=end_offset)
        if not piece.records:
            return
        try:
            yield from _replay_slice(shard, piece.records, offset)
        except RemoteProtocolError as error:
            raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batches from offset {offset} on: {error}") from error
        offset = piece.next_offset
        if offset < end_offset:
            yield None


def _replay_slice(shard: Replayed, batches: Buffer, offset: int) -> Steps[None]:
    """Replays batches from `offset` on; one of many records takes several steps."""
    # Records outside of transactions; of each key the last, as the cleaner would leave them.
    plain: dict[bytes | None, Record] = {}
    for at, header in iter_batches(batches):
        if not crc_ok(batches, at, header):
            raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"checksum of the batch at {header.base_offset} is wrong")
        body = yield from unpacked(header.compression, memoryview(batches)[at + HEADER_SIZE : at + header.size_bytes])
        if header.is_control or header.is_transactional:
            _replay(shard, plain.values())
            plain.clear()
        for number, (_, records) in enumerate(record_slices(body, header)):
            if number:
                _replay(shard, plain.values())
                plain.clear()
                yield None
            if header.is_control:
                for record in records:
                    control = read_control(record)
                    if control.type in (0, 1):  # ABORT, COMMIT; leader changes and others do not concern a shard
                        shard.replay_marker(header.producer_id, header.producer_epoch, commit=control.type == 1)
            elif header.is_transactional:
                _replay(
                    shard,
                    (record for record in records if record.offset >= offset),
                    header.producer_id,
                    header.producer_epoch,
                )
            else:
                for record in records:
                    if record.offset >= offset:
                        plain.pop(record.key, None)
                        plain[record.key] = record
    _replay(shard, plain.values())


def _replay(shard: Replayed, records: Iterable[Record], producer_id: int = -1, producer_epoch: int = -1) -> None:
    for record in records:
        decoded = shard.decode(record.key, record.value)
        if decoded is None:
            logger.warning(
                "%s: record of an unknown kind at offset %d passed over", type(shard).__name__, record.offset
            )
        else:
            shard.replay(decoded, producer_id, producer_epoch)
