"""Starts after a stop that was cut short."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.client import Producer
from barnabas.testing.backend import Mode
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.processes.fixtures import end, process_broker

pytestmark = pytest.mark.usefixtures("no_errors")

MANY = 200
FEW = 30


async def _fill(bootstrap: str, topic: str, partitions: int) -> None:
    async with Producer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer, asyncio.TaskGroup() as sends:
        for partition in range(partitions):
            sends.create_task(producer.send_and_wait(topic, b"%d" % partition, partition=partition))


def fill(bootstrap: str, topic: str, partitions: int) -> None:
    """Writes a record to each partition, as a new idempotent producer; all are acknowledged when it returns."""
    asyncio.run(_fill(bootstrap, topic, partitions))


def read(bootstrap: str, topic: str, partitions: int) -> dict[int, list[bytes]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline
        for message in consumer.consume(partitions, 0.05):
            if message.error():
                ended.add(place_of(message)[1])
            else:
                found[place_of(message)[1]].append(value_of(message))
    consumer.close()
    return found


def test_a_stop_that_is_cut_short_loses_nothing() -> None:
    """The broker dies in the middle of a clean stop, when some logs are closed and others are not: the next start reads them all."""
    with process_broker(mode="thread") as broker:
        servers = broker.bootstrap_servers
        broker.create_topic("many", partitions=MANY)
        expected: dict[int, list[bytes]] = {partition: [] for partition in range(MANY)}
        for life, done in enumerate(("nothing", "all"), start=1):
            fill(servers, "many", MANY)
            for partition in range(MANY):
                expected[partition].append(b"%d" % partition)
            kill = broker.disk(1).kill("write", done=done, path=f"many-60/{life:020d}.snapshot")  # type: ignore[arg-type]  # one of a few texts
            broker.stop_broker()
            assert kill.hits == 1
            broker.restart()
            assert read(servers, "many", MANY) == expected
        broker.restart()  # stops it cleanly
        assert read(servers, "many", MANY) == expected


class _Lives:
    """A broker that is stopped or killed again and again, and what was written to it."""

    def __init__(self, mode: Mode) -> None:
        self.broker = process_broker(mode=mode).start()
        self.broker.create_topic("few", partitions=FEW)
        self.expected: dict[int, list[bytes]] = {partition: [] for partition in range(FEW)}

    def write(self) -> None:
        servers = self.broker.bootstrap_servers
        fill(servers, "few", FEW)
        for partition in range(FEW):
            self.expected[partition].append(b"%d" % partition)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0})
        offsets = [TopicPartition("few", partition, len(self.expected[partition])) for partition in range(FEW)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def check(self) -> None:
        servers = self.broker.bootstrap_servers
        assert read(servers, "few", FEW) == self.expected
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0})
        wanted = [TopicPartition("few", partition) for partition in range(FEW)]
        found = {one.partition: one.offset for one in consumer.committed(wanted, 60)}
        consumer.close()
        assert found == {partition: len(records) for partition, records in self.expected.items()}

    def start_again(self) -> int:
        """Starts the broker, which is down; returns how many bytes of the topic's logs were read until it was ready."""
        with self.broker.disk(1).watch("read", path="few-*/*.log") as reads:
            self.broker.restart()
            assert len(reads.calls) == reads.hits
            once = {
                (each["path"], at)
                for each in reads.calls
                for at in range(each["offset"], each["offset"] + each["size"])
            }
            return len(once)


@pytest.mark.parametrize("mode", ["thread", pytest.param("process", marks=[pytest.mark.process, pytest.mark.soak])])
def test_a_stop_that_is_cut_short_costs_no_more_than_a_kill(mode: Mode) -> None:
    """The broker dies at five points of a clean stop, from the first change on disk to the last one; a process dies at one of them by
    SIGKILL. The same broker without a stop is killed as often: its starts read no less."""
    stopped, killed = _Lives(mode), _Lives(mode)
    try:
        stopped.write()
        killed.write()
        disk = stopped.broker.disk(1)
        with disk.watch() as changes:
            stopped.broker.stop_broker()
            count = changes.hits
        assert count > 3 * FEW
        stopped.start_again()
        points: tuple[int | str, ...] = (count // 2,)
        if mode == "thread":
            points = (1, count // 4, count // 2, "recovery-point-offset-checkpoint", ".kafka_cleanshutdown")
        for point in points:
            for lives in (stopped, killed):
                lives.write()
            kill = disk.kill("change", path=point) if isinstance(point, str) else disk.kill("change", nth=point)
            stopped.broker.stop_broker()
            assert kill.hits == 1, f"the stop has no change {point}"
            killed.broker.kill()
            read_bytes = stopped.start_again()
            read_after_a_kill = killed.start_again()
            assert read_after_a_kill > 0
            assert read_bytes <= read_after_a_kill
            stopped.check()
            killed.check()
            stopped.broker.restart()
        end(stopped.broker)
        end(killed.broker)
    finally:
        stopped.broker.stop()
        killed.broker.stop()
