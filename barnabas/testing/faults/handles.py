"""Faults and Fault: what a test writes to make requests fail.

    fault = kafka.faults.on("EndTxn", txn="orders-*").error("REQUEST_TIMED_OUT", after="apply")
    run_my_application()
    assert fault.hits == 1

Driven by: a test, from any thread. Emits: commands to the brokers, in the kit's thread; hits come back as events.

A fault hits one request unless `times` says otherwise. The brokers count `nth` each for itself; `times` holds for all of them together,
except for requests that reach several brokers at the same moment. Requests between brokers and of the kit itself meet no fault.

A paused broker can take no command: it gets those that it has missed when it is resumed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from barnabas.testing import kit_thread
from barnabas.testing.errors import KitError, KitTimeout, NotPossible, named_arguments
from barnabas.testing.faults.rule import Rule

if TYPE_CHECKING:
    from barnabas.testing.backend import Backend
    from barnabas.testing.core import Core

__all__ = ["Fault", "FaultAio", "Faults"]

REQUESTS_KEPT: Final = 1_000  # of each fault
WAIT_S: Final = 10.0
MARGIN_S: Final = 5.0  # `FaultAio.wait` ends by itself; its caller waits this much longer

Place = Literal["received", "applied", "replicated", "half_answered"]


class _Cluster(Protocol):
    """What faults need from the handle of their cluster."""

    def core(self) -> Core: ...

    def backend(self, what: str) -> Backend: ...

    def wait(self, work: Coroutine[Any, Any, None]) -> None: ...


class Faults:
    """The faults of one cluster."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._faults: dict[int, Fault] = {}
        self._without_action: list[Fault] = []
        self._missed: dict[int, list[tuple[str, dict[str, Any]]]] = {}  # commands for paused brokers
        self._endings: set[asyncio.Task[None]] = set()
        self._next = 1

    @named_arguments
    def on(
        self,
        api: str,
        *,
        client: str | None = None,
        txn: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        broker: int | None = None,
        nth: int = 1,
        times: int | None = 1,
        probability: float = 1.0,
        strict: bool = True,
    ) -> Fault:
        """Selects requests; the method that is called on the result says what happens to them.

        Args:
            api: name of the API, for example "Produce"; "*" for every one.
            client, txn, topic, group: patterns with `*` and `?` for the client id, the transactional id, the topic and the group.
            partition: a partition that the request names.
            broker: the only broker with the fault; None: all.
            nth: the first request that is hit, of those that match on a broker.
            times: how many are hit; None: all from then on.
            probability: that such a request is hit.
            strict: `verify` reports the fault if it has hit nothing.

        Raises:
            KitError: no request can match; the text has the nearest right word.
        """
        core = self._cluster.core()
        rule = Rule(api, client, txn, group, topic, partition, nth, times, probability, action="drop").check()
        if broker is not None:
            core.check_broker(broker)
        fault = Fault(self, rule, broker, strict)
        self._without_action.append(fault)
        return fault

    def clear(self) -> None:
        """Removes every fault. Requests that they hold go on."""
        for fault in list(self._faults.values()):
            fault.remove()
        self._without_action.clear()

    def verify(self) -> None:
        """Raises KitError if a strict fault has hit no request, a fault has no action, or the function of a `rewrite` has failed."""
        if self._without_action:
            raise KitError(
                f"a fault on {self._without_action[0].rule.api} has no action: "
                "call a method of what on(…) returns, for example error(…) or disconnect()"
            )
        self.settle()
        for each in self._faults.values():
            if each.failure is not None:
                raise KitError(f"the function of {each} failed: {each.failure!r}") from each.failure
        idle = [str(each) for each in self._faults.values() if each.strict and not each.counted]
        if idle:
            raise KitError(
                f"no request met {', '.join(idle)}: the filters match nothing that was sent; "
                "a fault that may stay without effect is written with strict=False"
            )

    # -- for the kit

    def install(self, fault: Fault, rewrite: Callable[[Any, Any], Any] | None) -> int:
        """Brings a fault to its brokers; returns its number."""
        self._cluster.core()  # raises in a forked child
        number, self._next = self._next, self._next + 1
        self._faults[number] = fault
        self._cluster.wait(self._send("install_fault", fault, number, _installation(fault.rule, rewrite)))
        return number

    def acts(self, fault: Fault) -> None:
        """A fault has got its action, or a wrong one was refused."""
        if fault in self._without_action:
            self._without_action.remove(fault)

    def tell(self, command: str, fault: Fault) -> None:
        """Sends a command about a fault to its brokers."""
        self._cluster.core()
        self._cluster.wait(self._send(command, fault, fault.number, {}))
        if command == "remove_fault":
            self._faults.pop(fault.number, None)

    async def _send(self, command: str, fault: Fault, number: int, arguments: Mapping[str, Any]) -> None:
        backend = self._cluster.backend("faults")
        given = {"number": number, **arguments}
        for each in backend.broker_ids:
            if fault.broker not in (None, each):
                continue
            if backend.state(each) == "running":
                await backend.command(each, command, given)
            elif backend.state(each) == "paused":
                self._missed.setdefault(each, []).append((command, given))

    async def on_started(self, broker_id: int) -> None:
        """A broker has started: it gets the faults that are not used up."""
        self._missed.pop(broker_id, None)
        backend = self._cluster.backend("faults")
        for number, fault in list(self._faults.items()):
            if fault.broker in (None, broker_id) and not fault.used_up:
                left = None if fault.rule.times is None else fault.rule.times - fault.counted
                given = _installation(replace(fault.rule, times=left), fault.rewritten_by)
                await backend.command(broker_id, "install_fault", {"number": number, **given})

    async def on_resumed(self, broker_id: int) -> None:
        """A broker continues after a pause: it gets the commands that it has missed."""
        backend = self._cluster.backend("faults")
        for command, arguments in self._missed.pop(broker_id, []):
            await backend.command(broker_id, command, arguments)

    def on_hit(self, broker_id: int, met: dict[str, Any]) -> None:
        """A broker reports a hit, in the kit's thread. After the last one every broker ends the fault."""
        fault = self._faults.get(met.pop("number"))
        if fault is None:
            return
        fault.note({"broker": broker_id, **met})
        if fault.used_up and fault.broker is None:
            task = asyncio.get_running_loop().create_task(self._send("end_fault", fault, fault.number, {}))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def settle(self) -> None:
        """Returns when every request that has met a fault is counted. A cluster that has ended meets no more."""
        try:
            self._cluster.wait(self.settled())
        except KitTimeout:
            raise
        except KitError:  # the cluster does not run, or the kit's own thread asks
            return

    async def settled(self) -> None:
        """What `settle` does, as a coroutine of the kit's thread; also, faults that are used up have ended everywhere."""
        backend = self._cluster.core().backend
        for each in backend.broker_ids:
            if backend.state(each) == "running":
                await backend.command(each, "live_brokers", {})  # its answer comes after the hits before it
        await asyncio.gather(*self._endings, return_exceptions=True)  # the faults of a broker end with the broker

    def check_rewrite(self) -> None:
        """Raises NotPossible where a function cannot reach the brokers."""
        if self._cluster.backend("faults").mode != "thread":
            raise NotPossible("rewrite is possible in mode 'thread' only: a function cannot be sent to another process")


