"""Crash matrix: the broker dies at every log write of a transaction's life, and every promise is then held against what is left.

For each write of a `.log` file between the begin of a transaction and its completion (partitions, offsets, coordinator's log,
markers): the broker dies just before or just after it, by a kill (the page cache stays) or by a power cut (flush.messages=1,
unsynced bytes are lost or torn), while the client lives on and retries, or dies with it. Then the broker starts again.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from barnabas.client.types import TransactionVersion
from barnabas.testing.simulation.world import Ports, World
from barnabas.testing.world.disks import DiskRule
from tests.support.simulation.three_transactions import NEVER, ThreeTransactions
from tests.support.simulation.workload import BOOTSTRAP, Broker

pytestmark = pytest.mark.simulation

TIMEOUT_MS = 5_000
# Whether the client commits, version of transactions, whether the power fails, whether the client dies with the broker.
IN_THE_SUITE = [(True, 1, False, True), (True, 2, True, False), (False, 1, True, False), (False, 2, False, True)]


class Crash:
    """One run: where it dies, and what the client knows."""

    def __init__(
        self,
        world: World,
        at: int,
        *,
        commit: bool,
        version: TransactionVersion,
        power: bool,
        after: bool,
        client_dies: bool,
    ) -> None:
        self.world = world
        self.story = ThreeTransactions(
            BOOTSTRAP, commit=commit, version=version, timeout_ms=TIMEOUT_MS, arm=self.arm, after_s=1
        )
        self.client_dies = client_dies
        self.machine = world.machine("broker")
        self.death = DiskRule(
            -1, "kill", ("pwrite",), path="*.log", skip=at, times=1, done="all" if after else "nothing"
        )
        self.power = power
        self.broker = Broker(**({"log.flush.interval.messages": "1"} if power else {}))
        self.paths: list[str] = []  # of the log files that were written
        self.pulled = False
        self.done = False
        self.second_is_seen = False
        self.machine.disk._on_hit = lambda rule, kind, path, *_: self.paths.append(path)
        self.machine.disk._kill = self.pull

    def arm(self, armed: bool) -> None:
        if not self.pulled:
            watch = DiskRule(-1, "watch", ("pwrite",), path="*.log")
            self.machine.disk.set_rules([watch if self.death.skip == NEVER else self.death] if armed else [])

    def pull(self, _lose: str) -> None:
        self.pulled = True
        if self.power:
            self.machine.lose_power()
        else:
            self.machine.kill()

    async def client(self, ports: Ports) -> None:
        await self.story.client(ports)
        self.done = True

    async def run(self) -> None:
        self.machine.start(self.broker)
        await asyncio.sleep(1)
        worker = self.world.machine("worker")
        worker.start(self.client)
        for _ in range(6_000):
            await asyncio.sleep(0.02)
            if self.pulled and self.machine.process is None:
                if self.client_dies:
                    worker.kill()
                    self.done = True
                await asyncio.sleep(0.5)
                self.machine.start(self.broker)
            if self.done:
                break
        assert self.done, "the client never came to its end"
        await asyncio.sleep(3 * TIMEOUT_MS / 1000)
        await self.world.machine("judge").start(self.judge)

    async def judge(self, ports: Ports) -> None:
        self.second_is_seen = await self.story.judge(ports, third=not (self.client_dies and self.pulled))


def run_crash(at: int, seed: int = 7, **how: Any) -> Crash:
    """One world with one crash."""
    with World(seed) as world:
        crash = Crash(world, at, **how)
        world.run(crash.run(), time_limit_s=3600)
        return crash


def writes_of_a_life(commit: bool, version: TransactionVersion) -> list[str]:
    """The log files written in the life of a transaction, in order."""
    crash = run_crash(NEVER, commit=commit, version=version, power=False, after=False, client_dies=False)
    return crash.paths


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_what_is_written_in_the_life_of_a_transaction(commit: bool, version: TransactionVersion) -> None:
    folders = [path.split("/")[-2].rsplit("-", 1)[0] for path in writes_of_a_life(commit, version)]
    # PREPARE and COMPLETE, and what was added: each partition by its own request, as the producer comes to it.
    assert folders.count("__transaction_state") == 3 + 2
    assert folders.count("output") == 4  # a record and a marker on two partitions
    assert folders.count("__consumer_offsets") == 2


@pytest.mark.parametrize(
    ("commit", "version", "power", "client_dies"),
    [
        pytest.param(*how, marks=() if how in IN_THE_SUITE else pytest.mark.soak)
        for how in product((True, False), (1, 2), (True, False), (True, False))
    ],
)
def test_dies_at_every_write(commit: bool, version: TransactionVersion, power: bool, client_dies: bool) -> None:
    writes = writes_of_a_life(commit, version)
    prepare = [at for at, path in enumerate(writes) if "__transaction_state" in path][-2]
    seen = []
    for at in range(len(writes)):
        for after in (False, True):
            try:
                crash = run_crash(at, commit=commit, version=version, power=power, after=after, client_dies=client_dies)
            except BaseException as failure:
                failure.add_note(f"died {'after' if after else 'before'} write {at} of {len(writes)}")
                raise
            assert crash.pulled
            seen.append(crash.second_is_seen)
    if not commit:
        assert not any(seen)
    elif client_dies and not power:  # PREPARE_COMMIT in the log is what decides
        assert seen == [False] * (2 * prepare + 1) + [True] * (2 * (len(writes) - prepare) - 1)
    elif not client_dies:  # the client asks again until it is committed, once its commit was asked for
        assert all(seen[2 * prepare :])
