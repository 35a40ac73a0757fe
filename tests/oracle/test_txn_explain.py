"""`barnabas txn explain` tells the same story of the same requests on Kafka and on Barnabas."""

from __future__ import annotations

import re

import pytest

from barnabas.client import Admin, NewTopic, Producer
from barnabas.client.errors import KafkaError
from tests.support.processes.cli import barnabas as command

pytestmark = pytest.mark.oracle

IDENTITY = re.compile(r"producer \d+")
TIME = re.compile(r"^  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  ")


async def _fenced(servers: str, topic: str) -> tuple[Producer, Producer]:
    """A commit, then a transaction that a second producer with the same id ends, then one that stays open."""
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    first = Producer(bootstrap_servers=servers, transactional_id=f"{topic}-id")
    await first.start()
    async with first.transaction():
        await first.send(topic, b"1")
    await first.begin_transaction()
    await first.send(topic, b"2")
    await first.flush()
    second = Producer(bootstrap_servers=servers, transactional_id=f"{topic}-id")
    await second.start()
    with pytest.raises(KafkaError, match="newer producer"):
        await first.commit_transaction()
    await second.begin_transaction()
    await second.send(topic, b"3")
    await second.flush()
    return first, second


async def _story(servers: str, topic: str) -> list[str]:
    producers = await _fenced(servers, topic)
    shown = command("txn", "explain", f"{topic}-id", "-b", servers)
    for each in producers:
        await each.stop()
    assert shown.returncode == 0, shown.stderr
    lines = [IDENTITY.sub("producer N", TIME.sub("", each)) for each in shown.stdout.splitlines()]
    told = [each for each in lines if not each.startswith(("  it has been open", "  if its producer"))]
    markers = [each for each in told if each.startswith("marker")]
    return [each for each in told if each not in markers] + markers  # their clock is that of another broker


async def test_the_story_is_that_of_kafka(kafka: str, barnabas: str) -> None:
    ours, theirs = await _story(barnabas, "explained"), await _story(kafka, "explained")
    assert ours == theirs
    assert any(
        "epoch 3: a producer has initialized the id (InitProducerId) and bumped the epoch" in each for each in ours
    )
    assert "  readers under read_committed stand still in explained-0 at offset 4" in ours
    assert ours[-2:] == ["marker commit in explained-0 at offset 1", "marker abort in explained-0 at offset 3"]


def test_an_unknown_id_is_refused_alike(kafka: str, barnabas: str) -> None:
    for servers in (kafka, barnabas):
        shown = command("txn", "explain", "nobody-at-all", "-b", servers)
        assert shown.returncode == 1
        assert "transactional id 'nobody-at-all' is unknown" in shown.stderr
