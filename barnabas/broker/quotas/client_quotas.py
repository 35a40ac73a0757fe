"""QuotaMeter: usage and throttle times of clients with quotas (KIP-13 bytes, KIP-124 request time, KIP-599 mutations)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from barnabas.broker.image.image import QuotaEntity
from barnabas.broker.quotas.rate import SampledRate, TokenBucket

ABSENT: Final = ""  # in place of a name: the entity has no such part; None: the default
EntityKey = tuple[str | None, str | None]  # user, client id

TRACKED_MAX: Final = 10_000  # of each quota: about 3 MB
IDLE_MS: Final = 3_600_000
PERCENT_A_NANOSECOND: Final = 100 / 1e9


class ClientBound(NamedTuple):
    """A limit, and the clients that share it."""

    user: str  # of the clients that are measured together; ABSENT: every name
    client_id: str  # likewise
    limit: float  # in the unit of the quota


class QuotaTable:
    """The limits of one quota, by entity.

    The most specific applies: 1 user and client id, 2 user and default client id, 3 user, 4 default user and client id, 5 both defaults, 6
    default user, 7 client id, 8 default client id. All clients of a user share its quota without client id; every other quota counts for
    each (user, client id), or for each client id. A client without client id has only quotas of users.
    """

    __slots__ = ("_limits",)

    def __init__(self) -> None:
        self._limits: dict[EntityKey, float] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def set(self, user: str | None, client_id: str | None, limit: float | None) -> None:
        """None removes the limit."""
        if limit is None:
            self._limits.pop((user, client_id), None)
        else:
            self._limits[user, client_id] = limit

    def find(self, user: str, client_id: str) -> ClientBound | None:
        """None: no limit."""
        limits = self._limits
        if not limits:
            return None
        of_both = ((user, client_id), (user, None)) if client_id else ()
        for key in of_both:
            if key in limits:
                return ClientBound(user, client_id, limits[key])
        if (user, ABSENT) in limits:
            return ClientBound(user, ABSENT, limits[user, ABSENT])
        of_default: tuple[EntityKey, ...] = ((None, client_id), (None, None)) if client_id else ()
        for default in of_default:
            if default in limits:
                return ClientBound(user, client_id, limits[default])
        if (None, ABSENT) in limits:
            return ClientBound(user, ABSENT, limits[None, ABSENT])
        of_client: tuple[EntityKey, ...] = ((ABSENT, client_id), (ABSENT, None)) if client_id else ()
        for client in of_client:
            if client in limits:
                return ClientBound(ABSENT, client_id, limits[client])
        return None


class QuotaKind(StrEnum):
    """Quotas of users and client ids, by their keys."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


class QuotaWindow(NamedTuple):
    """How rates are measured: quota.window.num samples of quota.window.size.seconds."""

    samples: int = 11
    sample_ms: int = 1_000


DEFAULT_WINDOW: Final = QuotaWindow()


class ClientUsage(NamedTuple):
    """Usage of a client, for metrics."""

    kind: QuotaKind
    user: str
    client_id: str
    rate: float  # a second, in the unit of the quota
    tokens: float | None  # of a mutation quota; None of others
    throttle_ms: float | None  # average throttle time in the last samples; None without one


class _Measure:
    """Usage of the clients that share a bound."""

    __slots__ = ("bound", "bucket", "rate", "throttle_count", "throttle_sum", "used_ms")

    def __init__(self, kind: QuotaKind, window: QuotaWindow) -> None:
        self.bound = 0.0  # the last one that applied
        self.rate = SampledRate(*window)
        self.bucket = TokenBucket(*window) if kind is QuotaKind.MUTATION else None
        self.throttle_sum = SampledRate(*window)
        self.throttle_count = SampledRate(*window)
        self.used_ms = 0


