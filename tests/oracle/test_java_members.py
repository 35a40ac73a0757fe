"""The Java consumer beside the bundled one in a group of Barnabas: whoever leads, each understands what the other says it has."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec

import pytest

from barnabas.client import Admin, NewTopic, Producer, TopicPartition
from tests.support.clients.group_members import Bundled, Member, Membership, Read
from tests.support.oracle.real_kafka import KAFKA_UP, MISSING

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.asyncio,
    pytest.mark.skipif(bool(MISSING), reason="the Java consumer needs Java and Maven"),
]

PARTITIONS = 6
ASSIGNORS = {"sticky": "StickyAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}
LINE = re.compile(rb"Partition:(\d+)\tOffset:(\d+)\t")


class Java(Member):
    """Kafka's console consumer. It commits by itself; what it holds is what the coordinator says."""

    client = "java"

    def __init__(self, admin: Admin, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        own = (
            ["group.protocol=consumer"]
            if strategy == "consumer"
            else [
                f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{ASSIGNORS[strategy]}",
                "heartbeat.interval.ms=100",
            ]
        )
        self._command = ["bash", str(KAFKA_UP), "tool", "org.apache.kafka.tools.consumer.ConsoleConsumer"]
        self._command += ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group]
        for setting in [*own, "auto.offset.reset=earliest", "auto.commit.interval.ms=100", "client.id=java"]:
            self._command += ["--command-property", setting]
        for setting in ("print.partition=true", "print.offset=true"):
            self._command += ["--formatter-property", setting]
        self._admin, self._group, self._topic = admin, group, topic
        self._held: set[TopicPartition] = set()
        self._process: Process | None = None

    async def start(self) -> None:
        self._process = await create_subprocess_exec(
            *self._command, stdout=PIPE, stderr=DEVNULL, start_new_session=True
        )

    async def read(self) -> list[Read]:
        assert self._process is not None
        assert self._process.stdout is not None
        found = []
        try:
            async with asyncio.timeout(0.05):
                while line := await self._process.stdout.readline():
                    told = LINE.match(line)
                    assert told is not None, line
                    found.append((self._topic, int(told[1]), int(told[2])))
        except TimeoutError:
            pass
        described = await self._admin.describe_group(self._group)
        self._held = {tp for m in described.members if m.client_id == "java" for tp in m.assignment}
        return found

    async def commit(self, offsets: dict[TopicPartition, int]) -> bool:
        return False  # by itself, when it comes to it

    def held(self) -> set[TopicPartition]:
        return self._held

    async def stop(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        await self._process.wait()


@pytest.mark.parametrize("strategy", ["sticky", "cooperative-sticky", "consumer"])
async def test_java_and_ours_share(barnabas: str, strategy: str) -> None:
    name = f"java-{strategy}"
    async with Admin(bootstrap_servers=barnabas) as admin, Producer(bootstrap_servers=barnabas) as producer:
        await admin.alter_configs({"consumer.heartbeat.interval.ms": "100"}, group=name)
        await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
        for number in range(120):
            await producer.send(name, b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()
        group = Membership(name, PARTITIONS)
        try:
            ours = Bundled(barnabas, name, name, strategy)
            await group.join(ours)
            await group.until(group.shared)
            await group.join(Java(admin, barnabas, name, name, strategy))
            await group.until(group.shared)
            await group.join(Bundled(barnabas, name, name, strategy))
            await group.until(group.shared)
            await group.until(lambda: len(group.read) == 120)
            await group.leave(ours)  # who led: Java does now, or the other
            for number in range(120):
                await producer.send(name, b"%d" % number, partition=number % PARTITIONS)
            await group.until(group.shared)
            await group.until(lambda: len(group.read) == 240)
        finally:
            await group.close()
