"""Surroundings: injected link and disk state of one cluster. Each change sends a broker its whole state, so resumed and restarted brokers need no history."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.backend import not_possible
from barnabas.testing.errors import KitError, KitTimeout
from barnabas.testing.extension import Commands, Extension
from barnabas.testing.world.disks import DiskRule
from barnabas.testing.world.pipe import FREE, Flow
from barnabas.testing.world.sides import Side

if TYPE_CHECKING:
    from barnabas.testing.running import Running

CALLS_KEPT: Final = 1_000  # of each fault
POLL_S: Final = 0.001


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
    """One fault of one broker's disk, and the calls that it matched.

    Attributes:
        strict: a test that passes fails if the rule matched no call.
        met: the first calls that it matched.
        count: how many it matched.
    """

    broker: int
    rule: DiskRule
    strict: bool = False
    met: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # replaced at each hit

    @property
    def used_up(self) -> bool:
        """Whether it matches no further call."""
        return 0 <= self.rule.times <= self.count

    def note(self, call: dict[str, Any]) -> None:
        """Adds a call that it matched."""
        self.count += 1
        if len(self.met) < CALLS_KEPT:
            self.met.append(call)
        self.changed.set()
        self.changed = asyncio.Event()

    def __str__(self) -> str:
        rule, [call] = self.rule, self.rule.calls
        what = {"kill": f"kill at {call}", "watch": f"watch of {call}", "slow": f"slow {call}"}
        path = f", path {rule.path!r}" if rule.path != "*" else ""
        return f"{what.get(rule.effect, f'{call} fails')} on broker {self.broker}{path}"

    def to_json(self) -> dict[str, Any]:
        """The rule as the broker gets it: with the number of calls that remain."""
        times = self.rule.times
        return asdict(replace(self.rule, times=times if times < 0 else times - self.count))


class Surroundings(Extension):
    """See the module."""

    def __init__(self, host: Running) -> None:
        self.host = host
        self.links: list[LinkState] = []
        self.disks: list[DiskState] = []
        self._last_id = 0
        self._touched: set[int] = set()  # brokers that have got a rule
        self._ends: set[int] = set()  # brokers whose end was allowed
        host.core().extensions.append(self)

    @classmethod
    def of(cls, handle: Running, what: str) -> Surroundings:
        """The surroundings of a cluster. Raises KitError if it does not run, NotPossible if it was started elsewhere."""
        core = handle.core()
        if core.backend.mode == "remote":
            raise not_possible(what, "remote")
        found = next((each for each in core.extensions if isinstance(each, cls)), None)
        return found or cls(handle)

    # -- as an extension

    def before_start(self, broker_id: int) -> Commands:
        return [*self._link_commands(broker_id), *self._disk_commands(broker_id)]

    async def on_resumed(self, broker_id: int) -> None:
        for name, arguments in (*self._link_commands(broker_id), *self._disk_commands(broker_id)):
            await self.host.backend("links").command(broker_id, name, arguments)

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        if name == "disk":
            for each in self.disks:
                if each.rule.id == value["id"]:
                    each.note(
                        {"broker": broker_id, **{name: value[name] for name in ("call", "path", "offset", "size")}}
                    )

    def explain(self) -> str:
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
        state.rule.id = self._last_id
        self.disks.append(state)
        await self._send_disk(state.broker)

    async def remove_disk_faults(self, states: list[DiskState]) -> None:
        """Faults end."""
        self.disks = [each for each in self.disks if each not in states]
        for broker_id in sorted({each.broker for each in states}):
            await self._send_disk(broker_id)

    async def met(self, state: DiskState, hits: int) -> None:
        """Waits until this number of calls has met the fault and, for a fault that ends the broker, until the broker is down."""
        while state.count < hits:
            await state.changed.wait()
        if state.rule.effect == "kill":
            await self.ended(state.broker)

    async def ended(self, broker_id: int) -> None:
        """Returns when a broker is down, and what it has reported is here."""
        backend = self.host.backend("brokers")
        while backend.state(broker_id) != "down":  # noqa: ASYNC110  # the end of a process of the system has no event
            await asyncio.sleep(POLL_S)
        await self.settled(broker_id)

    def allow_end(self, broker_id: int) -> None:
        """The end of a broker, before its next start, is no failure."""
        self._ends.add(broker_id)
        self.host.backend("brokers").may_end(broker_id)

    async def settled(self, broker_id: int) -> None:
        """Returns when every call that has met a fault on a broker is counted."""
        await self.host.backend("disks").settle(broker_id)

    async def verified(self) -> None:
        for each in self.disks:
            await self.settled(each.broker)
        idle = [f"<{each}>" for each in self.disks if each.strict and not each.count]
        if idle:
            raise KitError(
                f"no call of a disk met {', '.join(idle)}: the broker has made no such call, or not so many; "
                "a fault that may stay without effect is written with strict=False"
            )

    def _disk_commands(self, broker_id: int) -> Commands:
        faults = [each for each in self.disks if each.broker == broker_id and not each.used_up]
        if any(each.rule.effect == "fail" for each in faults):
            self.allow_end(broker_id)
        return [("set_disk_faults", {"faults": [each.to_json() for each in faults]})]

    async def _send_disk(self, broker_id: int) -> None:
        await self._send({broker_id: self._disk_commands(broker_id)})

    # -- all

    async def on_test_end(self) -> None:
        await self.remove_links(list(self.links))
        await self.remove_disk_faults(list(self.disks))
        for each in self._ends:
            self.host.backend("brokers").may_end(each, False)

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
