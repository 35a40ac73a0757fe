"""Requests on behalf of a caller: repeated with backoff until they succeed, fail for good, or their time is over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, RequestTimedOut, UnknownTopicOrPartition, error_for
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.exchange import VERSION_MAX

T = TypeVar("T")

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


async def ask_broker(
    cluster: NetworkClient,
    request: Any,
    failure_of: Callable[[Any], KafkaError | None],
    *,
    node_id: int | None = None,
    leader: TopicPartition | None = None,
    coordinator: tuple[str, str] | None = None,
    timeout_ms: int | None = None,
    version_max: int = VERSION_MAX,
) -> Any:
    """Sends a request until it succeeds, and returns the response. Raises KafkaError.

    Args:
        request: the request, or a function that creates it from the milliseconds left.
        failure_of: the error in a response, or None.
        node_id: the broker to ask; by default any.
        leader: asks the leader of this partition, even if it moves.
        coordinator: asks the coordinator of this kind and key, even if it moves.
    """
    deadline = Deadline(cluster, timeout_ms)
    pause = deadline.missing if coordinator is None else deadline.pause
    while True:
        left_ms = deadline.left_ms
        moved = True
        try:
            if leader is not None:
                node_id = cluster.metadata.leaders.get(leader)
                if node_id is None:
                    raise cluster.metadata.no_leader(leader)
            elif coordinator is not None:
                node_id = await cluster.find_coordinator(*coordinator, timeout_ms=left_ms)
            response = await cluster.request(
                request(left_ms) if callable(request) else request,
                node_id=node_id,
                purpose=Purpose.GENERAL if coordinator is None else Purpose.COORDINATOR,
                timeout_ms=left_ms,
                version_max=version_max,
            )
        except KafkaError as error:
            failure = error
        else:
            refusal = failure_of(response)
            if refusal is None:
                return response
            failure, moved = refusal, refusal.code in COORDINATOR_MOVED
        if coordinator is not None and moved:
            cluster.forget_coordinator(*coordinator)
        if leader is not None:
            cluster.want_update()
        await pause(failure)


async def ask_leaders(
    cluster: NetworkClient,
    wanted: Mapping[TopicPartition, T],
    request: Callable[[dict[TopicPartition, T], int], Any],
    *,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, Any]:
    """Asks the leaders of several partitions, as `ask_broker`; returns the result of each partition.

    `request` creates a request for partitions of one leader from the milliseconds left.
    """
    deadline = Deadline(cluster, timeout_ms)
    found: dict[TopicPartition, Any] = {}
    cluster.add_topics(tp.topic for tp in wanted)
    while len(found) < len(wanted):
        failures: list[KafkaError] = []
        by_node: dict[int, dict[TopicPartition, T]] = {}
        for tp, value in wanted.items():
            if tp in found:
                continue
            if tp in cluster.metadata.leaders:
                by_node.setdefault(cluster.metadata.leaders[tp], {})[tp] = value
            else:
                failures.append(cluster.metadata.no_leader(tp))
        for node_id, partitions in by_node.items():
            try:
                response = await cluster.request(
                    request(partitions, deadline.left_ms), node_id=node_id, timeout_ms=deadline.left_ms
                )
            except KafkaError as error:
                failures.append(error)
                continue
            for topic in response.topics:
                for result in topic.partitions:
                    tp = TopicPartition(topic.name, result.partition_index)
                    if not result.error_code:
                        if tp in wanted:
                            found[tp] = result
                        continue
                    failure = error_for(result.error_code, broker=node_id, topic=tp.topic, partition=tp.partition)
                    # Retriable in Produce; here the damaged batch is on the broker's disk.
                    if failure.code is ErrorCode.CORRUPT_MESSAGE:
                        failure = KafkaError(
                            str(failure), code=failure.code, broker=node_id, topic=tp.topic, partition=tp.partition
                        )
                    failures.append(failure)
        if failures:
            cluster.want_update()
            await deadline.missing(next((each for each in failures if not each.retriable), failures[-1]))
    return found
