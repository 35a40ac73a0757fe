"""kafka.history.check() and assert_exactly_once on real brokers: correct programs pass, and planted mistakes are named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.testing import Broker, Cluster, KitError
from barnabas.testing.backend import Mode
from barnabas.testing.history.core.evidence import Anomaly
from tests.support.broker.produces import request as produce_request
from tests.support.kit_modes import MODES
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts

WAIT_S = 60


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"in": 2, "out": 2}) as kafka:
        assert kafka.history.level == "all"
        yield kafka


def named(found: list[Anomaly]) -> list[str]:
    return [each.name for each in found]


async def copy(servers: str, count: int, *, offsets_in_transaction: bool = True, commit: bool = True) -> None:
    """Copies records from "in" to "out", one transaction for each."""
    reader = Consumer(
        "in",
        bootstrap_servers=servers,
        client_id="reader",
        group_id="copiers",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    writer = Producer(bootstrap_servers=servers, client_id="copier", transactional_id="copier-1")
    copied = 0
    async with asyncio.timeout(WAIT_S), reader, writer:
        while copied < count:
            for records in (await reader.getmany(timeout_ms=500)).values():
                for each in records:
                    await writer.begin_transaction()
                    await writer.send("out", each.value, key=each.key)
                    if offsets_in_transaction:
                        tp = TopicPartition(each.topic, each.partition)
                        await writer.send_offsets_to_transaction({tp: each.offset + 1}, "copiers")
                    await (writer.commit_transaction() if commit else writer.abort_transaction())
                    copied += 1


async def fill(servers: str, count: int) -> None:
    async with Producer(bootstrap_servers=servers, client_id="source") as producer:
        for number in range(count):
            await producer.send("in", b"tea", key=b"%d" % number)


@pytest.mark.parametrize("mode", MODES)
async def test_a_copy_through_kills_of_its_brokers_is_exactly_once(mode: Mode) -> None:
    kafka = Cluster(brokers=3, topics={"in": 2, "out": 2}, mode=mode)
    async with kafka:
        history = kafka.history
        await fill(kafka.bootstrap_servers, 40)
        copying = asyncio.create_task(copy(kafka.bootstrap_servers, 40))
        leader = await kafka.aio.leader("out", 0)
        await kafka.aio.kill(leader)
        await kafka.aio.restart(leader)
        await copying
        await history.aio.assert_exactly_once("in", "out")
        found = await history.aio.check()
        assert [each for each in found if each.name != "incomplete-history"] == []
        assert await history.aio.events()


async def test_a_correct_history_of_one_broker_is_complete(broker: Broker) -> None:
    await fill(broker.bootstrap_servers, 20)
    await copy(broker.bootstrap_servers, 20)
    assert await broker.history.aio.check() == []
    await broker.history.aio.assert_exactly_once("in", "out", key=lambda record: (record.key, record.value))


async def test_a_copy_that_aborts_has_no_output(broker: Broker) -> None:
    await fill(broker.bootstrap_servers, 3)
    await copy(broker.bootstrap_servers, 3, commit=False)
    with pytest.raises(AssertionError, match="3 inputs have no output") as failed:
        await broker.history.aio.assert_exactly_once("in", "out")
    assert "to client 'reader'" in str(failed.value)


async def test_a_second_copy_is_told_with_its_producer(broker: Broker) -> None:
    await fill(broker.bootstrap_servers, 2)
    for _ in range(2):
        await copy(broker.bootstrap_servers, 2, offsets_in_transaction=False)
    with pytest.raises(AssertionError, match="2 inputs have more than one output") as failed:
        await broker.history.aio.assert_exactly_once("in", "out")
    assert "client 'copier'" in str(failed.value)
    assert "transaction of 'copier-1'" in str(failed.value)


def test_a_write_that_is_sent_again_without_idempotence_is_a_duplicate(broker: Broker) -> None:
    broker.faults.on("Produce").disconnect(at="applied")
    with Wire(broker.broker(1).address, client_id="app") as first, pytest.raises(ConnectionResetError):
        first.produce(9, "in", 0, [b"tea"], timestamp=1)
    with Wire(broker.broker(1).address, client_id="app") as second:
        second.produce(9, "in", 0, [b"tea"], timestamp=1)
    [found] = broker.history.check()
    assert found.name == "duplicate"
    assert "enable.idempotence" in str(found)
    assert "fault disconnect" in str(found)


def test_equal_records_that_were_both_acknowledged_are_no_duplicates(broker: Broker) -> None:
    with Wire(broker.broker(1).address, client_id="app") as peer:
        for _ in range(3):
            peer.produce(9, "in", 0, [b"tea"], timestamp=1)
    assert broker.history.check() == []


def test_a_batch_that_is_overtaken_without_idempotence_is_an_inversion(broker: Broker) -> None:
    broker.faults.on("Produce").error("NOT_LEADER_OR_FOLLOWER")
    with Wire(broker.broker(1).address, client_id="app") as peer:
        assert peer.produce(9, "in", 0, [b"first"], timestamp=1).error_code == 6
        peer.produce(9, "in", 0, [b"second"], timestamp=1)
        peer.produce(9, "in", 0, [b"first"], timestamp=1)
    assert named(broker.history.check()) == ["order-inversion"]


async def test_a_reader_without_read_committed_gets_aborted_records(broker: Broker) -> None:
    async with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer:
        await producer.begin_transaction()
        await producer.send("in", b"never", partition=0)
        await producer.flush()
        await producer.abort_transaction()
    for isolation, expected in (("read_committed", []), ("read_uncommitted", ["aborted-read"])):
        with Wire(broker.broker(1).address, client_id="reader") as peer:
            peer.fetch("in", 0, 0, isolation_level=int(isolation == "read_committed"))
        assert named(await broker.history.aio.check()) == expected


def test_an_acknowledged_write_of_one_replica_is_lost_with_it() -> None:
    """acks=1: the leader has acknowledged, its answers to the followers are lost, and one of them becomes leader."""
    with Cluster(brokers=3, config={"unclean.leader.election.enable": "true"}) as kafka:
        kafka.create_topic("orders", config={"min.insync.replicas": 1})
        history = kafka.history
        leader = kafka.leader("orders")
        with kafka.partition(leader, sorted({1, 2, 3} - {leader})):
            with Wire(kafka.broker(leader).address, client_id="app") as peer:
                batch = bytes(build_batch([NewRecord(None, b"tea", 1)]))
                answer = peer.call(produce_request(batch, topic="orders", acks=1), 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
            kafka.kill(leader)
        for _ in attempts("another replica leads"):
            if kafka.leader("orders") not in {-1, leader}:
                break
        kafka.restart(leader)
        found = history.check()
        assert "lost-write" in named(found)
        assert "acks=1" in str(found)


def test_what_came_before_the_history_is_said() -> None:
    with Broker(topics={"in": 1}) as kafka, Wire(kafka.broker(1).address, client_id="app") as peer:
        peer.produce(9, "in", 0, [b"tea"], timestamp=1)
        history = kafka.history
        peer.produce(9, "in", 0, [b"more"], timestamp=1)
        [found] = history.check()
        assert found.name == "incomplete-history"
        assert "in-0 has 1 batches" in str(found)


def test_a_partition_that_nobody_leads_is_said() -> None:
    with Broker(topics={"in": 1}) as kafka:
        history = kafka.history
        with Wire(kafka.broker(1).address, client_id="app") as peer:
            peer.produce(9, "in", 0, [b"tea"], timestamp=1)
        kafka.kill()
        [found] = history.check()
        assert found.name == "incomplete-history"
        assert "could not be asked" in str(found)
        kafka.restart()
        assert history.check() == []


def test_wrong_use_of_assert_exactly_once(broker: Broker) -> None:
    with pytest.raises(KitError, match="did you mean 'out'"):
        broker.history.assert_exactly_once("in", "outt")
    with Wire(broker.broker(1).address, client_id="app") as peer:
        peer.produce(9, "in", 0, [b"tea"], timestamp=1)
    with pytest.raises(KitError, match=r"key\(in-0 offset 0 .*\) failed: ZeroDivisionError"):
        broker.history.assert_exactly_once("in", "out", key=lambda record: 1 // 0)
    with pytest.raises(KitError, match="unhashable"):
        broker.history.assert_exactly_once("in", "out", key=lambda record: [record.key])  # type: ignore[arg-type,return-value]  # the mistake
