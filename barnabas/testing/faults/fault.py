"""Fault: the handle of one fault: its action and the requests that it hit."""

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
from barnabas.testing.kit_thread import Aio, blocking, coroutine

REQUESTS_KEPT: Final = 1_000  # of each fault
WAIT_S: Final = 10.0

Place = Literal["received", "applied", "replicated", "half_answered"]


class _Faults(Protocol):
    """`Faults` documents these."""

    def acts(self, fault: Fault) -> None: ...

    def install(self, fault: Fault) -> None: ...

    def tell(self, command: str, fault: Fault) -> None: ...

    def settle(self) -> None: ...

    def settled(self) -> Coroutine[Any, Any, None]: ...

    def check_rewrite(self) -> None: ...


class FaultAio(Aio["Fault"]):
    """The coroutine of a fault, for asyncio and trio."""

    @coroutine
    async def wait(self, hits: int = 1, timeout: float = WAIT_S) -> Fault:
        """Returns after `hits` hits. Raises KitTimeout after `timeout` seconds."""
        fault = self._of
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
    """One fault. Attributes are thread-safe. Calls block for about a millisecond, `wait` until its hits: coroutines use `aio.wait`."""

    def __init__(self, faults: _Faults, rule: Rule, broker: int | None, strict: bool) -> None:
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
        """Responds with this error code for everything in the request.

        `name` is Kafka's, for example "NOT_LEADER_OR_FOLLOWER". `after="apply"`: the request takes effect first, so the response is wrong.
        """
        return self._install("error", name, after=after)

    def disconnect(self, at: Place = "received") -> Fault:
        """Closes the connection instead of responding.

        `at`: "received": no effect. "applied": effect on this broker. "replicated": the response was ready. "half_answered": half of it is
        sent.
        """
        return self._install("disconnect", at)

    def delay(self, seconds: float, *, jitter: float = 0.0) -> Fault:
        """Delays the request and the later ones of its connection; no effect if the connection closes first.

        `jitter`: maximum random addition in seconds.
        """
        return self._install("delay", seconds, jitter=jitter)

    def hold(self) -> Fault:
        """Holds the request until `release`; no effect if its connection closes first."""
        return self._install("hold")

    def drop(self) -> Fault:
        """No effect and no response."""
        return self._install("drop")

    def duplicate(self) -> Fault:
        """Applies the request twice; the client gets the first response.

        A duplicate InitProducerId thus returns an epoch that is already fenced.
        """
        return self._install("duplicate")

    def late(self, *, until: str) -> Fault:
        """Closes the connection; the request takes effect after the broker's next response to a request of the API `until`."""
        return self._install("late", until)

    def throttle(self, milliseconds: int) -> Fault:
        """Sets throttle_time_ms in the response and mutes the connection for that time."""
        return self._install("throttle", milliseconds)

    def rewrite(self, function: Callable[[Any, Any], Any]) -> Fault:
        """Responds with `function(request, response)`, called in the broker's thread.

        If it raises or returns another type, the connection closes and `verify` fails.
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
        """Number of hits, including every request whose response a client has."""
        self._faults.settle()
        return self.counted

    @property
    def counted(self) -> int:
        """For the kit: hits that were reported."""
        with self._lock:
            return self._hits

    @property
    def aio(self) -> FaultAio:
        """The waiting methods as coroutines."""
        return FaultAio(self)

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The first 1,000 hits: broker, api, version, client, peer, txn, group, topic, partition."""
        self._faults.settle()
        with self._lock:
            return list(self._requests)

    @property
    def used_up(self) -> bool:
        """Whether `times` is reached."""
        return self.is_used_up(self.counted)

    def is_used_up(self, hits: int) -> bool:
        """For the kit: whether `hits` reaches `times`."""
        return self.rule.times is not None and hits >= self.rule.times

    _called = "fault"
    wait = blocking(FaultAio.wait, waits_for_application=True)

    def release(self) -> None:
        """Serves the held requests."""
        self._faults.tell("release_fault", self)

    def remove(self) -> None:
        """Removes the fault and serves the held requests."""
        self._faults.tell("remove_fault", self)

    def to_json(self, *, requests: bool = False) -> dict[str, Any]:
        """For the kit: state as JSON value, optionally with the requests."""
        with self._lock:
            told = {
                "id": self.number,
                **written(self.rule, self.broker, self.strict),
                "hits": self._hits,
                "used_up": self.is_used_up(self._hits),
            }
            return {**told, "requests": list(self._requests)} if requests else told

    def note(self, met: dict[str, Any]) -> None:
        """For the kit: records a hit."""
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
