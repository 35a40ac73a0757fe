"""Faults and Fault: what a test writes to make requests fail.

    fault = kafka.faults.on("EndTxn", txn="orders-*").error("REQUEST_TIMED_OUT", after="apply")
    run_my_application()
    assert fault.hits == 1

Driven by: a test, from any thread. Emits: commands to the brokers, in the kit's thread; hits come back as events.

A fault hits one request unless `times` says otherwise. The brokers count `nth` each for itself; `times` holds for all of them together,
as soon as `hits` counts a hit. Requests between brokers and of the kit itself meet no fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from barnabas.testing.errors import KitError, KitTimeout, NotPossible, named_arguments
from barnabas.testing.faults.rule import Rule

if TYPE_CHECKING:
    from barnabas.testing.backend import Backend
    from barnabas.testing.core import Core

__all__ = ["Fault", "Faults"]

REQUESTS_KEPT: Final = 1_000  # of each fault
WAIT_S: Final = 10.0

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
        rule = Rule(api, client, txn, group, topic, partition, nth, times, probability, action="drop").check()
        if broker is not None:
            self._cluster.backend("faults")
            self._cluster.core().check_broker(broker)
        return Fault(self, rule, broker, strict)

    def clear(self) -> None:
        """Removes every fault. Requests that they hold go on."""
        for fault in list(self._faults.values()):
            fault.remove()

    def verify(self) -> None:
        """Raises KitError if a strict fault has hit no request since it was written."""
        idle = [str(each) for each in self._faults.values() if each.strict and not each.hits]
        if idle:
            raise KitError(
                f"no request met {', '.join(idle)}: the filters match nothing that was sent; "
                "a fault that may stay without effect is written with strict=False"
            )

    # -- for the kit

    def install(self, fault: Fault, rewrite: Callable[[Any, Any], Any] | None) -> int:
        """Brings a fault to its brokers; returns its number."""
        number, self._next = self._next, self._next + 1
        self._faults[number] = fault
        self._cluster.wait(
            self._send("install_fault", fault, number, {"rule": fault.rule.to_json(), "rewrite": rewrite})
        )
        return number

    def tell(self, command: str, fault: Fault) -> None:
        """Sends a command about a fault to its brokers."""
        self._cluster.wait(self._send(command, fault, fault.number, {}))
        if command == "remove_fault":
            self._faults.pop(fault.number, None)

    async def _send(self, command: str, fault: Fault, number: int, arguments: Mapping[str, Any]) -> None:
        backend = self._cluster.backend("faults")
        given = {name: value for name, value in arguments.items() if value is not None}
        for each in backend.broker_ids:
            if fault.broker in (None, each) and backend.state(each) == "running":
                await backend.command(each, command, {"number": number, **given})

    async def install_again(self, broker_id: int) -> None:
        """A broker has started: it gets the faults that are not used up."""
        backend = self._cluster.backend("faults")
        for number, fault in self._faults.items():
            if fault.broker in (None, broker_id) and not fault.used_up:
                given = {"rule": fault.rule.to_json(), "rewrite": fault.rewritten_by}
                arguments = {name: value for name, value in given.items() if value is not None}
                await backend.command(broker_id, "install_fault", {"number": number, **arguments})

    async def on_hit(self, broker_id: int, met: dict[str, Any]) -> None:
        """A broker reports a hit."""
        fault = self._faults.get(met.pop("number"))
        if fault is None:
            return
        if fault.rule.times == fault.hits + 1 and fault.broker is None and not fault.holding:
            backend = self._cluster.backend("faults")
            for each in backend.broker_ids:
                if each != broker_id and backend.state(each) == "running":
                    await backend.command(each, "remove_fault", {"number": fault.number})
        fault.note({"broker": broker_id, **met})

    def check_rewrite(self) -> None:
        """Raises NotPossible where a function cannot reach the brokers."""
        if self._cluster.backend("faults").mode != "thread":
            raise NotPossible("rewrite is possible in mode 'thread' only: a function cannot be sent to another process")


class Fault:
    """One fault. Attributes may be read at any time, from any thread."""

    def __init__(self, faults: Faults, rule: Rule, broker: int | None, strict: bool) -> None:
        self.rule = rule
        self.broker = broker
        self.strict = strict
        self.number = 0
        self.rewritten_by: Callable[[Any, Any], Any] | None = None
        self._faults = faults
        self._changed = threading.Condition()
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
        """The request takes effect later, as do the later ones of its connection.

        Args:
            jitter: up to so many seconds are added.
        """
        return self._install(action="delay", seconds=seconds, jitter_s=jitter)

    def hold(self) -> Fault:
        """The request takes effect when `release` is called."""
        return self._install(action="hold")

    def drop(self) -> Fault:
        """The request has no effect and gets no answer."""
        return self._install(action="drop")

    def duplicate(self) -> Fault:
        """The request takes effect twice; the client gets the first answer."""
        return self._install(action="duplicate")

    def late(self, *, until: str) -> Fault:
        """The connection closes; the request takes effect after the next answer to a request of the API `until`."""
        return self._install(action="late", until=until)

    def throttle(self, milliseconds: int) -> Fault:
        """The answer has this throttle_time_ms, and the connection is not served for as long."""
        return self._install(action="throttle", throttle_ms=milliseconds)

    def rewrite(self, function: Callable[[Any, Any], Any]) -> Fault:
        """The answer is what `function(request, response)` returns; it runs in the broker's thread."""
        self._faults.check_rewrite()
        self.rewritten_by = function
        return self._install(action="rewrite")

    def _install(self, **action: Any) -> Fault:
        if self.number:
            raise KitError(f"{self} is installed already: write another one with on(…)")
        self.rule = replace(self.rule, **action).check()
        self.number = self._faults.install(self, self.rewritten_by)
        return self

    # -- afterwards

    @property
    def hits(self) -> int:
        """How many requests it has met."""
        with self._changed:
            return self._hits

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests that it has met, the first 1,000: broker, api, version, client, peer, txn, group, topic, partition."""
        with self._changed:
            return list(self._requests)

    @property
    def used_up(self) -> bool:
        """Whether it has met as many requests as it may."""
        return self.rule.times is not None and self.hits >= self.rule.times

    @property
    def holding(self) -> bool:
        """Whether it may hold requests."""
        return self.rule.action in ("hold", "late")

    def wait(self, hits: int = 1, timeout: float = WAIT_S) -> Fault:
        """Returns when it has met so many requests. Raises KitTimeout after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= hits, timeout):
                raise KitTimeout(f"{self} has met {self._hits} of {hits} requests within {timeout:g} s")
        return self

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

    def __repr__(self) -> str:
        shown = [
            f"{name}={value!r}"
            for name in ("client", "txn", "group", "topic", "partition", "broker")
            if (value := self.broker if name == "broker" else getattr(self.rule, name)) is not None
        ]
        return f"<{self.rule.action} on {self.rule.api}{''.join(f' {each}' for each in shown)}, {self._hits} hits>"
