"""Automatic commits: what earlier polls returned is committed every interval, before a rebalance and at the end.

Driven by: each poll (`tend`), the group before it gives partitions up, the consumer's close.
Emits: commits of `safe_position`, which a partition reaches when the taker of its records comes back for more.

A failure is logged, not raised: the next commit covers it. Follows Kafka's `enable.auto.commit`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from barnabas.client.cluster import Cluster
from barnabas.client.errors import KafkaError
from barnabas.client.fetching import Fetcher
from barnabas.client.types import OffsetAndMetadata, TopicPartition

__all__ = ["AutoCommit"]

log = logging.getLogger("barnabas.client.consumer")


class AutoCommit:
    """The automatic commits of one consumer.

    Args:
        interval_ms: between two; None switches them off.
        commit: does one.
    """

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        interval_ms: int | None,
        commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._interval_ms = interval_ms
        self._commit = commit
        self._due_ms = cluster.clock.monotonic_ms() + (interval_ms or 0)
        self._task: asyncio.Task[None] | None = None

    def due(self, now_ms: int) -> bool:
        """Whether a poll should begin one now."""
        return self._interval_ms is not None and now_ms >= self._due_ms and self._task is None

    def tend(self, now_ms: int) -> None:
        """A poll looks in: begins a commit in the background where one is due."""
        if self._interval_ms is not None and self.due(now_ms):
            self._due_ms = now_ms + self._interval_ms
            self._task = self._cluster.scope.start(self._run(), name="auto commit")

    async def now(self) -> None:
        """Commits what is safe, unless automatic commits are off."""
        if self._interval_ms is None:
            return
        chosen = {
            tp: OffsetAndMetadata(state.safe_position, "", state.record_epoch)
            for tp, state in self._fetcher.partitions.items()
            if state.safe_position is not None
        }
        try:
            await self._commit(chosen)
        except KafkaError as error:
            log.warning("automatic commit failed: %s", error)

    async def _run(self) -> None:
        try:
            await self.now()
        finally:
            self._task = None
