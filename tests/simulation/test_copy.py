"""Broker, client and the exactly-once copy on the simulated loop: an hour in seconds, and crashes.

A failure names its seed; `BARNABAS_SEEDS=17:18 pytest tests/simulation/test_copy.py -k crashes` runs that one again, and
`BARNABAS_SEEDS=50:2000` looks for new ones; the soak has 0 to 50.
"""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from barnabas.testing.simulation.world import World, WorldFailed
from tests.support.simulation.crashing_copy import crashes
from tests.support.simulation.workload import Broker, Journal, copier, feeder, judge, observer

pytestmark = pytest.mark.simulation

SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "5:7").split(":")))  # both fail if a broker writes duplicates
SOAK_SEEDS = [seed for seed in range(50) if seed not in SEEDS]


async def quiet_hour(world: World, journal: Journal) -> None:
    """Nothing breaks for an hour; a transaction about every minute."""
    broker = Broker(**{"offsets.topic.num.partitions": "50", "transaction.state.log.num.partitions": "50"})
    world.machine("broker").start(broker)
    world.machine("feeder").start(feeder(journal, records=120, pause_s=30))
    await asyncio.sleep(5)
    world.machine("worker").start(copier(journal, pause_s=50, abort_one_in=6))
    world.machine("observer").start(observer(journal))
    await asyncio.sleep(3600 + 600)
    await judge(world, journal)


def run_crashes(seed: int, *, flush: bool = True) -> str:
    """One world of crashes; returns its trace's hash. A failure names the seed."""
    journal = Journal()
    with World(seed) as world:
        world.run(crashes(world, journal, flush=flush), time_limit_s=3600)
        return world.trace.digest


def test_an_hour_of_transactions_takes_seconds() -> None:
    journal = Journal()
    started = time.process_time()
    with World(1) as world:
        world.run(quiet_hour(world, journal))
        assert world.loop.time() > 3600
    assert journal.committed >= 45
    assert journal.aborted >= 3
    assert journal.failures == []
    assert time.process_time() - started < 120


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_of_broker_and_worker(seed: int) -> None:
    run_crashes(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_crashes_of_broker_and_worker(seed: int) -> None:
    run_crashes(seed)


def violation(seed: int) -> str:
    """What went wrong in a world whose broker acknowledges before its disk has it; "" where luck held."""
    try:
        run_crashes(seed, flush=False)
    except WorldFailed as failure:
        return str(failure)
    return ""


def test_a_broker_that_does_not_wait_for_its_disk_is_caught() -> None:
    """The promise that power cuts take nothing can fail: without flush.messages=1 some seed sees a loss."""
    found = next(filter(None, map(violation, range(0, 40, 2))), "")
    assert "acknowledged records are lost" in found or "records in" in found
