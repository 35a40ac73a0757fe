"""LogMaintenance: periodic work on a node's logs: checkpoints, retention, syncs by time, expired producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.broker.replica.log_dirs import LogDirectories
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices, WorkResult, advance
from barnabas.errors import BarnabasError
from barnabas.loggers import logger
from barnabas.storage.checkpoints import RECOVERY_POINT_CHECKPOINT
from barnabas.work import UNITS_PER_SLICE, Work

log = logger("kafka.log.UnifiedLog")

UNITS_PER_TURN: Final = 128  # 2 to 4 ms: a check of a replica is one unit; other work counts too
UNITS_OF_A_SAVE: Final = 15
UNITS_OF_A_SEGMENT: Final = 4  # deleted: five files are renamed
DELETED_AT_ONCE: Final = 16  # segments of one log
FLUSH_LOOK_MS: Final = 1_000  # between checks for flush.ms


class CheckpointWriter:
    """Writes the checkpoint files of all directories, in slices and off the loop."""

    def __init__(self, reactor: Reactor, log_dirs: LogDirectories, slices: Slices) -> None:
        self._reactor = reactor
        self._log_dirs = log_dirs
        self._slices = slices
        # Newest contents of checkpoint files, by directory and name.
        self._unwritten: dict[tuple[LogDirectory, str], tuple[bytes, int]] = {}
        self._writing = False
        self._due = False
        self._collecting = False
        self._collect_again = self._wanted = False  # another collection is due; of all files

    def soon(self) -> None:
        """Writes every checkpoint after this wake-up."""
        if not self._due:
            self._due = True
            self._reactor.soon(self.write_all)

    def write_all(self) -> None:
        self._due = False
        self._collect(everything=True)

    def write_high_watermarks(self) -> None:
        self._collect(everything=False)

    def _collect(self, *, everything: bool) -> None:
        """Makes the checkpoint files in slices, then writes them; `everything`: not only the high watermarks."""
        self._wanted = self._wanted or everything
        self._collect_again = True
        if self._collecting:
            return
        self._collecting = True
        work = self._collected()
        try:
            rest = advance(work)
        except BaseException:
            self._collecting = False
            raise
        if not isinstance(rest, WorkResult):
            self._slices.start(rest, lambda _: None, self._reactor.fatal)

    def _collected(self) -> Work:
        while self._collect_again:
            everything, self._wanted, self._collect_again = self._wanted, False, False
            for directory in self._log_dirs.online():
                lowered = directory.lowered
                files = yield from directory.checkpoints_in_slices(only_high_watermarks=not everything)
                for name, data in files.items():
                    self._unwritten[directory, name] = data, lowered
            self._write()
        self._collecting = False

    def _write(self) -> None:
        """Wakes the writer without waiting for it; newer contents replace those it has not begun to write."""
        if self._unwritten and not self._writing and not self._reactor.scope.stopping:
            self._writing = True
            self._reactor.scope.start(self._drain(), name="checkpoints")

    async def _drain(self) -> None:
        try:
            while self._unwritten:
                directory, name = next(iter(self._unwritten))
                data, lowered = self._unwritten.pop((directory, name))
                if directory.online:
                    await _write_checkpoint(directory, name, data, lowered)
        finally:
            self._writing = False


class LogMaintenance:
    """The recurring work on a node's logs, in slices, so that a thousand partitions do not block the loop.

    Beyond Kafka: every log.flush.offset.checkpoint.interval.ms, new writes are synced in the background together with a state of the log
    (`storage/saved_state.py`), so that a recovery reads a minute of writes instead of a whole segment.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        checkpoints: CheckpointWriter,
        replicas: Replicas,
        slices: Slices,
    ) -> None:
        self._reactor = reactor
        self._slices = slices
        self._config = config
        self._replicas = replicas
        self._checkpoints = checkpoints
        self._saving: dict[Replica, None] = {}  # whose state is being saved in slices

    def start(self) -> None:
        config = self._config
        self._every(
            config.get_int("replica.high.watermark.checkpoint.interval.ms"), self._checkpoints.write_high_watermarks
        )
        self._every(config.get_int("log.flush.offset.checkpoint.interval.ms"), self._checkpoint)
        self._every(config.get_int("log.retention.check.interval.ms"), lambda: self._walk(self._retain))
        self._every(
            config.get_int("producer.id.expiration.check.interval.ms"), lambda: self._walk(self._expire_producers)
        )
        self._every(max(config.get_int("replica.lag.time.max.ms") // 2, 1), lambda: self._walk(Replica.shrink_isr))
        self._every(FLUSH_LOOK_MS, lambda: self._walk(self._flush_by_time))

    def _every(self, interval_ms: int, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except OSError as error:
                self._reactor.fatal(error)
                return
            except BarnabasError as error:
                log.error("Upkeep of the logs failed: error=%s", error)
            self._reactor.call_later(interval_ms, run)

        self._reactor.call_later(interval_ms, run)

    def check(self, replica: Replica) -> bool:
        """Applies retention and the expiry of producers to one replica now. Returns whether more segments are to be deleted."""
        before = replica.log.log_start_offset
        self._look(replica, self._retain)
        self._look(replica, self._expire_producers)
        return not replica.failed and replica.log.log_start_offset > before

    def _walk(self, look: Callable[[Replica], int | None], replicas: Sequence[Replica] | None = None) -> None:
        """Calls `look` on these replicas or all, UNITS_PER_TURN a turn; it returns its units above one."""
        self._walk_from(0, list(self._replicas.all()) if replicas is None else replicas, look)

    def _walk_from(self, at: int, replicas: Sequence[Replica], look: Callable[[Replica], int | None]) -> None:
        units = 0
        while at < len(replicas) and units < UNITS_PER_TURN:
            units += 1 + self._look(replicas[at], look)
            at += 1
        if at < len(replicas):
            self._reactor.call_later(1, lambda: self._walk_from(at, replicas, look))

    def _look(self, replica: Replica, look: Callable[[Replica], int | None]) -> int:
        if replica.failed:
            return 0
        try:
            return look(replica) or 0
        except OSError as error:
            self._replicas.on_io_error(replica, error)
            return 0

    def _checkpoint(self) -> None:
        self._checkpoints.write_all()
        self._walk(self._sync)

    def _sync(self, replica: Replica) -> int:
        units = self._save(replica)
        if replica.log.log_end_offset > replica.log.recovery_point:
            self._replicas.request_sync(replica)
            units = max(units, UNITS_OF_A_SAVE)
        return units

    def _save(self, replica: Replica) -> int:
        """Saves the state of a log, that of many producers in several turns. Returns the units of this turn."""
        if replica in self._saving:
            return 0
        rest = advance(replica.log.saving_state())
        if isinstance(rest, WorkResult):
            return rest.units + (UNITS_OF_A_SAVE if rest.result else 0)
        self._saving[replica] = None

        def failed(error: BaseException) -> None:
            del self._saving[replica]
            if not isinstance(error, OSError):
                self._reactor.fatal(error)
            elif not replica.failed:
                self._replicas.on_io_error(replica, error)

        def done(_: bool) -> None:
            del self._saving[replica]

        self._slices.start(rest, done, failed)
        return UNITS_PER_SLICE

    def _retain(self, replica: Replica) -> int:
        now_ms = self._reactor.clock.now_ms()
        home = self._replicas.home_of(replica)
        if home is not None:
            home.discard(replica.log.take_deleted(now_ms))
        removed = replica.log.apply_retention(now_ms, replica.high_watermark, segments_max=DELETED_AT_ONCE)
        if removed == DELETED_AT_ONCE:
            self._reactor.call_later(1, lambda: self._walk(self._retain, [replica]))
        if removed:
            log.info(
                "Retention deleted segments: partition=%s segments=%d log_start_offset=%d",
                replica,
                removed,
                replica.log.log_start_offset,
            )
            replica.progressed()
        return removed * UNITS_OF_A_SEGMENT

    def _expire_producers(self, replica: Replica) -> None:
        replica.log.expire_producers(self._reactor.clock.now_ms())

    def _flush_by_time(self, replica: Replica) -> None:
        """flush.ms: syncs older writes."""
        if replica.log.config.flush_ms >= 2**62:
            return
        now_ms = self._reactor.clock.monotonic_ms()
        if replica.log.log_end_offset <= replica.log.recovery_point:
            replica.unsynced_since_ms = None
        elif replica.unsynced_since_ms is None:
            replica.unsynced_since_ms = now_ms
        if replica.unsynced_since_ms is not None and now_ms - replica.unsynced_since_ms >= replica.log.config.flush_ms:
            replica.unsynced_since_ms = None
            self._replicas.request_sync(replica)


async def _write_checkpoint(directory: LogDirectory, name: str, data: bytes, lowered: int) -> None:
    disk = directory.disk
    try:
        file = disk.open(name + ".tmp", create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            await disk.sync([file])  # off the loop: a sync lasts milliseconds
        finally:
            file.close()
        if name != RECOVERY_POINT_CHECKPOINT or lowered == directory.lowered:
            disk.rename(name + ".tmp", name)
    except OSError as error:
        directory.fail(error)
