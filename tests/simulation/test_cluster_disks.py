"""Disks of a cluster that lie or forget: flipped bits on one node, and the power of all of them at once."""

from __future__ import annotations

import asyncio
import copy
import errno

import pytest

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.client.errors import CorruptRecords
from barnabas.ports import Disk
from barnabas.testing.simulation.world import Ports
from tests.support.simulation.brokers import FLUSH, converged
from tests.support.simulation.cluster_story import Story, clients, committed, create, tell

pytestmark = pytest.mark.simulation

METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"
CHECKPOINT_S = 60  # log.flush.offset.checkpoint.interval.ms: everything is synced as often


def flip(disk: Disk, path: str, position: int) -> None:
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


@pytest.mark.parametrize(
    ("leads", "clean", "at"),
    [
        (True, True, 0.5),
        (True, False, 0.5),
        (False, True, 0.5),
        (False, False, 0.5),
        (True, False, 0.1),
        (True, False, 0.9),
    ],
)
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


@pytest.mark.parametrize(
    ("led", "clean"), [(False, True), (True, False)], ids=["a follower, of a clean stop", "a leader, while it runs"]
)
def test_one_node_goes_on_from_an_old_copy_of_its_disk(led: bool, clean: bool) -> None:
    """It forgets votes, topics and records that it confirmed since; the others have them, and nothing is lost."""

    async def story(there: Story) -> None:
        world = there.world
        values = [b"%d" % n for n in range(40)]
        await world.machine("admin").start(lambda ports: create(ports, "t", 3, 3))

        async def write(ports: Ports, part: list[bytes]) -> None:
            async with Producer(**clients(ports)) as producer:
                for value in part:
                    await producer.send_and_wait("t", value, partition=int(value) % 3)

        await world.machine("writer").start(lambda ports: write(ports, values[:20]))
        name = there.leader("t", 0) if led else next(each for each in there.brokers if each != there.leader("t", 0))
        machine = world.machine(name)
        if clean:
            await stop(there, name, clean=True)
        on_sync, machine.disk.real.on_sync = machine.disk.real.on_sync, None
        old = copy.deepcopy(machine.disk.real)
        machine.disk.real.on_sync = on_sync
        if clean:
            machine.start(there.brokers[name])
            await converged(there.brokers)
        await world.machine("writer").start(lambda ports: write(ports, values[20:]))
        await world.machine("admin").start(lambda ports: create(ports, "later", 3, 3))

        machine.kill()
        old.crash(world.rng)
        machine.disk.real = old
        there.watch.forget(name)
        machine.start(there.brokers[name])
        await asyncio.sleep(1)
        await converged(there.brokers)
        found = await world.machine("reader").start(lambda ports: committed(ports, "t", 3))
        assert {p: [value for value in values if int(value) % 3 == p] for p in range(3)} == found
        assert "later" in there.node(name).image.topics_by_name
        for other in there.brokers:
            if other != name:
                world.machine(other).kill()
                world.machine(other).start(there.brokers[other])
        await asyncio.sleep(1)
        await converged(there.brokers)
        assert await world.machine("reader").start(lambda ports: committed(ports, "t", 3)) == found

    tell(31, story)


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


def test_a_follower_keeps_its_replica_where_a_write_fails_for_a_passing_reason() -> None:
    """It fetches the same records again, and writes over what the failed write left."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 1, 3))
        await asyncio.sleep(1)
        victim = next(name for name in there.brokers if name != there.leader("t", 0))
        world.machine(victim).disk.fail("pwrite", path="*t-0/*", times=3, number=errno.ENOMEM, done="half")

        async def sender(ports: Ports) -> None:
            async with Producer(**clients(ports)) as producer:
                for number in range(20):
                    await producer.send_and_wait("t", b"%d" % number, partition=0)

        await world.machine("sender").start(sender)
        await converged(there.brokers)
        replica = there.node(victim).replicas.get("t", 0)
        assert replica is not None
        assert not replica.failed
        assert replica.log.log_end_offset == 20
        assert len({world.machine(name).disk.read("t-0/00000000000000000000.log") for name in there.brokers}) == 1

    tell(23, story)


def test_a_flipped_bit_in_what_was_called_durable() -> None:
    """No start reads that again. A reader of the damaged batch is refused by that node; the node goes on, and the other replicas have the batch."""

    async def story(there: Story) -> None:
        world = there.world
        await world.machine("admin").start(lambda ports: create(ports, "t", 1, 3))
        values = [b"%02d" % number + bytes(20_000) for number in range(20)]  # none is kept in memory

        async def sender(ports: Ports) -> None:
            async with Producer(**clients(ports)) as producer:
                for value in values:
                    await producer.send_and_wait("t", value, partition=0)

        await world.machine("sender").start(sender)
        victim = there.leader("t", 0)
        path = "t-0/00000000000000000000.log"
        disk = world.machine(victim).disk
        await asyncio.sleep(CHECKPOINT_S * 2)
        await stop(there, victim, clean=False)
        flip(disk, path, disk.size(path) // 20 * 10 + 16)  # the magic byte of the batch in the middle
        world.machine(victim).start(there.brokers[victim])
        await asyncio.sleep(10)
        for _ in range(5):  # until it leads again
            leader = there.leader("t", 0, victim)
            if leader == victim:
                break
            await stop(there, leader, clean=False)
            await asyncio.sleep(10)
            world.machine(leader).start(there.brokers[leader])
            await asyncio.sleep(10)
        assert there.leader("t", 0, victim) == victim

        async def refused(ports: Ports) -> int:
            async with Consumer(**clients(ports), auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("t", 0)])
                while True:
                    try:
                        await consumer.getmany(timeout_ms=1_000)
                    except CorruptRecords as error:
                        return error.offset

        assert await world.machine("refused").start(refused) == 10
        assert there.node(victim).failure is None
        await stop(there, victim, clean=False)
        assert await world.machine("reader").start(lambda ports: committed(ports, "t", 1)) == {0: values}

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
