"""A broker process is killed within the write of a marker, under librdkafka.

The simulator kills at every write (tests/simulation/test_transaction_crashes.py, test_cluster_crashes.py); this is one of these
points with a real process, a real file and a foreign client.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from barnabas.testing import Broker
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.processes.fixtures import Serve

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: E402  # after the check that it is there

pytestmark = pytest.mark.process

TOPIC, GROUP, PARTITIONS = "crashes", "crashes-group", 2
SETTINGS = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1", f"num.partitions={PARTITIONS}")
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    # With its default, and no broker but one, librdkafka forgets that broker and goes on waiting for the forgotten one.
    "metadata.recovery.strategy": "none",
}


def until_done(call: Any) -> None:
    """The pytest timeout ends what never succeeds."""
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def transaction(producer: Any, kafka: Broker, name: str, *offsets: Any, commit: bool = True) -> None:
    """Records in both partitions, and offsets."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP})
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, f"{name}-{partition}".encode(), partition=partition)
    producer.flush(60)
    metadata = consumer.consumer_group_metadata()
    until_done(lambda: producer.send_offsets_to_transaction(list(offsets), metadata, 30))
    consumer.close()
    until_done(producer.commit_transaction if commit else producer.abort_transaction)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_process_is_killed_within_a_marker(serve: Serve, commit: bool) -> None:
    kafka = serve(*SETTINGS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "crashes", **QUICK})
    producer.init_transactions(60)
    transaction(producer, kafka, "first", TopicPartition(TOPIC, 1, 1))
    # Of the topic's log: two batches, then two markers.
    kill = kafka.disk(1).kill("write", nth=PARTITIONS + 1, done="half", path=f"{TOPIC}-*.log")
    second = (producer, kafka, "second", TopicPartition(TOPIC, 1, 2))
    ending = threading.Thread(target=transaction, args=second, kwargs={"commit": commit})
    ending.start()
    kill.wait(timeout=60)
    kafka.restart(1)
    ending.join()
    transaction(producer, kafka, "third")  # so that the second one is complete

    reader = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUICK,
        }
    )
    reader.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    delivered: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    ends = 0
    while ends < PARTITIONS:  # the end is the last stable offset: a transaction that stays open hides the third one
        message = reader.poll(60)
        assert message is not None, delivered
        if message.error() is not None:
            ends += 1
        else:
            delivered[place_of(message)[1]].append(value_of(message))
    (committed,) = reader.committed([TopicPartition(TOPIC, 1)], 60)
    reader.close()
    names = ["first", "second", "third"] if commit else ["first", "third"]
    assert delivered == {p: [f"{name}-{p}".encode() for name in names] for p in range(PARTITIONS)}
    assert committed.offset == (2 if commit else 1)
