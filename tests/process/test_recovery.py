"""Starts after a stop that was cut short."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients.librdkafka import place_of, value_of
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker

MANY = 1_000


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


def test_a_stop_that_is_cut_short_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL in the middle of a clean stop, when some logs are closed and others are not: the next start reads them all."""
    broker = ServedBroker(tmp_path / "data").start()
    try:
        with Wire(broker.address) as wire:
            wire.create_topic("many", MANY)
        expected: dict[int, list[bytes]] = {partition: [] for partition in range(MANY)}
        for life in range(2):
            fill(broker.address, "many", MANY)
            for partition in range(MANY):
                expected[partition].append(b"%d" % partition)
            assert broker.process is not None
            broker.process.send_signal(signal.SIGTERM)
            middle = tmp_path / "data" / "many-300" / f"{life + 1:020d}.snapshot"
            while not middle.exists() and broker.alive:
                time.sleep(0.001)
            broker.kill()
            assert middle.exists()
            broker.start()
            assert read(broker.address, "many", MANY) == expected
        assert broker.stop() == 0
        broker.start()
        assert read(broker.address, "many", MANY) == expected
    finally:
        broker.kill()
