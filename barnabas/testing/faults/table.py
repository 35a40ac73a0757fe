"""FaultTable: the installed faults of one broker. Before the handler a fault delays, repeats or skips it; after it, the fault replaces, cuts or drops the response."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.api.call import Call, Computed, Handler, Pending, Refuse
from barnabas.broker.api.router import Route, Router, Serve
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol import registry
from barnabas.protocol.schema import decode, encode
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.errors import KitError
from barnabas.testing.faults.rule import Rule, subjects
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.handlers.needs import Needs

HELD_MAX: Final = 10_000  # requests that faults hold in one broker
CLOSE_AFTER_MS: Final = 1  # the half of an answer is written first

Rewrite = Callable[[Any, Any], Any]  # (request, response) → response


def is_internal(call: Call[Any]) -> bool:
    """By the listener: from a broker of the cluster or the kit."""
    return call.connection.listener_name == INTERNAL_LISTENER


class _Installed:
    def __init__(self, number: int, rule: Rule, rewrite: Rewrite | None, matched: int) -> None:
        self.number = number
        self.rule = rule
        self.rewrite = rewrite
        self.matched = matched
        self.hits = 0
        self.ended = False  # it hits nothing more, and still holds what it has hit
        self.held: list[Callable[[], None]] = []  # what runs on release, or when a late request is due

    @property
    def halves(self) -> bool:
        return self.rule.action == "disconnect" and self.rule.at == "half_answered"


class FaultTable:
    """Interceptor of the client listener.

    Args:
        hit: called with the number and rule of a fault, a JSON value and the request. "matched" counts the matches on this broker; further keys
            describe the request if it was hit.
        changed: called when `active` may have changed.
    """

    def __init__(
        self,
        node: Needs,
        router: Router,
        hit: Callable[[int, Rule, dict[str, Any], Call[Any]], None],
        changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._router = router
        self._hit = hit
        self._changed = changed
        self._faults: dict[int, _Installed] = {}
        self._ordinary_route = router.make_route
        self.halved: dict[int, Any] = {}  # id of a response → the response, its connection
        self._muted: dict[int, int] = {}  # number of a connection → end of its throttling, by the monotonic clock

    # -- the table

    def install(self, number: int, rule: Rule, rewrite: Rewrite | None = None, matched: int = 0) -> None:
        """`matched`: matches on this broker before a restart."""
        fault = self._faults[number] = _Installed(number, rule, rewrite, matched)
        self._on_change(fault)

    def remove(self, number: int) -> None:
        """Serves the held requests; late requests take effect now."""
        fault = self._faults.pop(number, None)
        if fault is not None:
            self._release(fault)
            self._on_change(fault)

    def _on_change(self, fault: _Installed) -> None:
        if fault.halves:  # the next requests get routes that can cut, or ordinary ones
            halving = any(each.halves for each in self._faults.values())
            self._router.make_route = partial(_HalvingRoute, self) if halving else self._ordinary_route
            self._router.routes.clear()
        self._changed()

    def end(self, number: int) -> None:
        """Stops matching; held requests stay held."""
        fault = self._faults.get(number)
        if fault is not None:
            fault.ended = True

    def release(self, number: int) -> None:
        """Serves the held requests; later hits are held again."""
        fault = self._faults.get(number)
        if fault is not None:
            self._release(fault)

    def _release(self, fault: _Installed) -> None:
        held, fault.held = fault.held, []
        for run in held:
            run()

    # -- requests

    @property
    def active(self) -> bool:
        """Whether requests must pass `meet`."""
        return bool(self._faults or self._muted)

    def meet(self, serve: Serve, route: Route, call: Call[Any]) -> Any:
        """The first fault that hits a client's request acts."""
        if is_internal(call):
            return serve(route, call)
        wait_ms = self._muted_ms(call)
        if wait_ms > 0:
            return self._later(partial(self.meet, serve), route, call, lambda run: self._call_later(wait_ms, run))
        name = registry.API[call.api_key].name
        fault = self._met(name, call)
        response = serve(route, call) if fault is None else self._act(fault, serve, route, call)
        return self._then_late(name, response) if self._awaited(name) else response

    def _met(self, name: str, call: Call[Any]) -> _Installed | None:
        named: dict[str, set[Any]] | None = None
        for fault in self._faults.values():
            rule = fault.rule
            if rule.selects_by_content and named is None:
                named = subjects(call.request, self.topic_name)
            if fault.ended or not rule.matches(name, call.client_id, named or {}):
                continue
            if rule.times is not None and fault.hits >= rule.times:
                continue
            fault.matched += 1
            if fault.matched < rule.nth or (
                rule.probability < 1 and rule.drawn(fault.matched, "hit") >= rule.probability
            ):
                self._hit(fault.number, rule, {"matched": fault.matched}, call)
                continue
            fault.hits += 1
            met = self._seen(name, call, named or subjects(call.request, self.topic_name))
            self._hit(fault.number, rule, {"matched": fault.matched, **met}, call)
            return fault
        return None

    def _seen(self, name: str, call: Call[Any], named: dict[str, set[Any]]) -> dict[str, Any]:
        return {
            "api": name,
            "version": call.version,
            "client": call.client_id,
            "peer": call.client_host,
            **{kind: sorted(values) for kind, values in named.items()},
        }

    def topic_name(self, topic_id: bytes) -> str | None:
        """None if the broker does not know it."""
        return self._node.current_image.image.topic_name(topic_id)

    # -- actions

    def _act(self, fault: _Installed, serve: Serve, route: Route, call: Call[Any]) -> Any:
        rule = fault.rule
        if rule.action == "error":
            error = BrokerError(ErrorCode[rule.error], "by a fault of the test kit")
            if not rule.after:
                return route.refuse(call, error)
            kept = _kept(call)
            return mapped(serve(route, call), lambda _: route.refuse(kept, error))
        if rule.action == "disconnect":
            return self._cut(rule, serve, route, call)
        if rule.action == "delay":
            wait_s = rule.seconds + rule.jitter_s * rule.drawn(fault.matched, "jitter")
            return self._later(serve, route, call, lambda run: self._call_later(round(wait_s * 1000), run))
        if rule.action == "hold":
            return self._later(serve, route, call, lambda run: self._keep(fault, run))
        if rule.action == "drop":
            return Pending[Any]()
        if rule.action == "duplicate":
            return self._twice(serve, route, call)
        if rule.action == "late":
            kept = _kept(call)
            self._keep(fault, lambda: _discard(serve(route, kept)))
            return _closed(call)
        if rule.action == "throttle":
            return mapped(serve(route, call), lambda response: self._throttled(rule, call, response))
        rewrite = fault.rewrite
        kept = _kept(call)
        return mapped(serve(route, call), lambda answer: rewrite(kept.request, answer) if rewrite else answer)

    def _cut(self, rule: Rule, serve: Serve, route: Route, call: Call[Any]) -> Any:
        if rule.at == "received":
            return _closed(call)
        response = serve(route, call)
        if rule.at == "half_answered":
            return mapped(response, lambda answer: self._halve(call, answer))
        if rule.at == "replicated":
            return mapped(response, lambda _: _closed(call))
        if isinstance(response, Computed):
            response = response.compute()
        if isinstance(response, Pending) and not response.resolved:
            outer: Pending[Any] = Pending(blocks=response.blocks)  # a cut after the effect does not take it back
            if not response.blocks:
                response.attach(_nothing, None)
                return _closed(call)
            response.attach(lambda _: call.connection.close("a fault"), lambda: call.connection.close("a fault"))
            return outer
        return mapped(response, lambda _: _closed(call))

    def _halve(self, call: Call[Any], response: Any) -> Any:
        if response is None:
            return _closed(call)
        number = id(response)
        self.halved[number] = response, call.connection  # the response is kept, so no other gets its id
        call.connection.on_close(partial(self._forget_half, number))
        return response

    def _forget_half(self, number: int) -> None:
        self.halved.pop(number, None)

    def cut_frame(self, response: Any, parts: list[Buffer]) -> list[Buffer]:
        """Half of the frame if a fault cuts it; the connection then closes."""
        found = self.halved.pop(id(response), None)
        if found is None:
            return parts
        connection = found[1]
        whole = b"".join(parts)
        self._call_later(CLOSE_AFTER_MS, lambda: connection.close("a fault"))
        return [whole[: len(whole) // 2]]

    def _twice(self, serve: Serve, route: Route, call: Call[Any]) -> Any:
        again = _kept(call)

        def then(response: Any) -> Any:
            _discard(serve(route, again))
            return response

        return mapped(serve(route, call), then)

    def _throttled(self, rule: Rule, call: Call[Any], response: Any) -> Any:
        if response is not None:
            response.throttle_time_ms = rule.throttle_ms
        number = call.connection.number
        self._muted[number] = self._node.reactor.clock.monotonic_ms() + rule.throttle_ms
        call.connection.on_close(partial(self._unmute, number))
        return response

    def _unmute(self, number: int) -> None:
        self._muted.pop(number, None)
        self._changed()

    def _muted_ms(self, call: Call[Any]) -> int:
        if not self._muted:
            return 0
        until_ms = self._muted.get(call.connection.number, 0)
        left_ms = until_ms - self._node.reactor.clock.monotonic_ms()
        if until_ms and left_ms <= 0:
            self._unmute(call.connection.number)
        return left_ms

    # -- requests that wait

    def _later(
        self, serve: Serve, route: Route, call: Call[Any], wait: Callable[[Callable[[], None]], Any]
    ) -> Pending[Any]:
        """Serves the request when `wait` calls back; later requests of the connection wait, too."""
        kept = _kept(call)
        outer: Pending[Any] = Pending(blocks=True)

        def run() -> None:
            if not outer.resolved:
                _follow(outer, serve(route, kept))

        wait(run)
        return outer

    def _call_later(self, delay_ms: int, run: Callable[[], None]) -> None:
        self._node.reactor.call_later(max(delay_ms, 0), run)

    def _keep(self, fault: _Installed, run: Callable[[], None]) -> None:
        if sum(len(each.held) for each in self._faults.values()) >= HELD_MAX:
            raise KitError(f"faults hold {HELD_MAX} requests of broker {self._node.node_id}: release or remove them")
        fault.held.append(run)

    def _awaited(self, name: str) -> bool:
        return any(each.held and each.rule.until == name for each in self._faults.values())

    def _then_late(self, name: str, response: Any) -> Any:
        """Applies late requests after the response of this API."""

        def then(answer: Any) -> Any:
            for fault in self._faults.values():
                if fault.rule.until == name:
                    self._node.reactor.soon(partial(self._release, fault))
            return answer

        return mapped(response, then)


class _HalvingRoute(Route):
    __slots__ = ("table",)

    def __init__(self, table: FaultTable, api: registry.Api, version: int, handler: Handler, refuse: Refuse) -> None:
        super().__init__(api, version, handler, refuse)
        self.table = table

    def frame(self, correlation: int, response: Any) -> list[Buffer]:
        """As of Route."""
        return self.framed(response, super().frame(correlation, response))

    def framed(self, response: Any, parts: list[Buffer]) -> list[Buffer]:
        """As of Route."""
        return self.table.cut_frame(response, parts) if self.table.halved else parts


def _kept(call: Call[Any]) -> Call[Any]:
    """Copies the request: views are valid only during the call."""
    request = decode(type(call.request), encode(call.request, call.version), call.version)
    return Call(request, call.version, call.api_key, call.client_id, call.connection, call.client_host)


def _closed(call: Call[Any]) -> Pending[Any]:
    call.connection.close("a fault")
    return Pending()


def _nothing(_: object) -> None:
    pass


def mapped(response: Any, change: Callable[[Any], Any]) -> Any:
    """Maps the final response of a handler; `change` may return a Pending."""
    if response.__class__ is GeneratorType:
        return _mapped_work(response, change)
    if isinstance(response, Computed):
        return mapped(response.compute(), change)
    if not isinstance(response, Pending):
        return change(response)
    if response.resolved:
        return mapped(response.response, change)
    outer: Pending[Any] = Pending(blocks=response.blocks, on_closed=response.closed)
    response.attach(lambda answer: _follow(outer, mapped(answer, change)), outer.effected)
    return outer


def _mapped_work(work: Work, change: Callable[[Any], Any]) -> Work:
    response = yield from work
    return mapped(response, change)


def _follow(outer: Pending[Any], response: Any) -> None:
    if not isinstance(response, Pending):
        outer.resolve(response)
    elif response.resolved:
        _follow(outer, response.response)
    else:
        outer.on_closed = response.closed
        response.attach(lambda answer: _follow(outer, answer), outer.effected)
        if not response.blocks:
            outer.effected()


def _discard(response: Any) -> None:
    while response.__class__ is GeneratorType:
        try:
            while True:
                next(response)
        except StopIteration as ended:
            response = ended.value
    if isinstance(response, Computed):  # its rest may have an effect
        _discard(response.compute())
    elif isinstance(response, Pending) and not response.resolved:
        response.attach(_discard, None)
