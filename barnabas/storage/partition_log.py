"""Log of one partition: segments, producer state, epochs and offsets, in Kafka's file layout.
The caller provides durability: it syncs `unsynced_files` and then calls `mark_synced`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from barnabas.errors import BrokerError, ErrorCode, InvariantViolated, LocalProtocolError
from barnabas.ports import Buffer, Disk, File
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from barnabas.protocol.records import build_end_txn_marker, stamp
from barnabas.storage import recovery
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.checkpoints import LogSize
from barnabas.storage.epochs import EpochCache
from barnabas.storage.inspection import Inspection
from barnabas.storage.log_config import INT64_MAX, AppendInfo, AppendOrigin, LogConfig
from barnabas.storage.log_files import LogFiles
from barnabas.storage.long_reads import ReadAhead
from barnabas.storage.opening import LogOpening
from barnabas.storage.producer_entries import RetainedBatch
from barnabas.storage.producer_rebuild import ProducerRebuild
from barnabas.storage.producer_snapshots import ProducerSnapshots
from barnabas.storage.producers import CompletedTransaction, PartitionProducers
from barnabas.storage.replay import StoredBatch, note_refused, replay
from barnabas.storage.retention import expired_segments
from barnabas.storage.saved_state import StateFile
from barnabas.storage.segment import LogSlice, Segment, TimestampOffset
from barnabas.storage.segments import Segments
from barnabas.storage.tail import Tail
from barnabas.storage.validation import check_leader_batch, check_replicated_batches
from barnabas.work import SLICE, Steps, finished

RESERVED_BYTES_MIN: Final = 8 * 1024 * 1024  # written to a new place in 3 to 10 ms
COST_UNIT_BYTES: Final = 1_024  # copied, checksummed and written in half a microsecond

_new = tuple.__new__  # a named tuple's own constructor takes twice as long

ROLL_COST: Final = 1_500  # of a new segment (`AppendInfo.cost`): files are created and completed

PRODUCER_COST: Final = 2  # of a producer in the snapshot at its start


class PartitionLog:
    """One partition's log. Open it with `PartitionLog.open`.

    Invariant: log_start_offset ≤ recovery_point and last stable offset ≤ log_end_offset.

    Attributes:
        topic_id: 16 bytes; zeros if the folder has none.
        log_start_offset, log_end_offset: the first readable offset, the next to be written.
        recovery_point: everything below it is durable; `cleaned_to`: cleaned.
        cuts: number of truncations of its end. A sync that began before a truncation does not cover later appends.
    """

    __slots__ = (
        "_disk",
        "_files",
        "_prepared",
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
        "saved",
        "segments",
        "size_bytes",
        "snapshots",
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
        self.cuts = 0
        self.size_bytes = 0
        self.truncated_bytes = 0  # removed by the recovery at the opening
        self.producers = PartitionProducers()
        self.segments: Segments
        self.epochs = EpochCache()
        self._tail = Tail(0)
        self._files = LogFiles(disk, directory)
        self.snapshots = ProducerSnapshots(disk, self._files)
        self.saved = StateFile(disk, directory)
        self._prepared = False  # nothing changed since prepare_close

    # -- transactions ---------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest open transaction, at least the log start; None if no transaction is open."""
        first = self.producers.first_undecided_offset
        return None if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Exclusive: every transaction below it is complete and its marker is below the high watermark."""
        first = self.producers.first_unstable_offset(high_watermark)
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Transactions that a reader of [start_offset, end_offset) must skip, in marker order."""
        return self.segments.aborted_transactions(start_offset, end_offset)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        at_least_one: bool = True,
        ahead: ReadAhead | None = None,
    ) -> LogSlice:
        """Whole batches from that of `offset` on, below `end_offset`. `ahead` as in `Segment.read`.

        Raises BrokerError (OFFSET_OUT_OF_RANGE).
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
        return self.segments.read(
            offset, max_bytes, end_offset, self.log_end_offset, at_least_one=at_least_one, ahead=ahead
        )

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> Steps[TimestampOffset | None]:
        """The first record below `end_offset` with a timestamp ≥ `timestamp`."""
        return self.segments.offset_for_timestamp(timestamp, self.log_start_offset, end_offset)

    def max_timestamp_offset(self, end_offset: int) -> Steps[TimestampOffset | None]:
        """The first record with the log's largest timestamp; None if no record has one or it is not below `end_offset`."""
        return self.segments.max_timestamp_offset(self.log_start_offset, end_offset)

    def divergence(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """(epoch, end offset) of the divergence from a log that ends at `offset` in that epoch, or None."""
        epoch, end_offset = self.epochs.end_offset_for_epoch(last_fetched_epoch, self.log_end_offset)
        if end_offset < 0:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch >= last_fetched_epoch and end_offset >= offset:
            return None
        return epoch, end_offset

    # -- appending ------------------------------------------------------------------------------------------------

    def reserve(self, size_bytes: int, max_timestamp: int, now_ms: int) -> Steps[None]:
        """Prepares the append of a large batch, so that it takes one short turn: rolls a full segment, and reserves space. Raises OSError."""
        if size_bytes > RESERVED_BYTES_MIN:
            self._prepared = False
            segment = self.segments.active
            if segment.is_full(size_bytes, self.log_end_offset, max_timestamp, now_ms, self.config):
                segment = self._roll(self.log_end_offset, now_ms)
            yield from segment.reserve(size_bytes)

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
            BrokerError: Kafka's rejection of the batch; nothing is written.
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
        """Writes a marker, again if repeated, as in Kafka.

        Raises BrokerError (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED), OSError.
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
        """Writes whole batches as the leader assigned them, in at most `segments_max` new segments.

        Raises:
            BrokerError: CORRUPT_MESSAGE: a batch is damaged, nothing is written; UNKNOWN_SERVER_ERROR if the offsets do
                not continue from the log's end.
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
        """Writes one batch and updates everything except the producer state. Returns the cost of a new segment, or 0."""
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
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # -- segments -------------------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
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

    @classmethod
    def open(cls, disk: Disk, directory: str, config: LogConfig, opening: LogOpening) -> PartitionLog:
        return recovery.drain(cls.opening(disk, directory, config, opening))

    @classmethod
    def opening(
        cls, disk: Disk, directory: str, config: LogConfig, opening: LogOpening
    ) -> Generator[int, None, PartitionLog]:
        """Opens a folder, or creates it if it is missing, in steps of a few milliseconds.

        Yields the number of bytes to read, then after each step the bytes read by it.

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
            log._files.claim(None, topic_id)
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
        # as closed
        log._prepared = opening.clean and not loaded.recovered and log.snapshots.newest == log.log_end_offset
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
        """Deletes up to `segments_max` segments below the high watermark, see `take_deleted`. Returns their number."""
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
        """Returns deleted files after file.delete.delay.ms, all if `now_ms` is None. The caller removes them."""
        return self._files.take_deleted(now_ms)

    def swap_in(self, cleaned: Segment, replaced: list[Segment], now_ms: int) -> None:
        """Replaces segments by the synced one that the cleaner made. After a crash the log has the old or the new ones."""
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
        """DeleteRecords (KIP-107): raises the log start. Raises BrokerError (OFFSET_OUT_OF_RANGE) above the log end."""
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
        """The producers after a later `truncate_to(offset)`; None if the log changed otherwise between the steps."""
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

        `producers` is the recent result of `producers_before`; without it, all its steps run at once.

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
        """Committed records may be lost with their producers' state: these producers may use any next sequence."""
        self.snapshots.lose(self.producers)
        self._files.changed(*self.saved.on_cut(-1))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Empties the log, which shares no record with the leader's, and starts it at `offset`."""
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
        # A lost folder without records is created again; truncated records must not return.
        empty = self.log_end_offset == 0 and not (self.cuts or self.truncated_bytes)
        if empty and not self._files.unnamed:
            return []
        files = self._files.mark(self.log_end_offset)
        if not empty and (self.recovery_point < self.log_end_offset or files):
            files.append(self.segments.active.file)
        return files

    def mark_synced(self, up_to_offset: int) -> bool:
        """Handles the end of a sync of the files that `unsynced_files` returned when the log ended at `up_to_offset`.
        Returns False if the folder needs another sync first. Raises OSError.
        """
        self._files.synced(up_to_offset)
        if self._files.unnamed:
            return False
        self.saved.on_synced(up_to_offset)
        self.recovery_point = max(self.recovery_point, min(up_to_offset, self.log_end_offset))
        return True

    @property
    def unnamed(self) -> bool:
        """Whether a power loss could leave the folder without partition.metadata. Kafka would set such a log aside."""
        return self._files.unnamed

    def store_topic_id(self) -> None:
        """Makes partition.metadata durable at once. Raises OSError."""
        self._files.store_topic_id(self.topic_id)

    def save_state(self, *, complete: bool = False) -> bool:
        return finished(self.saving_state(complete=complete))

    def saving_state(self, *, complete: bool = False) -> Steps[bool]:
        """Saves the state at the log end, once synced, for a fast start after a crash; returns whether that was needed."""
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
        """Writes the files of a clean stop and returns those to sync. Then call `mark_synced` and `close`."""
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
        self._disk.sync_now(self.prepare_close())
        while not self.mark_synced(self.log_end_offset):
            self._disk.sync_now(self.unsynced_files())
        self._disk.remove(*self.take_superseded())
        self.abandon()

    def stored_size(self) -> LogSize:
        return LogSize(self.size_bytes, sum(segment.aborted_bytes() for segment in self.segments))

    def take_superseded(self) -> list[str]:
        """Files that are obsolete once a clean stop is synced."""
        return self.snapshots.take_superseded([segment.base_offset for segment in self.segments])

    def abandon(self) -> None:
        """Closes the files without writing: the disk failed, or the folder will be deleted."""
        self.saved.drop()
        for segment in self.segments:
            segment.close()

    def rename(self, directory: str) -> None:
        """Renames the folder (Kafka's `-delete` and `-stray`) and ends the log's use."""
        self.abandon()
        self._disk.rename(self.directory, directory)
        self.directory = directory

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config
