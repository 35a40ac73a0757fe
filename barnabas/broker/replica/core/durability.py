"""Durability: the acknowledged part of one replica's log, and callbacks that wait for a sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import ref

from barnabas.broker.api.call import Done
from barnabas.errors import BrokerError
from barnabas.storage.partition_log import PartitionLog

T = TypeVar("T")


class Durability:
    """The synced part of a log. `request_sync` requests a sync; `on_synced` reports it.

    A log that need not flush (Kafka's default `flush.messages`) is acknowledged from the page cache: replication is its durability. After a
    truncation nothing is acknowledged, and followers append nothing, before it is synced: a power loss could bring old bytes back.
    In a new folder nothing is acknowledged before its partition.metadata is synced.
    """

    __slots__ = ("_cut", "_log", "_request_sync", "_requested", "_synced_offset", "_unnamed", "_waiting")

    def __init__(self, log: PartitionLog, request_sync: Callable[[], None]) -> None:
        self._log = log
        self._request_sync = request_sync
        self._requested = False
        self._cut = False
        self._unnamed = log.unnamed
        self._synced_offset = log.recovery_point  # exclusive: everything below is durable
        self._waiting: list[tuple[int, Done[None]]] = []  # in order of arrival

    @property
    def needs_sync(self) -> bool:
        """Whether a sync is needed before the log's end is acknowledged."""
        unacknowledged = self._log.log_end_offset - self._synced_offset
        return self._cut or (self._unnamed and unacknowledged > 0) or unacknowledged >= self._log.config.flush_messages

    def acknowledged_end(self) -> int:
        """Acknowledged end of this replica (exclusive); requests the sync that the rest needs."""
        end = self._log.log_end_offset
        if end - self._synced_offset < self._log.config.flush_messages and not self._cut and not self._unnamed:
            return end
        self.request_sync()
        return self._synced_offset

    def request_sync(self) -> None:
        """Requests a sync if one is needed and none is pending."""
        if not self._requested and self.needs_sync:
            self._requested = True
            self._request_sync()

    def on_cut(self) -> None:
        self._synced_offset = min(self._synced_offset, self._log.log_end_offset)
        self._cut = True
        self.request_sync()

    def on_synced(self, next_offset: int) -> None:
        """Everything below `next_offset` is durable."""
        self._requested = self._cut = self._unnamed = False
        self._synced_offset = max(self._synced_offset, next_offset)

    def covers(self, next_offset: int) -> bool:
        """Whether this disk allows to acknowledge everything below `next_offset`."""
        return not self._cut and (next_offset <= self._synced_offset or not self.needs_sync)

    def when_durable(self, next_offset: int, done: Done[None]) -> None:
        """Calls `done(None)` once `next_offset` is covered: at once, or from `release`."""
        if self.covers(next_offset):
            done(None)
        else:
            self._waiting.append((next_offset, done))
            self.request_sync()

    def release(self, error: BrokerError | None = None) -> None:
        """Calls all that need not wait any more; with an error, all."""
        if not self._waiting:
            return
        # Both lists are final before the first call: a callback may fail the replica, and that calls this method again.
        called: list[tuple[int, Done[None]]] = []
        left: list[tuple[int, Done[None]]] = []
        for entry in self._waiting:
            (called if error is not None or self.covers(entry[0]) else left).append(entry)
        self._waiting = left
        for _, done in called:
            done(error)


def weakly(call: Callable[[T], None], owner: T) -> Callable[[], None]:
    """Calls `call(owner)` without a reference to the owner: a deleted replica need not wait for the collector of cycles."""
    weak = ref(owner)

    def called() -> None:
        alive = weak()
        if alive is not None:
            call(alive)

    return called
