"""Mutation quotas: how many partitions a client may create and delete (controller_mutation_rate, KIP-599).

Driven by: the metadata image, and the decisions of the active controller, which take permits for each topic. Emits: refusals, throttle times.

A client has a bucket of tokens, which may be overdrawn once. While it is overdrawn, a *strict* client is refused with
THROTTLING_QUOTA_EXCEEDED: CreateTopics since version 6, DeleteTopics since 5, CreatePartitions since 3. Clients of earlier versions are only
throttled. A request that only validates takes permits, too, as in Kafka. Another active controller begins with full buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from barnabas.broker.metadata.image import MetadataDelta, MetadataImage
from barnabas.broker.quotas.client_quotas import DEFAULT_WINDOW, QuotaKind, QuotaMeter, QuotaWindow
from barnabas.errors import BrokerError, ErrorCode

__all__ = ["FIRST_STRICT_VERSIONS", "MutatingClient", "MutationPermits", "MutationQuotas"]

FIRST_STRICT_VERSIONS: Final[Mapping[int, int]] = {19: 6, 20: 5, 37: 3}  # by API key


class MutatingClient(NamedTuple):
    """The client of a request that creates or deletes partitions.

    Attributes:
        version: of its request.
    """

    user: str
    client_id: str
    api_key: int
    version: int

    @property
    def strict(self) -> bool:
        """Whether it knows THROTTLING_QUOTA_EXCEEDED."""
        return self.version >= FIRST_STRICT_VERSIONS.get(self.api_key, 0)


class MutationPermits:
    """What one request takes of its client's quota.

    Args:
        now_ms: the monotonic clock.
    """

    def __init__(self, meter: QuotaMeter, client: MutatingClient, now_ms: Callable[[], int]) -> None:
        self._meter = meter
        self._client = client
        self._now_ms = now_ms
        self._until_ms = 0

    def take(self, partitions: int) -> None:
        """The request is about to create or delete partitions of one topic.

        Raises:
            BrokerError: THROTTLING_QUOTA_EXCEEDED, the client has to wait.
        """
        client, now_ms = self._client, self._now_ms()
        if client.strict:
            wait_ms = self._meter.may_mutate(client.user, client.client_id, now_ms)
            if wait_ms > 0:
                self._until_ms = now_ms + wait_ms
                raise BrokerError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        wait_ms = self._meter.mutated(client.user, client.client_id, partitions, now_ms)
        if wait_ms > 0 and not client.strict:
            self._until_ms = now_ms + wait_ms

    @property
    def throttle_ms(self) -> int:
        """The throttle time of the answer."""
        return max(0, self._until_ms - self._now_ms()) if self._until_ms else 0


class MutationQuotas:
    """The mutation quotas of one controller."""

    def __init__(self, now_ms: Callable[[], int], window: QuotaWindow = DEFAULT_WINDOW) -> None:
        self._now_ms = now_ms
        self.meter = QuotaMeter(window, window)

    def on_image(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """An image is published: its quotas apply."""
        for entity in delta.quotas:
            if entity[0][0] != "ip":
                self.meter.set_quota(QuotaKind.MUTATION, entity, image.quotas.get(entity, {}).get(QuotaKind.MUTATION))

    def permits(self, client: MutatingClient | None) -> MutationPermits | None:
        """What limits a request; None: nothing."""
        if client is None or not self.meter.limits(QuotaKind.MUTATION):
            return None
        return MutationPermits(self.meter, client, self._now_ms)
