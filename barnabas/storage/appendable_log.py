"""Appends to a partition's log: batches from clients, markers, batches from the leader; begins a new segment when one is full.

`PartitionLog` adds the opening, removal of records and durability.

Invariants: state in memory changes only after the write succeeded. The base offsets of segments ascend, and only the last segment
grows.
Follows KIP-98, KIP-101, KIP-360, KIP-890.
"""

from __future__ import annotations

from typing import Final

from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError
from barnabas.ports import Buffer, Disk
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from barnabas.protocol.records import build_end_txn_marker, stamp
from barnabas.storage.inspection import Inspection
from barnabas.storage.log_config import INT64_MAX, AppendInfo, AppendOrigin, LogConfig
from barnabas.storage.log_files import LogFiles
from barnabas.storage.producer_entries import RetainedBatch
from barnabas.storage.producer_snapshots import ProducerSnapshots
from barnabas.storage.producers import CompletedTransaction
from barnabas.storage.readable_log import ReadableLog
from barnabas.storage.replay import StoredBatch, note_refused, replay
from barnabas.storage.segment import Segment
from barnabas.storage.validation import check_leader_batch, check_replicated_batches

COST_UNIT_BYTES: Final = 1_024  # copied, checksummed and written in half a microsecond
_new = tuple.__new__  # a named tuple's own constructor takes twice as long

ROLL_COST: Final = 1_500  # of a new segment (`AppendInfo.cost`): files are created and completed
PRODUCER_COST: Final = 2  # of a producer in the snapshot at its start


