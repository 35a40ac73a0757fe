"""LogDirectory: one log directory (KIP-112, KIP-858) with its replicas, checkpoints and group commit."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.replica.core.identity import BrokerIdentity, open_directory
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.scheduling.slices import WorkResult, advance
from barnabas.loggers import logger
from barnabas.ports import Disk, DiskLock, File, Rng
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_SIZE_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PRODUCER_STATE_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    LogSize,
    MalformedCheckpoint,
    TopicPartition,
    format_lines,
    format_log_sizes,
    read_log_sizes,
    read_offsets,
    replace_off_loop,
    write_clean_shutdown,
)
from barnabas.storage.partition_log import PartitionLog
from barnabas.work import Steps, Work, finished

T = TypeVar("T")
log = logger("kafka.log.LogManager")

SYNC_RETRY_MS: Final = 100
REPLICAS_PER_UNIT: Final = 4  # whose checkpoint lines are made
LINES_PER_UNIT: Final = 64  # joined and encoded
SYNCED_AT_ONCE: Final = 128  # logs: up to three files of each are opened and closed
SYNCED_PER_TURN: Final = 16  # logs that note the end of their sync: each may write a file of state
DISCARDED_AT_ONCE: Final = 16  # files and folders: a stop waits for no more than these
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)  # out of descriptors: no file could be opened to be synced
LOCK_FILE: Final = ".lock"


class CheckpointedOffsets(NamedTuple):
    """The offsets of one partition in a directory's checkpoints."""

    recovery_point: int
    log_start_offset: int
    high_watermark: int
    cleaned_to: int
    producers_complete_to: int  # 0: no snapshot is known to be complete
    size: LogSize | None = None  # at the clean stop before this start


class _CheckpointLines:
    """The lines of the checkpoint files of a directory."""

    __slots__ = ("cleaned", "high_watermarks", "log_starts", "producers_complete", "recovery_points")

    def __init__(self) -> None:
        self.recovery_points: list[str] = []
        self.log_starts: list[str] = []
        self.high_watermarks: list[str] = []
        self.cleaned: list[str] = []
        self.producers_complete: list[str] = []

    def others(self) -> list[tuple[str, list[str]]]:
        """All checkpoints except the high watermarks, by file name."""
        return [
            # Before the recovery points: a recovery that begins there needs the snapshot of its segment to be complete.
            (PRODUCER_STATE_CHECKPOINT, self.producers_complete),
            (RECOVERY_POINT_CHECKPOINT, self.recovery_points),
            (LOG_START_OFFSET_CHECKPOINT, self.log_starts),
            (CLEANER_OFFSET_CHECKPOINT, self.cleaned),
        ]


NO_OFFSETS: Final = CheckpointedOffsets(0, 0, 0, 0, 0)


