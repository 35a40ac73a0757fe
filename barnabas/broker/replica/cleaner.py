"""Cleaner: cleans compacted logs of leaders and followers, one at a time, the greatest dirty ratio first.
Deviation from Kafka: log.cleaner.threads has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload
from barnabas.errors import BrokerError, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.storage.cleanable import Cleanable, assess
from barnabas.storage.cleaning import Cleaning, CleaningAborted, CorruptSegment

log = logger("kafka.log.LogCleaner")

PAUSE_S: Final = 0.001  # between steps, at least
LOOKED_AT_ONCE: Final = 64  # logs checked in one turn: 1 to 2 ms
SYNC_LOOK_MS: Final = 500  # until the next check of a log whose sync was requested


class Cleaner:
    """The log cleaner of one node.

    Steps of about a millisecond with a pause after each, within log.cleaner.io.max.bytes.per.second; syncs run off the loop. Only synced
    records are cleaned: the cleaner requests a sync, and the next check finds it. A log that was truncated, deleted or reconfigured during
    its cleaning is checked again later; one that cannot be read is left unchanged until the next start.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        replicas: Replicas,
        *,
        checkpoint_soon: Callable[[], None],
        offload: Offload,
    ) -> None:
        """Reads no log. `checkpoint_soon` writes every checkpoint at the end of the wake-up; `offload` runs long C calls in threads."""
        self._reactor = reactor
        self._config = config
        self._replicas = replicas
        self._checkpoint_soon = checkpoint_soon
        self._offload = offload
        self._unreadable: dict[Replica, None] = {}
        self._turn = asyncio.Lock()  # one pass at a time

    def start(self) -> None:
        """Arms the first check if log.cleaner.enable is true."""
        if self._config.get_bool("log.cleaner.enable"):
            self._look_in(self._config.get_int("log.cleaner.backoff.ms"))

    def _look_in(self, delay_ms: int) -> None:
        self._reactor.call_later(delay_ms, self._look)

    def _look(self) -> None:
        if not self._reactor.scope.stopping:
            self._reactor.scope.start(self._clean_all(), name="cleaner")

    async def clean_now(self) -> bool:
        """Cleans the logs that are due, beside the armed check. Returns False if one waits for the sync of its records."""
        if not self._config.get_bool("log.cleaner.enable"):
            return True
        async with self._turn:
            return not await self._pass()

    async def _clean_all(self) -> None:
        """Cleans the logs that are due, then arms the next check."""
        async with self._turn:
            unsynced = await self._pass()
        delay_ms = self._config.get_int("log.cleaner.backoff.ms")
        self._look_in(min(delay_ms, SYNC_LOOK_MS) if unsynced else delay_ms)

    async def _pass(self) -> bool:
        """Returns whether a log is due whose records are not synced yet."""
        stuck: dict[Replica, None] = {}  # failed: skipped until the next check
        while True:
            chosen, unsynced = None, False
            for replica in await self._due():
                cleanable = None if replica in stuck else self._assess(replica)  # again: time has passed
                if cleanable is None:
                    continue
                if replica.log.recovery_point >= cleanable.first_uncleanable_offset:
                    chosen = replica, cleanable
                    break
                self._replicas.request_sync(replica)
                unsynced = True
            if chosen is None:
                return unsynced
            replica = chosen[0]
            cleaned_to = replica.log.cleaned_to
            await self._clean(*chosen)
            if replica.log.cleaned_to <= cleaned_to:
                stuck[replica] = None

    async def _due(self) -> list[Replica]:
        """Replicas whose logs are to be cleaned, the dirtiest first; yields to the loop in between."""
        due = []
        for count, replica in enumerate(list(self._replicas.all()), 1):
            if count % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            cleanable = self._assess(replica)
            if cleanable is not None:
                due.append((cleanable.dirty_ratio, replica))
        due.sort(key=lambda entry: -entry[0])
        return [replica for _, replica in due]

    def _assess(self, replica: Replica) -> Cleanable | None:
        """None: nothing to clean now."""
        partition_log = replica.log
        if replica.failed or not partition_log.config.compacted or replica in self._unreadable:
            return None
        try:
            cleanable = assess(
                partition_log.segments.all,
                partition_log.config,
                cleaned_to=partition_log.cleaned_to,
                log_start_offset=partition_log.log_start_offset,
                last_stable_offset=partition_log.last_stable_offset(replica.high_watermark),
                now_ms=self._reactor.clock.now_ms(),
            )
        except OSError as error:
            self._replicas.on_io_error(replica, error)
            return None
        return cleanable if cleanable.is_due(partition_log.config) else None

    async def _clean(self, replica: Replica, cleanable: Cleanable) -> None:
        directory = self._replicas.home_of(replica)
        if directory is None:
            return
        cleaning = Cleaning(
            directory.disk,
            replica.log,
            cleanable,
            now_ms=self._reactor.clock.now_ms(),
            map_bytes_max=self._config.get_int("log.cleaner.dedupe.buffer.size"),
        )
        began_ms = self._reactor.clock.monotonic_ms()
        try:
            if not await self._walk(replica, directory, cleaning):
                return
        except CleaningAborted as error:
            log.info("Cleaner run ended early, the log is cleaned again later: partition=%s error=%s", replica, error)
            return
        except (CorruptSegment, RemoteProtocolError, BrokerError) as error:
            self._unreadable[replica] = None
            log.error("Log cannot be cleaned until the next start: partition=%s error=%s", replica, error)
            return
        except OSError as error:
            self._replicas.on_io_error(replica, error)
            return
        except Exception:  # an error in one log must not stop the cleaning of others
            self._unreadable[replica] = None
            log.exception("Log cannot be cleaned until the next start: partition=%s", replica)
            return
        self._checkpoint_soon()
        log.info(
            "Cleaner run: partition=%s end_offset=%d bytes_before=%d bytes_after=%d kept_ratio=%.2f keys=%d duration_ms=%d",
            replica,
            cleaning.end_offset,
            cleaning.bytes_before,
            cleaning.bytes_after,
            cleaning.bytes_after / max(1, cleaning.bytes_before),
            cleaning.keys,
            self._reactor.clock.monotonic_ms() - began_ms,
        )

    async def _walk(self, replica: Replica, directory: LogDirectory, cleaning: Cleaning) -> bool:
        """Returns whether all steps ran: False if the replica went offline."""
        with closing(cleaning.steps()) as steps:
            for step in steps:
                if step.files:
                    await directory.disk.sync(step.files)
                if step.work is not None:
                    await self._offload(step.work)
                rate = self._config.get_float("log.cleaner.io.max.bytes.per.second")
                await asyncio.sleep(max(PAUSE_S, step.size_bytes / max(rate, 1.0)))
                if replica.failed:
                    return False
        return True
