"""Crash matrix of a cluster: at every log write of a transaction's life, on whichever node, that node dies.

Partitions, offsets, the coordinator's log, markers, on the leader and on both followers. The client lives on; the node comes back
later. At every point the transaction is seen whole or not at all, its offsets with it, and nothing is left open.
"""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client import Consumer, KafkaError, Producer, TopicPartition
from barnabas.testing.simulation.invariants import Outcome, TransactionHistory, check_atomic, check_stable
from barnabas.testing.simulation.world import Ports, World
from tests.simulation.cluster import Watch, bootstrap
from tests.simulation.test_cluster import make_brokers
from tests.simulation.workload import TARGET, read_all

pytestmark = pytest.mark.simulation

GROUP = "crash-group"
READ_FROM = TopicPartition("output", 2)
TIMEOUT_MS = 20_000
NEVER = 1 << 30
STRIDE = 4  # the suite takes every fourth point, a soak all of them


class ClusterCrash:
    """One run: who dies before or after which write, and what the client knows."""

    def __init__(self, world: World, at: int, *, commit: bool, version: int, after: bool) -> None:
        self.world = world
        self.at = at
        self.commit = commit
        self.version = version
        self.after = after
        self.brokers = make_brokers()
        self.watch = Watch(world, self.brokers)
        self.watch.on_disk_change = self.on_disk_change
        self.writes: list[str] = []
        self.armed = False
        self.victim = ""
        self.second = Outcome.UNKNOWN if commit else Outcome.ABORTED

    def on_disk_change(self, name: str, what: str) -> None:
        """Counts writes of log files, and kills at the one it is set to."""
        words = what.split()
        if not self.armed or self.victim or words[0] != "pwrite" or not words[1].endswith(".log"):
            return
        if "__cluster_metadata" in words[1]:
            return  # nobody acknowledges a transaction by it; its own crashes are another test's
        self.writes.append(f"{name} {words[1]}")
        if len(self.writes) > self.at:
            self.victim = name
            machine = self.world.machine(name)
            if self.after:
                self.world.loop.call_soon(machine.kill)
            else:
                machine.kill()

    async def client(self, ports: Ports) -> None:
        async with Producer(
            bootstrap_servers=bootstrap(),
            transactional_id="crash",
            transaction_version=self.version,
            transaction_timeout_ms=TIMEOUT_MS,
            clock=ports.clock,
            rng=ports.rng,
            network=ports.network,
        ) as producer:
            async with producer.transaction():
                await self.write(producer, b"first", 1)
            await asyncio.sleep(0.5)
            self.armed = True
            await producer.begin_transaction()
            try:
                await self.write(producer, b"second", 2)
                if self.commit:
                    await producer.commit_transaction()
                    self.second = Outcome.COMMITTED
            except KafkaError:
                self.second = Outcome.ABORTED  # its commit was never asked for, or refused
                await producer.abort_transaction()
            else:
                if not self.commit:
                    await producer.abort_transaction()
            await asyncio.sleep(0.5)  # markers and completion follow the answer
            self.armed = False
            async with producer.transaction():
                await producer.send("output", b"third-0", partition=0)

    async def write(self, producer: Producer, name: bytes, offset: int) -> None:
        for partition in (0, 1):
            await (await producer.send("output", b"%s-%d" % (name, partition), partition=partition))
        await producer.send_offsets({READ_FROM: offset}, GROUP)

    async def run(self) -> None:
        for name, broker in self.brokers.items():
            self.world.machine(name).start(broker)
        done = self.world.machine("worker").start(self.client)
        restarted = False
        while not done.done():
            await asyncio.sleep(0.05)
            if self.victim and not restarted and self.world.machine(self.victim).process is None:
                restarted = True
                await asyncio.sleep(3)  # the others go on without it
                self.world.machine(self.victim).start(self.brokers[self.victim])
        await done
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        await self.world.machine("judge").start(self.judge)

    async def judge(self, ports: Ports) -> None:
        found = await read_all(ports, TARGET, "read_committed", bootstrap())
        delivered = [value for values in found.values() for value in values]
        check_atomic(
            [
                TransactionHistory(Outcome.COMMITTED, [b"first-0", b"first-1"]),
                TransactionHistory(self.second, [b"second-0", b"second-1"]),
                TransactionHistory(Outcome.COMMITTED, [b"third-0"]),
            ],
            delivered,
        )
        clients = {
            "bootstrap_servers": bootstrap(),
            "clock": ports.clock,
            "rng": ports.rng,
            "network": ports.network,
        }
        async with Consumer(group_id=GROUP, isolation_level="read_committed", **clients) as consumer:  # type: ignore[arg-type]  # of mixed values
            # The offset is part of the transaction: it went with its records.
            assert await consumer.committed(READ_FROM) == (2 if b"second-0" in delivered else 1)
            stable = await consumer.end_offsets(TARGET)
        async with Consumer(**clients) as consumer:  # type: ignore[arg-type]  # as above
            for tp, high_watermark in (await consumer.end_offsets(TARGET)).items():
                check_stable(stable[tp], high_watermark)


def run_crash(at: int, *, commit: bool, version: int, after: bool = False, seed: int = 7) -> ClusterCrash:
    """One world with one crash."""
    with World(seed) as world:
        crash = ClusterCrash(world, at, commit=commit, version=version, after=after)
        world.run(crash.run(), time_limit_s=3600)
        return crash


ENDS = pytest.mark.parametrize(
    ("commit", "version"),
    [(True, 2), (True, 1), (False, 2), (False, 1)],
    ids=["commit", "commit-tv1", "abort", "abort-tv1"],
)


@ENDS
def test_a_node_dies_at_writes(commit: bool, version: int) -> None:
    die_at_writes(commit, version, STRIDE)


@pytest.mark.soak
@ENDS
def test_a_node_dies_at_every_write(commit: bool, version: int) -> None:
    die_at_writes(commit, version, 1)


def die_at_writes(commit: bool, version: int, stride: int) -> None:
    """Every `stride`th write of a transaction's life, before it and after it."""
    writes = run_crash(NEVER, commit=commit, version=version).writes
    assert len({write.split()[0] for write in writes}) == 3
    assert sum("__transaction_state" in write for write in writes) >= 9  # three records on three nodes
    assert sum("/output-" in f"/{write.split()[1]}" for write in writes) >= 12  # records and markers of two partitions
    for at in range(version % stride, len(writes), stride):
        for after in (False, True):
            try:
                crash = run_crash(at, commit=commit, version=version, after=after)
            except BaseException as failure:
                failure.add_note(f"{writes[at]}: died {'after' if after else 'before'} write {at} of {len(writes)}")
                raise
            assert crash.victim
