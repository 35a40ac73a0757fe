"""Topics for tests on Spark, made and filled by librdkafka: neither Spark's clients nor ours."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.clients.librdkafka import place_of
from tests.support.oracle.wire import Wire

ANSWER_SECONDS_MAX = 60


@contextmanager
def _admin(bootstrap: str) -> Iterator[AdminClient]:
    """An admin client; keep it until its answers have arrived, since they are lost with it."""
    yield AdminClient({"bootstrap.servers": bootstrap})


def new_topic(bootstrap: str, partitions: int = 1, *, prefix: str = "t", name: str = "", **configs: str) -> str:
    """Creates a topic, by default with a unique name; returns the name. `configs` have underscores for dots."""
    name = name or f"{prefix}-{uuid.uuid4().hex[:8]}"
    config = {key.replace("_", "."): value for key, value in configs.items()}
    with _admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(ANSWER_SECONDS_MAX)
    return name


def delete_topics(bootstrap: str, *names: str) -> None:
    with _admin(bootstrap) as admin:
        for deleted in admin.delete_topics(list(names)).values():
            deleted.result(ANSWER_SECONDS_MAX)


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    with _admin(bootstrap) as admin:
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(ANSWER_SECONDS_MAX)


def delete_records(bootstrap: str, topic: str, before: Mapping[int, int]) -> None:
    """Deletes what lies before an offset, by partition."""
    partitions = [TopicPartition(topic, number, offset) for number, offset in before.items()]
    with _admin(bootstrap) as admin:
        for deleted in admin.delete_records(partitions).values():
            deleted.result(ANSWER_SECONDS_MAX)


def send(bootstrap: str, topic: str, values: Iterable[bytes | None], *, partition: int = 0, **more: Any) -> None:
    """Sends values in order, and waits for the acknowledgements.

    Args:
        more: of librdkafka's configuration, underscores for dots; `key`, `headers` and `timestamp` are of the records.
    """
    record = {name: more.pop(name) for name in ("key", "headers", "timestamp") if name in more}
    config = {name.replace("_", "."): value for name, value in more.items()}
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for value in values:
        producer.produce(topic, value, partition=partition, **record)
    assert producer.flush(ANSWER_SECONDS_MAX) == 0


def transactional(bootstrap: str, transactional_id: str | None = None, timeout_ms: int = 60_000) -> Producer:
    """A producer that may begin a transaction."""
    name = transactional_id or f"x-{uuid.uuid4().hex[:8]}"
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
    )
    producer.init_transactions(ANSWER_SECONDS_MAX)
    return producer


def in_transaction(producer: Producer, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
    """Begins a transaction and sends values in it, acknowledged when this returns; the caller ends it."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(ANSWER_SECONDS_MAX) == 0


def end_transaction(bootstrap: str, producer: Producer, *, commit: bool = False) -> None:
    """Ends it; returns when its markers are written."""
    end = producer.commit_transaction if commit else producer.abort_transaction
    end(ANSWER_SECONDS_MAX)
    await_markers(bootstrap)


def await_markers(bootstrap: str) -> None:
    """Waits until no transaction is ending."""
    for address in bootstrap.split(","):
        try:
            with Wire(address) as wire:
                wire.await_markers()
        except OSError:
            pass  # a dead broker coordinates nothing


def read_committed(bootstrap: str, topic: str, partitions: int = 1) -> list[Message]:
    """Every committed record of a topic up to its ends, by librdkafka."""
    await_markers(bootstrap)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"r-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    messages: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        at_end: set[int] = set()
        while len(at_end) < partitions:
            message = consumer.poll(ANSWER_SECONDS_MAX)
            assert message is not None, f"{topic} is not read to its end"
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                assert error.code() == -191, error  # _PARTITION_EOF
                at_end.add(place_of(message)[1])
    finally:
        consumer.close()
    return messages
