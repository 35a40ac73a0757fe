"""The bundled client's two-phase commit (KIP-939) against a served broker: who may do what, and what stays over a death."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.client import Consumer, PreparedTransaction, Producer, TopicPartition
from barnabas.client.errors import IllegalState, ProducerFailed, ProducerFenced
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.testing import Broker

pytestmark = pytest.mark.clients
Serve = Callable[..., Broker]


@pytest.fixture(scope="module")
def bootstrap(shared_broker: Broker) -> str:
    return shared_broker.bootstrap_servers


def two_phase(bootstrap: str, name: str, *, keep: bool = False) -> Producer:
    return Producer(
        bootstrap_servers=bootstrap,
        transactional_id=name,
        transaction_timeout_ms=1,
        two_phase_commit=True,
        keep_prepared=keep,
    )


async def read(bootstrap: str, topic: str) -> list[bytes | None]:
    tp = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    async with Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        while await consumer.position(tp) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [record.value for record in records]
    return found


async def leave(bootstrap: str, name: str, *values: bytes) -> PreparedTransaction:
    """A prepared transaction whose producer is gone."""
    async with two_phase(bootstrap, name) as producer:
        await producer.begin_transaction()
        for value in values:
            await producer.send(name, value, partition=0)
        return await producer.prepare()


async def test_the_next_producer_commits_what_was_decided(bootstrap: str, name: str) -> None:
    left = await leave(bootstrap, name, b"1", b"2")
    assert await read(bootstrap, name) == []
    async with two_phase(bootstrap, name, keep=True) as producer:
        assert producer.prepared == left == PreparedTransaction.parse(str(left))
        assert await producer.complete(left)
        assert await read(bootstrap, name) == [b"1", b"2"]
        assert not await producer.complete(left), "it was completed before"
        async with producer.transaction():
            await producer.send(name, b"3", partition=0)
    assert await read(bootstrap, name) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("decided", [None, PreparedTransaction(1, 1)], ids=["nothing decided", "another one"])
async def test_the_next_producer_aborts_what_was_not(bootstrap: str, decided: PreparedTransaction | None) -> None:
    name = f"aborts-{'none' if decided is None else 'other'}"
    await leave(bootstrap, name, b"1")
    async with two_phase(bootstrap, name, keep=True) as producer:
        assert not await producer.complete(decided)
        assert producer.transaction_state is TransactionPhase.READY
    assert await read(bootstrap, name) == []


async def test_who_was_taken_over_can_do_nothing_any_more(bootstrap: str, name: str) -> None:
    old = two_phase(bootstrap, name)
    await old.start()
    await old.begin_transaction()
    await old.send(name, b"1", partition=0)
    prepared = await old.prepare()
    async with two_phase(bootstrap, name, keep=True) as new:
        with pytest.raises(ProducerFenced):
            await old.complete(prepared)
        assert new.prepared == prepared
        with pytest.raises(IllegalState, match="prepared"):
            await new.send(name, b"2", partition=0)
        with pytest.raises(IllegalState):
            await new.begin_transaction()
        await new.commit_transaction()
    await old.stop()
    assert await read(bootstrap, name) == [b"1"]


async def test_a_producer_that_keeps_nothing_aborts(bootstrap: str, name: str) -> None:
    await leave(bootstrap, name, b"1")
    async with two_phase(bootstrap, name) as producer:
        assert producer.prepared is None
        async with producer.transaction():
            await producer.send(name, b"2", partition=0)
    assert await read(bootstrap, name) == [b"2"]


async def test_a_prepared_transaction_lasts_over_stop_and_is_ended_by_its_own_producer(
    bootstrap: str, name: str
) -> None:
    async with two_phase(bootstrap, name) as producer:
        for outcome in (True, False):
            await producer.begin_transaction()
            await producer.send(name, b"%d" % outcome, partition=0)
            prepared = await producer.prepare()
            assert await producer.prepare() == prepared, "to prepare again changes nothing"
            assert await producer.complete(prepared if outcome else None) is outcome
        await producer.begin_transaction()
        empty = await producer.prepare()
        assert await producer.complete(empty), "an empty transaction can be prepared, too"
    assert await read(bootstrap, name) == [b"1"]


async def test_to_prepare_needs_a_producer_without_timeout(bootstrap: str, name: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        await producer.begin_transaction()
        with pytest.raises(IllegalState, match="two_phase_commit=True"):
            await producer.prepare()


async def test_brokers_that_are_told_not_to_refuse_in_words(serve: Serve, name: str) -> None:
    producer = two_phase(serve("transaction.two.phase.commit.enable=false").bootstrap_servers, name)
    with pytest.raises(ProducerFailed, match=r"transaction\.two\.phase\.commit\.enable"):
        await producer.start()


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "a:b", "-1:-1", "1:2:3"])
def test_what_is_no_prepared_transaction(text: str) -> None:
    with pytest.raises(ValueError, match="PRODUCER_ID:EPOCH"):
        PreparedTransaction.parse(text)


@pytest.mark.oracle
async def test_a_cluster_without_it_refuses_in_words(kafka: str) -> None:
    producer = Producer(bootstrap_servers=kafka, transactional_id="two-phase", two_phase_commit=True)
    with pytest.raises(ProducerFailed, match="KIP-939"):
        await producer.start()
