"""Kafka's own command line tools, and in them the Java consumer and admin client, against a served Barnabas."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from barnabas.protocol.messages.groups import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from barnabas.protocol.records import iter_batches
from tests.support.oracle.real_kafka import MISSING
from tests.support.oracle.tools import tool
from tests.support.oracle.wire import Wire

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(bool(MISSING), reason="Kafka's tools need Java and Maven"),
]

TOPIC = "java-tools"
GROUP = "java-group"
GROUPS_TOOL = "consumer.group.ConsumerGroupCommand"


def said(name: str, *arguments: str) -> list[list[str]]:
    """What a tool prints, as words, line by line."""
    return [line.split() for line in tool(name, *arguments).splitlines()]


def fill(address: str, topic: str, count: int) -> list[str]:
    """Values spread over two partitions."""
    producer = Producer({"bootstrap.servers": address})
    values = [f"value-{number}" for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(60) == 0
    return values


def test_java_consumer_reads_in_a_group_and_java_admin_tends_it(barnabas: str) -> None:
    with Wire(barnabas) as wire:
        wire.create_topic(TOPIC, 2)
    values = fill(barnabas, TOPIC, 10)
    at = ("--bootstrap-server", barnabas)

    read = said(
        "consumer.ConsoleConsumer", *at, "--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", "10"
    )
    assert sorted(word for line in read for word in line if word.startswith("value-")) == sorted(values)

    described = said(GROUPS_TOOL, *at, "--describe", "--group", GROUP)
    assert [line[:6] for line in described if line[:1] == [GROUP]] == [
        [GROUP, TOPIC, "0", "5", "5", "0"],
        [GROUP, TOPIC, "1", "5", "5", "0"],
    ]

    to_offset = ["--reset-offsets", "--to-offset", "2", "--topic", TOPIC, "--execute"]
    reset = said(GROUPS_TOOL, *at, "--group", GROUP, *to_offset)
    assert sorted(line for line in reset if line[:1] == [GROUP]) == [[GROUP, TOPIC, "0", "2"], [GROUP, TOPIC, "1", "2"]]

    deleted = said(GROUPS_TOOL, *at, "--delete", "--group", GROUP)
    assert any("successful" in " ".join(line) for line in deleted)


def test_java_copies_exactly_once(barnabas: str) -> None:
    """Kafka's system test tool: a Java producer of Transactions V2 commits a group's offsets, with random aborts between."""
    with Wire(barnabas) as wire:
        for topic in ("copier-in", "copier-out"):
            wire.create_topic(topic, 2)
    values = fill(barnabas, "copier-in", 500)
    copied = said(
        "TransactionalMessageCopier",
        *("--broker-list", barnabas, "--transactional-id", "java-copier", "--consumer-group", "java-copiers"),
        *("--input-topic", "copier-in", "--input-partition", "0", "--output-topic", "copier-out"),
        *("--transaction-size", "20", "--max-messages", "500"),
        *("--enable-random-aborts", "--use-group-metadata", "--group-mode"),
    )
    assert any("ShutdownComplete" in word for word in copied[-1])
    with Wire(barnabas) as wire:
        assert committed_offsets(wire, "java-copiers", "copier-in") == {0: 250, 1: 250}
        batches = []
        for partition in range(2):
            data = wire.fetch("copier-out", partition, 0, isolation_level=1)
            assert data.last_stable_offset == data.high_watermark, "no transaction is left open"
            batches += [header for _, header in iter_batches(data.records)]
    assert len({header.producer_epoch for header in batches}) >= 25, "a new epoch each transaction: TV2"
    read = said(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", barnabas, "--topic", "copier-out", "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", "20000", "--max-messages", "500"),
    )
    assert sorted(word for line in read for word in line) == sorted(values)


def committed_offsets(wire: Wire, group: str, topic: str) -> dict[int, int]:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True)
    (found,) = wire.call(request, 9).groups[0].topics
    return {partition.partition_index: partition.committed_offset for partition in found.partitions}