class AppendableLog(ReadableLog):
    """The append methods of a log. Attributes as in PartitionLog."""

    __slots__ = ("_disk", "_files", "_prepared", "directory", "size_bytes", "snapshots")

    def __init__(self, disk: Disk, directory: str, config: LogConfig) -> None:
        super().__init__()
        self._disk = disk
        self.directory = directory
        self.config = config
        self.size_bytes = 0
        self._files = LogFiles(disk, directory)
        self.snapshots = ProducerSnapshots(disk, self._files)
        self._prepared = False  # nothing changed since prepare_close

    # -- appending ------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batches: Buffer | Inspection,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: object | None = None,
    ) -> AppendInfo:
        """Checks one batch, assigns its offsets and writes it.

        Args:
            batches: one whole batch, or its finished inspection. A writable batch is changed in place.
            guard: the result of `verification_guard` before the coordinator verified the transaction.

        Raises:
            BrokerError: Kafka's refusal of the batch; nothing is written.
            LongBatch: the batch must be inspected first; nothing is written.
            OSError: the disk failed.
        """
        try:
            batch, attributes, delta, max_timestamp, producer_id, producer_epoch, sequence, cost = check_leader_batch(
                batches, self.config, origin, now_ms
            )
        except BrokerError as error:
            self._note_refused(batches, error)
            raise
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        transactional = attributes & ATTRIBUTE_TRANSACTIONAL != 0
        if producer_id >= 0:
            if attributes & ATTRIBUTE_CONTROL:
                raise LocalProtocolError("end-of-transaction markers are written by append_marker")
            client = origin is AppendOrigin.CLIENT
            producers = self.producers
            if client:
                repeated = producers.find_duplicate(producer_id, producer_epoch, sequence, delta)
                if repeated is not None:
                    return self._repeated(repeated, cost)
            if transactional and self.config.transaction_partition_verification_enable:
                producers.check_verified(producer_id, producer_epoch, guard)
            producers.check_data(producer_id, producer_epoch, sequence, transactional, sequenced=client)
        stamp(batch, 0, base_offset, leader_epoch)
        cost += self._append(batch, base_offset, last_offset, leader_epoch, max_timestamp, now_ms)
        if producer_id >= 0:
            self.producers.append_data(
                producer_id, producer_epoch, sequence, base_offset, last_offset, max_timestamp, transactional
            )
        self.producers.end_offset = last_offset + 1
        append_time_ms = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        size = len(batch)
        cost += size // COST_UNIT_BYTES
        fields = (base_offset, last_offset, append_time_ms, self.log_start_offset, False, max_timestamp, size, cost)
        return _new(AppendInfo, fields)

    def _note_refused(self, batches: Buffer | Inspection, error: BrokerError) -> None:
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            note_refused(self.producers, batches.batch if isinstance(batches, Inspection) else batches)

    def _repeated(self, stored: RetainedBatch, cost: int) -> AppendInfo:
        """The answer to a batch that the log already holds."""
        return AppendInfo(
            stored.first_offset,
            stored.last_offset,
            stored.timestamp if self.config.message_timestamp_type == "LogAppendTime" else -1,
            self.log_start_offset,
            True,
            stored.timestamp,
            0,
            cost,
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int,
    ) -> AppendInfo:
        """Writes the control batch that ends a producer's transaction in this partition. A repeated marker is written again, as in Kafka.

        Raises:
            BrokerError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
            OSError: the disk failed.
        """
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        offset = self.log_end_offset
        marker = build_end_txn_marker(
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=now_ms,
            base_offset=offset,
            leader_epoch=leader_epoch,
        )
        cost = self._append(marker, offset, offset, leader_epoch, now_ms, now_ms)
        self._complete(
            self.producers.append_marker(
                producer_id, producer_epoch, coordinator_epoch, offset, now_ms, aborted=not commit
            )
        )
        self.producers.end_offset = offset + 1
        return AppendInfo(offset, offset, -1, self.log_start_offset, False, now_ms, len(marker), cost)

    def append_as_follower(self, batches: Buffer, *, now_ms: int, segments_max: int = INT64_MAX) -> AppendInfo:
        """Writes batches with the offsets and epochs that the leader assigned. An incomplete batch at the end is ignored.

        Args:
            segments_max: how many segments may begin; batches after them are ignored, too.

        Raises:
            BrokerError: CORRUPT_MESSAGE: a batch is damaged, nothing is written; UNKNOWN_SERVER_ERROR if the offsets do not
                continue from the log's end.
            OSError: the disk failed; batches before the one that failed are in the log.
        """
        view = memoryview(batches)
        parsed = check_replicated_batches(view, self.log_end_offset)
        first_offset = parsed[0].base_offset if parsed else self.log_end_offset
        max_timestamp = -1
        size = 0
        run: list[StoredBatch] = []  # the batches of one write: neighbours that fit the segment
        for batch in parsed:
            pending = batch.position - run[0].position if run else 0
            if self.segments.active.is_full(
                batch.size, batch.last_offset, batch.max_timestamp, now_ms, self.config, pending=pending
            ):
                if not segments_max:
                    break
                segments_max -= 1
                self._append_run(view, run)
                run = []
                self._roll(batch.base_offset, now_ms)
            max_timestamp = max(max_timestamp, batch.max_timestamp)
            size += batch.size
            run.append(batch)
        self._append_run(view, run)
        return AppendInfo(first_offset, self.log_end_offset - 1, -1, self.log_start_offset, False, max_timestamp, size)

    def _append_run(self, view: memoryview, run: list[StoredBatch]) -> None:
        if not run:
            return
        self._prepared = False
        self.segments.active.append_run(view, run)
        for batch in run:
            data = view[batch.position : batch.position + batch.size]
            self._note(data, batch.base_offset, batch.last_offset, batch.leader_epoch)
            self._complete(replay(self.producers, batch, data))

    def _append(
        self, data: Buffer, base_offset: int, last_offset: int, leader_epoch: int, max_timestamp: int, now_ms: int
    ) -> int:
        """Writes one batch and updates everything except the producer state. Returns the cost of a new segment, 0 without one."""
        size = len(data)
        self._prepared = False
        segment = self.segments.active
        cost = 0
        if segment.size and segment.is_full(size, last_offset, max_timestamp, now_ms, self.config):
            segment = self._roll(base_offset, now_ms)
            cost = ROLL_COST + PRODUCER_COST * len(self.producers.entries)
        segment.append(data, last_offset, max_timestamp)
        self._note(data, base_offset, last_offset, leader_epoch)
        return cost

    def _note(self, data: Buffer, base_offset: int, last_offset: int, leader_epoch: int) -> None:
        self.size_bytes += len(data)
        if leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)
        self.log_end_offset = last_offset + 1
        self._tail.append(base_offset, data, last_offset + 1)

    def _complete(self, completed: CompletedTransaction | None) -> None:
        if completed is not None and (entry := completed.index_entry()) is not None:
            self.segments.active.aborted.append(entry)

    def expire_producers(self, now_ms: int) -> int:
        """Removes producers that were idle for producer.id.expiration.ms. Returns their number."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # -- segments -------------------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Begins a new segment at the log end. Does nothing if the last segment is empty."""
        if self.segments.active.size:
            self._roll(self.log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        new = Segment(self._disk, self.directory, base_offset, config=self.config, now_ms=now_ms)
        new.create()
        self._files.store_segment(self.segments.active)
        self.snapshots.store(base_offset, self.producers)
        self._files.store_epochs(self.epochs, self.log_end_offset)
        self.segments.add(new)
        return new
