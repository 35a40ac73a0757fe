"""Request meters: how many requests of each kind came, how long they took, and which errors they met.

Driven by: measured routes, which a router makes when the metrics ask for them. Emits: counts and histograms.

A request begins when its bytes are decoded. Its local time ends when its handler has answered or begun to wait, its remote time when a
request that waited has its answer. Kafka's queues have no counterpart: a request is handled as soon as it is read. Time in which a
request is held behind an earlier one of its connection is not in it.

`Fetch` is counted as FetchConsumer or FetchFollower, too, as in Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from barnabas.broker.call import Handler, Refuse
from barnabas.broker.metrics.families import quantile_family
from barnabas.broker.metrics.histogram import BOUNDS, Histogram
from barnabas.broker.router import MeasuredWait, Route
from barnabas.errors import ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.registry import Api
from barnabas.protocol.schema import Message

__all__ = ["RequestMeters"]

FETCH_KEY: Final = 1
FIRST_WITH_STATE: Final = 15
ERROR_NAMES: Final = {int(code): code.name for code in ErrorCode}


class Meter:
    """One kind of request, in all versions."""

    __slots__ = ("counts", "errors", "local", "remote", "total")

    def __init__(self) -> None:
        # Requests by API and version, each in a list of one: the routes of all listeners count in it.
        self.counts: dict[tuple[str, int], list[int]] = {}
        self.total = Histogram()
        self.local = Histogram()  # of requests that waited; the others are in `total` alone
        self.remote = Histogram()
        self.errors: dict[int, int] = {}


class MeasuredRoute(Route):
    """A route that measures its requests."""

    __slots__ = ("_count", "_decode", "_has_error", "_meter")

    def __init__(self, api: Api, version: int, handler: Handler, refuse: Refuse, meter: Meter) -> None:
        super().__init__(api, version, handler, refuse)
        self._count = meter.counts.setdefault((api.name, version), [0])
        self._meter = meter
        self._decode = self.decode
        self._has_error = "error_code" in getattr(api.response, "__annotations__", {})
        self.decode = self._measured_decode

    def _measured_decode(self, buffer: Buffer, pos: int = 0) -> tuple[Message, int]:
        self.began_ns = perf_counter_ns()
        self._count[0] += 1
        return self._decode(buffer, pos)

    def begin(self) -> None:
        """A request begins that is not decoded at once."""
        if not self.began_ns:
            self.began_ns = perf_counter_ns()
            self._count[0] += 1

    def hold(self) -> MeasuredWait | None:
        """The present request waits; `finish` takes the result when it is answered."""
        began_ns, self.began_ns = self.began_ns, 0
        return MeasuredWait(began_ns, perf_counter_ns(), self._meter)

    def finish(self, timing: MeasuredWait) -> None:
        """A request that waited is answered."""
        now_ns = perf_counter_ns()
        meter = timing.meter
        if isinstance(meter, Meter):
            meter.total.record(now_ns - timing.began_ns)
            meter.local.record(timing.waits_ns - timing.began_ns)
            meter.remote.record(now_ns - timing.waits_ns)

    def frame(self, correlation: int, response: Message) -> list[Buffer]:
        """The whole frame of an answer. Measures a request that did not wait."""
        parts = Route.frame(self, correlation, response)
        began_ns = self.began_ns
        if began_ns:
            self.began_ns = 0
            self._meter.total.counts[bisect_right(BOUNDS, perf_counter_ns() - began_ns)] += 1
        if self._has_error and response.error_code:  # type: ignore[attr-defined]  # `_has_error` says that it has one
            errors = self._meter.errors
            code = response.error_code  # type: ignore[attr-defined]  # as above
            errors[code] = errors.get(code, 0) + 1
        return parts


class MeasuredFetch(MeasuredRoute):
    """The route of Fetch: it tells followers from consumers."""

    __slots__ = ("_consumer", "_follower")

    def __init__(
        self, api: Api, version: int, handler: Handler, refuse: Refuse, consumer: Meter, follower: Meter
    ) -> None:
        super().__init__(api, version, handler, refuse, consumer)
        self._consumer = consumer
        self._follower = follower

    def _measured_decode(self, buffer: Buffer, pos: int = 0) -> tuple[Message, int]:
        decoded = MeasuredRoute._measured_decode(self, buffer, pos)
        request = decoded[0]
        if isinstance(request, FetchRequest):
            replica_id = request.replica_id if self.version < FIRST_WITH_STATE else request.replica_state.replica_id
            self._meter = self._consumer if replica_id < 0 else self._follower
        return decoded


class RequestMeters:
    """The meters of one router."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def _meter(self, name: str) -> Meter:
        return self._meters.setdefault(name, Meter())

    def make_route(self, api: Api, version: int, handler: Handler, refuse: Refuse) -> Route:
        """Makes a measured route; set as `Router.make_route`."""
        if api.key == FETCH_KEY:
            consumer, follower = self._meter("FetchConsumer"), self._meter("FetchFollower")
            return MeasuredFetch(api, version, handler, refuse, consumer, follower)
        return MeasuredRoute(api, version, handler, refuse, self._meter(api.name))

    def turn(self) -> None:
        """A minute is over."""
        for meter in self._meters.values():
            for histogram in (meter.total, meter.local, meter.remote):
                histogram.turn()

    def collect(self) -> Iterator[Metric | None]:
        """Families of kafka.network:type=RequestMetrics."""
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests, by API and version.", labels=("request", "version")
        )
        for meter in self._meters.values():
            for (name, version), requests_so_far in meter.counts.items():
                requests.add_metric((name, str(version)), requests_so_far[0])
        yield requests
        errors = CounterMetricFamily(
            "kafka_network_requestmetrics_errors",
            "Answers with an error of the whole request, by API and error.",
            labels=("request", "error"),
        )
        for name, meter in self._meters.items():
            for code, count in meter.errors.items():
                errors.add_metric((name, ERROR_NAMES.get(code, str(code))), count)
        yield errors
        every: tuple[tuple[str, str, Callable[[Meter], Histogram]], ...] = (
            ("totaltimems", "From the decoding of a request to its answer, in milliseconds.", lambda one: one.total),
            ("localtimems", "Until a request that waits began to wait, in milliseconds.", lambda one: one.local),
            ("remotetimems", "How long a request waited for others, in milliseconds.", lambda one: one.remote),
        )
        for name, doc, histogram_of in every:
            yield None
            histograms = {request: histogram_of(meter) for request, meter in self._meters.items()}
            yield from quantile_family(f"kafka_network_requestmetrics_{name}", doc, "request", histograms)
