"""LoadLines: log lines about the partitions of an internal topic that a coordinator loads and gives up.

Driven by: the host of the shards. Emits: one line for all partitions that begin to load in a wake-up, one when all of them are loaded, and
one for all that are given up in a wake-up. A start of a broker with 50 partitions therefore writes two lines.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.loggers import logger
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from barnabas.broker.reactor import Reactor

__all__ = ["LoadLines"]

PARTITIONS_NAMED: Final = 10


class LoadLines:
    """The lines about one internal topic."""

    def __init__(self, topic: str, reactor: Reactor) -> None:
        self._topic = topic
        self._reactor = reactor
        self._log = logger(
            "kafka.coordinator.transaction" if topic == TRANSACTION_STATE_TOPIC else "kafka.coordinator.group"
        )
        self._begun: dict[int, int] = {}  # partition → bytes of its log, not logged yet
        self._loading: dict[int, None] = {}
        self._resigned: dict[int, None] = {}
        self._loaded = self._entries = self._bytes = 0
        self._began_ms = 0
        self._due = False

    def on_begin(self, partition: int, size_bytes: int) -> None:
        """The partition begins to load; its log has that size."""
        if not self._log.isEnabledFor(logging.INFO):
            return
        if not self._loading:
            self._began_ms = self._reactor.clock.monotonic_ms()
            self._loaded = self._entries = self._bytes = 0
        self._begun[partition] = size_bytes
        self._loading[partition] = None
        self._bytes += size_bytes
        self._write_soon()

    def on_loaded(self, partition: int, entries: int) -> None:
        """The partition is loaded and has that number of groups or transactional ids."""
        if partition in self._loading:
            self._loaded += 1
            self._entries += entries
            self._on_end(partition)

    def on_resigned(self, partition: int) -> None:
        """The coordinator gives the partition up, or failed to load it."""
        if self._log.isEnabledFor(logging.INFO):
            self._resigned[partition] = None
            self._write_soon()
        if partition in self._loading:
            self._on_end(partition)

    def _on_end(self, partition: int) -> None:
        del self._loading[partition]
        if not self._loading and self._loaded:
            self._write()  # first what began in this wake-up
            self._log.info(
                "Coordinator has loaded partitions: topic=%s partitions=%d entries=%d bytes=%d duration_ms=%d",
                self._topic,
                self._loaded,
                self._entries,
                self._bytes,
                self._reactor.clock.monotonic_ms() - self._began_ms,
            )

    def _write_soon(self) -> None:
        if not self._due:
            self._due = True
            self._reactor.soon(self._write)

    def _write(self) -> None:
        self._due = False
        if self._begun:
            self._log.info(
                "Coordinator loads partitions: topic=%s count=%d partitions=%s bytes=%d",
                self._topic,
                len(self._begun),
                _named(self._begun),
                sum(self._begun.values()),
            )
            self._begun.clear()
        if self._resigned:
            self._log.info(
                "Coordinator gives partitions up: topic=%s count=%d partitions=%s",
                self._topic,
                len(self._resigned),
                _named(self._resigned),
            )
            self._resigned.clear()


def _named(partitions: dict[int, int] | dict[int, None]) -> str:
    numbers = sorted(partitions)
    more = f" and {len(numbers) - PARTITIONS_NAMED} more" if len(numbers) > PARTITIONS_NAMED else ""
    return ",".join(map(str, numbers[:PARTITIONS_NAMED])) + more