class LogDirectory:
    """One log directory of a node.

    A failed directory stays failed until the next start: nothing in it is acknowledged, and a failed sync is never repeated, because data
    that the system dropped would count as written. `soon` runs a callback at the end of the wake-up; `start` starts a task of the node;
    `on_failure` is called once.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        soon: Callable[[Callable[[], None]], None],
        start: Callable[[Coroutine[object, object, None], str], object],
        on_failure: Callable[[LogDirectory], None],
    ) -> None:
        self.disk = disk
        self.directory_id = b""  # from its meta.properties; empty before it was read
        self.identity: BrokerIdentity | None = None  # as read at the start
        self.failure: OSError | None = None  # the first I/O error, with the directory's name; None while online
        self.replicas: dict[Replica, None] = {}  # of this node in this directory
        # partitions whose logs are not open, with their checkpointed offsets
        self.unopened: dict[TopicPartition, CheckpointedOffsets] = {}
        self.lowered = 0  # how often a recovery point went down: an older checkpoint file must not be written
        self._lock: DiskLock | None = None
        self._soon = soon
        self._start = start
        self._on_failure = on_failure
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._cleaned: dict[TopicPartition, int] = {}
        self._producers_complete: dict[TopicPartition, int] = {}
        self._sizes: dict[TopicPartition, LogSize] = {}
        self._written_high_watermarks = b""
        self._written_recovery_points: dict[TopicPartition, int] = {}  # the highest that the file may say
        self._lowering = asyncio.Lock()
        self._unsynced: dict[Replica, None] = {}
        self._syncing = False
        self._sync_due = False
        self._discarded: deque[str] = deque()  # paths
        self._discarding = False

    def __repr__(self) -> str:
        return f"<LogDirectory {self.disk.root}>"

    def __str__(self) -> str:
        return self.disk.root

    # -- failure

    @property
    def online(self) -> bool:
        return self.failure is None

    def fail(self, error: OSError) -> None:
        """The directory goes offline at the end of this wake-up."""
        if self.failure is None:
            self.failure = OSError(error.errno, error.strerror or str(error), self.disk.root)
            log.critical("Log directory failed, nothing more is acknowledged from it: error=%s", self.failure)
            self._soon(lambda: self._on_failure(self))

    # -- start

    def open(self, config: BrokerConfig, rng: Rng, cluster_id: str | None = None) -> BrokerIdentity:
        """Locks and identifies the directory.

        Raises:
            DirectoryInUse: another live process has locked it.
            WrongDirectory: it belongs to another node or cluster.
            OSError: the disk failed.
        """
        self._lock = self.disk.lock(LOCK_FILE)
        self.identity = open_directory(self.disk, config, rng, cluster_id)
        self.directory_id = self.identity.directory_id
        return self.identity

    @property
    def clean(self) -> bool:
        """Whether the last stop was clean, so that its files need no check."""
        return self.identity is not None and self.identity.clean

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def read(self) -> list[str]:
        """Reads the checkpoints; removes the rest of earlier deletions. Returns the folders of partitions. Raises OSError."""
        for name, into in (
            (RECOVERY_POINT_CHECKPOINT, self._recovery_points),
            (LOG_START_OFFSET_CHECKPOINT, self._log_starts),
            (REPLICATION_OFFSET_CHECKPOINT, self._high_watermarks),
            (CLEANER_OFFSET_CHECKPOINT, self._cleaned),
            (PRODUCER_STATE_CHECKPOINT, self._producers_complete),
        ):
            try:
                into.update(read_offsets(self.disk, name))
            except MalformedCheckpoint as error:
                log.warning(
                    "Checkpoint is unreadable, every log is recovered from its start: file=%s error=%s", name, error
                )
        self._written_recovery_points.update(self._recovery_points)
        if self.identity is not None:
            try:
                self._sizes = read_log_sizes(self.disk, self.identity.broker_epoch)
            except MalformedCheckpoint as error:
                log.warning(
                    "Checkpoint is unreadable, the sizes of logs are not compared with those at the stop: file=%s error=%s",
                    LOG_SIZE_CHECKPOINT,
                    error,
                )
        folders = []
        for folder in self.disk.listdir(""):
            if folder.endswith("-delete"):
                self.discard([folder])
            elif _is_partition_folder(folder):
                folders.append(folder)
        return folders

    def forget_offsets_but(self, known: Container[TopicPartition]) -> None:
        """Drops offsets of deleted topics from the checkpoints, so that a new topic of the same name does not inherit them."""
        for offsets in (
            self._recovery_points,
            self._log_starts,
            self._high_watermarks,
            self._cleaned,
            self._producers_complete,
        ):
            for key in [key for key in offsets if key not in known]:
                del offsets[key]
        self._sizes = {key: size for key, size in self._sizes.items() if key in known}

    def take_offsets(self, key: TopicPartition) -> CheckpointedOffsets:
        """Removes and returns a partition's checkpointed offsets; `NO_OFFSETS` without any."""
        return self.unopened.pop(key, None) or CheckpointedOffsets(
            self._recovery_points.pop(key, 0),
            self._log_starts.pop(key, 0),
            self._high_watermarks.pop(key, 0),
            self._cleaned.pop(key, 0),
            self._producers_complete.pop(key, 0),
            self._sizes.pop(key, None),
        )

    # -- removal

    def discard(self, paths: Sequence[str]) -> None:
        """Removes `.deleted` files and `-delete` folders in the background, a few at a time; the next start removes the rest."""
        if not paths:
            return
        self._discarded.extend(paths)
        if not self._discarding:
            self._discarding = True
            self._start(self._discard_all(), "removal")

    async def _discard_all(self) -> None:
        try:
            while self._discarded and self.online:
                paths = [self._discarded.popleft() for _ in range(min(len(self._discarded), DISCARDED_AT_ONCE))]
                try:
                    await self.disk.discard(*paths)
                except OSError as error:
                    self.fail(error)
        finally:
            self._discarding = False

    # -- opening

    def must_sync(self, name: TopicPartition, opened: PartitionLog) -> bool:
        """Whether an opened log must be synced before it is led or followed."""
        return (
            opened.log_end_offset - opened.recovery_point >= opened.config.flush_messages
            or opened.truncated_bytes > 0  # truncated bytes must not return among appended ones
            or opened.recovery_point < self._written_recovery_points.get(name, 0)
        )

    async def sync_recovered(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """Syncs logs that have no replica yet. Raises OSError."""
        ends = {name: each.log_end_offset for name, each in logs.items()}
        await self.disk.sync([file for each in logs.values() for file in each.unsynced_files()])
        for name, each in logs.items():
            each.mark_synced(ends[name])
            if name in self.unopened:
                self.unopened[name] = self.unopened[name]._replace(recovery_point=each.recovery_point)
        await self._lower_recovery_points({name: each.recovery_point for name, each in logs.items()})

    async def _lower_recovery_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Lowers the recovery points of truncated logs: the checkpoint must not call later writes there durable.

        The lines are made in slices, and the file is synced off the loop. Opened logs and replicas are synced at the same time, but only
        one of them lowers its points at a time: the other's file would be older.
        """
        written = self._written_recovery_points
        async with self._lowering:
            if any(point < written.get(name, 0) for name, point in points.items()):
                self.lowered += 1  # a collection that has begun must not be written any more
                data = (await self._in_turns(self.checkpoints_in_slices()))[RECOVERY_POINT_CHECKPOINT]
                await replace_off_loop(self.disk, RECOVERY_POINT_CHECKPOINT, data)
                self.lowered += 1  # nor may one that began during the write
                written.update(points)

    async def _in_turns(self, work: Steps[T]) -> T:
        rest = advance(work)
        while not isinstance(rest, WorkResult):
            await asyncio.sleep(0)
            rest = advance(rest)
        return rest.result

    # -- close

    def close(self, broker_epoch: int) -> None:
        """Closes logs, writes the checkpoints, and the clean-shutdown file if no partition was offline. Raises OSError."""
        if not self.online:
            return
        healthy = [replica for replica in self.replicas if not replica.failed]
        unsynced = healthy
        while unsynced:
            self.disk.sync_now([file for replica in unsynced for file in replica.log.prepare_close()])
            unsynced = [replica for replica in unsynced if not replica.log.mark_synced(replica.log.log_end_offset)]
        self.disk.remove(*[path for replica in healthy for path in replica.log.take_superseded()])
        for replica in healthy:
            replica.log.close()
        for name, data in self.checkpoints().items():
            self.disk.replace(name, data)
        if not self.unopened and len(healthy) == len(self.replicas):
            sizes = {(replica.topic, replica.partition): replica.log.stored_size() for replica in healthy}
            self.disk.replace(LOG_SIZE_CHECKPOINT, format_log_sizes(broker_epoch, sizes))
            write_clean_shutdown(self.disk, broker_epoch)

    def checkpoints(self, *, only_high_watermarks: bool = False) -> dict[str, bytes]:
        """Contents of the checkpoint files, by name; without the high watermarks if none has moved."""
        files: dict[str, bytes] = finished(self.checkpoints_in_slices(only_high_watermarks=only_high_watermarks))
        return files

    def checkpoints_in_slices(self, *, only_high_watermarks: bool = False) -> Work:
        """As `checkpoints`, each line as of the visit of its partition. Do not write them if `lowered` changed during the visits."""
        files = _CheckpointLines()
        replicas = list(self.replicas)
        for count, ((topic, partition), offsets) in enumerate(list(self.unopened.items())):
            self._note_offsets(files, topic, partition, offsets, only_high_watermarks)
            if count % REPLICAS_PER_UNIT == 0:
                yield 1
        for count, one in enumerate(replicas):
            if only_high_watermarks:
                files.high_watermarks.append(f"{one.topic} {one.partition} {one.high_watermark}")
            else:
                opened = one.log
                offsets = CheckpointedOffsets(
                    opened.recovery_point,
                    opened.log_start_offset,
                    one.high_watermark,
                    opened.cleaned_to,
                    opened.snapshots.complete_to,
                )
                self._note_offsets(files, one.topic, one.partition, offsets, False)
            if count % REPLICAS_PER_UNIT == 0:
                yield 1
        found: dict[str, bytes] = {}
        if not only_high_watermarks:
            for name, lines in files.others():
                found[name] = format_lines(lines)
                yield len(lines) // LINES_PER_UNIT
        data = format_lines(files.high_watermarks)
        if data != self._written_high_watermarks or not only_high_watermarks:
            found[REPLICATION_OFFSET_CHECKPOINT] = self._written_high_watermarks = data
        return found

    def _note_offsets(
        self,
        files: _CheckpointLines,
        topic: str,
        partition: int,
        offsets: CheckpointedOffsets,
        only_high_watermarks: bool,
    ) -> None:
        files.high_watermarks.append(f"{topic} {partition} {offsets.high_watermark}")
        if only_high_watermarks:
            return
        files.recovery_points.append(f"{topic} {partition} {offsets.recovery_point}")
        written, key = self._written_recovery_points, (topic, partition)
        written[key] = max(offsets.recovery_point, written.get(key, 0))
        if offsets.log_start_offset > 0:
            files.log_starts.append(f"{topic} {partition} {offsets.log_start_offset}")
        if offsets.cleaned_to > 0:
            files.cleaned.append(f"{topic} {partition} {offsets.cleaned_to}")
        if offsets.producers_complete_to > 0:
            files.producers_complete.append(f"{topic} {partition} {offsets.producers_complete_to}")

    # -- group commit

    def request_sync(self, replica: Replica) -> None:
        """Syncs the log, together with all logs requested in the same wake-up; calls `replica.on_synced`."""
        self._unsynced[replica] = None
        if not self._sync_due and not self._syncing:
            self._sync_due = True
            self._soon(self._start_sync)

    def forget(self, replica: Replica) -> None:
        """Removes a replica that was deleted or moved away."""
        self.replicas.pop(replica, None)
        self._unsynced.pop(replica, None)

    def _start_sync(self) -> None:
        self._sync_due = False
        if self._unsynced and not self._syncing:
            self._syncing = True
            self._start(self._sync(), "sync")

    def _take_unsynced(self) -> list[Replica]:
        """The replicas of the next sync: as many as take 10 ms of the loop, and those without records last: nothing waits for them."""
        with_records = (replica for replica in self._unsynced if replica.log.log_end_offset)
        asked = list(islice(with_records, SYNCED_AT_ONCE)) or list(islice(self._unsynced, SYNCED_AT_ONCE))
        for replica in asked:
            del self._unsynced[replica]
        return asked

    async def _sync(self) -> None:
        try:
            while self._unsynced and self.online:
                asked = self._take_unsynced()
                ends: list[tuple[int, int]] = []
                files: list[File] = []
                try:
                    for replica in asked:
                        ends.append((replica.log.log_end_offset, replica.log.cuts))
                        files += replica.log.unsynced_files()
                    await self._lower_recovery_points(
                        {(one.topic, one.partition): one.log.recovery_point for one in asked if one.log.cuts}
                    )
                    await self.disk.sync(files)
                except OSError as error:
                    if error.errno not in _NO_DESCRIPTOR:
                        self.fail(error)
                        return
                    log.warning(
                        "Log directory cannot be synced now, is tried again: directory=%s error=%s", self, error
                    )
                    self._unsynced.update(dict.fromkeys(asked))
                    await asyncio.sleep(SYNC_RETRY_MS / 1000)
                    continue
                for number, (replica, (end, cuts)) in enumerate(zip(asked, ends, strict=True), 1):
                    if number % SYNCED_PER_TURN == 0:
                        await asyncio.sleep(0)
                    if replica.failed:
                        continue
                    # the synced part was truncated, or a file was not written
                    if replica.log.cuts != cuts or not self._mark_synced(replica, end):
                        self._unsynced[replica] = None
                        continue
                    if self.online:
                        replica.on_synced(end)
        finally:
            self._syncing = False

    def _mark_synced(self, replica: Replica, end_offset: int) -> bool:
        """Notes that a log is durable up to `end_offset`, which may write a file. Returns False if another sync is needed."""
        try:
            return replica.log.mark_synced(end_offset)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                self.fail(error)
            return False


def _is_partition_folder(name: str) -> bool:
    topic, _, number = name.rpartition("-")
    return bool(topic) and number.isdigit() and name != CLUSTER_METADATA_FOLDER
