"""Log recovery: opens the logs of a node at its start, in slices of the loop, requested ones first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.broker.replica.log_dir import NO_OFFSETS, CheckpointedOffsets, LogDirectory
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError, LocalProtocolError, is_passing
from barnabas.loggers import logger
from barnabas.storage.checkpoints import LogSize, TopicPartition
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import DamagedLog, LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.saved_state import SYNCED_STATE

log = logger("kafka.log.LogManager")

LIGHT_BYTES: Final = 1024 * 1024  # a log that needs no more reading than this is opened in the first pass
SLICE_MS: Final = 5
SLICE_STEPS: Final = 64  # in one slice, if the clock does not advance within a turn of the loop (simulation)
BEFORE_SERVING_MS: Final = 1_000
PROGRESS_MS: Final = 1_000  # between two progress lines in the log
SLOW_MS: Final = 1_000  # a slower recovery of a log has a log line
RETRY_MS: Final = 1_000  # after a passing error
DAMAGE_NOTE: Final = "damaged-after-clean-stop"  # a file in the folder of a log that must not be truncated
NOTED_SIZE: Final = "bytes of .log and .txnindex files at the stop: "  # in that file
TRIES_MAX: Final = 60  # an error that does not pass within a minute fails the directory
SYNCED_AT_ONCE: Final = 64  # logs in one sync
GIB: Final = 1 << 30

TopicIdPartition = tuple[bytes, int]  # topic id, partition


@dataclass(slots=True, eq=False)
class UnopenedLog:
    """A partition whose log is not open yet."""

    topic: str
    topic_id: bytes
    partition: int
    config: LogConfig
    directory: LogDirectory
    offsets: CheckpointedOffsets
    set_aside: Callable[[LogDirectory, str], None]  # renames a folder of another topic of that name
    new: bool  # as of PartitionLog.opening
    steps: Generator[int, None, PartitionLog] | None = None  # the opening in progress, after the first visit
    failures: int = 0  # failed attempts
    wanted: bool = False  # a client, follower or coordinator was refused because the log is not open yet

    @property
    def name(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def folder(self) -> str:
        return f"{self.topic}-{self.partition}"

    def opening(self, now_ms: int) -> Generator[int, None, PartitionLog]:
        disk = self.directory.disk
        noted = not self.directory.clean and disk.exists(self._note_path)
        if noted:
            self.offsets = self.offsets._replace(size=_noted_size(disk.read(self._note_path)))
        opened = yield from PartitionLog.opening(
            disk,
            self.folder,
            self.config,
            LogOpening(
                now_ms=now_ms,
                topic_id=self.topic_id,
                clean=self.directory.clean or noted,  # nothing was written to it since that stop
                recovery_point=self.offsets.recovery_point,
                log_start_offset=self.offsets.log_start_offset,
                producers_complete_to=self.offsets.producers_complete_to,
                size=self.offsets.size,
                new=self.new,
            ),
        )
        if noted:
            disk.remove(self._note_path)  # the log was restored
        return opened

    @property
    def _note_path(self) -> str:
        return f"{self.folder}/{DAMAGE_NOTE}"

    def note_damage(self, error: DamagedLog) -> None:
        """Writes DAMAGE_NOTE: the next start follows an unclean stop and would truncate the log at the damage. Raises OSError."""
        disk = self.directory.disk
        size = self.offsets.size
        expected = "" if size is None else f"{NOTED_SIZE}{size.log_bytes} {size.aborted_bytes}\n"
        disk.replace(self._note_path, f"{error.strerror}\n{expected}".encode())
        disk.remove(f"{self.folder}/{SYNCED_STATE}")  # it uses damaged data

    def set_folder_aside(self) -> None:
        """INCONSISTENT_TOPIC_ID: the folder is of a topic that was deleted and created again while this node was down."""
        self.set_aside(self.directory, self.folder)
        self.offsets = NO_OFFSETS

    def close(self) -> None:
        if self.steps is not None:
            self.steps.close()
            self.steps = None


class LogRecovery:
    """Opens the logs of one node; `adopt` is called with each.

    A first pass opens every log that needs little reading. Then, or after a second, the node serves, and the other logs come online one by
    one: internal topics first, then requested ones. A passing error (too many open files, no memory) is retried after a pause; any other
    fails the directory, as in Kafka, and so does damage after a clean stop: such a log is never truncated, also at later starts, until it
    is restored or the operator removes DAMAGE_NOTE. Invariants: the checkpoints keep the offsets of a log until it is open; a log that was
    truncated, or that may be acknowledged only after a sync, is synced before it is adopted.
    """

    def __init__(self, reactor: Reactor, adopt: Callable[[UnopenedLog, PartitionLog], None]) -> None:
        self._reactor = reactor
        self._adopt = adopt
        self._unopened: dict[TopicIdPartition, UnopenedLog] = {}  # all of them, in opening order
        self._fresh: dict[TopicIdPartition, None] = {}  # not visited yet
        self._wanted: dict[TopicIdPartition, None] = {}
        self._paused: dict[TopicIdPartition, None] = {}  # until their next attempt
        self._current: TopicIdPartition | None = None  # the light one in progress
        self._unsynced: list[tuple[UnopenedLog, PartitionLog]] = []  # open, to be adopted after a sync
        self._running = self._stopped = False
        self._total = self._opened = 0
        self._planned_bytes = self._read_bytes = 0
        self._told_ms = 0
        self._began_ms: dict[TopicIdPartition, int] = {}  # of the logs that are being read

    def __contains__(self, key: TopicIdPartition) -> bool:
        return key in self._unopened

    def __len__(self) -> int:
        return len(self._unopened)

    @property
    def progress(self) -> tuple[int, int]:
        """How many logs need no more opening, and how many were added."""
        return self._total - len(self._unopened), self._total

    def add(self, logs: Iterable[UnopenedLog]) -> None:
        for one in logs:
            key = one.topic_id, one.partition
            self._unopened[key] = one
            self._fresh[key] = None
            one.directory.unopened[one.name] = one.offsets
            self._total += 1

    def want(self, topic_id: bytes, partition: int) -> None:
        """Opens a requested partition next."""
        one = self._unopened.get((topic_id, partition))
        if one is not None:
            one.wanted = True
            self._wanted[topic_id, partition] = None

    def forget(self, topic_id: bytes, partition: int) -> UnopenedLog | None:
        """The partition no longer belongs to this node. Returns its unopened log, if any; the caller handles the folder."""
        key = topic_id, partition
        one = self._unopened.pop(key, None)
        if one is None:
            return None
        for waiting in (self._fresh, self._wanted, self._paused):
            waiting.pop(key, None)
        if self._current == key:
            self._current = None
        for opened, partition_log in self._unsynced:
            if opened is one:
                partition_log.abandon()
        self._unsynced = [each for each in self._unsynced if each[0] is not one]
        one.close()
        return one

    def forget_directory(self, directory: LogDirectory) -> None:
        """The directory failed: its logs stay unchanged until the next start."""
        for key, one in list(self._unopened.items()):
            if one.directory is directory:
                self.forget(*key)

    def stop(self) -> None:
        self._stopped = True
        for one in self._unopened.values():
            one.close()

    # -- work

    async def run_before_serving(self) -> None:
        """Opens the logs that can be opened soon. Raises OSError if the node has failed, LocalProtocolError if it was stopped."""
        began_ms = self._reactor.clock.monotonic_ms()
        self._running = True
        try:
            while self._has_work() and (
                self._fresh or self._current or self._reactor.clock.monotonic_ms() - began_ms < BEFORE_SERVING_MS
            ):
                await self._turn()
            await self._sync()
        finally:
            self._running = False
        if self._reactor.failure is not None:
            raise self._reactor.failure
        if self._stopped:
            raise LocalProtocolError("the node was stopped while its logs were opened")
        self._tell_progress(at_once=True)
        self._wake()

    def _wake(self) -> None:
        if self._has_work() and not self._running and not self._reactor.scope.stopping:
            self._running = True
            self._reactor.scope.start(self._run(), name="recovery")

    async def _run(self) -> None:
        try:
            while self._has_work():
                await self._turn()
            await self._sync()
        finally:
            self._running = False
        self._tell_progress(at_once=not self._unopened)

    def _has_work(self) -> bool:
        return not self._stopped and self._reactor.failure is None and len(self._unopened) > len(self._paused)

    async def _turn(self) -> None:
        """Runs one slice, then yields to the loop."""
        clock = self._reactor.clock
        began_ms = clock.monotonic_ms()
        key = None
        for _ in range(SLICE_STEPS):
            key = self._next()
            if key is None or len(self._unsynced) >= SYNCED_AT_ONCE:
                break
            self._step(key)
            if clock.monotonic_ms() - began_ms >= SLICE_MS:
                break
        if self._unsynced and (key is None or len(self._unsynced) >= SYNCED_AT_ONCE or key in self._wanted):
            await self._sync()
        self._tell_progress()
        await asyncio.sleep(0)

    def _next(self) -> TopicIdPartition | None:
        for key in self._wanted:
            if self._is_due(key):
                return key
        if self._current is not None:
            return self._current
        for keys in (self._fresh, self._unopened):
            for key in keys:
                if self._is_due(key):
                    return key
        return None

    def _is_due(self, key: TopicIdPartition) -> bool:
        return key not in self._paused and not any((one.topic_id, one.partition) == key for one, _ in self._unsynced)

    def _step(self, key: TopicIdPartition) -> None:
        one = self._unopened[key]
        try:
            if one.steps is None:
                self._fresh.pop(key, None)
                self._began_ms[key] = self._reactor.clock.monotonic_ms()
                one.steps = one.opening(self._reactor.clock.now_ms())
                planned = next(one.steps)
                self._planned_bytes += planned
                self._current = key if planned <= LIGHT_BYTES else None
            else:
                self._read_bytes += next(one.steps)
        except StopIteration as end:
            self._tell_slow(key, one)
            self._on_opened(key, one, end.value)
        except BrokerError:
            one.steps = None
            one.set_folder_aside()
            one.directory.unopened[one.name] = one.offsets
        except OSError as error:
            self.on_error(one, error)

    def on_error(self, one: UnopenedLog, error: OSError) -> None:
        """The log could not be opened, here or when its partition was new: tries again, or fails its directory."""
        key = one.topic_id, one.partition
        one.steps = None
        one.failures += 1
        if self._current == key:
            self._current = None
        if not is_passing(error) or one.failures > TRIES_MAX:
            log.error("Log cannot be opened: folder=%s error=%s", one.folder, error)
            if isinstance(error, DamagedLog):
                self._note_damage(one, error)
            self._paused[key] = None  # the failure of its directory removes it
            one.directory.fail(error)
            return
        log.warning("Log cannot be opened now, is tried again: folder=%s error=%s", one.folder, error)
        if key not in self._unopened:
            self.add([one])
        self._paused[key] = None
        self._reactor.call_later(RETRY_MS, lambda: self._try_again(key))

    def _note_damage(self, one: UnopenedLog, error: DamagedLog) -> None:
        log.error(
            "Damaged log is left as it is: restore it from a copy; or, if another replica holds its records, remove the folder, "
            "and they are fetched again; or remove its note of the damage, and it is cut at a damaged batch and served "
            "without what is missing: folder=%s note=%s",
            one.folder,
            f"{one.folder}/{DAMAGE_NOTE}",
        )
        try:
            one.note_damage(error)
        except OSError as failure:
            log.error("Note about a damaged log cannot be written: folder=%s error=%s", one.folder, failure)

    def _try_again(self, key: TopicIdPartition) -> None:
        if key in self._paused:
            del self._paused[key]
            self._fresh[key] = None
            self._wake()

    def _on_opened(self, key: TopicIdPartition, one: UnopenedLog, partition_log: PartitionLog) -> None:
        one.steps = None
        if self._current == key:
            self._current = None
        self._opened += 1
        if one.directory.must_sync(one.name, partition_log):
            self._unsynced.append((one, partition_log))
        else:
            self._finish(one, partition_log)

    def _finish(self, one: UnopenedLog, partition_log: PartitionLog) -> None:
        key = one.topic_id, one.partition
        del self._unopened[key]
        self._wanted.pop(key, None)
        del one.directory.unopened[one.name]
        self._adopt(one, partition_log)

    async def _sync(self) -> None:
        """Syncs opened logs: truncated bytes must not return among appended ones, and coordinators load up to the high watermark."""
        waiting = self._unsynced
        if not waiting:
            return
        for directory in dict.fromkeys(one.directory for one, _ in waiting):
            logs = {one.name: each for one, each in waiting if one.directory is directory}
            try:
                await directory.sync_recovered(logs)
            except OSError as error:
                directory.fail(error)
        done = [each for each in self._unsynced if each in waiting]
        self._unsynced = [each for each in self._unsynced if each not in done]
        for one, partition_log in done:
            if one.directory.online and not self._stopped:
                self._finish(one, partition_log)

    def _tell_slow(self, key: TopicIdPartition, one: UnopenedLog) -> None:
        """Logs the duration of a long recovery."""
        now_ms = self._reactor.clock.monotonic_ms()
        duration_ms = now_ms - self._began_ms.pop(key, now_ms)
        if duration_ms >= SLOW_MS:
            log.info("Log is recovered: folder=%s duration_ms=%d", one.folder, duration_ms)

    def _tell_progress(self, *, at_once: bool = False) -> None:
        if self._planned_bytes <= LIGHT_BYTES:
            return
        now_ms = self._reactor.clock.monotonic_ms()
        if at_once or now_ms - self._told_ms >= PROGRESS_MS:
            self._told_ms = now_ms
            log.info(
                "Recovery goes on: recovered=%d partitions=%d read_gib=%.1f planned_gib=%.1f",
                self._opened,
                self._total,
                self._read_bytes / GIB,
                self._planned_bytes / GIB,
            )


def _noted_size(note: bytes) -> LogSize | None:
    """Size of the log in DAMAGE_NOTE, if known."""
    _, _, text = note.decode(errors="replace").partition(NOTED_SIZE)
    numbers = text.split()
    return LogSize(int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and "".join(numbers).isdigit() else None
