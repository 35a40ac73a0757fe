"""A disk that fails at any call of a start or a stop: the node says so and ends, and the next start finds everything."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node.node import Node
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.workload import SOURCE, Broker, Journal, feeder, read_all

pytestmark = pytest.mark.simulation

CALLS = ("pwrite", "truncate", "create", "rename", "remove", "discard", "replace", "mkdir", "sync")
CALLS_MAX = 400  # more changes than a start and a stop make together
RECORDS = 3


async def start_and_stop(ports: Ports) -> str:
    """A node's short life: how it ended."""
    node = Node(
        BrokerConfig(Broker().settings), clock=ports.clock, rng=ports.rng, disk=ports.disk, network=ports.network
    )
    try:
        await node.start()
    except OSError:
        return "no start"
    try:
        await asyncio.sleep(1)
        await node.stop()
    except OSError:
        return "no stop"
    return "gave up" if node.failure is not None else "clean"


async def scenario(world: World, after: int, *, clean_before: bool) -> str:
    """A life with records; a life whose disk fails for good after some calls; a last one that must have kept the records."""
    machine, journal = world.machine("broker"), Journal()
    broker = Broker(**{"log.flush.interval.messages": "1"})
    machine.start(broker)
    await world.machine("feeder").start(feeder(journal, records=RECORDS, pause_s=0.1))
    if clean_before:
        broker.stop()
        await machine.join()
    else:
        machine.lose_power()
    machine.disk.fail("change", nth=after + 1, times=None, done="half")
    ended = await machine.start(start_and_stop)
    machine.kill()
    machine.disk.heal()
    machine.start(broker)
    found = await world.machine("reader").start(lambda ports: read_all(ports, SOURCE, "read_uncommitted"))
    assert found == journal.acknowledged
    return ended


@pytest.mark.parametrize("clean_before", [True, False], ids=["after a clean stop", "after a power loss"])
def test_every_failing_call_ends_the_node_and_loses_nothing(clean_before: bool) -> None:
    seen: dict[str, int] = {}
    for after in range(CALLS_MAX):
        with World(after) as world:
            ended = world.run(scenario(world, after, clean_before=clean_before), time_limit_s=300)
        seen[ended] = seen.get(ended, 0) + 1
        if ended == "clean":
            break
    assert seen["clean"] == 1
    assert seen["no start"] > 5
    assert seen["no stop"] > 5
