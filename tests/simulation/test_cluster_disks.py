"""Disks of a cluster that lie or forget: flipped bits on one node, and the power of all of them at once."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client import Producer
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.simulation.world import Ports
from tests.simulation.cluster_story import Story, clients, committed, create, tell
from tests.simulation.test_cluster import FLUSH, converged

pytestmark = pytest.mark.simulation

METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"
CHECKPOINT_S = 60  # log.flush.offset.checkpoint.interval.ms: everything is synced as often


def flip(disk: MemoryDisk, path: str, position: int) -> None:
    """One bit of a file is another one from now on, whatever was synced."""
    file = disk.open(path)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 0x10]), position)
    disk.sync_now([file])
    file.close()


async def stop(there: Story, name: str, *, clean: bool) -> None:
    machine = there.world.machine(name)
    if clean:
        there.brokers[name].stop()
        await machine.join()
    else:
        machine.kill()
    await asyncio.sleep(2)


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_flipped_bit_in_the_metadata_log_of_one_voter(leads: bool, clean: bool, at: float) -> None:
    """The voter that has it fetches the rest again from the others; nobody believes what it had."""

    async def story(there: Story) -> None:
        world = there.world
        for number in range(5):
            await world.machine("admin").start(lambda ports, topic=f"t{number}": create(ports, topic, 3, 3))  # type: ignore[misc]
        victim = next(name for name in there.brokers if there.node(name).quorum.is_leader == leads)
        other = next(name for name in there.brokers if name != victim)
        await stop(there, victim, clean=clean)
        disk = world.machine(victim).disk
        size = disk.size(METADATA_LOG)
        flip(disk, METADATA_LOG, int(size * at))
        world.machine(victim).start(there.brokers[victim])
        await there.until(lambda: disk.size(METADATA_LOG) >= world.machine(other).disk.size(METADATA_LOG), 10)
        await asyncio.sleep(5)
        here, there_too = disk.read(METADATA_LOG), world.machine(other).disk.read(METADATA_LOG)
        assert here[: len(there_too)] == there_too[: len(here)]
        assert there.node(victim).image.topics_by_name.keys() == there.node(other).image.topics_by_name.keys()
        assert not any(broker.fenced for broker in there.node(other).image.brokers.values())

    tell(23, story)


def test_a_flipped_bit_in_the_end_of_one_replica() -> None:
    """What was not called durable is read whole after a kill: the replica is cut before the damage and filled again."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 1, 3))

        async def sender(ports: Ports) -> None:
            async with Producer(**clients(ports)) as producer:
                for number in range(20):
                    await producer.send_and_wait("t", b"%d" % number, partition=0)

        await world.machine("sender").start(sender)
        victim = there.leader("t", 0)
        path = "t-0/00000000000000000000.log"
        disk = world.machine(victim).disk
        await stop(there, victim, clean=False)
        flip(disk, path, disk.size(path) // 2)
        world.machine(victim).start(there.brokers[victim])
        await asyncio.sleep(5)
        await converged(there.brokers)
        logs = {world.machine(name).disk.read(path) for name in there.brokers}
        assert len(logs) == 1
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 1))
        assert found == {0: [b"%d" % number for number in range(20)]}

    tell(23, story)


@pytest.mark.parametrize("flush", [True, False], ids=["flush.messages=1", "default"])
def test_the_power_of_every_broker_fails_at_once(flush: bool) -> None:
    """With flush.messages=1 nothing that was acknowledged is lost. By default, as in Kafka, what was not synced yet may be:
    what is older than the interval at which everything is."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 1, 3))
        acknowledged: list[tuple[float, bytes]] = []

        async def sender(ports: Ports) -> None:
            async with Producer(**clients(ports)) as producer:
                for number in range(1 << 30):
                    value = b"%d" % number
                    await producer.send_and_wait("t", value, partition=0)
                    acknowledged.append((world.loop.time(), value))
                    await asyncio.sleep(0.2)

        world.machine("sender").start(sender)
        await asyncio.sleep(CHECKPOINT_S * 2.5)
        world.machine("sender").kill()
        failed = world.loop.time()
        there.watch.may_lose = not flush
        for name in there.brokers:
            world.machine(name).lose_power()
        for name, broker in there.brokers.items():
            world.machine(name).start(broker)
        await asyncio.sleep(15)
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 1))
        lost = [when for when, value in acknowledged if value not in set(found[0])]
        assert found[0][: len(acknowledged)] == [value for _, value in acknowledged][: len(found[0])]
        if flush:
            assert lost == []
        else:
            assert lost  # else this test says nothing
            assert failed - min(lost) < CHECKPOINT_S + 1

    tell(22, story, **(FLUSH if flush else {}))
