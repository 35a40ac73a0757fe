"""Fault and Faults: the faults of one cluster, as a test writes them and as its brokers report their hits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from barnabas.testing.errors import (
    KitError,
    KitTimeout,
    NearestNames,
    NotPossible,
    checked_number,
    checked_seconds,
    named_arguments,
)
from barnabas.testing.extension import Extension, settle
from barnabas.testing.faults.document import FAULTS_MAX, read, with_action, written
from barnabas.testing.faults.rule import Rule
from barnabas.testing.kit_thread import Aio, blocking, coroutine

if TYPE_CHECKING:
    from barnabas.testing.running import Running

REQUESTS_KEPT: Final = 1_000  # of each fault
WAIT_S: Final = 10.0

Place = Literal["received", "applied", "replicated", "half_answered"]


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

    def __init__(self, faults: Faults, rule: Rule) -> None:
        self.rule = rule
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
                **written(self.rule),
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
            if (value := getattr(self.rule, name)) is not None
        ]
        return f"<{self.rule.action} on {self.rule.api}{''.join(f' {each}' for each in shown)}, {self._hits} hits>"


class Faults(NearestNames, Extension):
    """The faults of one cluster: `fault = kafka.faults.on("EndTxn", txn="orders-*").error("REQUEST_TIMED_OUT", after="apply")`.

    A fault hits one request unless `times` says otherwise. Each broker counts `nth` itself, also across restarts; `times` is shared, except
    for simultaneous requests at several brokers. Inter-broker requests and those of the kit never match. Random choices follow the
    cluster's seed: the first fault after the start or `clear` has the first stream. A paused broker gets missed commands when it resumes.
    """

    def __init__(self, cluster: Running) -> None:
        self._cluster = cluster
        self._faults: dict[int, Fault] = {}
        self._without_action: list[Fault] = []
        self._missed: dict[int, list[tuple[str, dict[str, Any]]]] = {}  # commands for paused brokers
        self._endings: set[asyncio.Task[None]] = set()
        self._next = 1
        self._streams = 0  # faults since `clear`

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
        """Selects requests; a method of the result says what happens to them.

        Args:
            api: for example "Produce"; "*" for every API.
            client, txn, topic, group: patterns with `*` and `?`.
            partition: a partition in the request.
            broker: None: all brokers.
            nth: the first match that is hit, counted on each broker.
            times: number of hits; None: no limit.
            probability: of each hit.
            strict: `verify` reports the fault if it hit nothing.

        Raises KitError if no request can match, with the nearest valid word.
        """
        core = self._cluster.core()
        filters: dict[str, Any] = {"client": client, "txn": txn, "group": group, "topic": topic, "partition": partition}
        filters |= {"broker": broker, "strict": strict, "nth": nth, "times": times, "probability": probability}
        rule = Rule(api, **filters, action="drop").check()
        if broker is not None:
            core.check_broker(broker)
        fault = Fault(self, rule)
        self._without_action.append(fault)
        return fault

    def load(self, path: str | Path) -> list[Fault]:
        """Installs the faults of a YAML or .json file; docs/testing/faults.md has the keys. Raises KitError; then none is installed."""
        self._cluster.core()
        if not isinstance(path, (str, Path)):
            raise KitError(f"load({path!r}): write the path of a file of faults")
        found = read(path)
        try:
            return self._cluster.wait(self.add(found))
        except KitTimeout:
            raise
        except KitError as error:
            raise KitError(f"{path}: {error}") from None

    def clear(self) -> None:
        """Removes every fault and serves held requests."""
        if self._faults or self._without_action or self._streams:
            self._cluster.core()
            self._cluster.wait(self.cleared())

    def verify(self) -> None:
        """Raises KitError if a strict fault hit nothing, a fault has no action, or a `rewrite` function failed."""
        self._check_actions()
        self.settle()
        self._judge()

    def _check_actions(self) -> None:
        if self._without_action:
            raise KitError(
                f"a fault on {self._without_action[0].rule.api} has no action: "
                "call a method of what on(…) returns, for example error(…) or disconnect()"
            )

    def _judge(self) -> None:
        for each in self._faults.values():
            if each.failure is not None:
                raise KitError(f"the function of {each} failed: {each.failure!r}") from each.failure
        idle = [str(each) for each in self._faults.values() if each.rule.strict and not each.counted]
        if idle:
            raise KitError(
                f"no request met {', '.join(idle)}: the filters match nothing that was sent; "
                "a fault that may stay without effect is written with strict=False"
            )

    # -- for the kit, as coroutines of its thread

    @property
    def leaves_traces(self) -> bool:
        """A held request, for example, may remain."""
        return self._next > 1

    async def add(self, wanted: list[Rule]) -> list[Fault]:
        """Installs all faults of a document or, with KitError, none."""
        core = self._cluster.core()
        for each in wanted:
            if each.broker is not None:
                core.check_broker(each.broker)
        if len(self._faults) + len(wanted) > FAULTS_MAX:
            raise KitError(
                f"{len(self._faults)} faults are installed, and {FAULTS_MAX} are possible: remove some first"
            )
        found = [Fault(self, each) for each in wanted]
        for fault in found:
            await self._installed(fault)
        return found

    async def _installed(self, fault: Fault) -> None:
        if len(self._faults) >= FAULTS_MAX:
            raise KitError(f"{FAULTS_MAX} faults are installed: remove some first")
        self._streams += 1
        fault.rule = replace(fault.rule, stream=f"{self._cluster.seed}/{self._streams}")
        fault.number, self._next = self._next, self._next + 1
        self._faults[fault.number] = fault
        for each in self._targets(fault):
            await self._to_broker(each, "install_fault", _installation(fault, each))

    async def cleared(self) -> int:
        """Returns how many faults there were."""
        found = list(self._faults.values())
        for fault in found:
            await self.told("remove_fault", fault)
        self._without_action.clear()
        self._streams = 0
        return len(found)

    async def told(self, command: str, fault: Fault) -> None:
        """Sends a command to the brokers of a fault."""
        for each in self._targets(fault):
            await self._to_broker(each, command, {"number": fault.number})
        if command == "remove_fault":
            self._faults.pop(fault.number, None)

    async def verified(self) -> None:
        self._check_actions()
        await self.settled()
        self._judge()

    def all(self) -> list[Fault]:
        """Oldest first."""
        return list(self._faults.values())

    def get(self, number: int) -> Fault | None:
        """The fault with this number, if it is installed."""
        return self._faults.get(number)

    # -- for one fault

    def install(self, fault: Fault) -> None:
        """Numbers a fault and sends it to its brokers."""
        self._cluster.core()  # raises in a forked child
        self._cluster.wait(self._installed(fault))

    def acts(self, fault: Fault) -> None:
        """The fault has an action, or a wrong one was refused."""
        if fault in self._without_action:
            self._without_action.remove(fault)

    def tell(self, command: str, fault: Fault) -> None:
        """Sends a command to the brokers of a fault."""
        self._cluster.core()
        self._cluster.wait(self.told(command, fault))

    # -- from and to the brokers

    def _targets(self, fault: Fault) -> list[int]:
        return [each for each in self._cluster.backend("faults").broker_ids if fault.rule.broker in (None, each)]

    async def _to_broker(self, broker_id: int, command: str, arguments: Mapping[str, Any]) -> None:
        backend = self._cluster.backend("faults")
        if backend.state(broker_id) == "running":
            await backend.command(broker_id, command, arguments)
        elif backend.state(broker_id) == "paused":
            self._missed.setdefault(broker_id, []).append((command, dict(arguments)))

    async def on_started(self, broker_id: int) -> None:
        """A restarted broker gets the faults with hits left."""
        self._missed.pop(broker_id, None)
        backend = self._cluster.backend("faults")
        for fault in list(self._faults.values()):
            if fault.rule.broker in (None, broker_id) and not fault.used_up:
                await backend.command(broker_id, "install_fault", _installation(fault, broker_id))

    async def on_resumed(self, broker_id: int) -> None:
        """Sends the missed commands."""
        backend = self._cluster.backend("faults")
        for command, arguments in self._missed.pop(broker_id, []):
            await backend.command(broker_id, command, arguments)

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        if name == "fault":
            self.on_hit(broker_id, value)

    def on_hit(self, broker_id: int, met: dict[str, Any]) -> None:
        """In the kit's thread. The last hit ends the fault on every broker."""
        fault = self._faults.get(met.pop("number"))
        if fault is None:
            return
        fault.matched[broker_id] = met.pop("matched")
        if not met:
            return  # it was not hit
        fault.note({"broker": broker_id, **met})
        if fault.used_up and fault.rule.broker is None:
            task = asyncio.get_running_loop().create_task(self.told("end_fault", fault))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def settle(self) -> None:
        """Returns when every hit is counted."""
        settle(self._cluster.wait, self.settled())

    async def settled(self) -> None:
        """Also, exhausted faults have ended on every broker."""
        backend = self._cluster.core().backend
        for each in backend.broker_ids:
            await backend.settle(each)
        await asyncio.gather(*self._endings, return_exceptions=True)  # the faults of a broker end with the broker

    def check_rewrite(self) -> None:
        """Raises NotPossible where a function cannot reach the brokers."""
        if self._cluster.backend("faults").mode != "thread":
            raise NotPossible("rewrite is possible in mode 'thread' only: a function cannot be sent to another process")


def _installation(fault: Fault, broker_id: int) -> dict[str, Any]:
    """A missing function is left out: functions are no JSON values."""
    left = None if fault.rule.times is None else fault.rule.times - fault.counted
    return {
        "number": fault.number,
        "rule": replace(fault.rule, times=left).to_json(),
        "matched": fault.matched.get(broker_id, 0),
        **({} if fault.rewritten_by is None else {"rewrite": fault.rewritten_by}),
    }
