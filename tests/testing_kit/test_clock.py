"""Time travel, with brokers in threads and in processes: what becomes due, in which order, and which values are refused.

`tests/testing_kit/test_clock_clients.py` has what librdkafka, aiokafka and the bundled client see.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, Producer, TopicPartition
from barnabas.testing import Broker, Cluster, KitError, NotPossible
from barnabas.testing.backend import Mode
from tests.support.kit_modes import MODES, THREADS


@pytest.fixture(params=THREADS)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


async def _write(kafka: Cluster, topic: str, *values: bytes, **options: Any) -> None:
    async with Producer(bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def _start_offset(kafka: Cluster, topic: str) -> int:
    async with Consumer(bootstrap_servers=kafka.bootstrap_servers) as consumer:
        found = await consumer.beginning_offsets([TopicPartition(topic, 0)])
        return found[TopicPartition(topic, 0)]


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_the_wall_clock_of_the_brokers_moves(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}, config={"log.message.timestamp.type": "LogAppendTime"}) as kafka:
        before = datetime.now(UTC) - timedelta(milliseconds=1)  # the brokers' clock counts whole milliseconds
        kafka.clock.advance(hours=25)
        assert kafka.clock.ahead == timedelta(hours=25)
        assert before + timedelta(hours=25) <= kafka.clock.now() <= datetime.now(UTC) + timedelta(hours=25)
        kafka.clock.advance(1.5, minutes=1)
        assert kafka.clock.ahead == timedelta(hours=25, seconds=61.5)

        async def append() -> int:
            async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                return (await producer.send_and_wait("orders", b"x")).timestamp

        stamped = datetime.fromtimestamp(asyncio.run(append()) / 1000, UTC)
        assert before + timedelta(hours=25) < stamped <= kafka.clock.now()


def test_retention_removes_what_has_become_too_old(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        asyncio.run(_write(kafka, "orders", b"old", b"older"))
        kafka.clock.advance(days=6)
        assert asyncio.run(_start_offset(kafka, "orders")) == 0
        kafka.clock.advance(days=1, seconds=1)
        assert asyncio.run(_start_offset(kafka, "orders")) == 2


def test_three_brokers_stay_together_over_a_jump(mode: Mode) -> None:
    with Cluster(3, mode=mode, topics={"orders": 3}) as kafka:
        leaders = [kafka.leader("orders", each) for each in range(3)]
        controller = kafka.controller()

        async def epochs() -> list[tuple[int, int]]:
            async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
                found = (await admin.describe_topics(["orders"]))["orders"].partitions
                return [(each.leader_epoch, len(each.isr)) for each in found]

        before = asyncio.run(epochs())
        asyncio.run(_write(kafka, "orders", b"old"))
        kafka.clock.advance(days=400)
        asyncio.run(_write(kafka, "orders", b"new"))
        assert [kafka.leader("orders", each) for each in range(3)] == leaders
        assert kafka.controller() == controller
        assert asyncio.run(epochs()) == before


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_a_broker_that_was_away_has_the_time_of_the_others(mode: Mode, how: str) -> None:
    config = {"log.message.timestamp.type": "LogAppendTime"}
    with Broker(mode=mode, topics={"orders": 1}, config=config) as kafka:
        if how == "killed":
            kafka.kill()
            kafka.clock.advance(hours=30)
            kafka.restart()
        else:
            kafka.pause()
            kafka.clock.advance(hours=30)
            kafka.resume()

        async def append() -> int:
            async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                return (await producer.send_and_wait("orders", b"x")).timestamp

        stamped = datetime.fromtimestamp(asyncio.run(append()) / 1000, UTC)
        assert stamped > datetime.now(UTC) + timedelta(hours=29)


async def _commit(kafka: Cluster, group: str) -> None:
    async with Consumer(
        "orders", bootstrap_servers=kafka.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        await consumer.commit()


async def _committed(kafka: Cluster, group: str) -> dict[TopicPartition, Any]:
    async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        return dict(await admin.list_group_offsets(group))


def test_offsets_of_an_empty_group_expire(mode: Mode) -> None:
    with Broker(mode=mode, topics={"orders": 1}) as kafka:
        asyncio.run(_write(kafka, "orders", b"x"))
        asyncio.run(_commit(kafka, "billing"))
        kafka.clock.advance(days=6, hours=23)
        assert [each.partition for each in asyncio.run(_committed(kafka, "billing"))] == [0]
        kafka.clock.advance(hours=2)
        assert asyncio.run(_committed(kafka, "billing")) == {}


def test_a_session_ends_on_the_way_so_its_offsets_expire_at_the_end() -> None:
    """In one jump of 8 days: the member is removed after 45 s, and its offsets expire seven days later."""

    async def run(kafka: Cluster) -> None:
        consumer = Consumer(
            "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="billing", auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getone()
        await consumer.commit()
        fault = kafka.faults.on("LeaveGroup", strict=False).drop()  # it ends without a word
        heartbeats = kafka.faults.on("Heartbeat", times=None, strict=False).drop()
        await kafka.clock.aio.advance(days=8)
        assert await _committed(kafka, "billing") == {}
        heartbeats.remove()
        fault.remove()
        await consumer.stop()

    with Broker(topics={"orders": 1}) as kafka:
        asyncio.run(_write(kafka, "orders", b"x"))
        asyncio.run(run(kafka))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hours": -1}, r"advance\(hours=-1\): time goes forward only"),
        ({"by": -0.5}, "time goes forward only"),
        ({}, "the jump is 0 s; it must be 1 ms or longer"),
        ({"seconds": 0.0001}, "must be 1 ms or longer"),
        ({"seconds": float("nan")}, r"advance\(seconds=nan\): write a number"),
        ({"days": float("inf")}, "at most 36525 days ahead"),
        ({"days": 10**400}, "at most 36525 days ahead"),
        ({"days": 36_525, "seconds": 1}, "36525 days are possible"),
        ({"hours": "25"}, r"advance\(hours='25'\): write a number"),
        ({"hours": True}, r"advance\(hours=True\): write a number"),
        ({"by": timedelta(seconds=-1)}, "time goes forward only"),
        ({"by": None}, "write a number"),
    ],
)
def test_a_wrong_jump_is_refused(one: Broker, arguments: dict[str, Any], text: str) -> None:
    before = one.clock.ahead
    by = [arguments.pop("by")] if "by" in arguments else []
    with pytest.raises(KitError, match=text):
        one.clock.advance(*by, **arguments)
    assert one.clock.ahead == before


def test_a_wrong_unit_is_named(one: Broker) -> None:
    with pytest.raises(TypeError, match="unknown option 'hour'; did you mean 'hours'"):
        one.clock.advance(hour=1)  # type: ignore[call-arg]  # the wrong word is the point


def test_a_kafka_of_others_has_no_clock(one: Broker) -> None:
    with Cluster.connect(one.bootstrap_servers) as remote, pytest.raises(NotPossible, match="clock"):
        remote.clock.advance(hours=1)


@pytest.fixture(scope="module")
def one() -> Any:
    with Broker() as kafka:
        yield kafka
