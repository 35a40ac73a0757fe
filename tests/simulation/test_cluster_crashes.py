"""Crash matrix of a cluster: at every log write of a transaction's life, on whichever node, that node dies.

Partitions, offsets, the coordinator's log, markers, on the leader and on both followers. The client lives on; the node comes back
later. At every point the transaction is seen whole or not at all, its offsets with it, and nothing is left open.
"""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client.types import TransactionVersion
from barnabas.testing.simulation.world import World
from tests.support.simulation.brokers import make_brokers
from tests.support.simulation.cluster import Watch, bootstrap
from tests.support.simulation.three_transactions import NEVER, ThreeTransactions

pytestmark = pytest.mark.simulation

TIMEOUT_MS = 20_000
STRIDE = 16  # the suite takes every sixteenth point, a soak all of them


class ClusterCrash:
    """One run: who dies before or after which write, and what the client knows."""

    def __init__(self, world: World, at: int, *, commit: bool, version: TransactionVersion, after: bool) -> None:
        self.world = world
        self.at = at
        self.after = after
        self.story = ThreeTransactions(
            bootstrap(), commit=commit, version=version, timeout_ms=TIMEOUT_MS, arm=self.arm, before_s=0.5, after_s=0.5
        )
        self.brokers = make_brokers()
        self.watch = Watch(world, self.brokers)
        self.watch.on_disk_change = self.on_disk_change
        self.writes: list[str] = []
        self.armed = False
        self.victim = ""

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

    def arm(self, armed: bool) -> None:
        self.armed = armed

    async def run(self) -> None:
        for name, broker in self.brokers.items():
            self.world.machine(name).start(broker)
        done = self.world.machine("worker").start(self.story.client)
        restarted = False
        while not done.done():
            await asyncio.sleep(0.05)
            if self.victim and not restarted and self.world.machine(self.victim).process is None:
                restarted = True
                await asyncio.sleep(3)  # the others go on without it
                self.world.machine(self.victim).start(self.brokers[self.victim])
        await done
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        await self.world.machine("judge").start(self.story.judge)


def run_crash(
    at: int, *, commit: bool, version: TransactionVersion, after: bool = False, seed: int = 7
) -> ClusterCrash:
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
def test_a_node_dies_at_writes(commit: bool, version: TransactionVersion) -> None:
    die_at_writes(commit, version, STRIDE)


@pytest.mark.soak
@ENDS
def test_a_node_dies_at_every_write(commit: bool, version: TransactionVersion) -> None:
    die_at_writes(commit, version, 1)


def die_at_writes(commit: bool, version: TransactionVersion, stride: int) -> None:
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
