"""Coordinators and members that the test kit moves away, in both modes: consumers and producers go on, and no record is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from barnabas.client import Consumer, GroupProtocol, Producer
from barnabas.testing import Broker, Cluster, KitError
from tests.support.kit_modes import MODES, THREADS

PROTOCOLS: list[GroupProtocol] = ["classic", "consumer"]
LIMIT_S = 60
HEARTBEATS = {"group.consumer.min.heartbeat.interval.ms": 200, "group.consumer.heartbeat.interval.ms": 200}


@pytest.fixture(params=THREADS, scope="module")
def three(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=3, mode=request.param, config=HEARTBEATS) as kafka:
        yield kafka


async def write(kafka: Cluster, topic: str, *values: bytes) -> None:
    async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            await producer.send_and_wait(topic, value, partition=number % 2)


def member(kafka: Cluster, topic: str, group: str, client: str, protocol: GroupProtocol) -> Consumer:
    return Consumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        client_id=client,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        session_timeout_ms=10_000,
    )


async def read(consumer: Consumer, *wanted: bytes) -> set[bytes]:
    """Reads until these values have come; returns all that came."""
    found: set[bytes] = set()
    async with asyncio.timeout(LIMIT_S):
        while not found.issuperset(wanted):
            found.add((await consumer.getone()).value or b"")
    return found


@pytest.mark.parametrize("three", MODES, indirect=True, scope="module")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_consumer_goes_on_after_its_coordinator_has_moved(three: Cluster, protocol: GroupProtocol) -> None:
    topic = three.create_topic(f"moved-{protocol}", partitions=2)
    group = f"group-{protocol}"

    async def run() -> None:
        async with member(three, topic, group, "one", protocol) as consumer:
            await write(three, topic, b"1", b"2")
            assert await read(consumer, b"1", b"2") == {b"1", b"2"}
            await consumer.commit()
            first = await three.aio.move_coordinator(group=group)
            assert await three.aio.move_coordinator(group=group) != first
            await write(three, topic, b"3", b"4")
            await read(consumer, b"3", b"4")
            await consumer.commit()
            [found] = await three.group(group).aio.members()
            assert found.client_id == "one"

    asyncio.run(run())


def test_a_transaction_goes_on_after_its_coordinator_has_moved(three: Cluster) -> None:
    topic = three.create_topic("paid")

    async def run() -> None:
        async with Producer(bootstrap_servers=three.bootstrap_servers, transactional_id="billing") as producer:
            async with producer.transaction():
                await producer.send(topic, b"1")
                to = await three.aio.move_coordinator(txn="billing")
                assert await three.aio.move_coordinator(txn="billing", to=to) == to
            async with producer.transaction():
                await producer.send(topic, b"2")

        async with Consumer(
            topic,
            bootstrap_servers=three.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            assert await read(consumer, b"1", b"2") == {b"1", b"2"}

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_evicted_member_joins_again_and_no_record_is_missing(three: Cluster, protocol: GroupProtocol) -> None:
    topic = three.create_topic(f"evicted-{protocol}", partitions=2)
    group = three.group(f"evicted-{protocol}")

    async def run() -> None:
        async with member(three, topic, group.name, "one", protocol) as consumer:
            await write(three, topic, b"1", b"2")
            assert await read(consumer, b"1", b"2") == {b"1", b"2"}
            [before] = await group.aio.members()
            assert sorted(each.partition for each in before.assignment) == [0, 1]
            await group.aio.evict("one")
            await write(three, topic, b"3", b"4")
            await read(consumer, b"3", b"4")
            reading = asyncio.get_running_loop().create_task(read(consumer, b"never"))  # it joins while it reads
            found = []
            for _ in range(LIMIT_S * 20):
                found = await group.aio.members()
                if found and len(found[0].assignment) == 2:
                    break
                await asyncio.sleep(0.05)
            reading.cancel()
            assert [each.client_id for each in found] == ["one"]

    asyncio.run(run())
    assert group.members() == []


def test_a_held_rebalance_ends_when_it_is_released() -> None:
    with Broker(topics={"orders": 2}) as kafka:
        held = kafka.group("billing").hold("SyncGroup")

        async def run() -> None:
            async with member(kafka, "orders", "billing", "one", "classic") as consumer:
                await write(kafka, "orders", b"1")
                reading = asyncio.get_running_loop().create_task(read(consumer, b"1"))
                await held.aio.wait(1)
                assert not reading.done()
                held.release()
                held.remove()
                assert await reading == {b"1"}

        asyncio.run(run())


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda kafka: kafka.move_coordinator(), "name one of them"),
        (lambda kafka: kafka.move_coordinator(txn="a", group="b"), "name one of them"),
        (lambda kafka: kafka.move_coordinator(group=""), "name one of them"),
        (lambda kafka: kafka.move_coordinator(group="a", to=9), "broker 9 is unknown"),
        (lambda kafka: kafka.group(""), "write the id of a group"),
        (lambda kafka: kafka.group("nobody").evict("one"), "unknown member of group 'nobody' 'one'; there is none"),
        (lambda kafka: kafka.group("g").hold("Produce"), "Produce requests name no group"),
        (lambda kafka: kafka.group("g").hold("SyncGrp"), "did you mean 'SyncGroup'"),
    ],
)
def test_what_cannot_be_is_refused(three: Cluster, written: Callable[[Cluster], object], text: str) -> None:
    with pytest.raises(KitError, match=text):
        written(three)
    three.faults.clear()


def test_one_broker_has_no_other_coordinator() -> None:
    with Broker() as kafka, pytest.raises(KitError, match="this cluster has one broker"):
        kafka.move_coordinator(group="g")


def test_a_client_id_of_two_members_names_neither(three: Cluster) -> None:
    topic = three.create_topic("twins", partitions=2)

    async def run() -> None:
        async with (
            member(three, topic, "twins", "same", "classic") as one,
            member(three, topic, "twins", "same", "classic") as two,
        ):
            await write(three, topic, b"1", b"2")
            readers = [asyncio.get_running_loop().create_task(read(each, b"never")) for each in (one, two)]
            for _ in range(LIMIT_S * 20):
                if len(await three.group("twins").aio.members()) == 2:
                    break
                await asyncio.sleep(0.05)
            with pytest.raises(KitError, match="2 members of group 'twins' have the client id 'same'"):
                await three.group("twins").aio.evict("same")
            for each in readers:
                each.cancel()

    asyncio.run(run())
