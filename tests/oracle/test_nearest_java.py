"""Kafka's own consumer told which rack it is in, against a cluster of three racks: it goes where the leader sends it."""

from __future__ import annotations

import pytest

from barnabas.client import Producer

pytest.importorskip("confluent_kafka")
from tests.support.clients.racks import LEADER, NEAREST, Racks, racks  # after the check that librdkafka is there
from tests.support.oracle.tools import tool

__all__ = ["racks"]

pytestmark = pytest.mark.oracle

ROWS = 2_000


async def test_java_reads_from_the_nearest_replica(racks: Racks) -> None:
    rows = [b"%06d" % number + b"." * 500 for number in range(ROWS)]
    async with Producer(bootstrap_servers=racks.cluster.bootstrap) as producer:
        for row in rows:
            await producer.send(racks.topic, row, partition=0)
    consumer = [
        "--bootstrap-server",
        racks.bootstrap,
        "--topic",
        racks.topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
    ]
    for setting in (f"client.rack={NEAREST}", "client.id=java"):
        consumer += ["--command-property", setting]
    said = tool("consumer.ConsoleConsumer", *consumer, "--timeout-ms", "20000", "--max-messages", str(ROWS))
    assert said.split() == [row.decode() for row in rows]
    sent = racks.sent_bytes("java")
    assert sent[NEAREST] > ROWS * 500
    assert sent[LEADER] < 10_000, sent
