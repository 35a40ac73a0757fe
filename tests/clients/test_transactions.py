"""Transactions of foreign and own clients on one broker: TV1 beside TV2 on the same partitions, and a producer that comes too late."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest

from barnabas.client import Producer as BundledProducer
from barnabas.protocol.messages.transactions import DescribeTransactionsRequest
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import KafkaError, KafkaException, Producer  # noqa: E402  # after the check that it is there

from tests.support.clients.committed import committed_values  # noqa: E402  # after the check that it is there

pytestmark = pytest.mark.clients

PARTITIONS = 3


async def test_many_producers_of_both_kinds_on_the_same_partitions(shared_broker: Broker) -> None:
    topic = "t" + uuid.uuid4().hex[:8]
    with Wire(shared_broker.bootstrap_servers) as wire:
        wire.create_topic(topic, PARTITIONS)
    expected: dict[str, list[list[bytes]]] = {}

    def value(who: str, number: int, partition: int) -> bytes:
        return b"%s %d %d" % (who.encode(), number, partition)

    def note(who: str, number: int) -> None:
        for partition in range(PARTITIONS):
            expected[who][partition].append(value(who, number, partition))

    def tv1(who: str) -> None:
        settings = {
            "bootstrap.servers": shared_broker.bootstrap_servers,
            "transactional.id": f"{topic}-{who}",
            "linger.ms": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(60)
        for number in range(40):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(topic, value(who, number, partition), partition=partition)
            if number % 4 == 3:
                producer.flush(60)  # what is aborted has been written
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
                note(who, number)

    async def tv2(who: str) -> None:
        async with BundledProducer(
            bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=f"{topic}-{who}", transaction_version=2
        ) as producer:
            for number in range(40):
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    await producer.send(topic, value(who, number, partition), partition=partition)
                if number % 4 == 3:
                    await producer.flush()
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    note(who, number)

    works: list[Any] = []
    for index in range(4):
        for who in (f"tv1-{index}", f"tv2-{index}"):
            expected[who] = [[] for _ in range(PARTITIONS)]
            works.append(asyncio.to_thread(tv1, who) if who.startswith("tv1") else tv2(who))
    async with asyncio.timeout(240):
        await asyncio.gather(*works)
    with Wire(shared_broker.bootstrap_servers) as wire:
        wait_until_complete(wire, [f"{topic}-{who}" for who in expected])
        for partition in range(PARTITIONS):
            delivered = committed_values(wire, topic, partition)
            assert len(delivered) == 8 * 30
            for who, written in expected.items():
                assert [one for one in delivered if one.startswith(who.encode() + b" ")] == written[partition]


def wait_until_complete(wire: Wire, transactional_ids: list[str]) -> None:
    deadline = time.monotonic() + 60
    while True:
        answer = wire.call(DescribeTransactionsRequest(transactional_ids=transactional_ids), 0)
        states = {state.transaction_state for state in answer.transaction_states}
        if states <= {"CompleteCommit", "CompleteAbort"}:
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.01)


def test_a_producer_past_its_timeout_is_fenced_and_its_records_are_not_seen(shared_broker: Broker) -> None:
    topic = "t" + uuid.uuid4().hex[:8]
    settings = {
        "bootstrap.servers": shared_broker.bootstrap_servers,
        "transactional.id": topic,
        "transaction.timeout.ms": 1000,
    }
    with Wire(shared_broker.bootstrap_servers) as wire:
        wire.create_topic(topic)
        late = Producer(settings)
        late.init_transactions(60)
        late.begin_transaction()
        began = time.monotonic()
        late.produce(topic, b"late", partition=0)
        late.flush(60)
        wait_until_complete(wire, [topic])
        assert time.monotonic() - began > 0.95
        with pytest.raises(KafkaException) as refused:
            late.commit_transaction(60)
        assert refused.value.args[0].code() == KafkaError._FENCED
        next_one = Producer(settings)
        next_one.init_transactions(60)
        next_one.begin_transaction()
        next_one.produce(topic, b"next", partition=0)
        next_one.commit_transaction(60)
        wait_until_complete(wire, [topic])
        assert committed_values(wire, topic, 0) == [b"next"]
