"""Random schedules of kills on the simulated network: nothing is lost or repeated, and work goes on within a bounded time.

One broker, two, all, the same one again, the controller and a leader together, and kills that follow each other within an election,
before a new controller has begun, or while the killed broker comes back; the address of a killed broker refuses, or vanishes
until the broker is started again. All the time a producer writes to every partition 10 times a second, and a copier copies in
transactions. While a majority of the brokers serves and is in sync, each partition is acknowledged something within
GAP_SECONDS_MAX of virtual time, and what was acknowledged is copied. `BARNABAS_SEEDS=17:18` runs one seed again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from barnabas.broker.image.image import MetadataImage
from barnabas.broker.node.node import Node
from barnabas.client import Admin, NewTopic, Producer, RecordMetadata
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.brokers import converged, make_brokers
from tests.support.simulation.cluster import Watch, bootstrap
from tests.support.simulation.kill_schedule import KINDS, Kill, schedule
from tests.support.simulation.workload import PARTITIONS, Broker, Journal, Program, copier, judge

pytestmark = pytest.mark.simulation

SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "0:1").split(":")))
SOAK_SEEDS = range(100, 300)
KILLS = 3
GAP_SECONDS_MAX = 3.0
LOOK_SECONDS = 0.02
SEND_SECONDS = 0.1
MAJORITY = 2
# Between the deaths of two brokers, by kind: within an election, and until the next controller has begun.
APART_SECONDS_MAX = {"two apart": 0.1, "controller, then its successor": 0.4}
COMES_BACK_SECONDS_MAX = (
    0.3  # from the start of a broker until it is killed again: it registers, recovers or is being unfenced
)


@dataclass
class Gaps:
    """How long each partition has been without an acknowledgement, and what was acknowledged not copied, while all was well."""

    journal: Journal
    last: dict[int, float] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0.0))
    acknowledged_at: list[float] = field(default_factory=list)
    copied_at: float = (
        0.0  # when the copier was last seen to commit, or to have nothing to copy, or the cluster not to be well
    )
    copied: int = 0
    longest: dict[str, float] = field(default_factory=lambda: {"producer": 0.0, "copier": 0.0})

    def acknowledged(self, partition: int, now: float) -> None:
        """A record was."""
        self.last[partition] = now
        self.acknowledged_at.append(now)

    def look(self, now: float, healthy: bool) -> None:
        """Looks every LOOK_SECONDS; time in which all is not well does not count."""
        if not healthy:
            self.last = dict.fromkeys(self.last, now)
            self.copied_at = now
            return
        self.longest["producer"] = max(self.longest["producer"], now - min(self.last.values()))
        if self.journal.copied != self.copied or self.copied >= len(self.acknowledged_at):
            self.copied, self.copied_at = self.journal.copied, now
        self.longest["copier"] = max(self.longest["copier"], now - self.copied_at)


def steady(journal: Journal, gaps: Gaps) -> Program:
    """Writes to each partition every SEND_SECONDS, waiting for nothing."""

    async def program(ports: Ports) -> None:
        loop = asyncio.get_running_loop()

        async with Producer(
            bootstrap_servers=journal.bootstrap, clock=ports.clock, rng=ports.rng, network=ports.network
        ) as producer:

            def acknowledged(partition: int, value: bytes, future: asyncio.Future[RecordMetadata]) -> None:
                if not future.cancelled() and future.exception() is None:
                    journal.acknowledged[partition].append(value)
                    gaps.acknowledged(partition, loop.time())

            number = 0
            while True:
                for partition in range(PARTITIONS):
                    value = b"%d-%d" % (partition, number)
                    future = await producer.send("input", value, b"k", partition)
                    future.add_done_callback(lambda done, p=partition, v=value: acknowledged(p, v, done))  # type: ignore[misc]  # mypy does not infer lambdas with defaults
                number += 1
                await asyncio.sleep(SEND_SECONDS)

    return program


class Killed:
    """The cluster, and who of it is dead."""

    def __init__(self, world: World, seed: int, journal: Journal) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.brokers: dict[str, Broker] = make_brokers()
        self.watch = Watch(world, self.brokers)
        self.victims: list[str] = []
        self.gaps = Gaps(journal)

    def start(self, name: str) -> None:
        self.world.network.nameless.discard(name)
        self.world.machine(name).start(self.brokers[name])

    def kill(self, name: str, *, vanishes: bool) -> None:
        self.world.machine(name).kill()
        if vanishes:
            self.world.network.nameless.add(name)

    def serving(self) -> dict[int, Node]:
        """Nodes that run and were unfenced, by their own images."""
        found = {}
        for name, broker in self.brokers.items():
            node = broker.node
            if node is not None and self.world.machine(name).process is not None:
                own = node.image.brokers.get(node.node_id)
                if own is not None and own.incarnation_id == node.lifecycle.incarnation_id and not own.fenced:
                    found[node.node_id] = node
        return found

    def healthy(self) -> bool:
        """Whether a majority serves and is in sync in every partition, by the newest image of those that serve."""
        serving = self.serving()
        if len(serving) < MAJORITY:
            return False
        newest = max((node.image for node in serving.values()), key=lambda image: image.offset)
        return all(len(serving.keys() & set(partition.isr)) >= MAJORITY for _, _, partition in newest.partitions())

    def choose(self, kind: str) -> list[str]:
        names = list(self.brokers)
        if kind == "all":
            return names
        if kind == "two":
            return self.rng.sample(names, 2)
        if kind in ("two apart", "controller, then its successor"):
            active = [f"broker-{node.quorum.leader_id}" for node in self.serving().values() if node.quorum.is_leader]
            first = active[:1] if kind == "controller, then its successor" else []
            others = [name for name in names if name not in first]
            return [*first, *self.rng.sample(others, 2 - len(first))]
        if kind == "again" and self.victims:
            return [self.rng.choice(self.victims)]
        if kind == "controller and leader":
            images: list[MetadataImage] = [node.image for node in self.serving().values()]
            leaders = [part.leader for image in images for _, _, part in image.partitions() if part.leader > 0]
            controllers = [node.quorum.leader_id for node in self.serving().values() if node.quorum.leader_id > 0]
            both = {*controllers[:1], *([self.rng.choice(leaders)] if leaders else [])}
            return [f"broker-{each}" for each in sorted(both)]
        return [self.rng.choice(names)]

    async def watch_gaps(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.gaps.look(loop.time(), self.healthy())
            await asyncio.sleep(LOOK_SECONDS)

    async def carry_out(self, kills: list[Kill]) -> None:
        for kill in kills:
            await asyncio.sleep(kill.after_seconds)
            self.victims = self.choose(kill.kind)
            for name in self.victims:
                self.kill(name, vanishes=bool(self.rng.randrange(2)))
                await asyncio.sleep(self.rng.random() * APART_SECONDS_MAX.get(kill.kind, 0.0))
            if kill.kind == "while it comes back":
                self.start(self.victims[0])
                await asyncio.sleep(self.rng.random() * COMES_BACK_SECONDS_MAX)
                self.kill(self.victims[0], vanishes=False)
            await asyncio.sleep(kill.down_seconds)
            for name in self.victims:
                self.start(name)
        await asyncio.sleep(10)


def run_kills(seed: int, count: int, kinds: Sequence[str] = KINDS) -> dict[str, float]:
    """One world of kills; returns the longest gaps in seconds of virtual time."""
    journal = Journal(bootstrap=bootstrap())
    with World(seed) as world:
        killed = Killed(world, seed, journal)

        async def main() -> None:
            for name in killed.brokers:
                killed.start(name)
            await asyncio.sleep(5)
            assert len(killed.serving()) == len(killed.brokers)
            await world.machine("admin").start(create)
            world.machine("writer").start(steady(journal, killed.gaps))
            world.machine("worker").start(copier(journal, pause_s=0.02, abort_one_in=20))
            await asyncio.sleep(5)
            killed.gaps.longest = dict.fromkeys(killed.gaps.longest, 0.0)  # of the start
            looking = asyncio.ensure_future(killed.watch_gaps())
            await killed.carry_out(schedule(seed, count, kinds=kinds))
            looking.cancel()
            world.machine("writer").kill()
            await judge(world, journal)
            await converged(killed.brokers)

        async def create(ports: Ports) -> None:
            async with Admin(
                bootstrap_servers=journal.bootstrap, clock=ports.clock, rng=ports.rng, network=ports.network
            ) as admin:
                await admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ("input", "output")])

        world.run(main(), time_limit_s=3600)
    assert all(len(values) > 50 for values in journal.acknowledged.values())
    assert journal.committed > 10
    assert max(killed.gaps.longest.values()) < GAP_SECONDS_MAX, f"seed {seed}: {killed.gaps.longest}"
    return killed.gaps.longest


@pytest.mark.parametrize("seed", SEEDS)
def test_work_goes_on_through_kills(seed: int) -> None:
    run_kills(seed, KILLS)


@pytest.mark.parametrize("seed", SEEDS)
def test_work_goes_on_through_kills_that_follow_each_other_closely(seed: int) -> None:
    run_kills(seed, len(APART_SECONDS_MAX) + 1, kinds=(*APART_SECONDS_MAX, "while it comes back"))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::10])
def test_work_goes_on_through_many_kills(first: int) -> None:
    for seed in range(first, first + 10):
        run_kills(seed, 20)
