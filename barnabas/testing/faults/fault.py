"""Fault: one fault that a test has written: what happens to its requests, and which it has met."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, Protocol

from barnabas.testing.errors import KitError, KitTimeout, NearestNames, checked_number, checked_seconds
from barnabas.testing.faults.document import with_action, written
from barnabas.testing.faults.rule import Rule
from barnabas.testing.kit_thread import blocking, coroutine

REQUESTS_KEPT: Final = 1_000  # of each fault
WAIT_S: Final = 10.0

Place = Literal["received", "applied", "replicated", "half_answered"]


class _Owner(Protocol):
    """The faults of a cluster, as one of them uses it."""

    def acts(self, fault: Fault) -> None: ...

    def install(self, fault: Fault) -> None: ...

    def tell(self, command: str, fault: Fault) -> None: ...

    def settle(self) -> None: ...

    def settled(self) -> Coroutine[Any, Any, None]: ...

    def check_rewrite(self) -> None: ...


class FaultAio:
    """The method of a fault that waits, as a coroutine for asyncio and trio."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    @coroutine
    async def wait(self, hits: int = 1, timeout: float = WAIT_S) -> Fault:
        """Returns when it has met `hits` requests. Raises KitTimeout after `timeout` seconds."""
        fault = self._fault
        checked_number("wait: hits", hits)
        timeout = checked_seconds("wait: timeout", timeout, zero=True)
        try:
            async with asyncio.timeout(timeout):
                while fault.counted < hits:
                    await fault._met.wait()
        except TimeoutError:
            raise KitTimeout(f"{fault} has met {fault.counted} of {hits} requests within {timeout:g} s") from None
        await fault._faults.settled()
        return fault


class Fault(NearestNames):
    """One fault. Attributes may be read at any time, from any thread.

    Every call blocks for about a millisecond; `wait` blocks until its hits are there, so a coroutine uses `aio.wait`.
    """

    def __init__(self, faults: _Owner, rule: Rule, broker: int | None, strict: bool) -> None:
        self.rule = rule
        self.broker = broker
        self.strict = strict
        self.number = 0
        self.failure: Exception | None = None  # of the function of `rewrite`
        self.matched: dict[
            int, int
        ] = {}  # by broker id: requests that have matched its filters, for a restart of the broker
        self.rewritten_by: Callable[[Any, Any], Any] | None = None
        self._faults = faults
        self._lock = threading.Lock()
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
        return self._install("error", name, after=after)

    def disconnect(self, at: Place = "received") -> Fault:
        """The connection closes instead of an answer.

        Args:
            at: "received": the request has no effect. "applied": it has its effect on this broker. "replicated": its answer was ready.
                "half_answered": the client receives the first half of the answer.
        """
        return self._install("disconnect", at)

    def delay(self, seconds: float, *, jitter: float = 0.0) -> Fault:
        """The request takes effect later, as do the later ones of its connection; none if the connection has closed by then.

        Args:
            jitter: the longest time in seconds that is added at random.
        """
        return self._install("delay", seconds, jitter=jitter)

    def hold(self) -> Fault:
        """The request takes effect when `release` is called; none if its connection has closed by then."""
        return self._install("hold")

    def drop(self) -> Fault:
        """The request has no effect and gets no answer."""
        return self._install("drop")

    def duplicate(self) -> Fault:
        """The request takes effect twice; the client gets the first answer.

        An InitProducerId that takes effect twice gives the client an epoch that is already fenced.
        """
        return self._install("duplicate")

    def late(self, *, until: str) -> Fault:
        """The connection closes; the request takes effect after the same broker's next answer to a request of the API `until`."""
        return self._install("late", until)

    def throttle(self, milliseconds: int) -> Fault:
        """The answer has this throttle_time_ms, and the broker does not serve the connection for that time."""
        return self._install("throttle", milliseconds)

    def rewrite(self, function: Callable[[Any, Any], Any]) -> Fault:
        """The answer is what `function(request, response)` returns; it runs in the broker's thread.

        If it raises, or returns something else than a response of this API, the connection closes, and `verify` reports it.
        """
        self._begin()
        self._faults.check_rewrite()
        if not callable(function):
            raise KitError(f"rewrite({function!r}): a function of a request and its response, which returns the answer")
        self.rewritten_by = partial(self._rewritten, function)
        self.rule = replace(self.rule, action="rewrite")
        self._faults.install(self)
        return self

    def _rewritten(self, function: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
        try:
            answer = function(request, response)
            if type(answer) is not type(response):
                raise TypeError(f"it returned {answer!r}: return the response, or another {type(response).__name__}")
        except Exception as error:
            self.failure = error
            raise
        return answer

    def _begin(self) -> None:
        if self.number:
            raise KitError(f"{self} is installed already: write another one with on(…)")
        self._faults.acts(self)

    def _install(self, action: str, value: object = True, **options: object) -> Fault:
        self._begin()
        self.rule = with_action(self.rule, action, value, options)
        self._faults.install(self)
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
        with self._lock:
            return self._hits

    @property
    def aio(self) -> FaultAio:
        """The methods that wait, as coroutines."""
        return FaultAio(self)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests that it has met, the first 1,000: broker, api, version, client, peer, txn, group, topic, partition."""
        self._faults.settle()
        with self._lock:
            return list(self._requests)

    @property
    def used_up(self) -> bool:
        """Whether it has met as many requests as it may."""
        return self.is_used_up(self.counted)

    def is_used_up(self, hits: int) -> bool:
        """For the kit: whether that many hits are all that it may have."""
        return self.rule.times is not None and hits >= self.rule.times

    _called = "fault"
    wait = blocking(FaultAio.wait, waits_for_application=True)

    def release(self) -> None:
        """The requests that it holds go on."""
        self._faults.tell("release_fault", self)

    def remove(self) -> None:
        """Requests do not meet it any more; those that it holds go on."""
        self._faults.tell("remove_fault", self)

    def to_json(self, *, requests: bool = False) -> dict[str, Any]:
        """For the kit: what it is and what it has met, as JSON value; with `requests` also the requests."""
        with self._lock:
            told = {
                "id": self.number,
                **written(self.rule, self.broker, self.strict),
                "hits": self._hits,
                "used_up": self.is_used_up(self._hits),
            }
            return {**told, "requests": list(self._requests)} if requests else told

    def note(self, met: dict[str, Any]) -> None:
        """For the kit: it has met a request."""
        with self._lock:
            self._hits += 1
            if len(self._requests) < REQUESTS_KEPT:
                self._requests.append(met)
        self._met.set()
        self._met = asyncio.Event()

    def __repr__(self) -> str:
        shown = [
            f"{name}={value!r}"
            for name in ("client", "txn", "group", "topic", "partition", "broker")
            if (value := self.broker if name == "broker" else getattr(self.rule, name)) is not None
        ]
        return f"<{self.rule.action} on {self.rule.api}{''.join(f' {each}' for each in shown)}, {self._hits} hits>"
