"""The log of one partition: segments, producer state, epochs and offsets, in a folder with Kafka's layout.

Driven by: the replica that owns it, synchronously, with `now_ms`. Emits: offsets of appends, slices of whole batches, the files that
a sync must cover; BrokerError for requests that Kafka refuses, OSError for failures of the disk.

The caller is responsible for durability: `unsynced_files` returns the files, the caller syncs them and then calls `mark_synced`. Small
files are written without a sync, because each can be rebuilt: partition.metadata from the topic id in the metadata log,
leader-epoch-checkpoint and indexes from the batches above the recovery point. `unsynced_files` contains all of them before the recovery
point passes them.

Invariants: log_start_offset ≤ recovery_point and last stable offset ≤ log_end_offset. State in memory changes only after
the write succeeded. The base offsets of segments ascend, and only the last segment grows.
Follows KIP-98, KIP-101, KIP-360, KIP-890, KIP-107 (DeleteRecords).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError
from barnabas.ports import Buffer, Disk, File
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from barnabas.protocol.records import build_end_txn_marker, stamp
from barnabas.storage import recovery
from barnabas.storage.aborted import AbortedTransaction
from barnabas.storage.checkpoints import PARTITION_METADATA, format_partition_metadata
from barnabas.storage.inspection import Inspection
from barnabas.storage.log_config import INT64_MAX, AppendInfo, AppendOrigin, LogConfig
from barnabas.storage.log_files import LogFiles
from barnabas.storage.opening import DamagedLog, LogOpening
from barnabas.storage.producer_rebuild import ProducerRebuild
from barnabas.storage.producer_snapshots import ProducerSnapshots
from barnabas.storage.producers import CompletedTransaction
from barnabas.storage.readable_log import ReadableLog
from barnabas.storage.replay import StoredBatch, note_refused, replay
from barnabas.storage.retention import expired_segments
from barnabas.storage.saved_state import StateFiles
from barnabas.storage.segment import LogSlice, Segment, TimestampOffset
from barnabas.storage.segments import Segments
from barnabas.storage.validation import RecordValidationError, check_leader_batch, check_replicated_batches

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "AppendOrigin",
    "DamagedLog",
    "LogConfig",
    "LogOpening",
    "LogSlice",
    "PartitionLog",
    "RecordValidationError",
    "TimestampOffset",
]

COST_UNIT_BYTES: Final = 1_024  # copied, checksummed and written in half a microsecond
_new = tuple.__new__  # a named tuple's own constructor takes twice as long


class PartitionLog(ReadableLog):
    """One partition's log. Open it with `PartitionLog.open`.

    Attributes:
        directory: its folder on the disk.
        topic_id: 16 bytes; zeros if the folder has none.
        log_start_offset: the first offset that may be read.
        log_end_offset: the next offset to be written.
        recovery_point: everything below it is durable.
        cleaned_to: the cleaner has cleaned everything below it.
        size_bytes: of all its .log files.
        cuts: number of truncations of its end. A sync that began before a truncation does not cover later appends.
        snapshots: the producer snapshots on disk.
    """

    __slots__ = (
        "_disk",
        "_files",
        "_prepared",
        "cleaned_to",
        "cuts",
        "directory",
        "recovery_point",
        "size_bytes",
        "snapshots",
        "states",
        "topic_id",
        "truncated_bytes",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig, topic_id: bytes) -> None:
        super().__init__()
        self._disk = disk
        self.directory = directory
        self.config = config
        self.topic_id = topic_id
        self.recovery_point = 0
        self.cleaned_to = 0
        self.size_bytes = 0
        self.cuts = 0
        self.truncated_bytes = 0  # removed by the recovery at the opening
        self._files = LogFiles(disk, directory)
        self.states = StateFiles(disk, directory)
        self.snapshots = ProducerSnapshots(disk, self._files)
        self._prepared = False  # nothing changed since prepare_close

    @classmethod
    def open(cls, disk: Disk, directory: str, config: LogConfig, opening: LogOpening) -> PartitionLog:
        """Runs all steps of `opening` at once."""
        return recovery.drain(cls.opening(disk, directory, config, opening))

    @classmethod
    def opening(
        cls, disk: Disk, directory: str, config: LogConfig, opening: LogOpening
    ) -> Generator[int, None, PartitionLog]:
        """Opens a folder, or creates it if it is missing, in steps of a few milliseconds.

        Yields:
            First the number of bytes to read, then after each step the number of bytes read by it.

        Raises:
            BrokerError: INCONSISTENT_TOPIC_ID: the folder belongs to another topic of that name.
            DamagedLog: the last stop was clean, and the log is damaged.
            OSError: the disk failed.
        """
        topic_id = opening.topic_id
        log = cls(disk, directory, config, topic_id or bytes(16))
        if not disk.exists(directory):
            disk.mkdir(directory)
            if not opening.new:
                log.snapshots.lose(log.producers)  # first, so that no folder without the file holds a log
            if topic_id is not None:
                log._files.store(PARTITION_METADATA, format_partition_metadata(topic_id))
            log._start_empty(opening.log_start_offset, opening.now_ms)
            yield 0
            return log
        found = recovery.read_topic_id(disk, directory)
        if found is None and not opening.new and not disk.listdir(directory):
            log.snapshots.lose(log.producers)  # a crash happened after its creation and before its first file
        log.topic_id = log._files.claim(found, topic_id)
        loaded = yield from recovery.loading(disk, directory, config, opening)
        log.segments = Segments(loaded.segments)
        log.producers = loaded.producers
        log.epochs = loaded.epochs
        log._files.stored_epochs = [] if loaded.epochs.dirty else loaded.epochs.entries
        log.log_start_offset = loaded.log_start_offset
        log.log_end_offset = loaded.log_end_offset
        log.recovery_point = loaded.recovery_point
        log.truncated_bytes = loaded.truncated_bytes
        log.size_bytes = log.segments.size_bytes
        log._tail.clear(log.log_end_offset)
        log.snapshots.found(loaded.snapshots, loaded.producers_complete_to, lost=loaded.producers_lost)
        log.states.found(loaded.states)
        log._files.found_deleted(loaded.deleted)
        for segment in loaded.recovered:
            if segment is not log.segments.active:
                log._files.store_segment(segment)
        for segment in loaded.unsynced:
            log._files.changed_segment(segment)
        log._prepared = (
            opening.clean and not loaded.recovered and log.snapshots.newest == log.log_end_offset
        )  # as closed
        return log

    def _start_empty(self, offset: int, now_ms: int) -> None:
        segment = Segment(self._disk, self.directory, offset, config=self.config, now_ms=now_ms)
        segment.create()
        self.segments = Segments([segment])
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self.size_bytes = 0
        self._tail.clear(offset)
        self.producers.clear(offset)
        self.snapshots.clear(self.producers)

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
            if error.code != ErrorCode.CORRUPT_MESSAGE:
                note_refused(self.producers, batches.batch if isinstance(batches, Inspection) else batches)
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
                    return AppendInfo(
                        repeated.first_offset,
                        repeated.last_offset,
                        repeated.timestamp if self.config.message_timestamp_type == "LogAppendTime" else -1,
                        self.log_start_offset,
                        True,
                        repeated.timestamp,
                        0,
                        cost,
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
        append_time_ms = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return _new(
            AppendInfo,
            (
                base_offset,
                last_offset,
                append_time_ms,
                self.log_start_offset,
                False,
                max_timestamp,
                len(batch),
                cost + len(batch) // COST_UNIT_BYTES,
            ),
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
        self._append(marker, offset, offset, leader_epoch, now_ms, now_ms)
        self._complete(
            self.producers.append_marker(
                producer_id, producer_epoch, coordinator_epoch, offset, now_ms, aborted=not commit
            )
        )
        self.producers.end_offset = offset + 1
        return AppendInfo(offset, offset, -1, self.log_start_offset, False, now_ms, len(marker))

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> AppendInfo:
        """Writes batches with the offsets and epochs that the leader assigned. An incomplete batch at the end is ignored.

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
        """Writes one batch and updates everything except the producer state."""
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

    def apply_retention(self, now_ms: int, high_watermark: int, *, segments_max: int = INT64_MAX) -> int:
        """Deletes whole segments below the high watermark that retention or the log start allows. Returns their number.

        `take_deleted` returns the files after file.delete.delay.ms.

        Args:
            segments_max: largest number of segments that a call deletes.
        """
        count = expired_segments(
            self.segments.all, self.config, now_ms, self.log_start_offset, high_watermark, self.log_end_offset
        )
        count = min(count, segments_max)
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

    def take_deleted(self, now_ms: int | None) -> list[str]:
        """Returns files of deleted segments after file.delete.delay.ms, all of them if `now_ms` is None. The caller removes them.

        Otherwise only a clean stop removes them.
        """
        return self._files.take_deleted(now_ms)

    def swap_in(self, cleaned: Segment, replaced: list[Segment], now_ms: int) -> None:
        """Replaces segments by the synced one that the cleaner made from them. After a crash the log has the old or the new ones."""
        self.producers.complete = False
        cleaned.rename(recovery.SWAP_SUFFIX)
        self.segments.replace(replaced, cleaned)
        self.size_bytes += cleaned.size - sum(segment.size for segment in replaced)
        deadline_ms = now_ms + self.config.file_delete_delay_ms
        for segment in replaced:
            self._files.delete_segment(segment, deadline_ms, with_snapshot=segment is not replaced[0])
        cleaned.rename("")
        if self._tail.start_offset < self.segments.from_offset(cleaned.base_offset)[1].base_offset:
            self._tail.clear(self.log_end_offset)  # it may have batches as they were before the cleaning

    def delete_records_before(self, offset: int) -> None:
        """Moves the log start up to `offset` (KIP-107). The next retention deletes the segments below it.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE: `offset` is above the log end.
        """
        if offset > self.log_end_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}, the log ends at {self.log_end_offset}")
        if offset > self.log_start_offset:
            self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.producers.complete = False
        self.recovery_point = max(self.recovery_point, offset)
        self.epochs.truncate_from_start(offset)

    def truncate_to(self, offset: int) -> None:
        """Truncates the log to `offset`, or to the start of a batch that contains it or is damaged before it.

        Raises:
            BrokerError: CORRUPT_MESSAGE: a .txnindex is damaged; nothing was truncated.
            OSError: the disk failed.
        """
        if offset >= self.log_end_offset:
            # The new leader does not know an epoch that this replica began as leader and in which it wrote nothing.
            self.epochs.truncate_from_end(offset)
            return
        if offset <= self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        _ = self.segments.from_offset(offset - 1)[0].aborted  # raises before anything is truncated
        while self.segments.active.base_offset >= offset:
            self._files.delete_segment(self.segments.take_active(), 0)
        self.log_end_offset = self.segments.active.truncate_to(offset)
        self._files.changed(self.segments.active.log_path)
        self._after_cut(self.log_end_offset)
        rebuild = ProducerRebuild(
            self._disk, self.directory, self.config, complete_to=self.snapshots.complete_to, now_ms=None
        )
        snapshots = recovery.snapshot_offsets(self._disk.listdir(self.directory))
        for _ in rebuild.steps(
            self.producers, self.segments.all, snapshots, self.log_start_offset, self.log_end_offset
        ):
            pass

    def on_records_lost(self) -> None:
        """Notes that committed records may be lost, with the state of their producers. These producers may use any next sequence."""
        self.snapshots.lose(self.producers)
        self._files.changed(*self.states.on_cut(-1))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all records and starts the log at `offset`: it has no records in common with the leader's log."""
        created_ms = self.segments.active.created_ms
        while len(self.segments):
            self._files.delete_segment(self.segments.take_active(), 0)
        self._after_cut(offset, whole=True)
        self.epochs.clear()
        self._start_empty(offset, created_ms)

    def _after_cut(self, end_offset: int, *, whole: bool = False) -> None:
        self._prepared = False
        self._files.changed(*self.states.on_cut(-1 if whole else end_offset))
        self.cuts += 1
        self.recovery_point = min(self.recovery_point, end_offset)
        self.cleaned_to = min(self.cleaned_to, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.size_bytes = self.segments.size_bytes
        self._tail.clear(end_offset)
        self.epochs.truncate_from_end(end_offset)
        self.snapshots.cut(end_offset)
        self._files.store_epochs(self.epochs, self.log_end_offset)

    # -- durability -----------------------------------------------------------------------------------------------

    def unsynced_files(self) -> list[File]:
        """Returns the files that a sync must cover to make everything below the present log end durable.

        Sync them, then call `mark_synced` with the present log end offset. Another call before `mark_synced` is allowed.
        """
        if self.log_end_offset == 0:
            return []  # a lost folder without records is created again
        files = self._files.mark(self.log_end_offset)
        if self.recovery_point < self.log_end_offset or files:
            files.append(self.segments.active.file)
        return files

    def mark_synced(self, up_to_offset: int) -> None:
        """Handles the end of a sync of the files that `unsynced_files` returned when the log ended at `up_to_offset`."""
        self._files.synced(up_to_offset)
        self.states.on_synced(up_to_offset)
        self.recovery_point = max(self.recovery_point, min(up_to_offset, self.log_end_offset))

    def save_state(self, *, synced: bool = False, complete: bool = False) -> None:
        """Saves the state at the present end, so that a start after a kill reads nothing below it. Raises OSError.

        Args:
            synced: save it for a start after a power loss instead; it is written after a sync has covered the present end.
            complete: the index files were completed.
        """
        active = self.segments.active
        if not self.states.lack(self.log_end_offset, synced=synced) or not (active.size and self.config.saves_state):
            return
        if not complete:
            self._files.store_indexes(active, complete=False)
        state = self.states.capture(active, self.log_end_offset, self.epochs, self.producers)
        if state is not None and synced:
            self.states.save_when_synced(state, self.recovery_point)
        elif state is not None:
            self.states.save(state)

    def prepare_close(self) -> list[File]:
        """Writes the files of a clean stop: indexes, epochs, the producer snapshot at the log end. Returns the files to sync.
        To stop many logs: prepare all, sync all files at once, call `mark_synced` and `close` for each."""
        if not self._prepared:
            self.segments.active.seal_file()
            if self.segments.active.size:
                self._files.store_segment(self.segments.active)
                if self.segments.active.size >= recovery.LARGE_BYTES or self.config.compacted:
                    self.save_state(synced=True, complete=True)
            self.snapshots.store(self.log_end_offset, self.producers)
            self._files.store_epochs(self.epochs, self.log_end_offset, closing=True)
            self._disk.remove(*self._files.take_deleted(None))
            self._prepared = True
        return self.unsynced_files()

    def close(self) -> None:
        """Prepares, syncs all unsynced files, and closes the files. The log cannot be used afterwards."""
        files = self.prepare_close()
        if files:
            self._disk.sync_now(files)
        self.mark_synced(self.log_end_offset)
        self._disk.remove(*self.take_superseded())
        self.abandon()

    def take_superseded(self) -> list[str]:
        """Paths of files that are obsolete after a clean stop is synced."""
        return self.snapshots.take_superseded([segment.base_offset for segment in self.segments])

    def abandon(self) -> None:
        """Closes the files without writing: the disk failed, or the folder will be deleted."""
        for segment in self.segments:
            segment.close()

    def rename(self, directory: str) -> None:
        """Renames the folder (Kafka's `-delete` and `-stray` names). The log cannot be used afterwards."""
        self.abandon()
        self._disk.rename(self.directory, directory)
        self.directory = directory

    def reconfigure(self, config: LogConfig) -> None:
        """Sets the topic's new configuration, which takes effect with the next append."""
        self.config = config
