"""The exactly-once copy through kills, on a simulated cluster where nodes and clients log in and an authorizer decides.

Sessions end after 20 virtual seconds, so that nodes and clients log in again on open connections. A client without permissions tries
to write, to create and to allow itself something through all failovers; nothing of it is ever accepted.
"""

from __future__ import annotations

import pytest

from barnabas.testing.simulation.world import World
from tests.support.simulation.brokers import converged
from tests.support.simulation.cluster import Watch, bootstrap
from tests.support.simulation.cluster_chaos import ClusterChaos, Power
from tests.support.simulation.secured import WORKER, allow_the_copy, intruder, secured_brokers, started
from tests.support.simulation.workload import Journal, copier, feeder, judge

pytestmark = pytest.mark.simulation

KILLS = 8


async def story(world: World, journal: Journal, refused: list[str]) -> None:
    brokers = secured_brokers()
    watch = Watch(world, brokers)
    await started(world, brokers)
    await world.machine("admin").start(allow_the_copy)
    worker = copier(journal, pause_s=0.02, abort_one_in=5)
    fed = world.machine("feeder").start(feeder(journal, records=60, pause_s=0.5, burst_max=6))
    world.machine("worker").start(worker)
    world.machine("intruder").start(intruder(journal, refused))
    chaos = ClusterChaos(world, brokers, watch, {"worker": worker}, power=Power.ON)
    chaos.faults = [chaos.kill_broker, chaos.kill_broker, chaos.isolate, chaos.reset_brokers, chaos.kill_worker]
    await chaos.run(KILLS)
    await fed
    await judge(world, journal)
    await converged(brokers)


@pytest.mark.parametrize("seed", range(2))
def test_the_copy_through_kills_with_logins_and_an_authorizer(seed: int) -> None:
    journal = Journal(bootstrap=bootstrap(), login=WORKER)
    refused: list[str] = []
    with World(seed) as world:
        world.run(story(world, journal, refused), time_limit_s=3600)
    assert journal.committed >= 3
    assert {"create", "allow", "delete", "write"} <= set(refused)
    assert not [failure for failure in journal.failures if "AUTHORIZATION" in failure or "Authentication" in failure]
