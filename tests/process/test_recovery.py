"""Starts after a stop that was cut short."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.testing import Broker, KitError
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker  # not the kit: a main program of its own
from tests.support.processes.stopping_broker import beside

MANY = 1_000
FEW = 30


def fill(bootstrap: str, topic: str, partitions: int) -> None:
    """Writes a record to each partition; all are acknowledged when it returns."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True, "log_level": 0})
    for partition in range(partitions):
        producer.produce(
            topic,
            b"%d" % partition,
            partition=partition,
            on_delivery=lambda error, _message: errors.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not errors


def read(bootstrap: str, topic: str, partitions: int) -> dict[int, list[bytes]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline
        for message in consumer.consume(10_000, 1):
            if message.error():
                ended.add(place_of(message)[1])
            else:
                found[place_of(message)[1]].append(value_of(message))
    consumer.close()
    return found


def is_cut_short(broker: Broker, middle: Path) -> bool:
    """Stops the broker, and kills it once this file is there. Returns False if the stop ended earlier, as on a busy machine."""
    pid = broker.brokers[0].pid
    assert pid is not None
    with ThreadPoolExecutor() as beside_it:
        stopping = beside_it.submit(broker.stop_broker)
        while not middle.exists() and not stopping.done():
            time.sleep(0.001)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        error = stopping.exception(60)
    if error is None:
        return False
    assert isinstance(error, KitError), error
    assert "broker 1 ended" in str(error)
    assert middle.exists()
    return True


def test_a_stop_that_is_cut_short_loses_nothing(served_broker: Broker) -> None:
    """SIGKILL in the middle of a clean stop, when some logs are closed and others are not: the next start reads them all."""
    broker = served_broker
    servers, folder = broker.bootstrap_servers, broker.brokers[0].directory
    broker.create_topic("many", partitions=MANY)
    expected: dict[int, list[bytes]] = {partition: [] for partition in range(MANY)}
    cut_short = 0
    for life in range(10):
        fill(servers, "many", MANY)
        for partition in range(MANY):
            expected[partition].append(b"%d" % partition)
        cut_short += is_cut_short(broker, folder / "many-300" / f"{life + 1:020d}.snapshot")
        broker.restart()
        assert read(servers, "many", MANY) == expected
        if cut_short == 2:
            break
    assert cut_short == 2
    broker.restart()  # stops it cleanly
    assert read(servers, "many", MANY) == expected


class _Lives:
    """A broker that is stopped or killed again and again, and what was written to it."""

    def __init__(self, data: Path) -> None:
        self.broker = ServedBroker(data, module="tests.support.processes.stopping_broker").start()
        with Wire(self.broker.address) as wire:
            wire.create_topic("few", FEW)
        self.expected: dict[int, list[bytes]] = {partition: [] for partition in range(FEW)}

    def write(self) -> None:
        fill(self.broker.address, "few", FEW)
        for partition in range(FEW):
            self.expected[partition].append(b"%d" % partition)
        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": "g", "log_level": 0})
        offsets = [TopicPartition("few", partition, len(self.expected[partition])) for partition in range(FEW)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def check(self) -> None:
        assert read(self.broker.address, "few", FEW) == self.expected
        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": "g", "log_level": 0})
        wanted = [TopicPartition("few", partition) for partition in range(FEW)]
        found = {one.partition: one.offset for one in consumer.committed(wanted, 60)}
        consumer.close()
        assert found == {partition: len(records) for partition, records in self.expected.items()}

    def restart(self) -> int:
        """Starts it again; returns how many bytes of the topic's logs were read until it was ready."""
        self.broker.start()
        return int(beside(self.broker.data, ".read").read_text())


def test_a_stop_that_is_cut_short_costs_no_more_than_a_kill(tmp_path: Path) -> None:
    """SIGKILL at five points of a clean stop, from the first change on disk to the last one. The same node without a stop is killed as
    often: its starts read no less."""
    stopped, killed = _Lives(tmp_path / "stopped"), _Lives(tmp_path / "killed")
    order = beside(stopped.broker.data, ".kill-at")
    try:
        stopped.write()
        killed.write()
        assert stopped.broker.stop(60) == 0
        changes = int(beside(stopped.broker.data, ".changes").read_text())
        assert changes > 3 * FEW
        for point in (0, changes // 4, changes // 2, "recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
            order.write_text(str(point))
            stopped.restart()
            for lives in (stopped, killed):
                lives.write()
            assert stopped.broker.stop(60) == -signal.SIGKILL, f"the stop has no change {point}"
            killed.broker.kill()
            order.unlink()
            read_bytes = stopped.restart()
            assert read_bytes <= killed.restart()
            stopped.check()
            killed.check()
            assert stopped.broker.stop(60) == 0
        stopped.restart()
        stopped.check()
    finally:
        stopped.broker.kill()
        killed.broker.kill()
