"""The log of one partition: segments, producer state, epochs and offsets, in a folder laid out as Kafka's.

Driven by: the replica that owns it, synchronously, with `now_ms`. Emits: offsets of appends, slices of whole batches, BrokerError
for what Kafka refuses, OSError for what the disk refuses; the files that a sync must cover.

Durability is the caller's: `unsynced_files` names the files, the caller syncs them and says so with `mark_synced`. Small
files are written without a sync, because each can be had again: partition.metadata from the topic id that the metadata log
holds, leader-epoch-checkpoint and indexes from the batches above the recovery point; all are in
`unsynced_files` before the recovery point passes them.

Invariants: log_start_offset ≤ recovery_point and last stable offset ≤ log_end_offset; state in memory changes only after
the write succeeded; segments' base offsets ascend, the last segment alone grows.
Follows KIP-98, KIP-101, KIP-360, KIP-890, KIP-107 (DeleteRecords).
"""

from __future__ import annotations

from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError
from barnabas.ports import Buffer, Disk, File
from barnabas.protocol.records import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    build_end_txn_marker,
    stamp,
)
from barnabas.storage import recovery
from barnabas.storage.aborted import AbortedTransaction
from barnabas.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    format_epochs,
    format_partition_metadata,
)
from barnabas.storage.epochs import EpochCache
from barnabas.storage.log_config import AppendInfo, LogConfig, Origin
from barnabas.storage.log_files import LogFiles
from barnabas.storage.producers import CompletedTransaction, ProducerState
from barnabas.storage.replay import StoredBatch, replay
from barnabas.storage.retention import expired_segments
from barnabas.storage.segment import LogSlice, Segment, TimestampOffset, file_name
from barnabas.storage.segments import Segments
from barnabas.storage.tail import Tail
from barnabas.storage.validation import RecordValidationError, check_leader_batch, check_replicated_batches

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "LogConfig",
    "LogSlice",
    "Origin",
    "PartitionLog",
    "RecordValidationError",
    "TimestampOffset",
]


