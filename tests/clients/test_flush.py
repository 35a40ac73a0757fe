"""Failed records that nobody awaits: `flush` and `stop` raise them once, on a broker that refuses what is too large."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    ClientClosed,
    DeliveryTimedOut,
    Producer,
    RecordTooLarge,
    SendFailed,
    TransactionFailed,
)
from barnabas.testing import Broker, kit_thread
from barnabas.testing.clients import KitProducer
from tests.support.clients.bundled import make_topic, read_all, values
from tests.support.processes.fixtures import Serve

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def bootstrap(shared_broker: Broker) -> str:
    return shared_broker.bootstrap_servers


LARGE = bytes(5_000)


async def small_topic(admin: Admin, name: str, partitions: int = 1) -> str:
    return await make_topic(admin, name, partitions, max_message_bytes="1000")


async def test_flush_raises_what_nobody_awaited_once(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await small_topic(admin, name, 2)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        kept = await producer.send(topic, LARGE, partition=0)
        await producer.send(topic, b"fits", partition=0)
        await producer.send(topic, LARGE, partition=1)
        with pytest.raises(SendFailed, match="2 records were not acknowledged: MESSAGE_TOO_LARGE") as failed:
            await producer.flush()
        assert {(type(error), error.topic, error.partition) for error in failed.value.errors} == {
            (RecordTooLarge, topic, 0),
            (RecordTooLarge, topic, 1),
        }
        error = failed.value
        assert (error.fatal, error.retriable, error.txn_requires_abort) == (False, False, False)
        with pytest.raises(RecordTooLarge):  # the future has its error all the same
            await kept
        await producer.flush()
        await producer.send_and_wait(topic, b"goes on", partition=0)


async def test_stop_raises_after_it_has_closed(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await small_topic(admin, name)
    producer = Producer(bootstrap_servers=bootstrap)
    await producer.start()
    await producer.send(topic, LARGE)
    with pytest.raises(SendFailed):
        await producer.stop()
    with pytest.raises(ClientClosed):
        await producer.send(topic, b"after")
    await producer.stop()


async def test_an_exception_of_the_block_stays_and_gets_a_note(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await small_topic(admin, name)

    async def fails() -> None:
        async with Producer(bootstrap_servers=bootstrap) as producer:
            await producer.send(topic, LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await fails()
    assert "1 record was not acknowledged: MESSAGE_TOO_LARGE" in raised.value.__notes__[0]


async def test_transactions_report_their_failures_by_the_commit(bootstrap: str, admin: Admin, name: str) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    topic = await small_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send(topic, LARGE)
        with pytest.raises(SendFailed) as failed:
            await producer.flush()
        assert failed.value.txn_requires_abort
        with pytest.raises(TransactionFailed):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.flush()  # the abort has answered for the records

        await producer.begin_transaction()
        await producer.send(topic, b"dropped by the abort")
        await producer.abort_transaction()
        await producer.flush()

        await producer.begin_transaction()
        await producer.send(topic, b"written")
        await producer.commit_transaction()

        await producer.begin_transaction()
        await producer.send(topic, LARGE)
        with pytest.raises(TransactionFailed):
            await producer.commit_transaction()
    assert values(await read_all(bootstrap, topic, "read_committed")) == [b"written"]
    del producer
    gc.collect()
    assert not reported, "asyncio reports exceptions that were never retrieved: the producer has dropped them"


async def test_records_that_were_never_sent_are_raised_when_they_expire_and_at_the_close(serve: Serve) -> None:
    broker = serve()
    bootstrap = broker.bootstrap_servers
    producer = Producer(bootstrap_servers=bootstrap, delivery_timeout_ms=500, request_timeout_ms=500)
    await producer.start()
    async with asyncio.timeout(60):
        while True:
            try:
                await producer.send_and_wait("gone", b"first")
                break
            except DeliveryTimedOut:
                continue  # on a busy machine
    broker.kill()
    await producer.send("gone", b"expires")
    with pytest.raises(SendFailed) as failed:
        await producer.flush()
    assert isinstance(failed.value.errors[0], DeliveryTimedOut)
    await producer.send("gone", b"left")
    with pytest.raises(SendFailed) as failed:
        await producer.stop(timeout_ms=0)
    assert isinstance(failed.value.errors[0], ClientClosed)


def test_a_client_of_the_test_kit_closes_in_peace() -> None:
    """A test that gave a record up does not fail at its end."""
    with Broker(config={"message.max.bytes": 1000}) as broker:
        producer = KitProducer(lambda: Producer(bootstrap_servers=broker.bootstrap_servers))
        kit_thread.wait(producer.aio._client.send("orders", LARGE), 30)
        assert producer.close()
