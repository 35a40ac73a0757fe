"""kafka.history: what brokers note about requests, in both modes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from barnabas.testing import Broker, Cluster, KitError, NotPossible
from barnabas.testing.backend import Mode
from barnabas.testing.history.core.events import (
    Closed,
    Delivered,
    FaultMet,
    GroupChanged,
    OffsetsCommitted,
    Produced,
    ProducerIdGiven,
    TransactionEnded,
    event_of,
)
from barnabas.testing.history.core.write_checks import acknowledged
from tests.support.oracle.wire import Wire


@pytest.fixture(scope="module", params=["thread", pytest.param("process", marks=pytest.mark.process)])
def shared(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    mode: Mode = request.param
    with Broker(mode=mode) as kafka:
        yield kafka


@pytest.fixture
def kafka(shared: Cluster) -> Iterator[Cluster]:
    shared.history.clear()
    yield shared
    shared.faults.clear()


async def _work(kafka: Cluster, topic: str) -> None:
    from barnabas.client import Consumer, Producer

    servers = kafka.bootstrap_servers
    writer = Producer(bootstrap_servers=servers, client_id="writer", transactional_id=f"{topic}-id")
    async with writer, writer.transaction():
        await writer.send(topic, b"tea", key=b"42")
    async with Consumer(
        topic,
        bootstrap_servers=servers,
        client_id="reader",
        group_id=f"{topic}-group",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    ) as consumer:
        while not await consumer.getmany(timeout_ms=1000):
            pass
        await consumer.commit()


async def test_the_events_of_a_transaction_and_its_reader(kafka: Cluster) -> None:
    topic = await kafka.aio.create_topic("paid")
    await _work(kafka, topic)
    history = kafka.history

    [given] = history.of(ProducerIdGiven)
    assert (given.transactional_id, given.client, given.error) == ("paid-id", "writer", "")
    [produced] = history.of(Produced)
    assert (produced.topic, produced.partition, produced.base_offset, produced.count) == ("paid", 0, 0, 1)
    assert (produced.producer_id, produced.transactional, produced.acks) == (given.producer_id, True, -1)
    assert produced.records == (("42", "tea"),)
    assert produced.address.startswith("127.0.0.1:")
    [ended] = history.of(TransactionEnded)
    assert (ended.producer_id, ended.committed, ended.error) == (given.producer_id, True, "")
    fetched = history.of(Delivered, topic="paid")
    assert {(each.client, each.isolation) for each in fetched} == {("reader", "read_committed")}
    assert fetched[0].batches[0][:3] == (0, 0, given.producer_id)
    assert {each.group for each in history.of(GroupChanged)} == {"paid-group"}
    [committed] = history.of(OffsetsCommitted)
    assert committed.by_member
    assert committed.offsets == (("paid", 0, 2),), "the offset after the marker"
    assert [event_of(each.to_json()) for each in history.events] == list(history.events)
    kafka.wait(kafka.core().delete_topics(topic))


async def test_null_is_not_the_text_null(kafka: Cluster) -> None:
    from barnabas.client import Producer

    topic = await kafka.aio.create_topic("nulls")
    history = kafka.history
    async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for key, value in ((None, b"null"), (b"null", None), (None, None), (b"", b"")):
            await producer.send_and_wait(topic, value, key)
    written = history.of(Produced, topic=topic)
    assert [each.records for each in written] == [((None, "null"),), (("null", None),), ((None, None),), (("", ""),)]
    assert [event_of(json.loads(json.dumps(each.to_json()))) for each in written] == written
    assert acknowledged(written[2]).endswith("(acks=all): null: null")


def test_a_write_whose_answer_a_fault_cuts_is_recorded_with_its_effect(kafka: Cluster) -> None:
    kafka.create_topic("cut")
    _ = kafka.history
    kafka.faults.on("Produce").disconnect(at="applied")
    with Wire(kafka.broker(1).address, client_id="app") as peer, pytest.raises(ConnectionResetError):
        peer.produce(9, "cut", 0, [b"tea"])
    [produced] = kafka.history.of(Produced, topic="cut")
    [met] = kafka.history.of(FaultMet)
    assert (produced.base_offset, produced.error, met.action) == (0, "", "disconnect")
    assert met.connection == produced.connection
    assert met.number < produced.number
    assert [each.connection for each in kafka.history.of(Closed)].count(met.connection) == 1


def test_a_request_that_a_fault_lets_pass_is_no_hit(kafka: Cluster) -> None:
    """The fault counts it for `nth`, and the connection stays."""
    kafka.create_topic("passed")
    _ = kafka.history
    kafka.faults.on("Produce", topic="passed", nth=2).error("INVALID_RECORD")
    with Wire(kafka.broker(1).address, client_id="app") as peer:
        for value in (b"tea", b"milk"):
            peer.produce(9, "passed", 0, [value])
    assert kafka.history.of(Produced, topic="passed")[0].error == ""
    assert len(kafka.history.of(FaultMet)) == 1


def test_wrong_use_is_named() -> None:
    with Broker() as kafka, pytest.raises(KitError, match="did you mean 'topic'"):
        kafka.history.of(Produced, topik="orders")
    with pytest.raises(NotPossible, match="history"):
        _ = Cluster.connect("127.0.0.1:1").history