def _installation(rule: Rule, rewrite: Callable[[Any, Any], Any] | None) -> dict[str, Any]:
    """Arguments of the command that installs a fault. A function is not a JSON value, so it is left out if there is none."""
    return {"rule": rule.to_json(), **({} if rewrite is None else {"rewrite": rewrite})}


class Fault:
    """One fault. Attributes may be read at any time, from any thread.

    Every call blocks for about a millisecond; `wait` blocks until its hits are there, so a coroutine uses `aio.wait`.
    """

    def __init__(self, faults: Faults, rule: Rule, broker: int | None, strict: bool) -> None:
        self.rule = rule
        self.broker = broker
        self.strict = strict
        self.number = 0
        self.failure: Exception | None = None  # of the function of `rewrite`
        self.rewritten_by: Callable[[Any, Any], Any] | None = None
        self._faults = faults
        self._changed = threading.Condition()
        self._met = asyncio.Event()  # replaced at each hit, in the kit's thread
        self._hits = 0
        self._requests: list[dict[str, Any]] = []

    # -- what happens

    def error(self, name: str, *, after: Literal["apply"] | None = None) -> Fault:
        """The answer has this error code for everything in the request.

        Args:
            name: as in Kafka, for example "NOT_LEADER_OR_FOLLOWER".
            after: "apply": the request takes effect first, so the answer is wrong.
        """
        if after not in (None, "apply"):
            self._faults.acts(self)
            raise KitError(f'after={after!r}: "apply" or None')
        return self._install(action="error", error=name, after=after == "apply")

    def disconnect(self, at: Place = "received") -> Fault:
        """The connection closes instead of an answer.

        Args:
            at: "received": the request has no effect. "applied": it has its effect on this broker. "replicated": its answer was ready.
                "half_answered": the client receives the first half of the answer.
        """
        return self._install(action="disconnect", at=at)

    def delay(self, seconds: float, *, jitter: float = 0.0) -> Fault:
        """The request takes effect later, as do the later ones of its connection; none if the connection has closed by then.

        Args:
            jitter: the longest time in seconds that is added at random.
        """
        return self._install(action="delay", seconds=seconds, jitter_s=jitter)

    def hold(self) -> Fault:
        """The request takes effect when `release` is called; none if its connection has closed by then."""
        return self._install(action="hold")

    def drop(self) -> Fault:
        """The request has no effect and gets no answer."""
        return self._install(action="drop")

    def duplicate(self) -> Fault:
        """The request takes effect twice; the client gets the first answer.

        An InitProducerId that takes effect twice gives the client an epoch that is already fenced.
        """
        return self._install(action="duplicate")

    def late(self, *, until: str) -> Fault:
        """The connection closes; the request takes effect after the same broker's next answer to a request of the API `until`."""
        return self._install(action="late", until=until)

    def throttle(self, milliseconds: int) -> Fault:
        """The answer has this throttle_time_ms, and the broker does not serve the connection for that time."""
        return self._install(action="throttle", throttle_ms=milliseconds)

    def rewrite(self, function: Callable[[Any, Any], Any]) -> Fault:
        """The answer is what `function(request, response)` returns; it runs in the broker's thread.

        If it raises, or returns something else than a response of this API, the connection closes, and `verify` reports it.
        """
        self._faults.acts(self)
        self._faults.check_rewrite()
        if not callable(function):
            raise KitError(f"rewrite({function!r}): a function of a request and its response, which returns the answer")
        self.rewritten_by = partial(self._rewritten, function)
        return self._install(action="rewrite")

    def _rewritten(self, function: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
        try:
            answer = function(request, response)
            if type(answer) is not type(response):
                raise TypeError(f"it returned {answer!r}: return the response, or another {type(response).__name__}")
        except Exception as error:
            self.failure = error
            raise
        return answer

    def _install(self, **action: Any) -> Fault:
        if self.number:
            raise KitError(f"{self} is installed already: write another one with on(…)")
        self._faults.acts(self)
        self.rule = replace(self.rule, **action).check()
        self.number = self._faults.install(self, self.rewritten_by)
        return self

    # -- afterwards

    @property
    def hits(self) -> int:
        """How many requests it has met; none is missing whose answer a client has."""
        self._faults.settle()
        return self.counted

    @property
    def counted(self) -> int:
        """For the kit: how many of them have been reported."""
        with self._changed:
            return self._hits

    @property
    def aio(self) -> FaultAio:
        """The methods that wait, as coroutines."""
        return FaultAio(self)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests that it has met, the first 1,000: broker, api, version, client, peer, txn, group, topic, partition."""
        self._faults.settle()
        with self._changed:
            return list(self._requests)

    @property
    def used_up(self) -> bool:
        """Whether it has met as many requests as it may."""
        return self.rule.times is not None and self.counted >= self.rule.times

    def wait(self, hits: int = 1, timeout: float = WAIT_S) -> Fault:
        """Returns when it has met `hits` requests. Raises KitTimeout after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= hits, timeout):
                raise self._not_met(hits, timeout)
        self._faults.settle()
        return self

    def _not_met(self, hits: int, timeout: float) -> KitTimeout:
        return KitTimeout(f"{self} has met {self._hits} of {hits} requests within {timeout:g} s")

    async def until_met(self, hits: int, timeout: float) -> None:
        """For the kit: what `wait` does, as a coroutine of the kit's thread."""
        try:
            async with asyncio.timeout(timeout):
                while self.counted < hits:
                    await self._met.wait()
        except TimeoutError:
            raise self._not_met(hits, timeout) from None
        await self._faults.settled()

    def release(self) -> None:
        """The requests that it holds go on."""
        self._faults.tell("release_fault", self)

    def remove(self) -> None:
        """Requests do not meet it any more; those that it holds go on."""
        self._faults.tell("remove_fault", self)

    def note(self, met: dict[str, Any]) -> None:
        """For the kit: it has met a request."""
        with self._changed:
            self._hits += 1
            if len(self._requests) < REQUESTS_KEPT:
                self._requests.append(met)
            self._changed.notify_all()
        self._met.set()
        self._met = asyncio.Event()

    def __repr__(self) -> str:
        shown = [
            f"{name}={value!r}"
            for name in ("client", "txn", "group", "topic", "partition", "broker")
            if (value := self.broker if name == "broker" else getattr(self.rule, name)) is not None
        ]
        return f"<{self.rule.action} on {self.rule.api}{''.join(f' {each}' for each in shown)}, {self._hits} hits>"


class FaultAio:
    """The methods of a fault that wait, as coroutines for asyncio and trio."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    async def wait(self, hits: int = 1, timeout: float = WAIT_S) -> Fault:
        """Returns when it has met `hits` requests. Raises KitTimeout after `timeout` seconds."""
        await kit_thread.wait_async(self._fault.until_met(hits, timeout), timeout + MARGIN_S)
        return self._fault
