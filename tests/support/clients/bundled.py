"""What tests of the bundled client share: a Barnabas and a real Kafka, an Admin, unique names, topics, polling members.

Tests that ask for `bootstrap` run twice, for what the client relies on is Kafka's behaviour, not only ours. They share
the broker, so each uses topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    NewTopic,
    Producer,
    Record,
    TopicPartition,
)
from barnabas.client.errors import UnknownTopicOrPartition
from barnabas.client.net.core.metadata import TopicInfo
from barnabas.client.types import IsolationLevel
from tests.support.oracle.real_kafka import SETTINGS, UNKNOWN_SETTING
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import end, process_broker

_names = count()


@pytest.fixture(scope="module", params=["barnabas", pytest.param("kafka", marks=pytest.mark.oracle)])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a served Barnabas, and of a real Kafka (skipped without Java)."""
    if request.param == "kafka":
        address: str = request.getfixturevalue("kafka")
        yield address
        return
    broker = process_broker(*(each for each in SETTINGS if each != UNKNOWN_SETTING)).start()
    yield broker.bootstrap_servers
    end(broker)


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A name that no other test of any process uses."""
    return f"b-{tmp_path.parent.name}-{tmp_path.name}-{next(_names)}".replace("_", "-")[-200:]


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    """Of the cluster that the module's `bootstrap` names."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        yield admin


async def make_topic(admin: Admin, name: str, partitions: int = 1, **configs: str) -> str:
    await admin.create_topics([NewTopic(name, partitions, 1, {k.replace("_", "."): v for k, v in configs.items()})])
    await known_topic(admin, name)
    return name


async def known_topic(admin: Admin, name: str) -> TopicInfo:
    """Waits until the broker that is asked knows the topic and its leaders: Kafka's learns of it after the answer."""
    async with asyncio.timeout(60):
        while True:
            try:
                found = (await admin.describe_topics([name]))[name]
            except UnknownTopicOrPartition:
                continue
            if all(each.leader >= 0 for each in found.partitions):
                return found


async def poll_until(consumers: list[Consumer], settled: Callable[[], bool]) -> list[Record[Any, Any]]:
    """Polls all of them until `settled()` holds; what they read meanwhile."""
    read: list[Record[Any, Any]] = []
    async with asyncio.timeout(60):
        while not settled():
            for consumer in consumers:
                for records in (await consumer.getmany(timeout_ms=20)).values():
                    read += records
    return read


async def read_all(
    bootstrap: str, topic: str, isolation_level: IsolationLevel = "read_uncommitted"
) -> list[Record[Any, Any]]:
    """Everything up to the present end of every partition, partition by partition."""
    if isolation_level == "read_committed":
        with Wire(bootstrap) as wire:
            wire.await_markers()
    async with Consumer(
        bootstrap_servers=bootstrap, isolation_level=isolation_level, auto_offset_reset="earliest"
    ) as c:
        partitions = [TopicPartition(topic, p) for p in sorted(await c.partitions_for_topic(topic))]
        c.assign(partitions)
        ends = await c.end_offsets(partitions)
        found: dict[TopicPartition, list[Record[Any, Any]]] = {tp: [] for tp in partitions}
        async with asyncio.timeout(60):
            while any([await c.position(tp) < ends[tp] for tp in partitions]):
                for tp, records in (await c.getmany(timeout_ms=200)).items():
                    found[tp] += records
        return [r for tp in partitions for r in found[tp]]


def values(records: list[Record[Any, Any]]) -> list[bytes]:
    return [r.value for r in records]


PARTITIONS = 6


# A busy machine may delay heartbeats by seconds: their members stay.
SHORT = {"consumer.heartbeat.interval.ms": "100", "consumer.session.timeout.ms": "30000"}


async def make_group(admin: Admin, name: str, partitions: int = PARTITIONS) -> str:
    """A topic, and short heartbeats for the group of the same name."""
    await admin.alter_configs(SHORT, group=name)
    return await make_topic(admin, name, partitions)


async def fill(bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS, first: int = 0) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number, partition=number % partitions)