class QuotaMeter:
    """Quotas of users and client ids on one node. Times are monotonic milliseconds.

    Clients can invent client ids: of each quota the TRACKED_MAX most recently used measures are kept, each until it was idle for IDLE_MS.
    An evicted client begins as a new one. `mutation_window` is that of mutations, `window` that of the others.
    """

    def __init__(self, window: QuotaWindow = DEFAULT_WINDOW, mutation_window: QuotaWindow = DEFAULT_WINDOW) -> None:
        self._windows = dict.fromkeys(QuotaKind, window) | {QuotaKind.MUTATION: mutation_window}
        self._window = window
        self._tables = {kind: QuotaTable() for kind in QuotaKind}
        # least recently used first
        self._measures: dict[QuotaKind, OrderedDict[tuple[str, str], _Measure]] = {
            kind: OrderedDict() for kind in QuotaKind
        }

    # --- limits ---------------------------------------------------------------------------------------------------

    def set_quotas(self, entity: QuotaEntity, quotas: Mapping[str, float]) -> None:
        """Sets the quotas of an entity of users and client ids: those of `quotas` and no others."""
        names = dict(entity)
        user, client_id = names.get("user", ABSENT), names.get("client-id", ABSENT)
        for kind, table in self._tables.items():
            table.set(user, client_id, quotas.get(kind))
            if not table:
                self._measures[kind].clear()

    def set_quota(self, kind: QuotaKind, entity: QuotaEntity, limit: float | None) -> None:
        """None removes the quota."""
        names = dict(entity)
        self._tables[kind].set(names.get("user", ABSENT), names.get("client-id", ABSENT), limit)

    def limits(self, kind: QuotaKind) -> bool:
        return bool(self._tables[kind])

    @property
    def configured(self) -> bool:
        return any(self._tables.values())

    # --- usage ----------------------------------------------------------------------------------------------------

    def produced(self, user: str, client_id: str, size_bytes: int, now_ms: int) -> int:
        """Throttle time of an answered Produce request of this size."""
        return self._record(QuotaKind.PRODUCE, user, client_id, size_bytes, now_ms)

    def fetched(self, user: str, client_id: str, size_bytes: int, now_ms: int) -> int:
        """Throttle time of a consumer's Fetch answer of this size; call `not_fetched` if it gets no records instead."""
        return self._record(QuotaKind.FETCH, user, client_id, size_bytes, now_ms)

    def not_fetched(self, user: str, client_id: str, size_bytes: int, now_ms: int) -> None:
        """Subtracts what `fetched` counted at the same time."""
        found = self._measure(QuotaKind.FETCH, user, client_id, now_ms)
        if found is not None:
            found[0].rate.record(-size_bytes, now_ms)

    def fetch_bytes_max(self, user: str, client_id: str) -> int | None:
        """Size of an answer that would be throttled whatever came before it; None: no limit."""
        bound = self._tables[QuotaKind.FETCH].find(user, client_id)
        if bound is None:
            return None
        samples, sample_ms = self._window
        found = bound.limit * max(samples - 1, 0) * sample_ms / 1_000
        return int(min(found, 2**31 - 1)) if found == found else None  # not a number: no limit

    def served(self, user: str, client_id: str, busy_ns: int, now_ms: int) -> int:
        """Throttle time of a request of `busy_ns`, at most one sample. 100 percent are one processor: a node has one loop."""
        throttle_ms = self._record(QuotaKind.REQUEST, user, client_id, busy_ns * PERCENT_A_NANOSECOND, now_ms)
        return min(throttle_ms, self._window.sample_ms)

    def may_mutate(self, user: str, client_id: str, now_ms: int) -> int:
        """Time until a client may create or delete partitions; 0: now."""
        found = self._measure(QuotaKind.MUTATION, user, client_id, now_ms)
        if found is None or found[0].bucket is None:
            return 0
        return self._throttled(found[0], found[0].bucket.throttle_ms(found[1].limit, now_ms), now_ms)

    def mutated(self, user: str, client_id: str, partitions: int, now_ms: int) -> int:
        """Counts created or deleted partitions, whether allowed or not. Returns the throttle time."""
        found = self._measure(QuotaKind.MUTATION, user, client_id, now_ms)
        if found is None or found[0].bucket is None:
            return 0
        measure, bound = found
        measure.rate.record(partitions, now_ms)
        found[0].bucket.take(partitions, bound.limit, now_ms)
        return found[0].bucket.throttle_ms(bound.limit, now_ms)

    def _record(self, kind: QuotaKind, user: str, client_id: str, amount: float, now_ms: int) -> int:
        found = self._measure(kind, user, client_id, now_ms)
        if found is None:
            return 0
        measure, bound = found
        measure.rate.record(amount, now_ms)
        return self._throttled(measure, measure.rate.throttle_ms(bound.limit, now_ms), now_ms)

    @staticmethod
    def _throttled(measure: _Measure, throttle_ms: int, now_ms: int) -> int:
        if throttle_ms > 0:
            measure.throttle_sum.record(throttle_ms, now_ms)
            measure.throttle_count.record(1, now_ms)
        return throttle_ms

    def _measure(self, kind: QuotaKind, user: str, client_id: str, now_ms: int) -> tuple[_Measure, ClientBound] | None:
        """The measure of a client, made on first use; None: the client has no such quota."""
        bound = self._tables[kind].find(user, client_id)
        if bound is None:
            return None
        measures = self._measures[kind]
        key = (bound.user, bound.client_id)
        measure = measures.get(key)
        if measure is None:
            self._forget(measures, now_ms)
            measure = measures[key] = _Measure(kind, self._windows[kind])
        else:
            measures.move_to_end(key)
        measure.used_ms = now_ms
        measure.bound = bound.limit
        return measure, bound

    @staticmethod
    def _forget(measures: OrderedDict[tuple[str, str], _Measure], now_ms: int) -> None:
        """Makes room for one measure; evicts at most two."""
        for _ in range(2):
            if not measures:
                return
            oldest = next(iter(measures.values()))
            if len(measures) < TRACKED_MAX and now_ms - oldest.used_ms < IDLE_MS:
                return
            measures.popitem(last=False)

    # --- metrics --------------------------------------------------------------------------------------------------

    def usage(self, now_ms: int, most: int) -> Iterator[ClientUsage]:
        """Usage of each quota, the `most` of each that were active last."""
        for kind, measures in self._measures.items():
            for number, ((user, client_id), measure) in enumerate(reversed(measures.items())):
                if number >= most:
                    break
                count = measure.throttle_count.rate(now_ms)
                yield ClientUsage(
                    kind,
                    user,
                    client_id,
                    measure.rate.rate(now_ms),
                    None if measure.bucket is None else measure.bucket.tokens(measure.bound, now_ms),
                    measure.throttle_sum.rate(now_ms) / count if count > 0 else None,
                )
