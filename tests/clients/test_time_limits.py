"""Time limits of the bundled producer: what it says about records that it leaves, and calls that end a transaction."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from barnabas.client import (
    ClientClosed,
    Consumer,
    CopyProgress,
    NewMessage,
    Producer,
    RequestTimedOut,
    SendFailed,
    exactly_once,
)
from barnabas.testing import Broker
from tests.support.clients.bundled import read_all, values

pytestmark = pytest.mark.clients

SHORT_MS = 200


@pytest.fixture
def kafka() -> Iterator[Broker]:
    with Broker(topics={"orders": 1, "out": 1}) as kafka:
        yield kafka


def test_a_stop_tells_which_records_may_have_been_written(kafka: Broker) -> None:
    held = kafka.faults.on("Produce", topic="orders", times=None).hold()

    async def run() -> None:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, max_in_flight_requests_per_connection=1)
        await producer.start()
        on_its_way = await producer.send("orders", b"1")
        await asyncio.to_thread(held.wait)
        unsent = await producer.send("orders", b"2")
        with pytest.raises(SendFailed):
            await producer.stop(timeout_ms=SHORT_MS)
        errors = [each.exception() for each in (on_its_way, unsent)]
        assert all(isinstance(error, ClientClosed) for error in errors)
        assert "may or may not have been written" in str(errors[0])
        assert "before the record was sent" in str(errors[1])
        assert [error.maybe_written for error in errors if isinstance(error, ClientClosed)] == [True, False]

    asyncio.run(run())


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_end_of_a_transaction_has_a_time_limit_and_goes_on(kafka: Broker, end: str) -> None:
    held = kafka.faults.on("EndTxn").hold()

    async def run() -> None:
        async with Producer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id="t", max_block_ms=60_000
        ) as producer:
            call = producer.commit_transaction if end == "commit" else producer.abort_transaction
            await producer.begin_transaction()
            await producer.send_and_wait("orders", b"1")
            for _ in range(2):
                with pytest.raises(RequestTimedOut, match=rf"not within {SHORT_MS} ms: the {end} was not answered"):
                    await call(SHORT_MS)
            held.release()
            await call()
            async with producer.transaction():
                await producer.send("orders", b"2")

    asyncio.run(run())
    assert len(read(kafka, "orders")) == (2 if end == "commit" else 1)


def test_a_transaction_does_not_begin_while_the_previous_one_is_not_answered(kafka: Broker) -> None:
    held = kafka.faults.on("EndTxn").hold()

    async def run() -> None:
        async with Producer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id="t", max_block_ms=2_000
        ) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("orders", b"1")
            with pytest.raises(RequestTimedOut):
                await producer.commit_transaction(SHORT_MS)
            with pytest.raises(RequestTimedOut, match="the end of the previous transaction"):
                await producer.begin_transaction()
            held.release()
            async with asyncio.timeout(60):
                while True:
                    try:
                        await producer.begin_transaction()
                        break
                    except RequestTimedOut:
                        continue  # on a busy machine
            await producer.abort_transaction()

    asyncio.run(run())


def test_exactly_once_waits_longer_than_one_call(kafka: Broker) -> None:
    held = kafka.faults.on("EndTxn").hold()
    servers = kafka.bootstrap_servers

    async def run() -> None:
        async with Producer(bootstrap_servers=servers) as producer:
            await producer.send_and_wait("orders", b"1")
        consumer = Consumer(
            "orders", bootstrap_servers=servers, group_id="g", isolation_level="read_committed",
            enable_auto_commit=False, auto_offset_reset="earliest",
        )  # fmt: skip
        writer = Producer(bootstrap_servers=servers, transactional_id="t", max_block_ms=2_000)
        async with consumer, writer:

            async def ended(_: CopyProgress) -> bool:
                return True

            copying = asyncio.ensure_future(
                exactly_once(
                    consumer,
                    writer,
                    lambda record: [NewMessage("out", record.value)],
                    on_transaction=ended,
                )
            )
            await asyncio.to_thread(held.wait)
            await asyncio.sleep(2.5)  # longer than max_block_ms
            assert not copying.done()
            held.release()
            await copying

    asyncio.run(run())
    assert read(kafka, "out") == [b"1"]


@pytest.mark.process
def test_the_time_limit_of_the_command_bounds_the_delivery(kafka: Broker) -> None:
    kafka.faults.on("Produce", topic="orders", times=None).drop()
    command = [sys.executable, "-m", "barnabas", "produce", "orders", "-b", kafka.bootstrap_servers, "--timeout", "3"]
    done = subprocess.run(command, input=b"1\n", capture_output=True, timeout=120)
    assert done.returncode == 1
    assert b"not acknowledged" in done.stderr


def read(kafka: Broker, topic: str) -> list[bytes]:
    return values(asyncio.run(read_all(kafka.bootstrap_servers, topic, "read_committed")))
