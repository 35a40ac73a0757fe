"""FaultyRouter: a router whose requests meet the faults that are installed on its broker.

A fault acts before or after a handler. Before it: the handler runs later, twice, or never. After it: the effect has taken
place, and the answer is replaced, cut, or never sent.

The attribute `answer`, which the connections call, is the *way* of requests: the function that `way` returned after the last
installation or removal. Each router of the kit wraps the way of its base class while it has something to do (`WatchedRouter`,
`RecordingRouter`), and passes it on otherwise. So while nothing is installed the way is `Router.answer`, and requests pay for no test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.api.call import Call, Computed, Pending
from barnabas.broker.api.router import Route
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol import registry
from barnabas.protocol.messages.groups import SyncGroupRequest
from barnabas.protocol.schema import decode, encode
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.errors import KitError
from barnabas.testing.faults.rule import Rule, subjects
from barnabas.testing.versions import DatedRouter
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.handlers.all_needs import AllNeeds

HELD_MAX: Final = 10_000  # requests that faults hold in one broker
CLOSE_AFTER_MS: Final = 1  # the half of an answer is written first

Way = Callable[[Route, Call[Any]], Any]  # answers a request, as `Router.answer` does
Rewrite = Callable[[Any, Any], Any]  # (request, response) → response


def is_internal(call: Call[Any]) -> bool:
    """Whether a request comes from a broker of the cluster or from the kit itself, by the listener that received it."""
    return call.connection.listener_name == INTERNAL_LISTENER


class _Installed:
    """One fault on this broker."""

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
        """Whether it cuts answers in half."""
        return self.rule.action == "disconnect" and self.rule.at == "half_answered"


class FaultyRouter(DatedRouter):
    """See the module.

    Args:
        hit: called with the number of a fault and what it has met, a JSON value: "matched" says how many requests have matched it on
            this broker; the other keys describe the request if it was hit.
    """

    def __init__(self, node: AllNeeds, hit: Callable[[int, dict[str, Any]], None]) -> None:
        super().__init__(node)
        self._node = node
        self._hit = hit
        self._faults: dict[int, _Installed] = {}
        self._halved: dict[int, Any] = {}  # id of a response → the response, its connection
        self.sync_changes: dict[str, Callable[[SyncGroupRequest], None]] = {}  # group → what changes its SyncGroups
        self._muted: dict[int, int] = {}  # number of a connection → end of its throttling, by the monotonic clock
        self.take_way()

    # -- the table

    def install(self, number: int, rule: Rule, rewrite: Rewrite | None = None, matched: int = 0) -> None:
        """Adds a fault; requests from now on meet it.

        Args:
            matched: how many requests have matched it on this broker before a restart.
        """
        fault = self._faults[number] = _Installed(number, rule, rewrite, matched)
        if fault.halves:
            self.routes.clear()  # the next requests get routes that can cut
        self.take_way()

    def remove(self, number: int) -> None:
        """Removes a fault. Requests that it holds go on; late requests take effect now."""
        fault = self._faults.pop(number, None)
        if fault is not None:
            self._release(fault)
            if fault.halves:
                self.routes.clear()
            self.take_way()

    def end(self, number: int) -> None:
        """Requests do not meet the fault any more; it still holds those that it has met."""
        fault = self._faults.get(number)
        if fault is not None:
            fault.ended = True

    def release(self, number: int) -> None:
        """Lets the requests go on that a fault holds; it holds later ones again."""
        fault = self._faults.get(number)
        if fault is not None:
            self._release(fault)

    def _release(self, fault: _Installed) -> None:
        held, fault.held = fault.held, []
        for run in held:
            run()

    # -- requests

    def take_way(self) -> None:
        """Sets the way of requests; called after each change of what `way` depends on."""
        self.__dict__["answer"] = self.way()  # a type checker refuses to assign to a method

    def way(self) -> Way:
        """What answers requests from now on."""
        return self._meeting if self._faults or self._muted or self.sync_changes else super().answer

    def route(self, api_key: int, version: int) -> Route:
        """As of Router; while a fault halves answers, its routes cut them."""
        route = super().route(api_key, version)
        if not isinstance(route, _FaultyRoute) and any(each.halves for each in self._faults.values()):
            cut = self.routes[api_key << 16 | version] = _FaultyRoute(self, route, self.apis[api_key], version)
            return cut
        return route

    def _meeting(self, route: Route, call: Call[Any]) -> Any:
        """As `Router.answer`, with the first installed fault that meets the request."""
        if is_internal(call):
            return super().answer(route, call)
        if self.sync_changes and isinstance(call.request, SyncGroupRequest):
            change = self.sync_changes.get(call.request.group_id)
            if change is not None:
                change(call.request)
        wait_ms = self._muted_ms(call)
        if wait_ms > 0:
            return self._later(self._meeting, route, call, lambda run: self._call_later(wait_ms, run))
        name = registry.API[call.api_key].name
        fault = self._met(name, call)
        response = super().answer(route, call) if fault is None else self._act(fault, route, call)
        return self._then_late(name, response) if self._awaited(name) else response

    def _met(self, name: str, call: Call[Any]) -> _Installed | None:
        named: dict[str, set[Any]] | None = None
        for fault in self._faults.values():
            rule = fault.rule
            if rule.selects_by_content and named is None:
                named = subjects(call.request, self._topic_name)
            if fault.ended or not rule.matches(name, call.client_id, named or {}):
                continue
            if rule.times is not None and fault.hits >= rule.times:
                continue
            fault.matched += 1
            if fault.matched < rule.nth or (
                rule.probability < 1 and rule.drawn(fault.matched, "hit") >= rule.probability
            ):
                self._hit(fault.number, {"matched": fault.matched})
                continue
            fault.hits += 1
            self._hit(fault.number, {"matched": fault.matched, **self._seen(name, call, named or self._subjects(call))})
            return fault
        return None

    def _subjects(self, call: Call[Any]) -> dict[str, set[Any]]:
        return subjects(call.request, self._topic_name)

    def _seen(self, name: str, call: Call[Any], named: dict[str, set[Any]]) -> dict[str, Any]:
        return {
            "api": name,
            "version": call.version,
            "client": call.client_id,
            "peer": call.client_host,
            **{kind: sorted(values) for kind, values in named.items()},
        }

    def _topic_name(self, topic_id: bytes) -> str | None:
        return self._node.current_image.image.topic_name(topic_id)

    # -- actions

    def _act(self, fault: _Installed, route: Route, call: Call[Any]) -> Any:
        rule = fault.rule
        if rule.action == "error":
            error = BrokerError(ErrorCode[rule.error], "by a fault of the test kit")
            if not rule.after:
                return route.refuse(call, error)
            kept = _kept(call)
            return mapped(super().answer(route, call), lambda _: route.refuse(kept, error))
        if rule.action == "disconnect":
            return self._cut(rule, route, call)
        if rule.action == "delay":
            wait_s = rule.seconds + rule.jitter_s * rule.drawn(fault.matched, "jitter")
            return self._later(super().answer, route, call, lambda run: self._call_later(round(wait_s * 1000), run))
        if rule.action == "hold":
            return self._later(super().answer, route, call, lambda run: self._keep(fault, run))
        if rule.action == "drop":
            return Pending[Any]()
        if rule.action == "duplicate":
            return self._twice(route, call)
        if rule.action == "late":
            kept = _kept(call)
            self._keep(fault, lambda: _discard(super(FaultyRouter, self).answer(route, kept)))
            return _closed(call)
        if rule.action == "throttle":
            return mapped(super().answer(route, call), lambda response: self._throttled(rule, call, response))
        rewrite = fault.rewrite
        kept = _kept(call)
        return mapped(super().answer(route, call), lambda answer: rewrite(kept.request, answer) if rewrite else answer)

    def _cut(self, rule: Rule, route: Route, call: Call[Any]) -> Any:
        if rule.at == "received":
            return _closed(call)
        response = super().answer(route, call)
        if rule.at == "half_answered":
            return mapped(response, lambda answer: self._halve(call, answer))
        if rule.at == "replicated":
            return mapped(response, lambda _: _closed(call))
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
        self._halved[number] = response, call.connection  # the response is kept, so no other gets its id
        call.connection.on_close(partial(self._forget_half, number))
        return response

    def _forget_half(self, number: int) -> None:
        self._halved.pop(number, None)

    def cut_frame(self, response: Any, parts: list[Buffer]) -> list[Buffer]:
        """The frame of a response, or the first half of it if a fault cuts it; the connection then closes."""
        found = self._halved.pop(id(response), None)
        if found is None:
            return parts
        connection = found[1]
        whole = b"".join(parts)
        self._call_later(CLOSE_AFTER_MS, lambda: connection.close("a fault"))
        return [whole[: len(whole) // 2]]

    def _twice(self, route: Route, call: Call[Any]) -> Any:
        again = _kept(call)

        def then(response: Any) -> Any:
            _discard(super(FaultyRouter, self).answer(route, again))
            return response

        return mapped(super().answer(route, call), then)

    def _throttled(self, rule: Rule, call: Call[Any], response: Any) -> Any:
        if response is not None:
            response.throttle_time_ms = rule.throttle_ms
        number = call.connection.number
        self._muted[number] = self._node.reactor.clock.monotonic_ms() + rule.throttle_ms
        call.connection.on_close(partial(self._unmute, number))
        return response

    def _unmute(self, number: int) -> None:
        self._muted.pop(number, None)
        self.take_way()

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
        self, way: Way, route: Route, call: Call[Any], wait: Callable[[Callable[[], None]], Any]
    ) -> Pending[Any]:
        """The request goes on by `way` when `wait` calls back; later requests of the connection wait, too."""
        kept = _kept(call)
        outer: Pending[Any] = Pending(blocks=True)

        def run() -> None:
            if not outer.resolved:
                _follow(outer, way(route, kept))

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
        """Late requests that wait for an answer of this API take effect after it."""

        def then(answer: Any) -> Any:
            for fault in self._faults.values():
                if fault.rule.until == name:
                    self._node.reactor.soon(partial(self._release, fault))
            return answer

        return mapped(response, then)


class _FaultyRoute(Route):
    """A route whose answers may be cut."""

    __slots__ = ("router",)

    def __init__(self, router: FaultyRouter, route: Route, api: registry.Api, version: int) -> None:
        super().__init__(api, version, route.handler, route.refuse)
        self.router = router

    def frame(self, correlation: int, response: Any) -> list[Buffer]:
        """As of Route."""
        return self.framed(response, super().frame(correlation, response))

    def framed(self, response: Any, parts: list[Buffer]) -> list[Buffer]:
        """As of Route."""
        return self.router.cut_frame(response, parts) if self.router._halved else parts


def _kept(call: Call[Any]) -> Call[Any]:
    """The same call with a request of its own: views in the first one are valid only during the call."""
    request = decode(type(call.request), encode(call.request, call.version), call.version)
    return Call(request, call.version, call.api_key, call.client_id, call.connection, call.client_host)


def _closed(call: Call[Any]) -> Pending[Any]:
    """No answer: the connection closes."""
    call.connection.close("a fault")
    return Pending()


def _nothing(_: object) -> None:
    pass


def mapped(response: Any, change: Callable[[Any], Any]) -> Any:
    """What a handler returned, with its final answer passed through `change`, which may return a Pending instead."""
    if response.__class__ is GeneratorType:
        return _mapped_work(response, change)
    if isinstance(response, Computed):
        response = response.compute()
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
    """Answers `outer` with what a handler returned, now or later."""
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
    """Runs a handler's result to its end and drops the answer."""
    while response.__class__ is GeneratorType:
        try:
            while True:
                next(response)
        except StopIteration as ended:
            response = ended.value
    if isinstance(response, Pending) and not response.resolved:
        response.attach(_discard, None)
