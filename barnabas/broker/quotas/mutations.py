"""Mutation quotas: partitions that a client may create and delete (controller_mutation_rate, KIP-599)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from barnabas.broker.image.image import MetadataDelta, MetadataImage, QuotaEntity
from barnabas.broker.quotas.client_quotas import DEFAULT_WINDOW, QuotaKind, QuotaMeter, QuotaWindow
from barnabas.errors import BrokerError, ErrorCode
from barnabas.work import Work, finished

FIRST_STRICT_VERSIONS: Final[Mapping[int, int]] = {19: 6, 20: 5, 37: 3}  # by API key
ENTITIES_AT_ONCE: Final = 256
ENTITIES_PER_UNIT: Final = 8


class MutatingClient(NamedTuple):
    """The client of a request that creates or deletes partitions."""

    user: str
    client_id: str
    api_key: int
    version: int  # of its request

    @property
    def strict(self) -> bool:
        """Whether it knows THROTTLING_QUOTA_EXCEEDED; others are only throttled."""
        return self.version >= FIRST_STRICT_VERSIONS.get(self.api_key, 0)


class MutationPermits:
    """One request's use of its client's quota. A request that only validates takes permits, too, as in Kafka.

    The client's token bucket may be overdrawn once; while it is, a strict client is refused. `now_ms` is the monotonic clock.
    """

    def __init__(self, meter: QuotaMeter, client: MutatingClient, now_ms: Callable[[], int]) -> None:
        self._meter = meter
        self._client = client
        self._now_ms = now_ms
        self._until_ms = 0

    def take(self, partitions: int) -> None:
        """For partitions of one topic. Raises BrokerError(THROTTLING_QUOTA_EXCEEDED) if the client has to wait."""
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
        """Of the answer."""
        return max(0, self._until_ms - self._now_ms()) if self._until_ms else 0


class MutationQuotas:
    """Mutation quotas of one controller, full at its begin. `in_slices` runs long work in later turns of the loop."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        window: QuotaWindow = DEFAULT_WINDOW,
        *,
        in_slices: Callable[[Work], object] = finished,
    ) -> None:
        self._now_ms = now_ms
        self.meter = QuotaMeter(window, window)
        self._in_slices = in_slices
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._changed: dict[QuotaEntity, None] = {}  # entities whose quotas do not apply yet
        self._adopting = False  # in later turns

    def on_image(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Applies the quotas of a published image, those of very many entities in later turns."""
        self._quotas = image.quotas
        self._changed.update(delta.quotas)
        if len(self._changed) <= ENTITIES_AT_ONCE:
            finished(self._adopt())
        elif not self._adopting:
            self._adopting = True
            self._in_slices(self._adopt())

    def _adopt(self) -> Work:
        while self._changed:
            entity, _ = self._changed.popitem()
            if entity[0][0] != "ip":
                self.meter.set_quota(QuotaKind.MUTATION, entity, self._quotas.get(entity, {}).get(QuotaKind.MUTATION))
            if not len(self._changed) % ENTITIES_PER_UNIT:
                yield 1
        self._adopting = False

    def permits(self, client: MutatingClient | None) -> MutationPermits | None:
        """None: no limit."""
        if client is None or not self.meter.limits(QuotaKind.MUTATION):
            return None
        return MutationPermits(self.meter, client, self._now_ms)
