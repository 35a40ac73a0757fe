"""Retries with pauses until a time is over, for requests that a coroutine sends on its caller's behalf."""

from __future__ import annotations

import asyncio

from barnabas.client.errors import KafkaError, RequestTimedOut
from barnabas.client.net.backoff import Backoff
from barnabas.client.net.cluster import Cluster

__all__ = ["Deadline"]


class Deadline:
    """The time that a call has.

    Args:
        timeout_ms: from now; the cluster's `request_timeout_ms` where None.
    """

    def __init__(self, cluster: Cluster, timeout_ms: int | None) -> None:
        self._cluster = cluster
        self._backoff = Backoff(cluster.retry_backoff_ms, cluster.rng)
        self._at_ms = cluster.clock.monotonic_ms() + (cluster.request_timeout_ms if timeout_ms is None else timeout_ms)

    @property
    def left_ms(self) -> int:
        """Milliseconds left, at least 1."""
        return max(1, self._at_ms - self._cluster.clock.monotonic_ms())

    async def pause(self, error: KafkaError) -> None:
        """Waits a moment before the next attempt, or raises `error` where it is final.

        Raises:
            RequestTimedOut: the time is over; `error` is its cause.
        """
        if not error.retriable:
            raise error
        now_ms = self._cluster.clock.monotonic_ms()
        if now_ms >= self._at_ms:
            raise RequestTimedOut(f"gave up after retries: {error}", code=error.code) from error
        await asyncio.sleep(min(self._backoff.pause_ms(now_ms), self._at_ms - now_ms) / 1000)
