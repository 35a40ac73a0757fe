"""Log lines of loaded and resigned partitions of an internal topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from barnabas.loggers import logger
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from barnabas.broker.scheduling.reactor import Reactor

PARTITIONS_NAMED: Final = 10
COLLECTED_MS: Final = 200  # events within this time share one line


class LoadLines:
    """Arms the same timers at every log level, so that a simulated run does not depend on it."""

    def __init__(self, topic: str, reactor: Reactor) -> None:
        self._topic = topic
        self._reactor = reactor
        self._log = logger(
            "kafka.coordinator.transaction" if topic == TRANSACTION_STATE_TOPIC else "kafka.coordinator.group"
        )
        self._loading: dict[int, tuple[int, int]] = {}  # partition → begin (monotonic ms), bytes of its log
        self._begun: dict[int, None] = {}  # not logged yet
        self._loaded: dict[int, int] = {}  # partition → entries; not logged yet
        self._resigned: dict[int, None] = {}  # not logged yet
        self._bytes = self._duration_ms = 0  # of loaded partitions: all bytes, the longest duration
        self._due = False

    def on_begin(self, partition: int, size_bytes: int) -> None:
        self._loading[partition] = self._reactor.clock.monotonic_ms(), size_bytes
        self._begun[partition] = None
        self._write_soon()

    def on_loaded(self, partition: int, entries: int) -> None:
        """`entries`: groups or transactional ids."""
        if partition in self._loading:
            began_ms, size_bytes = self._loading.pop(partition)
            self._loaded[partition] = entries
            self._bytes += size_bytes
            self._duration_ms = max(self._duration_ms, self._reactor.clock.monotonic_ms() - began_ms)
            self._write_soon()

    def on_resigned(self, partition: int) -> None:
        """The coordinator resigns the partition, or failed to load it."""
        self._loading.pop(partition, None)
        self._resigned[partition] = None
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._due:
            self._due = True
            self._reactor.call_later(COLLECTED_MS, self._write)

    def _write(self) -> None:
        self._due = False
        begun = [partition for partition in self._begun if partition in self._loading]  # the others are loaded already
        if begun:
            self._log.info(
                "Coordinator loads partitions: topic=%s count=%d partitions=%s bytes=%d",
                self._topic,
                len(begun),
                _named(begun),
                sum(self._loading[partition][1] for partition in begun),
            )
        if self._loaded:
            self._log.info(
                "Coordinator has loaded partitions: topic=%s count=%d partitions=%s entries=%d bytes=%d duration_ms=%d",
                self._topic,
                len(self._loaded),
                _named(self._loaded),
                sum(self._loaded.values()),
                self._bytes,
                self._duration_ms,
            )
        if self._resigned:
            self._log.info(
                "Coordinator gives partitions up: topic=%s count=%d partitions=%s",
                self._topic,
                len(self._resigned),
                _named(self._resigned),
            )
        self._begun, self._loaded, self._resigned = {}, {}, {}
        self._bytes = self._duration_ms = 0


def _named(partitions: Iterable[int]) -> str:
    numbers = sorted(partitions)
    more = f" and {len(numbers) - PARTITIONS_NAMED} more" if len(numbers) > PARTITIONS_NAMED else ""
    return ",".join(map(str, numbers[:PARTITIONS_NAMED])) + more
