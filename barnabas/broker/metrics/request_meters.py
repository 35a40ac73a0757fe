"""Request meters: number, duration and errors of requests by API.
Kafka's queues have no counterpart: a request is handled as soon as it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from barnabas.broker.api.call import Handler, Refuse
from barnabas.broker.api.router import MeasuredWait, Route
from barnabas.broker.metrics.families import quantile_family
from barnabas.broker.metrics.histogram import Histogram
from barnabas.errors import ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.registry import Api
from barnabas.protocol.schema import Message

FETCH_KEY: Final = 1
MEASURED_A_MINUTE: Final = 1_000  # requests of an API in a version
ONE_OF: Final = 64  # a power of two
FIRST_WITH_STATE: Final = 15
ERROR_NAMES: Final = {int(code): code.name for code in ErrorCode}


class Meter:
    """One kind of request, in all versions. The histograms hold the measured ones."""

    __slots__ = ("errors", "local", "remote", "total")

    def __init__(self) -> None:
        self.total = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.errors: dict[int, int] = {}


class MeasuredRoute(Route):
    """A route that measures its requests: the first MEASURED_A_MINUTE in every minute, and one of each ONE_OF of the others.

    Counts are exact; quantiles need no more. A request begins when its bytes are decoded. Its local time ends when its handler has answered
    or begun to wait, its remote time with the answer. Time behind an earlier request of its connection does not count.
    """

    __slots__ = ("meter", "minute_at")

    def __init__(self, api: Api, version: int, handler: Handler, refuse: Refuse, meter: Meter) -> None:
        super().__init__(api, version, handler, refuse)
        self.meter = meter
        self.measured = 0
        self.minute_at = 0  # number of requests when the present minute began

    def begin(self) -> None:
        if self.requests - self.minute_at > MEASURED_A_MINUTE:
            self.measured = ONE_OF - 1
        self.began_ns = perf_counter_ns()

    def turn(self) -> None:
        self.minute_at = self.requests
        self.measured = 0

    def answered(self) -> None:
        duration_ns, self.began_ns = perf_counter_ns() - self.began_ns, 0
        self.meter.total.record(duration_ns)
        self.meter.local.record(duration_ns)
        self.meter.remote.record(0)

    def hold(self) -> MeasuredWait | None:
        """The present request waits; `finish` takes the result when it is answered."""
        began_ns, self.began_ns = self.began_ns, 0
        return MeasuredWait(began_ns, perf_counter_ns(), self.meter)

    def finish(self, timing: MeasuredWait) -> None:
        now_ns = perf_counter_ns()
        meter = timing.meter
        if isinstance(meter, Meter):
            meter.total.record(now_ns - timing.began_ns)
            meter.local.record(timing.waits_ns - timing.began_ns)
            meter.remote.record(now_ns - timing.waits_ns)


class RouteWithErrors(MeasuredRoute):
    """The route of an API whose answers have an error of the whole request."""

    def frame(self, correlation: int, response: Message) -> list[Buffer]:
        """Counts the answer's error."""
        code = response.error_code  # type: ignore[attr-defined]  # `make_route` has checked
        if code:
            self.meter.errors[code] = self.meter.errors.get(code, 0) + 1
        return Route.frame(self, correlation, response)


class FetchRoute(RouteWithErrors):
    """The route of Fetch: counts FetchConsumer and FetchFollower, too, as Kafka does."""

    __slots__ = ("_consumer", "_decode", "_follower", "followers")

    def __init__(
        self, api: Api, version: int, handler: Handler, refuse: Refuse, consumer: Meter, follower: Meter
    ) -> None:
        super().__init__(api, version, handler, refuse, consumer)
        self._consumer = consumer
        self._follower = follower
        self.followers = 0  # requests of followers
        self._decode = self.decode
        self.decode = self._decode_and_tell

    def _decode_and_tell(self, buffer: Buffer, pos: int = 0) -> tuple[Message, int]:
        decoded = self._decode(buffer, pos)
        request = decoded[0]
        if isinstance(request, FetchRequest):
            replica_id = request.replica_id if self.version < FIRST_WITH_STATE else request.replica_state.replica_id
            self.meter = self._consumer if replica_id < 0 else self._follower
            self.followers += replica_id >= 0
        return decoded


class RequestMeters:
    """The meters of one node."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self._routes: dict[tuple[str, int], list[MeasuredRoute]] = {}  # of all listeners, by API and version

    def _meter(self, name: str) -> Meter:
        return self._meters.setdefault(name, Meter())

    def make_route(self, api: Api, version: int, handler: Handler, refuse: Refuse) -> Route:
        """Set as `Router.make_route`."""
        made: MeasuredRoute
        if api.key == FETCH_KEY:
            consumer, follower = self._meter("FetchConsumer"), self._meter("FetchFollower")
            made = FetchRoute(api, version, handler, refuse, consumer, follower)
        else:
            has_error = any(each.name == "error_code" for each in api.response.FIELDS)
            kind = RouteWithErrors if has_error else MeasuredRoute
            made = kind(api, version, handler, refuse, self._meter(api.name))
        self._routes.setdefault((api.name, version), []).append(made)
        return made

    def turn(self) -> None:
        for routes in self._routes.values():
            for route in routes:
                route.turn()
        for meter in self._meters.values():
            for histogram in (meter.total, meter.local, meter.remote):
                histogram.turn()

    def collect(self) -> Iterator[Metric | None]:
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests, by API and version.", labels=("request", "version")
        )
        counts: Counter[str] = Counter()
        for (name, version), routes in self._routes.items():
            number = sum(route.requests for route in routes)
            requests.add_metric((name, str(version)), number)
            followers = sum(route.followers for route in routes if isinstance(route, FetchRoute))
            if name == "Fetch":
                counts["FetchFollower"] += followers
                counts["FetchConsumer"] += number - followers
            else:
                counts[name] += number
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
            ("localtimems", "Until a request was answered or began to wait, in milliseconds.", lambda one: one.local),
            ("remotetimems", "How long a request waited for others, in milliseconds.", lambda one: one.remote),
        )
        for name, doc, histogram_of in every:
            yield None
            histograms = {request: histogram_of(meter) for request, meter in self._meters.items()}
            yield from quantile_family(f"kafka_network_requestmetrics_{name}", doc, "request", histograms, counts)
