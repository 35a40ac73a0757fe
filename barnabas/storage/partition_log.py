"""The log of one partition: segments, producer state, epochs and offsets, in a folder with Kafka's layout.

This module opens and closes the log, removes records and keeps account of what is durable; `readable_log` reads, `appendable_log`
appends.

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

from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.ports import Disk, File
from barnabas.storage import recovery
from barnabas.storage.appendable_log import AppendableLog
from barnabas.storage.checkpoints import PARTITION_METADATA, LogSize, format_partition_metadata
from barnabas.storage.log_config import INT64_MAX, LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.producer_rebuild import ProducerRebuild
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.retention import expired_segments
from barnabas.storage.saved_state import StateFile
from barnabas.storage.segment import Segment
from barnabas.storage.segments import Segments
from barnabas.work import SLICE, Steps, finished


class PartitionLog(AppendableLog):
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

    __slots__ = ("cleaned_to", "cuts", "recovery_point", "saved", "topic_id", "truncated_bytes")

    def __init__(self, disk: Disk, directory: str, config: LogConfig, topic_id: bytes) -> None:
        super().__init__(disk, directory, config)
        self.topic_id = topic_id
        self.recovery_point = 0
        self.cleaned_to = 0
        self.cuts = 0
        self.truncated_bytes = 0  # removed by the recovery at the opening
        self.saved = StateFile(disk, directory)

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
            disk.mkdir(directory, private=opening.private)
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
        if loaded.state is not None:
            log.saved.end_offset = loaded.state.end_offset
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

    # -- removing records -----------------------------------------------------------------------------------------

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

    def producers_before(self, offset: int) -> Steps[PartitionProducers | None]:
        """Returns the producers of the log as it will be after `truncate_to(offset)`. Changes nothing: the log may be used
        between the steps. Returns None if the log was truncated, closed or cleaned, or its start has moved, since the first step.

        Raises as `truncate_to`.
        """
        state = PartitionProducers()
        if not self.segments.first.base_offset < offset < self.log_end_offset:
            return state
        start_offset, trusted = self.log_start_offset, self.saved.trusted
        segment = self.segments.from_offset(offset - 1)[0]
        _ = segment.aborted  # raises before anything is truncated
        _, end_offset = segment.cut_at(offset)
        kept = [each for each in self.segments if each.base_offset <= segment.base_offset]
        rebuild = ProducerRebuild(
            self._disk, self.directory, self.config, complete_to=self.snapshots.complete_to, now_ms=None
        )
        snapshots = recovery.snapshot_offsets(self._disk.listdir(self.directory))
        for _ in rebuild.steps(state, kept, snapshots, min(start_offset, end_offset), end_offset):
            yield SLICE
            if (
                self.log_start_offset != start_offset
                or self.saved.trusted is not trusted
                or self.segments.all[: len(kept)] != kept
            ):
                return None
        return state

    def truncate_to(self, offset: int, producers: PartitionProducers | None = None) -> None:
        """Truncates the log to `offset`, or to the start of a batch that contains it or is damaged before it.

        Args:
            producers: what `producers_before` has just returned for this offset; without it, all of its steps are run at once.

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
        if producers is None:
            producers = finished(self.producers_before(offset))
        while self.segments.active.base_offset >= offset:
            self._files.delete_segment(self.segments.take_active(), 0)
        self.log_end_offset = self.segments.active.truncate_to(offset)
        self._files.changed(self.segments.active.log_path)
        self._after_cut(self.log_end_offset)
        if producers is None or producers.end_offset != self.log_end_offset:
            raise InvariantViolated(
                f"the producers of {self.directory} were rebuilt for another end than {self.log_end_offset}"
            )
        self.producers.become(producers)

    def on_records_lost(self) -> None:
        """Notes that committed records may be lost, with the state of their producers. These producers may use any next sequence."""
        self.snapshots.lose(self.producers)
        self._files.changed(*self.saved.on_cut(-1))

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
        self._files.changed(*self.saved.on_cut(-1 if whole else end_offset))
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
        if self.log_end_offset == 0 and not (self.cuts or self.truncated_bytes):
            return []  # a lost folder without records is created again; truncated records must not return
        files = self._files.mark(self.log_end_offset)
        if self.recovery_point < self.log_end_offset or files:
            files.append(self.segments.active.file)
        return files

    def mark_synced(self, up_to_offset: int) -> None:
        """Handles the end of a sync of the files that `unsynced_files` returned when the log ended at `up_to_offset`."""
        self._files.synced(up_to_offset)
        self.saved.on_synced(up_to_offset)
        self.recovery_point = max(self.recovery_point, min(up_to_offset, self.log_end_offset))

    def save_state(self, *, complete: bool = False) -> bool:
        """Runs all steps of `saving_state` at once."""
        return finished(self.saving_state(complete=complete))

    def saving_state(self, *, complete: bool = False) -> Steps[bool]:
        """Saves the state at the end of the log, so that a start after a crash reads nothing below it. Returns whether it was necessary.
        The state is that of the first step: later appends are not in it. It is written after a sync has covered its end. After a
        truncation or the closing nothing is written. Raises OSError.

        Args:
            complete: the index files were completed.
        """
        active = self.segments.active
        if self.saved.end_offset == self.log_end_offset or not (active.size and self.config.saves_state):
            return False
        if not complete:
            self._files.store_indexes(active, complete=False)
        trusted = self.saved.trusted
        state = yield from self.saved.capturing(active, self.log_end_offset, self.epochs, self.producers)
        if state is not None and trusted is self.saved.trusted:
            self.saved.save_when_synced(state, self.recovery_point)
        return True

    def prepare_close(self) -> list[File]:
        """Writes the files of a clean stop: indexes, epochs, the producer snapshot at the log end. Returns the files to sync.
        To stop many logs: prepare all, sync all files at once, call `mark_synced` and `close` for each."""
        if not self._prepared:
            self.segments.active.seal_file()
            if self.segments.active.size:
                self._files.store_segment(self.segments.active)
                if self.segments.active.size >= recovery.LARGE_BYTES or self.config.compacted:
                    self.save_state(complete=True)
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

    def stored_size(self) -> LogSize:
        """The sizes of its files after a close."""
        return LogSize(self.size_bytes, sum(segment.aborted_bytes() for segment in self.segments))

    def take_superseded(self) -> list[str]:
        """Paths of files that are obsolete after a clean stop is synced."""
        return self.snapshots.take_superseded([segment.base_offset for segment in self.segments])

    def abandon(self) -> None:
        """Closes the files without writing: the disk failed, or the folder will be deleted."""
        self.saved.drop()
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
