"""Replica machines in memory, one partition on three or four brokers, driven by random schedules.

No network and no loop: messages lie in a bag, are delivered in any order, late, or (fetches) never. A model controller, written down
here in its plainest form, grants ISR changes and elects from the ISR, then from the eligible leaders (KIP-966). After every
step: what was acknowledged is where it was, committed prefixes are equal, high watermarks and epochs never go back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from barnabas.broker.replica.core import follower_log
from barnabas.broker.replica.core.isr import InSyncReplicas, IsrAnswer, IsrProposal
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.work import Steps
from tests.support.clock import WALL_MS, ManualClock
from tests.support.rng import SeededRng
from tests.support.simulation.values import values

TOPIC_ID = bytes(range(16))
LAG_MS = 50
MIN_ISR = 2
STEPS = 400


class State(NamedTuple):
    """The partition as the controller has it."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()


@dataclass
class Machine:
    """One broker: its disk outlives its replica."""

    node_id: int
    disk: MemoryDisk
    replica: Replica | None = None
    epoch: int = 0  # of this life
    unsynced: bool = False  # a sync was asked for
    checkpoint: int = 0  # high watermark as it was written down
    high_watermark: int = 0  # the highest seen in this life


@dataclass
class Schedule:
    """One run."""

    seed: int
    nodes: int = 3
    flush_messages: int = 2**63 - 1
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.time = ManualClock()
        self.bag: list[Callable[[], None]] = []  # fetches, metadata: each may be lost
        self.calls: list[Callable[[], None]] = []  # to the controller: their caller waits for an answer
        self.values = 0
        self.acknowledged: dict[int, bytes] = {}  # offset -> value
        self.committed: list[bytes] = []  # the history up to the highest high watermark ever seen
        self.machines = {n: Machine(n, MemoryDisk()) for n in range(1, self.nodes + 1)}
        ids = tuple(self.machines)
        self.state = State(ids[0], 0, 0, ids)
        self.alive: dict[int, int] = {}  # unfenced: broker id -> epoch
        for machine in self.machines.values():
            self.start(machine)

    # -- brokers

    def start(self, machine: Machine) -> None:
        machine.epoch += 1
        log = PartitionLog.open(
            machine.disk,
            "t-0",
            LogConfig(segment_bytes=600, flush_messages=self.flush_messages),
            LogOpening(now_ms=WALL_MS, topic_id=TOPIC_ID, clean=False),
        )
        in_sync = InSyncReplicas(machine.node_id, lambda node, epoch: self.alive.get(node) == epoch, LAG_MS)
        machine.unsynced = False
        replica = Replica(
            "t",
            0,
            TOPIC_ID,
            log,
            node_id=machine.node_id,
            clock=self.time,
            request_sync=lambda _: setattr(machine, "unsynced", True),
            propose=lambda _, proposal: self.calls.append(lambda: self.alter_partition(machine, replica, proposal)),
            in_sync=in_sync,
            high_watermark=machine.checkpoint,
        )
        machine.replica = replica
        machine.high_watermark = replica.high_watermark
        replica.require(MIN_ISR)
        self.alive[machine.node_id] = machine.epoch
        self.publish(machine)

    def stop(self, machine: Machine, *, loses_power: bool) -> None:
        if machine.replica is None:
            return
        machine.checkpoint = min(machine.checkpoint, machine.replica.high_watermark)
        if self.rng.random() < 0.5:
            machine.checkpoint = machine.replica.high_watermark
        machine.replica = None
        if loses_power:
            machine.disk.crash(SeededRng(self.rng))
        else:
            machine.disk.kill()
        self.fence(machine.node_id, unclean=loses_power)

    def sync(self, machine: Machine) -> None:
        replica = machine.replica
        if replica is not None and machine.unsynced:
            machine.unsynced = False
            machine.disk.sync_now(replica.log.unsynced_files())
            end = replica.log.log_end_offset
            replica.log.mark_synced(end)
            replica.on_synced(end)

    # -- the controller

    def change(self, state: State) -> None:
        self.state = state
        for machine in self.machines.values():
            self.bag.append(lambda machine=machine: self.publish(machine))  # type: ignore[misc]

    def publish(self, machine: Machine) -> None:
        """A broker sees the newest metadata, sooner or later; intermediate ones may be passed over."""
        replica, state = machine.replica, self.state
        if replica is None or state.leader_epoch < replica.leader_epoch:
            return
        if state.leader == machine.node_id:
            replica.lead(state.leader_epoch, state.isr, state.partition_epoch, replicas=tuple(self.machines))
        else:
            replica.follow(state.leader, state.leader_epoch, state.isr, state.partition_epoch)

    def fence(self, node_id: int, *, unclean: bool) -> None:
        """A broker is gone; one that lost what it had not synced is no eligible leader any more."""
        self.alive.pop(node_id, None)
        state = self.state
        isr = tuple(one for one in state.isr if one != node_id)
        elr = tuple(one for one in state.elr if one != node_id or not unclean)
        if node_id in state.isr and not unclean and len(isr) < MIN_ISR:
            elr = (*elr, node_id)
        self.elect(isr, elr)

    def elect(self, isr: tuple[int, ...], elr: tuple[int, ...]) -> None:
        state = self.state
        leader, epoch = state.leader, state.leader_epoch
        if leader not in isr or leader not in self.alive:
            candidates = [one for one in isr if one in self.alive] or [one for one in elr if one in self.alive]
            leader = self.rng.choice(candidates) if candidates else -1
            epoch += 1
            if leader in elr and leader not in isr:
                isr = (leader,)
                elr = tuple(one for one in elr if one != leader)
        if len(isr) >= MIN_ISR:
            elr = ()
        new = State(leader, epoch, state.partition_epoch, isr, elr)
        if new != state:
            self.change(new._replace(partition_epoch=state.partition_epoch + 1))

    def alter_partition(self, machine: Machine, replica: Replica, proposal: IsrProposal) -> None:
        state = self.state
        if machine.replica is not replica:
            return
        answer = IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION)
        isr = tuple(one for one, _ in proposal.isr)
        if proposal.leader_epoch != state.leader_epoch:
            answer = IsrAnswer(ErrorCode.FENCED_LEADER_EPOCH)
        elif proposal.partition_epoch == state.partition_epoch:
            if any(self.alive.get(one) != epoch and epoch >= 0 for one, epoch in proposal.isr):
                answer = IsrAnswer(ErrorCode.INELIGIBLE_REPLICA)
            else:
                left = tuple(one for one in (*state.isr, *state.elr) if one not in isr)
                self.change(
                    State(
                        state.leader,
                        state.leader_epoch,
                        state.partition_epoch + 1,
                        isr,
                        () if len(isr) >= MIN_ISR else left,
                    )
                )
                answer = IsrAnswer(0, state.leader_epoch, state.partition_epoch + 1, isr)
        outcome: IsrAnswer | BrokerError = answer
        if self.rng.random() < 0.2:
            outcome = BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        self.calls.append(lambda: replica.on_isr_answer(proposal, outcome) if machine.replica is replica else None)

    # -- replication

    def fetch(self, machine: Machine) -> None:
        replica = machine.replica
        if replica is None or replica.leader_id in (-1, machine.node_id):
            return
        leader = self.machines[replica.leader_id]
        epoch, offset, life = replica.leader_epoch, replica.log.log_end_offset, machine.epoch
        last_epoch, log_start = replica.last_fetched_epoch, replica.log.log_start_offset
        max_bytes = self.rng.choice((1, 200, 10_000))

        def serve() -> None:
            if leader.replica is None:
                return
            led = leader.replica
            diverged = None
            records, high_watermark, start = b"", -1, -1
            try:
                led.check_epoch(epoch)
                if last_epoch >= 0:
                    diverged = led.log.divergence(last_epoch, offset)
                if diverged is None:
                    part = led.read(offset, max_bytes, replicates=True)
                    led.on_follower_fetch(machine.node_id, life, offset, log_start)
                    records = bytes(part.records)
                    high_watermark, start = led.high_watermark, led.log.log_start_offset
            except BrokerError as error:
                if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise AssertionError("logs begin at 0 everywhere") from error
                return

            def answer() -> None:
                if machine.replica is not replica:
                    return
                if diverged is not None:
                    self.truncate(machine, replica, follower_log.on_diverged(replica, epoch, *diverged))
                else:
                    follower_log.on_fetched(replica, epoch, offset, records, high_watermark, start)

            self.bag.append(answer)

        if not replica.durability.needs_sync:
            self.bag.append(serve)

    def truncate(self, machine: Machine, replica: Replica, work: Steps[bool]) -> None:
        """Anything may happen between two steps of a truncation, also a second truncation."""

        def step() -> None:
            if machine.replica is replica and next(work, None) is not None:
                self.bag.append(step)

        step()

    def append(self, machine: Machine) -> None:
        replica = machine.replica
        if replica is None or not replica.is_leader or (len(replica.isr) < MIN_ISR and self.rng.random() < 0.5):
            return
        self.values += 1
        value = b"%d" % self.values
        info = replica.append(build_batch([NewRecord(None, value, WALL_MS)]))

        def done(error: BrokerError | None) -> None:
            if error is None:
                assert self.acknowledged.setdefault(info.base_offset, value) == value, "acknowledged twice"

        replica.when_committed(info.last_offset + 1, done)

    # -- running

    def step(self) -> None:
        rng = self.rng
        machine = rng.choice(list(self.machines.values()))
        self.time.time_ms += rng.choice((0, 0, 1, 5))
        dice = rng.random()
        if dice < 0.08:
            if self.calls:
                self.calls.pop(rng.randrange(len(self.calls)))()
        elif dice < 0.45:
            if self.bag:
                message = self.bag.pop(rng.randrange(len(self.bag)))
                if rng.random() < 0.95:
                    message()
        elif dice < 0.65:
            self.fetch(machine)
        elif dice < 0.80:
            self.append(machine)
        elif dice < 0.88:
            self.sync(machine)
        elif dice < 0.91:
            self.publish(machine)
        elif dice < 0.94:
            if machine.replica is not None:
                machine.replica.shrink_isr()
        elif dice < 0.96:
            if machine.replica is None:
                self.start(machine)
                self.elect(self.state.isr, self.state.elr)
        elif dice < 0.97:
            holders = {*self.state.isr, *self.state.elr}
            self.stop(machine, loses_power=len(holders - {machine.node_id}) >= 1 and rng.random() < 0.3)
        elif dice < 0.98:
            self.fence(machine.node_id, unclean=False)  # a zombie: fenced, and does not know it
        elif machine.replica is not None:
            self.alive[machine.node_id] = machine.epoch
            self.elect(self.state.isr, self.state.elr)

    def check(self) -> None:
        for machine in self.machines.values():
            replica = machine.replica
            if replica is None:
                continue
            high_watermark = replica.high_watermark
            assert machine.high_watermark <= high_watermark <= replica.log.log_end_offset, (
                "the high watermark went back"
            )
            machine.high_watermark = high_watermark
            prefix = values(replica)[:high_watermark]
            shared = min(len(prefix), len(self.committed))
            assert prefix[:shared] == self.committed[:shared], "committed prefixes differ"
            if high_watermark > len(self.committed):
                self.committed = prefix
        for offset, value in self.acknowledged.items():
            assert self.committed[offset] == value

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check()
        self.heal()

    def heal(self) -> None:
        """Every broker comes back and every message arrives: the cluster finds together, and nothing is lost."""
        for machine in self.machines.values():
            if machine.replica is None:
                self.start(machine)
            self.alive[machine.node_id] = machine.epoch
        self.elect(self.state.isr, self.state.elr)
        for _ in range(200):
            self.time.time_ms += 1
            for machine in self.machines.values():
                self.publish(machine)
                self.sync(machine)
                self.fetch(machine)
                if machine.replica is not None and self.time.time_ms % 10 == 0:
                    machine.replica.shrink_isr()
            while self.bag or self.calls:
                (self.bag or self.calls).pop(0)()
            self.check()
        replicas = [machine.replica for machine in self.machines.values() if machine.replica is not None]
        assert self.state.leader >= 0, "nobody could be elected"
        assert sorted(self.state.isr) == sorted(self.machines), self.state
        assert len({tuple(values(replica)) for replica in replicas}) == 1
        assert len({replica.log.log_end_offset for replica in replicas}) == 1
        leader = next(replica for replica in replicas if replica.is_leader)
        assert leader.high_watermark == leader.log.log_end_offset
        written = [[entry for entry in one.log.epochs.entries if entry[1] < one.log.log_end_offset] for one in replicas]
        assert written.count(written[0]) == len(written), "epoch caches differ"


@pytest.mark.parametrize("seed", range(40))
def test_three_replicas_with_the_page_cache(seed: int) -> None:
    Schedule(seed).run()


@pytest.mark.parametrize("seed", range(20))
def test_replicas_that_flush_before_they_acknowledge(seed: int) -> None:
    Schedule(1000 + seed, nodes=4, flush_messages=1).run()
