"""What the modules of the zoo share: topics and what is in them, plain settings of clients, and texts for what is wrong."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from barnabas.client import Admin, TopicPartition
from barnabas.client import Consumer as BundledConsumer
from barnabas.client import Producer as BundledProducer
from barnabas.testing import Cluster

__all__ = ["Zoo", "deliver", "next_message", "reading", "same", "start", "until"]

LIMIT_S = 60.0


class Zoo:
    """One Kafka for one application."""

    def __init__(self, kafka: Cluster) -> None:
        self.kafka = kafka
        self.faults = kafka.faults
        self.servers = kafka.bootstrap_servers

    def fill(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Writes records."""

        async def write() -> None:
            async with BundledProducer(bootstrap_servers=self.servers) as producer:
                for value in values:
                    await producer.send_and_wait(topic, value, partition=partition)

        self.kafka.wait(write())

    def written(self, topic: str) -> list[bytes]:
        """The values of the committed records of partition 0."""
        place = TopicPartition(topic, 0)

        async def read() -> list[bytes]:
            found: list[bytes] = []
            consumer = BundledConsumer(bootstrap_servers=self.servers, isolation_level="read_committed")
            async with consumer:
                consumer.assign([place])
                await consumer.seek_to_beginning(place)
                end = (await consumer.end_offsets([place]))[place]
                while await consumer.position(place) < end:
                    for records in (await consumer.getmany(timeout_ms=1000)).values():
                        found += [each.value or b"" for each in records]
            return found

        return self.kafka.wait(read())

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """The committed offset of a group."""

        async def ask(admin: Admin) -> int:
            return (await admin.list_group_offsets(group))[TopicPartition(topic, partition)].offset

        return int(self.ask(ask))

    def evict(self, group: str) -> None:
        """Removes the members of a group, as a coordinator does that has not heard of them."""

        async def remove(admin: Admin) -> None:
            members = (await admin.describe_group(group)).members
            await admin.remove_group_members(group, member_ids=[each.member_id for each in members])

        self.ask(remove)

    def ask(self, question: Callable[[Admin], Any]) -> Any:
        """Asks an admin client."""

        async def answer() -> Any:
            async with Admin(bootstrap_servers=self.servers) as admin:
                return await question(admin)

        return self.kafka.wait(answer())


def same(found: list[bytes], expected: list[bytes]) -> None:
    """Fails with what is lost, there twice, or in the wrong order."""
    lost = list((Counter(expected) - Counter(found)).elements())
    surplus = list((Counter(found) - Counter(expected)).elements())
    assert not lost, f"lost: {lost} of {found}"
    assert not surplus, f"twice: {surplus} of {found}"
    assert found == expected, f"out of order: {found}"


def until(reached: Callable[[], object], what: str) -> None:
    """Calls `reached`, which lets something happen, until it is true."""
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"


def start(work: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Runs an application beside the test."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


# -- confluent-kafka


def reading(servers: str, group: str, **more: Any) -> dict[str, Any]:
    """Settings of a consumer that commits by itself and reads from the start."""
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    pace = {"enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    return {**settings, **pace, **{key.replace("_", "."): value for key, value in more.items()}}


def next_message(consumer: Consumer) -> Message | None:
    """The next message; None at the end of a partition."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            return message
        if error.code() == KafkaError._PARTITION_EOF:
            return None
        raise KafkaException(error)
    raise TimeoutError(f"no message within {LIMIT_S:g} s")


def deliver(producer: Producer, topic: str, value: bytes | None) -> None:
    """Writes a record and waits for its acknowledgement. Raises KafkaException."""
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer.produce(topic, value, on_delivery=on_delivery)
    assert producer.flush(LIMIT_S) == 0
    if errors:
        raise KafkaException(errors[0])
