"""A model of the sink's protocol without Spark and Kafka, under random schedules of drivers, tasks, crashes and zombies.

The protocol is that of `barnabas.pipeline.decisions`, step by step as the real shell performs it; what surrounds it is
modelled: the transaction coordinator (epochs, fencing, time-outs, retried requests), a directory of files, a table with
versions that others change too, and Spark's checkpoint, task attempts and commit protocol. Between any two effects anybody else may take a turn, or die.

After each turn: no record is visible twice. At the end: every record is visible once, at all participants, and nothing
is open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart, SlotMark
from barnabas.pipeline.decisions import (
    AbortHandle,
    AppendFiles,
    BatchStart,
    CommitDecision,
    CommitHandle,
    CommitResult,
    DriverReplaced,
    EndTransaction,
    Fence,
    HalfCommitted,
    IsNewest,
    ListOpen,
    ReadDecision,
    ReadSlot,
    ReadTable,
    TableState,
    TaskMessage,
    TaskName,
)
from barnabas.pipeline.errors import PipelineError

SINK = "s"
QUERY = "q"
DRIVER = decisions.driver_id(SINK)
STEPS_MAX = 20_000
ATTEMPTS_MAX = 4
WAIT = object()  # the effect cannot be answered yet


class Fenced(Exception):
    """The model's coordinator refuses an epoch."""


class Wrong(AssertionError):
    """A record is visible twice, or not at all."""


class Protocol(NamedTuple):
    """The functions under test; mutants replace some."""

    task_id: Callable[..., str] = decisions.task_id
    slot_for: Callable[..., Any] = decisions.slot_for
    start_batch: Callable[..., Any] = decisions.start_batch
    commit_batch: Callable[..., Any] = decisions.commit_batch
    abort_batch: Callable[..., Any] = decisions.abort_batch
    commit_transaction: Callable[..., Any] = decisions.commit_transaction
    append_once: Callable[..., Any] = decisions.append_once


@dataclass
class Transaction:
    """One transactional id at the coordinator."""

    identity: Identity
    state: str = "empty"  # empty, ongoing, committed, aborted
    records: list[int] = field(default_factory=list)
    mark: tuple[int, SlotMark] | None = None
    decision: BatchDecision | None = None
    ended: Identity | None = None  # under which it was ended last


@dataclass
class Actor:
    """An actor of the schedule: a driver or a task."""

    steps: Generator[Any, Any, Any]
    driver: Driver
    task: TaskName | None = None
    effect: Any = None
    started: bool = False


@dataclass(eq=False)
class Driver:
    """One process of the query's driver."""

    alive: bool = True
    batch: int = 0
    running: dict[int, list[Actor]] = field(default_factory=dict)  # by partition
    attempts: dict[int, int] = field(default_factory=dict)
    messages: dict[int, TaskMessage] = field(default_factory=dict)
    failed: bool = False
    trouble: bool = False  # its next request fails, whatever comes of it
    parts: list[list[int]] = field(default_factory=list)