class PartitionLog:
    """One partition's log. Open it with `PartitionLog.open`.

    Attributes:
        directory: its folder on the disk.
        topic_id: 16 bytes; zeros where the folder has none.
        log_start_offset: the first offset that may be read.
        log_end_offset: the next offset to be written.
        recovery_point: everything below it is durable.
        cleaned_to: the cleaner has been through everything below it.
        size_bytes: of all its .log files.
        cuts: how often its end was taken back: a sync that began before a cut says nothing of what was appended after it.
    """

    __slots__ = (
        "_disk",
        "_files",
        "_prepared",
        "_snapshot_offset",
        "_stored_epochs",
        "_tail",
        "cleaned_to",
        "config",
        "cuts",
        "directory",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recovery_point",
        "segments",
        "size_bytes",
        "topic_id",
        "truncated_bytes",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig, topic_id: bytes) -> None:
        self._disk = disk
        self.directory = directory
        self.config = config
        self.topic_id = topic_id
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.cleaned_to = 0
        self.size_bytes = 0
        self.cuts = 0
        self.truncated_bytes = 0  # cut off by the recovery that opened it
        self.epochs = EpochCache()
        self.producers = ProducerState()
        self.segments: Segments
        self._tail = Tail(0)
        self._snapshot_offset = 0  # of the newest producer snapshot on disk
        self._stored_epochs: list[tuple[int, int]] = []  # as the checkpoint has them
        self._files = LogFiles(disk, directory)
        self._prepared = False  # nothing changed since prepare_close

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        topic_id: bytes | None,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> PartitionLog:
        """Opens a folder, or makes it where it is missing.

        Args:
            topic_id: whose folder it must be; None takes the id found there.
            clean: the last stop was clean, so files are trusted. Otherwise what lies beyond `recovery_point` is read and checked.
            log_start_offset: as the checkpoint has it: the log may not show anything below.

        Raises:
            BrokerError: INCONSISTENT_TOPIC_ID: the folder belongs to another topic of that name.
            OSError: as the disk says.
        """
        log = cls(disk, directory, config, topic_id or bytes(16))
        if not disk.exists(directory):
            disk.mkdir(directory)
            if topic_id is not None:
                log._files.store(PARTITION_METADATA, format_partition_metadata(topic_id))
            log._start_empty(log_start_offset, now_ms)
            return log
        log.topic_id = log._files.claim(topic_id)
        loaded = recovery.load(
            disk,
            directory,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        log.segments = Segments(loaded.segments)
        log.producers = loaded.producers
        log.epochs = loaded.epochs
        log._stored_epochs = [] if loaded.epochs.dirty else loaded.epochs.entries
        log.log_start_offset = loaded.log_start_offset
        log.log_end_offset = loaded.log_end_offset
        log.recovery_point = loaded.recovery_point
        log.truncated_bytes = loaded.truncated_bytes
        log.size_bytes = log.segments.size_bytes
        log._tail.clear(log.log_end_offset)
        log._snapshot_offset = loaded.snapshot_offset
        for segment in loaded.recovered:
            if segment is not log.segments.active:
                log._files.store_segment(segment)
        return log

    def _start_empty(self, offset: int, now_ms: int) -> None:
        segment = Segment(self._disk, self.directory, offset, config=self.config, now_ms=now_ms)
        segment.create()
        self.segments = Segments([segment])
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self.size_bytes = 0
        self._tail.clear(offset)
        self.producers.clear(offset)
        self._snapshot_offset = 0

    # -- appending ------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: object | None = None,
    ) -> AppendInfo:
        """Checks one batch, gives it offsets and writes it.

        Args:
            batches: one whole batch; stamped in place where it is writable.
            guard: what `verification_guard` returned before the coordinator verified the transaction.

        Raises:
            BrokerError: whatever Kafka answers to such a batch, nothing is written then.
            OSError: the disk failed.
        """
        batch, attributes, delta, max_timestamp, producer_id, producer_epoch, sequence = check_leader_batch(
            batches, self.config, origin, now_ms
        )
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        transactional = attributes & ATTRIBUTE_TRANSACTIONAL != 0
        if producer_id >= 0:
            if attributes & ATTRIBUTE_CONTROL:
                raise LocalProtocolError("end-of-transaction markers are written by append_marker")
            client = origin is Origin.CLIENT
            producers = self.producers
            if client:
                repeated = producers.find_duplicate(producer_id, producer_epoch, sequence, delta)
                if repeated is not None:
                    return AppendInfo(
                        repeated.first_offset,
                        repeated.last_offset,
                        repeated.timestamp if self.config.message_timestamp_type == "LogAppendTime" else -1,
                        self.log_start_offset,
                        True,
                        repeated.timestamp,
                        0,
                    )
            if transactional and self.config.transaction_partition_verification_enable:
                producers.check_verified(producer_id, producer_epoch, guard)
            producers.check_data(producer_id, producer_epoch, sequence, transactional, sequenced=client)
        stamp(batch, 0, base_offset, leader_epoch)
        self._append(batch, base_offset, last_offset, leader_epoch, max_timestamp, now_ms)
        if producer_id >= 0:
            self.producers.append_data(
                producer_id, producer_epoch, sequence, base_offset, last_offset, max_timestamp, transactional
            )
        self.producers.end_offset = last_offset + 1
        return AppendInfo(
            base_offset,
            last_offset,
            now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1,
            self.log_start_offset,
            False,
            max_timestamp,
            len(batch),
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
        """Writes the control batch that ends a producer's transaction here. A repeated one is written again, as Kafka does.

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
        self._append(marker, offset, offset, leader_epoch, now_ms, now_ms)
        self._complete(
            self.producers.append_marker(
                producer_id, producer_epoch, coordinator_epoch, offset, now_ms, aborted=not commit
            )
        )
        self.producers.end_offset = offset + 1
        return AppendInfo(offset, offset, -1, self.log_start_offset, False, now_ms, len(marker))

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> AppendInfo:
        """Writes batches whose offsets and epochs a leader assigned. A batch cut off at the end is left out.

        Raises:
            BrokerError: CORRUPT_MESSAGE: nothing of it may be written; UNKNOWN_SERVER_ERROR where its offsets do not
                go on from the log's end.
            OSError: the disk failed; batches before the one that failed are in the log.
        """
        view = memoryview(batches)
        parsed = check_replicated_batches(view, self.log_end_offset)
        first_offset = parsed[0].base_offset if parsed else self.log_end_offset
        max_timestamp = -1
        size = 0
        run: list[StoredBatch] = []  # what one write takes: neighbours that fit the segment
        for batch in parsed:
            max_timestamp = max(max_timestamp, batch.max_timestamp)
            size += batch.size
            pending = batch.position - run[0].position if run else 0
            if self.segments.active.is_full(
                batch.size, batch.last_offset, batch.max_timestamp, now_ms, self.config, pending=pending
            ):
                self._append_run(view, run)
                run = []
                self._roll(batch.base_offset, now_ms)
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
    ) -> None:
        """Writes one batch and notes it everywhere but in the producer state."""
        size = len(data)
        self._prepared = False
        segment = self.segments.active
        if segment.size and segment.is_full(size, last_offset, max_timestamp, now_ms, self.config):
            segment = self._roll(base_offset, now_ms)
        segment.append(data, last_offset, max_timestamp)
        self._note(data, base_offset, last_offset, leader_epoch)

    def _note(self, data: Buffer, base_offset: int, last_offset: int, leader_epoch: int) -> None:
        self.size_bytes += len(data)
        if leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)
        self.log_end_offset = last_offset + 1
        self._tail.append(base_offset, data, last_offset + 1)

    def _complete(self, completed: CompletedTransaction | None) -> None:
        if completed is not None and (entry := completed.index_entry()) is not None:
            self.segments.active.aborted.append(entry)

    # -- transactions ---------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins, never below the log start; None without one."""
        first = self.producers.first_undecided_offset
        return None if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to here (exclusive) every transaction is decided, and its marker below the high watermark."""
        first = self.producers.first_unstable_offset(high_watermark)
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def verification_guard(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, supports_epoch_bump: bool = False
    ) -> object | None:
        """Begins the verification of a transaction (KIP-890).

        Args:
            base_sequence: lowest sequence of what waits; -1 where it has none.
            supports_epoch_bump: the request is of a version (Produce ≥ 12, TxnOffsetCommit ≥ 5) that belongs to TV2.

        Returns:
            None where the transaction is ongoing here: append without. Else what the append after the verification must bring.
        """
        return self.producers.verification_guard(
            producer_id, producer_epoch, base_sequence, supports_epoch_bump=supports_epoch_bump
        )

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether that producer has a transaction open here, in that epoch."""
        return self.producers.has_ongoing_transaction(producer_id, producer_epoch)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that a reader of [start_offset, end_offset) must skip, in the order of their markers."""
        return self.segments.aborted_transactions(start_offset, end_offset)

    def expire_producers(self, now_ms: int) -> int:
        """Forgets producers idle for producer.id.expiration.ms; returns how many."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True) -> LogSlice:
        """Whole batches from the one that holds `offset`, that begin below `end_offset`.

        Args:
            max_bytes: at most so many, but for a first batch that is larger, with `at_least_one`.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE: below the log start or above the log end.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within [{self.log_start_offset}, {self.log_end_offset}]",
            )
        if offset >= end_offset:
            return LogSlice(b"", offset, offset)
        if offset >= self._tail.start_offset:
            return self._tail.read(offset, max_bytes, end_offset, at_least_one)
        return self.segments.read(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one)

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> TimestampOffset | None:
        """The first record below `end_offset` that is as young as `timestamp` or younger."""
        return self.segments.offset_for_timestamp(timestamp, self.log_start_offset, end_offset)

    def max_timestamp_offset(self, end_offset: int) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log; None where it has none or it is not below `end_offset`."""
        return self.segments.max_timestamp_offset(self.log_start_offset, end_offset)

    # -- segments come and go -------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Begins a new segment at the log end; nothing happens where the last one is empty."""
        if self.segments.active.size:
            self._roll(self.log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        new = Segment(self._disk, self.directory, base_offset, config=self.config, now_ms=now_ms)
        new.create()
        self._files.store_segment(self.segments.active)
        self._store_snapshot(base_offset)
        self._store_epochs()
        self.segments.add(new)
        return new

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Deletes whole segments that are too old, too many, or below the log start. Returns how many.

        Only what lies below the high watermark goes. Files are renamed at once and removed file.delete.delay.ms later, by a
        later call.
        """
        self._files.purge(now_ms)
        count = expired_segments(
            self.segments.all, self.config, now_ms, self.log_start_offset, high_watermark, self.log_end_offset
        )
        if count == 0:
            return 0
        if count == len(self.segments):
            self.roll(now_ms)
        for segment in self.segments.take_oldest(count):
            self.size_bytes -= segment.size
            self._files.delete_segment(segment, now_ms + self.config.file_delete_delay_ms)
        if self.segments.first.base_offset > self.log_start_offset:
            self._move_start(self.segments.first.base_offset)
        return count

    def swap_in(self, cleaned: Segment, replaced: list[Segment], now_ms: int) -> None:
        """Puts a segment that the cleaner wrote, and that is synced, in the place of those it was made of: a crash leaves either."""
        cleaned.rename(recovery.SWAP_SUFFIX)
        self.segments.replace(replaced, cleaned)
        self.size_bytes += cleaned.size - sum(segment.size for segment in replaced)
        deadline_ms = now_ms + self.config.file_delete_delay_ms
        for segment in replaced:
            self._files.delete_segment(segment, deadline_ms, with_snapshot=segment is not replaced[0])
        cleaned.rename("")
        if self._tail.start_offset < self.segments.from_offset(cleaned.base_offset)[1].base_offset:
            self._tail.clear(self.log_end_offset)  # it holds what was cleaned as it was before

    def delete_records_before(self, offset: int) -> None:
        """Moves the log start up to `offset` (KIP-107); segments below it go with the next retention.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE: above the log end.
        """
        if offset > self.log_end_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}, the log ends at {self.log_end_offset}")
        if offset > self.log_start_offset:
            self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.recovery_point = max(self.recovery_point, offset)
        self.epochs.truncate_from_start(offset)

    def truncate_to(self, offset: int) -> None:
        """Cuts the log so that it ends at `offset`, or where the batch that holds it begins."""
        if offset >= self.log_end_offset:
            # An epoch that this replica began as leader and never wrote in is not the new leader's.
            self.epochs.truncate_from_end(offset)
            return
        if offset <= self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        while self.segments.active.base_offset >= offset:
            recovery.remove_segment(self._disk, self.directory, self.segments.take_active())
        self.log_end_offset = self.segments.active.truncate_to(offset)
        self._files.changed(self.segments.active.log_path)
        self._after_cut(self.log_end_offset)
        recovery.rebuild_producers(
            self._disk,
            self.directory,
            self.segments.all,
            recovery.snapshot_offsets(self._disk.listdir(self.directory)),
            self.producers,
            self.config,
            None,
            self.log_start_offset,
            self.log_end_offset,
        )

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Empties the log and begins anew at `offset`: nothing of it is shared with the leader's."""
        created_ms = self.segments.active.created_ms
        while len(self.segments):
            recovery.remove_segment(self._disk, self.directory, self.segments.take_active())
        self._after_cut(offset)
        self.epochs.clear()
        self._start_empty(offset, created_ms)

    def _after_cut(self, end_offset: int) -> None:
        self._prepared = False
        self.cuts += 1
        self.recovery_point = min(self.recovery_point, end_offset)
        self.cleaned_to = min(self.cleaned_to, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.size_bytes = self.segments.size_bytes
        self._tail.clear(end_offset)
        self.epochs.truncate_from_end(end_offset)
        for snapshot in recovery.snapshot_offsets(self._disk.listdir(self.directory)):
            if snapshot > end_offset:  # it tells of what is gone
                self._files.remove(file_name(snapshot, recovery.SNAPSHOT_SUFFIX))
        self._snapshot_offset = min(self._snapshot_offset, end_offset)
        self._store_epochs()

    # -- durability -----------------------------------------------------------------------------------------------

    def unsynced_files(self) -> list[File]:
        """The files that a sync must cover so that everything below the present log end is durable.

        Sync them, then call `mark_synced` with the log end offset of now. A second call before that is fine.
        """
        if self.log_end_offset == 0:
            return []  # a folder that holds no record is made again where it is lost
        files = self._files.mark(self.log_end_offset)
        if self.recovery_point < self.log_end_offset or files:
            files.append(self.segments.active.file)
        return files

    def mark_synced(self, up_to_offset: int) -> None:
        """A sync of what `unsynced_files` gave when the log ended at `up_to_offset` is over."""
        self._files.synced(up_to_offset)
        self.recovery_point = max(self.recovery_point, min(up_to_offset, self.log_end_offset))

    def prepare_close(self) -> list[File]:
        """Writes what a clean stop needs: indexes, epochs, the producer snapshot at the log end. Returns what is to be synced.

        For a stop of many logs: prepare all, sync all files at once, `mark_synced`, close.
        """
        if not self._prepared:
            if self.segments.active.size:
                self._files.store_segment(self.segments.active)
            self._store_snapshot(self.log_end_offset)
            self._store_epochs()
            self._files.purge(None)
            self._prepared = True
        return self.unsynced_files()

    def close(self) -> None:
        """Prepares, syncs what is not synced, and lets go of the files. The log may not be used after it."""
        files = self.prepare_close()
        if files:
            self._disk.sync_now(files)
        self.mark_synced(self.log_end_offset)
        self.abandon()

    def abandon(self) -> None:
        """Lets go of the files and writes nothing: the disk failed, or the folder is about to be deleted."""
        for segment in self.segments:
            segment.close()

    def rename(self, directory: str) -> None:
        """Moves the folder (Kafka's `-delete` and `-stray` names); the log may not be used after it."""
        self.abandon()
        self._disk.rename(self.directory, directory)
        self.directory = directory

    def reconfigure(self, config: LogConfig) -> None:
        """Takes the topic's new configuration; from the next append on."""
        self.config = config

    def _store_snapshot(self, offset: int) -> None:
        if offset > self._snapshot_offset:
            self._files.store(file_name(offset, recovery.SNAPSHOT_SUFFIX), self.producers.to_snapshot())
            self._snapshot_offset = offset

    def _store_epochs(self) -> None:
        """Writes the epochs that have records: one without is forgotten by the next load, and every start begins one."""
        if self.epochs.dirty:
            written = [entry for entry in self.epochs.entries if entry[1] < self.log_end_offset]
            if written != self._stored_epochs:
                self._files.replace(LEADER_EPOCH_CHECKPOINT, format_epochs(written))
                self._stored_epochs = written
            self.epochs.dirty = len(written) < len(self.epochs.entries)
