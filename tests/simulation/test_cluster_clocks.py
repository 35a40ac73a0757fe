"""Clocks that jump by an hour: time-outs of transactions go by the time that passes, whatever the wall clock says."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client import Producer
from barnabas.testing.simulation.world import Ports
from tests.support.simulation.cluster_story import Story, clients, committed, create, open_transactions, tell

pytestmark = pytest.mark.simulation

HOUR_MS = 3_600_000
TIMEOUT_S = 20  # of transactions
LATE_S = 10  # after it, the last stable offset must have moved on


def jump(there: Story, by_ms: int, *names: str) -> None:
    for name in names or there.brokers:
        there.world.machine(name).clock.skew_ms += by_ms


def producer(ports: Ports) -> Producer:
    return Producer(transactional_id="t", transaction_timeout_ms=TIMEOUT_S * 1000, **clients(ports))


def coordinator(there: Story) -> str:
    return there.leader("__transaction_state", there.node("broker-1").transactions.host.partition_of("t"))


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
def test_a_jump_aborts_no_transaction_that_goes_on(by_ms: int) -> None:
    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 2, 3))

        async def worker(ports: Ports) -> None:
            async with producer(ports) as sender:
                for number in range(4):
                    async with sender.transaction():
                        await sender.send("t", b"a%d" % number, partition=0)
                        await sender.flush()
                        jump(there, by_ms if number % 2 else -by_ms, *([coordinator(there)] if number < 2 else []))
                        await asyncio.sleep(TIMEOUT_S / 4)
                        await sender.send("t", b"b%d" % number, partition=1)

        await world.machine("worker").start(worker)
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 2))
        assert found == {0: [b"a%d" % n for n in range(4)], 1: [b"b%d" % n for n in range(4)]}

    tell(26, story)


@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves"])
@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
def test_a_transaction_that_is_left_ends_in_time(by_ms: int, moves: bool) -> None:
    """Also where its coordinator dies meanwhile and the next one's clock is an hour off."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 2, 3))

        async def worker(ports: Ports) -> None:
            async with producer(ports) as sender:
                await sender.begin_transaction()
                for partition in (0, 1):
                    await sender.send("t", b"left", partition=partition)
                await sender.flush()
                await asyncio.sleep(3600)

        world.machine("worker").start(worker)
        await asyncio.sleep(5)
        world.machine("worker").kill()
        former = coordinator(there)
        jump(there, by_ms, *[name for name in there.brokers if not moves or name != former])
        if moves:
            world.machine(former).kill()
            await asyncio.sleep(3)
            world.machine(former).start(there.brokers[former])
        await asyncio.sleep(TIMEOUT_S + LATE_S)
        await world.machine("reader").start(lambda ports: open_transactions(ports, "t", 2))
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 2))
        assert found == {0: [], 1: []}
        log = there.node(there.leader("t", 0)).replicas.leader("t", 0).log
        assert log.log_end_offset == 2  # the record and one marker

    tell(26, story)