class SinkWorld:
    """One schedule.

    Args:
        seed: of everything that is drawn.
        two_phase: transactions never time out.
        version: of transactions: 2 ends each with a new epoch.
        faults: how many things go wrong.
    """

    def __init__(
        self, seed: int, *, two_phase: bool, version: int = 2, faults: int = 6, protocol: Protocol | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.two_phase = two_phase
        self.version = version
        self.faults = faults
        self.protocol = protocol or Protocol()
        self.transactions: dict[str, Transaction] = {}
        self.producer_ids = 100
        self.decision: BatchDecision | None = None
        self.slots: dict[int, SlotMark] = {}
        self.visible: list[int] = []
        self.staged: dict[str, list[int]] = {}
        self.files: dict[str, list[int]] = {}
        self.written: dict[str, list[int]] = {}  # files of tasks in the table's folder
        self.table: list[int] = []
        self.table_state = TableState(0, 0)
        self.batches = self.rng.randrange(2, 5)
        self.parallelism = self.rng.randrange(1, 4)
        self.planned: dict[int, list[int]] = {}
        self.logged: set[int] = set()
        self.records = 0
        self.attempts = 0
        self.batch_jobs = self.rng.random() < 0.5  # their writer still knows its start when it aborts
        self.slot_timeout_ms = 0 if version >= 2 and self.rng.random() < 0.8 else None
        self.reused = 0  # how many transactions ran in a slot
        self.actors: list[Actor] = []
        self.drivers: list[Driver] = []
        self.half_committed = 0
        self.trace: list[str] = []

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def init(self, transactional_id: str) -> Identity:
        found = self.transactions.get(transactional_id)
        if found is None:
            self.producer_ids += 1
            found = self.transactions[transactional_id] = Transaction(Identity(self.producer_ids, 0))
        else:
            if found.state == "ongoing":
                self.end(found, commit=False)
            found.identity = Identity(found.identity.producer_id, found.identity.epoch + 1)
        found.state = "empty"
        found.ended = None
        return found.identity

    def of(self, transactional_id: str, identity: Identity) -> Transaction:
        found = self.transactions[transactional_id]
        if found.identity != identity:
            raise Fenced
        return found

    def end(self, found: Transaction, *, commit: bool) -> None:
        if commit:
            self.visible += found.records
            if found.mark is not None:
                self.slots[found.mark[0]] = found.mark[1]
            if found.decision is not None:
                self.decision = found.decision
        found.state = "committed" if commit else "aborted"
        found.records, found.mark, found.decision = [], None, None
        found.ended = found.identity
        if self.version == 2:
            found.identity = Identity(found.identity.producer_id, found.identity.epoch + 1)

    def end_txn(self, transactional_id: str, identity: Identity, *, commit: bool) -> bool:
        found = self.transactions[transactional_id]
        if found.identity == identity and found.state == "ongoing":
            self.end(found, commit=commit)
            return True
        repeated = found.ended == identity and found.identity.epoch - identity.epoch == self.version - 1
        return repeated and found.state == ("committed" if commit else "aborted")

    def time_out(self, transactional_id: str) -> None:
        found = self.transactions[transactional_id]
        self.end(found, commit=False)
        found.ended = None
        found.identity = Identity(found.identity.producer_id, found.identity.epoch + 1)

    # -- effects -------------------------------------------------------------------------------------------------------

    def perform(self, effect: Any) -> Any:
        if isinstance(effect, Fence):
            return self.init(DRIVER)
        if isinstance(effect, IsNewest):
            return self.transactions[DRIVER].identity == effect.driver
        if isinstance(effect, ReadDecision):
            driver = self.transactions.get(DRIVER)
            if driver is not None and driver.decision is not None:
                if self.rng.random() < 0.01:
                    self.time_out(DRIVER)  # who waits for it may be alone
                return WAIT
            return self.decision
        if isinstance(effect, EndTransaction):
            return self.end_txn(effect.transactional_id, effect.identity, commit=True)
        if isinstance(effect, ReadSlot):
            return self.slots.get(effect.partition)
        if isinstance(effect, AbortHandle):
            handle = effect.handle
            if handle.participant == "files":
                self.staged.pop(handle.key, None)
            elif handle.participant == "table":
                self.written.pop(handle.key, None)
            else:
                self.end_txn(handle.key, Identity.parse(handle.token), commit=False)
            return None
        if isinstance(effect, ReadTable):
            return self.table_state
        if isinstance(effect, AppendFiles):
            return self.append(effect)
        if isinstance(effect, CommitHandle):  # of a file
            key = effect.handle.key
            if key in self.staged:
                self.files[key] = self.staged.pop(key)
            return CommitResult.COMMITTED if key in self.files else CommitResult.LOST
        return effect(self)  # what tasks do, as a function of the world

    def expand(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The effects that the shell performs by several requests, one by one."""
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            if isinstance(effect, CommitDecision):
                answer = yield lambda w, d=effect.decision: w.pend(d)
                if answer:
                    answer = yield lambda w, d=effect.decision: w.end_txn(DRIVER, d.driver, commit=True)
            elif isinstance(effect, CommitHandle) and effect.handle.participant == "topics":
                identity = Identity.parse(effect.handle.token)
                next_batch = effect.decision.next_batch
                answer = yield from self.protocol.commit_transaction(effect.handle.key, identity, next_batch)
            elif isinstance(effect, CommitHandle) and effect.handle.participant == "table":
                parts = tuple(part for part in effect.decision.handles if part.participant == "table")
                answer = yield from self.protocol.append_once(parts, effect.decision.next_batch)
            elif isinstance(effect, ListOpen):
                topics = yield lambda w, s=effect.start: w.open_topics(s)
                files = yield lambda w, s=effect.start: w.open_files(s)
                answer = [*topics, *files]
            else:
                answer = yield effect

    def append(self, effect: AppendFiles) -> CommitResult | None:
        if self.rng.random() < 0.05:  # another writer's commit
            self.table_state = self.table_state._replace(version=self.table_state.version + 1)
        if effect.state.version != self.table_state.version:
            return None
        if any(part.key not in self.written for part in effect.parts):
            return CommitResult.LOST
        self.table += [record for part in effect.parts for record in self.written[part.key]]
        self.table_state = TableState(effect.next_batch, self.table_state.version + 1)
        return CommitResult.COMMITTED

    def open_files(self, start: BatchStart | None) -> list[PreparedPart]:
        of_driver = "" if start is None else f"-{SINK}.{start.driver}."
        return [PreparedPart("files", key, "", 0) for key in self.staged if of_driver in key]

    def open_topics(self, start: BatchStart | None) -> list[PreparedPart]:
        listed = [
            PreparedPart("topics", key, str(found.identity), 0)
            for key, found in self.transactions.items()
            if found.state == "ongoing" and decisions.is_own_id(SINK, key)
        ]
        return [part for part in listed if start is None or decisions.is_of_start(SINK, start, part)]

    def pend(self, decision: BatchDecision) -> bool:
        found = self.transactions[DRIVER]
        if found.identity != decision.driver:
            return False
        found.state, found.decision = "ongoing", decision
        return True

    def add(self, transactional_id: str, identity: Identity, record: int) -> None:
        found = self.of(transactional_id, identity)
        found.state = "ongoing"
        found.records.append(record)

    def add_mark(self, transactional_id: str, identity: Identity, partition: int, mark: SlotMark) -> None:
        self.of(transactional_id, identity).mark = (partition, mark)

    # -- Spark ---------------------------------------------------------------------------------------------------------

    def task(self, start: BatchStart, name: TaskName, batch: int, records: list[int]) -> Generator[Any, Any, Any]:
        yield lambda w: None
        if not decisions.admitted(start.decision, batch, QUERY, SINK) or not records:
            return TaskMessage(start.driver, QUERY, ())
        slot = ticket = None
        if start.slots is not None:
            ticket = yield lambda w: w.init(decisions.ticket_id(SINK, name.partition))
            slot = self.protocol.slot_for(start, name.partition, ticket)
        if slot is not None:
            self.reused += 1
            key, identity = slot.key, slot.identity
        else:
            key = self.protocol.task_id(SINK, start, name)
            identity = yield lambda w: w.init(key)
        path = f"{batch}-{decisions.task_id(SINK, start, name)}"
        for record in records:
            yield lambda w, r=record: w.add(key, identity, r)
        mark = SlotMark(batch + 1, QUERY, identity)
        yield lambda w: w.add_mark(key, identity, name.partition, mark)
        yield lambda w: w.staged.__setitem__(path, list(records))
        yield lambda w: w.written.__setitem__(path, list(records))
        handles = (
            PreparedPart("topics", key, str(identity), len(records)),
            PreparedPart("files", path, "", len(records)),
            PreparedPart("table", path, "", len(records)),
        )
        standing = yield ReadDecision()
        if decisions.superseded(standing, batch):
            for handle in handles:
                yield AbortHandle(handle)
            raise Fenced
        after = decisions.next_slot(key, identity, ticket, 0) if ticket is not None else None
        return TaskMessage(start.driver, QUERY, handles, after)

    def drive(self, driver: Driver) -> Generator[Any, Any, Any]:
        while len(self.logged) < self.batches:
            batch = driver.batch = len(self.logged)
            if batch not in self.planned:
                count = self.rng.randrange(0, 5)
                self.planned[batch] = list(range(self.records, self.records + count))
                self.records += count
            start = yield from self.expand(self.protocol.start_batch(slot_timeout_ms=self.slot_timeout_ms))
            rows = list(self.planned[batch])
            self.rng.shuffle(rows)  # the partitioning need not be the same the next time
            partitions = self.rng.randrange(0, self.parallelism + 1) if not rows else self.parallelism
            driver.parts = [rows[number::partitions] for number in range(partitions)]
            driver.running, driver.messages, driver.attempts, driver.failed = {}, {}, {}, False
            for number in range(partitions):
                self.launch(driver, start, number)
            while len(driver.messages) < partitions and not driver.failed:
                yield lambda w: None
            messages = [driver.messages[number] for number in range(partitions) if number in driver.messages]
            try:
                if driver.failed:
                    raise Fenced
                yield from self.expand(self.protocol.commit_batch(SINK, batch, messages))
            except (Fenced, DriverReplaced, HalfCommitted, PipelineError) as error:
                self.half_committed += isinstance(error, HalfCommitted)
                try:
                    yield from self.expand(
                        self.protocol.abort_batch(batch, messages, start.driver if self.batch_jobs else None)
                    )
                except (DriverReplaced, HalfCommitted):
                    pass
                return
            yield lambda w: None  # a driver may die between sink.commit and the commit log
            self.logged.add(batch)

    def launch(self, driver: Driver, start: BatchStart, partition: int) -> None:
        number = driver.attempts.get(partition, 0)
        driver.attempts[partition] = number + 1
        self.attempts += 1
        name = TaskName(partition, self.attempts)
        actor = Actor(self.task(start, name, driver.batch, driver.parts[partition]), driver, name)
        actor.start = start  # type: ignore[attr-defined]  # for its repetition
        driver.running.setdefault(partition, []).append(actor)
        self.actors.append(actor)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn(self, actor: Actor) -> None:
        if not actor.started:
            actor.started = True
            answer: Any = None
        else:
            if actor.task is None and actor.driver.trouble:
                actor.driver.trouble = False
                self.fail(actor)
                return
            try:
                answer = self.perform(actor.effect)
                if self.rng.random() < 0.03 and (actor.task is None or not callable(actor.effect)):
                    answer = self.perform(actor.effect)  # the answer was lost, and the request sent again
            except Fenced:
                self.advance(actor, lambda: actor.steps.throw(Fenced()))
                return
            if answer is WAIT:
                return
        self.advance(actor, lambda: actor.steps.send(answer))

    def fail(self, actor: Actor) -> None:
        """A request of the driver fails: the request is lost, its answer is lost, or the request arrives later."""
        effect, fate = actor.effect, self.rng.randrange(3)
        if fate == 1:
            self.perform(effect)
        elif fate == 2:
            self.actors.append(Actor(self.late(effect), Driver(alive=False), TaskName(-1, 0)))
        self.advance(actor, lambda: actor.steps.throw(Fenced()))

    def late(self, effect: Any) -> Generator[Any, Any, Any]:
        yield effect

    def advance(self, actor: Actor, step: Callable[[], Any]) -> None:
        try:
            actor.effect = step()
        except StopIteration as stop:
            self.ended(actor, stop.value)
        except (Fenced, PipelineError, DriverReplaced, HalfCommitted) as error:
            self.half_committed += isinstance(error, HalfCommitted)
            self.ended(actor, None)
        for place in (self.visible, self.table):
            if len(set(place)) != len(place):
                raise Wrong(f"visible twice: {sorted(place)}")

    def ended(self, actor: Actor, message: TaskMessage | None) -> None:
        if actor in self.actors:
            self.actors.remove(actor)
        driver = actor.driver
        if actor.task is None:
            self.die(driver, leave_tasks=self.rng.random() < 0.5)
            return
        partition = actor.task.partition
        running = driver.running.get(partition, [])
        if actor not in running:
            return  # of a former batch, or a former life
        running.remove(actor)
        if partition in driver.messages or not driver.alive:
            return
        if message is not None:
            driver.messages[partition] = message
        elif driver.attempts[partition] >= ATTEMPTS_MAX:
            driver.failed = driver.failed or not running
        elif not running:
            self.launch(driver, actor.start, partition)  # type: ignore[attr-defined]  # see launch

    def die(self, driver: Driver, *, leave_tasks: bool) -> None:
        driver.alive = False
        if driver in self.drivers:
            self.drivers.remove(driver)
        self.actors = [a for a in self.actors if a.driver is not driver or (a.task is not None and leave_tasks)]

    def begin_driver(self) -> Driver:
        driver = Driver()
        self.drivers.append(driver)
        self.actors.append(Actor(self.drive(driver), driver))
        return driver

    def fault(self) -> None:
        kind = self.rng.choice(("driver", "driver", "task", "task", "twin", "second", "time-out", "zombies", "failure"))
        self.trace.append(kind)
        tasks = [a for a in self.actors if a.task is not None]
        if kind == "driver" and self.drivers:
            self.die(self.rng.choice(self.drivers), leave_tasks=self.rng.random() < 0.7)
        elif kind == "task" and tasks:
            victim = self.rng.choice(tasks)
            victim.steps.close()
            self.ended(victim, None)
        elif kind == "twin":
            for driver in self.drivers:
                for partition, running in list(driver.running.items()):
                    if running and partition not in driver.messages and driver.attempts[partition] < ATTEMPTS_MAX:
                        self.launch(driver, running[0].start, partition)  # type: ignore[attr-defined]  # see launch
                        return
        elif kind == "second" and len(self.drivers) < 3:
            self.begin_driver()
        elif kind == "failure" and self.drivers:
            self.rng.choice(self.drivers).trouble = True
        elif kind == "time-out" and not self.two_phase:
            for key, found in list(self.transactions.items()):
                if found.state == "ongoing":
                    self.time_out(key)
        elif kind == "zombies":
            for victim in tasks:
                if not victim.driver.alive:
                    self.actors.remove(victim)

    def run(self) -> None:
        """Plays the schedule. Raises Wrong."""
        left = self.faults
        for _ in range(STEPS_MAX):
            if not self.drivers:
                if len(self.logged) >= self.batches:
                    break
                if self.half_committed:
                    return  # stopped, with instructions
                self.begin_driver()
            if left and self.rng.random() < 0.04:
                left -= 1
                self.fault()
            elif self.actors:
                self.turn(self.rng.choice(self.actors))
        else:
            raise Wrong(f"no end after {STEPS_MAX} turns")
        while self.actors:  # zombies come to their end
            self.turn(self.rng.choice(self.actors))
        self.settle()

    def settle(self) -> None:
        """A last start of the query leaves nothing open; everything is there once."""
        driver = Driver()
        self.drivers.append(driver)
        start = self.protocol.start_batch(slot_timeout_ms=self.slot_timeout_ms)
        self.actors.append(Actor(self.expand(start), driver))
        while self.actors:
            self.turn(self.actors[0])
        if self.half_committed:
            return
        expected = list(range(self.records))
        if sorted(self.visible) != expected:
            raise Wrong(f"of {self.records} records visible: {sorted(self.visible)}")
        in_files = sorted(record for records in self.files.values() for record in records)
        if in_files != expected:
            raise Wrong(f"of {self.records} records in files: {in_files}")
        if sorted(self.table) != expected:
            raise Wrong(f"of {self.records} records in the table: {sorted(self.table)}")
        left = [key for key, found in self.transactions.items() if found.state == "ongoing"]
        if left or self.staged:
            raise Wrong(f"left open: {left}, {list(self.staged)}")
