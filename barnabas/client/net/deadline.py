"""Deadline with retries and backoff, for requests on behalf of a caller."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from barnabas.client.errors import KafkaError, RequestTimedOut, UnknownTopicOrPartition
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.backoff import Backoff

MISSING_MS: Final = 2_000  # a broker may not know a topic yet that was created at another one


class Deadline:
    """Time limit and backoff of one call. `timeout_ms` None: the cluster's `request_timeout_ms`."""

    def __init__(self, cluster: NetworkClient, timeout_ms: int | None) -> None:
        self._cluster = cluster
        self._backoff = Backoff(cluster.retry_backoff_ms, cluster.rng)
        self._refusal: KafkaError | None = None  # the last error that a broker has sent
        self._missing_since_ms: int | None = None
        self._at_ms = cluster.clock.monotonic_ms() + math.ceil(
            cluster.request_timeout_ms if timeout_ms is None else timeout_ms
        )

    @property
    def left_ms(self) -> int:
        return max(1, self._at_ms - self._cluster.clock.monotonic_ms())

    async def pause(self, error: KafkaError) -> None:
        """Waits before a retry after a retriable `error`; raises others. Raises RequestTimedOut after the deadline."""
        if not error.retriable:
            raise error
        if error.code is not None:
            self._refusal = error
        now_ms = self._cluster.clock.monotonic_ms()
        if not isinstance(error, UnknownTopicOrPartition):
            self._missing_since_ms = None
        if now_ms >= self._at_ms:
            # An earlier rejection by a broker says more than a last attempt without response.
            error = self._refusal or error
            raise RequestTimedOut(f"gave up after retries: {error}", code=error.code) from error
        await asyncio.sleep(min(self._backoff.pause_ms(now_ms), self._at_ms - now_ms) / 1000)

    async def missing(self, error: KafkaError) -> None:
        """As `pause`; UnknownTopicOrPartition is final after two seconds."""
        now_ms = self._cluster.clock.monotonic_ms()
        if isinstance(error, UnknownTopicOrPartition):
            if self._missing_since_ms is None:
                self._missing_since_ms = now_ms
            if now_ms - self._missing_since_ms >= MISSING_MS:
                raise error
        await self.pause(error)
