"""Surroundings: the links and disks of one cluster as a test has shaped them; brings them to the brokers.

Driven by: handles of a test (`links.py`, `broker_disk.py`), in the kit's thread; `Core`, as an extension. Emits: commands to brokers.

Each broker gets the whole state that concerns it with every change, so a paused broker that continues, or one that restarts, needs no
history of changes. A broker that restarts has it before its first step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from barnabas.testing.errors import KitError, KitTimeout
from barnabas.testing.extension import Commands, Extension
from barnabas.testing.world.flow import FREE, Flow
from barnabas.testing.world.sides import Side

if TYPE_CHECKING:
    from barnabas.testing.backend import Backend
    from barnabas.testing.core import Core

__all__ = ["DiskState", "LinkState", "Surroundings", "WorldHost", "with_cut"]

T = TypeVar("T")


class WorldHost(Protocol):
    """What the world needs from the handle of its cluster."""

    def core(self) -> Core: ...

    def backend(self, what: str) -> Backend: ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...

    async def wait_async(self, work: Coroutine[Any, Any, T]) -> T: ...


@dataclass(eq=False)
class LinkState:
    """One link as a test has shaped it.

    Attributes:
        there, back: the flow from `one` to `two`, and back.
        is_cut: made by `partition` or `isolate`; `heal` ends it.
    """

    one: Side
    two: Side
    there: Flow = FREE
    back: Flow = FREE
    is_cut: bool = False

    def rule_of(self, broker_id: int) -> dict[str, Any] | None:
        """The rule for one broker; None if the link does not concern it."""
        if self.one.broker == broker_id:
            peer, outward, inward = self.two, self.there, self.back
        elif self.two.broker == broker_id:
            peer, outward, inward = self.one, self.back, self.there
        else:
            return None
        return {
            "broker": peer.broker,
            "client": peer.client,
            "outward": outward.to_json(),
            "inward": inward.to_json(),
        }


@dataclass(eq=False)
class DiskState:
    """One fault of one broker's disk.

    Attributes:
        times: calls that may still fail; -1: all.
        met: how many have.
        log_dir: number of the log directory, from 1; None: all.
    """

    broker: int
    call: str
    number: int = 0
    path: str = "*"
    times: int = -1
    seconds: float = 0.0
    log_dir: int | None = None
    id: int = 0
    met: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    def to_json(self) -> dict[str, Any]:
        """What the broker gets."""
        times = self.times if self.times < 0 else max(self.times - self.count, 0)
        return {
            "id": self.id,
            "call": self.call,
            "number": self.number,
            "path": self.path,
            "times": times,
            "seconds": self.seconds,
            "log_dir": self.log_dir,
        }


class Surroundings(Extension):
    """See the module."""

    def __init__(self, host: WorldHost) -> None:
        self.host = host
        self.links: list[LinkState] = []
        self.disks: list[DiskState] = []
        self._last_id = 0
        self._touched: set[int] = set()  # brokers that have got a rule
        host.core().extensions.append(self)

    # -- as an extension

    def before_start(self, broker_id: int) -> Commands:
        """As of Extension."""
        return [*self._link_commands(broker_id), *self._disk_commands(broker_id)]

    async def on_resumed(self, broker_id: int) -> None:
        """As of Extension."""
        for name, arguments in (*self._link_commands(broker_id), *self._disk_commands(broker_id)):
            await self.host.backend("links").command(broker_id, name, arguments)

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        """As of Extension."""
        if name == "disk":
            for each in self.disks:
                if each.id == value["id"]:
                    each.count += 1
                    if len(each.met) < 1_000:
                        each.met.append({"broker": broker_id, "call": value["call"], "path": value["path"]})

    def explain(self) -> str:
        """As of Extension."""
        texts = []
        for each in self.links:
            if each.there.cut and each.back.cut:
                texts.append(f"the link between {each.one} and {each.two} is cut")
            elif each.there.cut or each.back.cut:
                ends = (each.one, each.two) if each.there.cut else (each.two, each.one)
                texts.append(f"the link from {ends[0]} to {ends[1]} is cut")
        faulty = sorted({each.broker for each in self.disks})
        texts += [f"the disk of broker {each} has faults" for each in faulty]
        return ", ".join(texts)

    def cut_off(self) -> frozenset[int]:
        """As of Extension: the brokers outside the largest set of brokers that reach each other."""
        cut = {(each.one.broker, each.two.broker) for each in self.links if each.there.cut or each.back.cut}
        brokers = self.host.backend("links").broker_ids
        if not cut:
            return frozenset()
        left, best = list(brokers), set[int]()
        while left:
            found = {left[0]}
            waiting = [left.pop(0)]
            while waiting:
                here = waiting.pop()
                for there in [each for each in left if (here, each) not in cut and (each, here) not in cut]:
                    left.remove(there)
                    found.add(there)
                    waiting.append(there)
            best = found if len(found) > len(best) else best
        return frozenset(brokers) - best

    # -- links

    async def set_flows(self, *changes: tuple[LinkState, Flow, Flow]) -> None:
        """Gives links their flows; new links become part of the world."""
        for state, there, back in changes:
            state.there, state.back = there, back
            if state not in self.links:
                self.links.append(state)
        await self._send_links()

    async def remove_links(self, states: list[LinkState]) -> None:
        """Links are as if nothing had been written."""
        self.links = [each for each in self.links if each not in states]
        await self._send_links()

    async def heal(self) -> None:
        """Ends every cut; what slows a link down stays."""
        await self.remove_links([each for each in self.links if each.is_cut])

    def _link_commands(self, broker_id: int) -> Commands:
        rules = [rule for each in self.links if (rule := each.rule_of(broker_id)) is not None]
        if not rules and broker_id not in self._touched:
            return []
        self._touched.add(broker_id)
        return [("set_links", {"rules": rules, "ports": self._ports()})]

    def _ports(self) -> dict[str, int]:
        backend = self.host.backend("links")
        found: dict[str, int] = {}
        for addresses in (backend.bootstrap_servers, backend.internal_servers):
            for broker_id, address in zip(backend.broker_ids, addresses.split(","), strict=True):
                found[address.rpartition(":")[2]] = broker_id
        return found

    async def _send_links(self) -> None:
        await self._send({each: self._link_commands(each) for each in self.host.backend("links").broker_ids})
        self.host.core().on_links_changed()

    # -- disks

    async def add_disk_fault(self, state: DiskState) -> None:
        """A broker's disk has one fault more."""
        self._last_id += 1
        state.id = self._last_id
        self.disks.append(state)
        await self._send_disk(state.broker)

    async def remove_disk_faults(self, states: list[DiskState]) -> None:
        """Faults end."""
        self.disks = [each for each in self.disks if each not in states]
        for broker_id in sorted({each.broker for each in states}):
            await self._send_disk(broker_id)

    async def settled(self, broker_id: int) -> None:
        """Returns when every call that has failed on a broker is counted."""
        backend = self.host.backend("disks")
        if backend.state(broker_id) == "running":
            with contextlib.suppress(RuntimeError, KitError):  # it stops because of the fault
                await backend.command(broker_id, "live_brokers", {})  # its answer comes after the events before it
        await asyncio.sleep(0)

    def _disk_commands(self, broker_id: int) -> Commands:
        faults = [each.to_json() for each in self.disks if each.broker == broker_id]
        if faults:
            self.host.backend("disks").may_fail(broker_id)
        return [("set_disk_faults", {"faults": faults})]

    async def _send_disk(self, broker_id: int) -> None:
        await self._send({broker_id: self._disk_commands(broker_id)})

    # -- all

    async def on_test_end(self) -> None:
        """As of Extension."""
        await self.remove_links(list(self.links))
        await self.remove_disk_faults(list(self.disks))

    async def _send(self, commands: dict[int, Commands]) -> None:
        """Sends commands to all brokers that run or start, at once. A broker that ends before it answers does not need them."""
        backend = self.host.backend("links")

        async def send(broker_id: int) -> None:
            for name, arguments in commands[broker_id]:
                await backend.command(broker_id, name, arguments)

        running = [each for each in commands if backend.state(each) in ("running", "starting")]
        limit_s = self.host.core().timeout_s
        try:
            async with asyncio.timeout(limit_s):
                outcomes = await asyncio.gather(*(send(each) for each in running), return_exceptions=True)
        except TimeoutError:
            names = ", ".join(f"broker {each}" for each in running)
            raise KitTimeout(f"a change of links or disks did not reach {names} within {limit_s:g} s") from None
        for broker_id, outcome in zip(running, outcomes, strict=True):
            if isinstance(outcome, BaseException) and backend.state(broker_id) == "running":
                raise outcome


def with_cut(state: LinkState, direction: str) -> tuple[LinkState, Flow, Flow]:
    """The change that cuts a link: `direction` is seen from its first side."""
    there = replace(state.there, cut=direction != "in")
    return state, there, replace(state.back, cut=direction != "out")
