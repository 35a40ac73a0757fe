"""Broker, client and the exactly-once copy on the simulated loop: an hour in seconds, one history a seed, 50 seeds of crashes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from barnabas.testing.simulation.world import World
from tests.simulation.workload import Journal, broker, copier, feeder, judge

pytestmark = pytest.mark.simulation

SEEDS = range(50)
SEEDS_PER_TEST = 5


async def quiet_hour(world: World, journal: Journal) -> None:
    """Nothing breaks for an hour; a transaction about every minute."""
    world.machine("broker").start(
        broker(**{"offsets.topic.num.partitions": "50", "transaction.state.log.num.partitions": "50"})
    )
    world.machine("feeder").start(feeder(journal, records=120, pause_s=30))
    await asyncio.sleep(5)
    world.machine("worker").start(copier(journal, pause_s=50, abort_one_in=6))
    await asyncio.sleep(3600 + 600)
    await judge(world, journal)


async def crashes(world: World, journal: Journal) -> None:
    """The broker and the worker die again and again while the copy goes on.

    Odd seeds: the broker is only killed, its page cache survives. Even seeds: power may fail too, and every
    acknowledgement waits for the disk (flush.messages=1).
    """
    power = world.seed % 2 == 0
    rng = world.rng
    node, worker = world.machine("broker"), world.machine("worker")
    program = broker(**({"log.flush.interval.messages": "1"} if power else {}))
    copy = copier(journal, pause_s=0.2, abort_one_in=5)
    node.start(program)
    fed = world.machine("feeder").start(feeder(journal, records=60, pause_s=0.5))
    worker.start(copy)
    for _ in range(6):
        await asyncio.sleep(rng.random() * 8)
        if rng.randrange(3) == 0:
            worker.kill()
            await asyncio.sleep(rng.random() * 3)
            worker.start(copy)
        else:
            if power and rng.randrange(2):
                node.lose_power()
            else:
                node.kill()
            await asyncio.sleep(rng.random() * 5)
            node.start(program)
    await fed
    await judge(world, journal)


def run_crashes(seed: int) -> str:
    """One world of crashes; returns its trace's hash. A failure names the seed."""
    journal = Journal()
    with World(seed) as world:
        world.run(crashes(world, journal), time_limit_s=3600)
        return world.trace.digest


def test_an_hour_of_transactions_takes_seconds() -> None:
    journal = Journal()
    started = time.perf_counter()
    with World(1) as world:
        world.run(quiet_hour(world, journal))
        assert world.loop.time() > 3600
    assert journal.committed >= 45
    assert journal.aborted >= 3
    assert journal.failures == []
    assert time.perf_counter() - started < 30


def test_one_seed_one_history_under_any_hash_seed() -> None:
    program = "from tests.simulation.test_copy import run_crashes; print(run_crashes(2))"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "4711")
    ]
    digests = [run.communicate()[0].strip() for run in runs]
    assert digests[0] == digests[1] != ""


@pytest.mark.parametrize("first", SEEDS[::SEEDS_PER_TEST])
def test_crashes_of_broker_and_worker(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run_crashes(seed)
