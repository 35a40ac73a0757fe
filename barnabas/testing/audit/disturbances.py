"""Disturbances of the audit and their injection points: the first write, read, write after a read, group commit, transactional write and
transaction end of the application. Each disturbance acts once at each point while all other responses wait, so no timing matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.testing.clients import is_own
from barnabas.testing.errors import KitError, patience, unknown
from barnabas.testing.extension import Extension
from barnabas.testing.world.groups import evict, members

if TYPE_CHECKING:
    from barnabas.client.admin.types import GroupMemberDescription
    from barnabas.testing.core import Core

# name → title in the table
DISTURBANCES: Final = {
    "leader": "leader killed",
    "coordinator": "coordinator moved",
    "rebalance": "rebalance",
    "redelivery": "repeated delivery",
}
NUMBERS_MAX: Final = 10**9  # responses held during one run of a broker
# A single broker stays down this long: librdkafka may never continue a transaction whose coordinator returns at once (#5456).
ALONE_S: Final = 1.0
# an evicted member rejoins within this time, unless its client waits for the response: heartbeats every 3 s
JOIN_S: Final = 10.0

# The fate of a held response: sent, lost with its connection, or replaced by an error.
GIVEN: Final = "given"
LOST: Final = "lost"
NOT_YET: Final = "COORDINATOR_LOAD_IN_PROGRESS"  # clients ask the same coordinator again

_OF_GROUPS: Final = frozenset({"SyncGroup", "ConsumerGroupHeartbeat"})
_COMMITS: Final = frozenset({"OffsetCommit", "TxnOffsetCommit"})


class Moment(NamedTuple):
    """A held response."""

    broker: int
    number: int
    api: str
    group: str | None
    txn: str | None
    topics: list[str]
    partitions: list[int]

    def __str__(self) -> str:
        place = f" {self.topics[0]}" if self.topics else ""
        whose = self.group if self.api == "OffsetCommit" else self.txn
        return f"{self.api}{place}{'' if whose is None else f' of {whose!r}'}"


class Rejoin:
    """A member evicted within its transaction, until it has rejoined and fetched its committed offsets."""

    def __init__(self) -> None:
        self._joined = False
        self._asked = asyncio.Event()

    def note(self, api: str) -> None:
        self._joined |= api in _OF_GROUPS
        if self._joined and api == "OffsetFetch":
            self._asked.set()

    async def wait(self, limit_s: float) -> bool:
        """Returns False after `limit_s`."""
        try:
            await asyncio.wait_for(self._asked.wait(), limit_s)
        except TimeoutError:
            return False
        return True


class Auditor(Extension):
    """One disturbance of one test. Events of a cluster are handled one at a time."""

    def __init__(self, name: str, core: Core) -> None:
        if name not in DISTURBANCES:
            raise KitError(unknown("disturbance", name, DISTURBANCES))
        self.name = name  # one of DISTURBANCES
        self.done: list[str] = []  # a sentence for each disturbance; empty: no injection point was reached
        self.problem = ""  # what prevented a disturbance
        self._core = core
        self._disturb: Callable[[Moment], Awaitable[str]] = getattr(self, f"_{name}")
        self._used: set[str] = set()  # moments
        self._groups: dict[str, None] = {}  # that have had an assignment, in order
        self._has_read = False
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rejoins: dict[str, Rejoin] = {}  # group → of its evicted member, for which an answer waits
        self._ended = False
        self._watches = 0  # of brokers that have started, so that none has the numbers of an earlier one

    async def begin(self) -> None:
        self._core.extensions.append(self)
        for each in self._running():
            await self.on_started(each)

    async def end(self) -> None:
        """Returns when the present disturbance has ended."""
        self._ended = True
        await asyncio.gather(*self._tasks)
        self._core.extensions.remove(self)
        for each in self._running():
            await self._core.backend.command(each, "audit_unwatch", {})

    def _running(self) -> list[int]:
        backend = self._core.backend
        return [each for each in backend.broker_ids if backend.state(each) == "running"]

    async def on_started(self, broker_id: int) -> None:
        """Watches a restarted broker, too."""
        if not self._ended:
            self._watches += 1
            await self._core.backend.command(broker_id, "audit_watch", {"numbers_from": self._watches * NUMBERS_MAX})

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        """A broker holds a response."""
        if name != "audit":
            return
        told: dict[str, Any] = value
        group, txn = (next(iter(told[kind]), None) for kind in ("group", "txn"))
        moment = Moment(broker_id, told["number"], told["api"], group, txn, told["topic"], told["partition"])
        rejoin = self._rejoins.get(group or "")
        if rejoin is not None:
            rejoin.note(moment.api)
        if not moment.number:
            return
        own, waited_for = is_own(told["connection"]), rejoin is not None and moment.api in _OF_GROUPS
        work = self._decide(moment, GIVEN) if own or waited_for else self._meet(moment)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _meet(self, moment: Moment) -> None:
        async with self._turn:
            answer = GIVEN
            try:
                if not self._ended:
                    answer = await self._disturb(moment)
            except Exception as error:  # the test itself may have ended a broker; the table tells it
                self.problem = f"not possible after {moment}: {error}"
            self._note(moment)
            await self._decide(moment, answer)

    def _note(self, moment: Moment) -> None:
        if moment.api in _OF_GROUPS and moment.group is not None:
            self._groups[moment.group] = None
        self._has_read |= moment.api == "Fetch"

    async def _decide(self, moment: Moment, answer: str) -> None:
        if self._core.backend.state(moment.broker) != "running":
            return
        given = {"number": moment.number, "answer": answer}
        try:
            await self._core.backend.command(moment.broker, "audit_decide", given)
        except Exception as error:  # the broker has ended since: its answers are gone
            self.problem = self.problem or f"the answer to {moment} was lost with its broker: {error}"

    def _first(self, name: str, reached: bool) -> bool:
        """Whether the point is reached for the first time; marks it as used."""
        if not reached or name in self._used:
            return False
        self._used.add(name)
        return True

    def _writes_or_reads(self, moment: Moment) -> bool:
        if moment.api == "Fetch":
            return self._first("read", True)
        if moment.api != "Produce":
            return False
        return self._first("write after read", self._has_read) or self._first("write", not self._has_read)

    # -- the disturbances: each returns what becomes of the answer

    async def _leader(self, moment: Moment) -> str:
        if self._writes_or_reads(moment):
            await self._restart(moment, "the leader")
            return LOST
        return GIVEN

    async def _coordinator(self, moment: Moment) -> str:
        if moment.api == "Fetch":
            for group in list(self._groups):
                if self._first(f"read in {group}", True):
                    return await self._move(moment, "group", group)
        if moment.api == "OffsetCommit" and moment.group and self._first("commit", True):
            return await self._move(moment, "group", moment.group)
        if moment.txn and moment.api in ("Produce", "EndTxn") and self._first(f"{moment.api} of a transaction", True):
            return await self._move(moment, "txn", moment.txn)
        return GIVEN

    async def _rebalance(self, moment: Moment) -> str:
        if moment.api == "Fetch":
            for group in list(self._groups):
                if f"read in {group}" not in self._used and await self._evict(moment, group):
                    self._used.add(f"read in {group}")
        elif moment.api == "TxnOffsetCommit" and moment.group and f"in {moment.group}" not in self._used:
            await self._evict_within_transaction(moment, moment.group)
        return GIVEN

    async def _redelivery(self, moment: Moment) -> str:
        if moment.api in _COMMITS and self._first(moment.api, True):
            self.done.append(f"{moment} was answered with {NOT_YET}, although it had its effect")
            return NOT_YET
        is_write = moment.api == "Produce" and self._writes_or_reads(moment)
        if is_write or self._first("end", moment.api == "EndTxn"):
            self.done.append(f"the answer to {moment} was lost")
            return LOST
        return GIVEN

    # -- how

    async def _restart(self, moment: Moment, what: str) -> None:
        """Kills the broker and restarts it once others lead its partitions. Its held responses are lost."""
        core, broker = self._core, moment.broker
        await core.kill(broker)
        self.done.append(f"{what}, broker {broker}, was killed after {moment}")
        try:
            if 2 * len(self._running()) > len(core.backend.broker_ids):  # else no controller can elect leaders
                await core.settled()
            elif not self._running():
                await asyncio.sleep(ALONE_S)
        finally:
            await core.restart(broker)
        await core.settled()

    async def _move(self, moment: Moment, kind: str, name: str) -> str:
        """Moves a coordinator; a single broker is killed and restarted instead."""
        core = self._core
        if len(core.backend.broker_ids) == 1:
            await self._restart(moment, f"the coordinator of {kind} {name!r}")
            return LOST
        to = await core.move_coordinator(**{kind: name})  # type: ignore[arg-type]  # "txn" or "group"
        self.done.append(f"the coordinator of {kind} {name!r} moved to broker {to} after {moment}")
        return GIVEN

    async def _evict(self, moment: Moment, group: str) -> bool:
        """Evicts the member that reads the partition."""
        who = next((each for each in await members(self._core, group) if _reads(each, moment)), None)
        if who is None:
            return False
        await evict(self._core, group, who.member_id)
        self.done.append(f"member {who.client_id!r} of group {group!r} was evicted after {moment}")
        return True

    async def _evict_within_transaction(self, moment: Moment, group: str) -> None:
        """The member rejoins between its offset commit and the end of its transaction."""
        rejoin = self._rejoins[group] = Rejoin()
        try:
            if await self._evict(moment, group) or f"read in {group}" in self._used:
                self._used.add(f"in {group}")
                has = "had" if await rejoin.wait(JOIN_S * patience()) else "had not"
                self.done.append(f"the answer to {moment} came when the evicted member {has} joined again")
        finally:
            del self._rejoins[group]


def _reads(member: GroupMemberDescription, moment: Moment) -> bool:
    return any(each.topic in moment.topics and each.partition in moment.partitions for each in member.assignment)
