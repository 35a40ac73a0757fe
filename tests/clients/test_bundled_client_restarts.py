"""The bundled client while its broker is frozen, killed or not yet started.

What it writes and copies through kills: test_failover.py, and in virtual time tests/simulation/test_producer.py, test_copy.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from barnabas.client import Admin, NewTopic, Producer
from barnabas.client.errors import DeliveryTimedOut
from barnabas.testing import Broker
from tests.support.clients.bundled import read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

Serve = Callable[..., Broker]


@pytest.fixture
async def broker(serve: Serve) -> Broker:
    broker = serve("group.initial.rebalance.delay.ms=0")
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic("one", 1)])
    return broker


async def test_a_frozen_broker_costs_the_connection_and_no_record(broker: Broker) -> None:
    async with Producer(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=400) as producer:
        await producer.send_and_wait("one", b"0")
        await broker.aio.pause()
        try:
            futures = [await producer.send("one", b"%d" % i) for i in range(1, 50)]
            await asyncio.sleep(1.0)
            assert not any(f.done() for f in futures)
        finally:
            await broker.aio.resume()
        async with asyncio.timeout(60):
            await producer.flush()
        assert [f.result().offset for f in futures] == list(range(1, 50))
    assert values(await read_all(broker.bootstrap_servers, "one")) == [b"%d" % i for i in range(50)]


async def test_a_delivery_times_out_while_nobody_is_there(broker: Broker) -> None:
    async with Producer(
        bootstrap_servers=broker.bootstrap_servers, delivery_timeout_ms=500, request_timeout_ms=300
    ) as producer:
        await delivered(producer, b"before")
        broker.kill()
        future = await producer.send("one", b"given up")
        with pytest.raises(DeliveryTimedOut) as late:
            async with asyncio.timeout(60):
                await future
        assert (late.value.topic, late.value.partition) == ("one", 0)
        assert broker.bootstrap_servers in str(late.value)
        assert "advertised.listeners" in str(late.value)
        await broker.aio.restart()
        offset = await delivered(producer, b"after")
    found = values(await read_all(broker.bootstrap_servers, "one"))
    assert set(found) == {b"before", b"after"}
    assert found[offset] == b"after"


async def delivered(producer: Producer, value: bytes) -> int:
    """Sends a value until one is acknowledged; returns its offset. One that timed out may have been written all the same."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await producer.send_and_wait("one", value)).offset
            except DeliveryTimedOut:
                continue


async def test_dead_and_silent_bootstrap_addresses_are_passed_over(broker: Broker) -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    try:
        async with (
            asyncio.timeout(25),
            Producer(bootstrap_servers=f"127.0.0.1:1,127.0.0.1:{port},{broker.bootstrap_servers}") as producer,
        ):
            assert (await producer.send_and_wait("one", b"0")).offset == 0
    finally:
        silent.close()


async def test_a_client_may_be_started_before_its_broker(broker: Broker) -> None:
    broker.stop_broker()
    async with asyncio.timeout(60):
        producer = Producer(bootstrap_servers=broker.bootstrap_servers)
        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0.5)
        assert not starting.done()
        await broker.aio.restart()
        await starting
        assert (await producer.send_and_wait("one", b"0")).offset == 0
        await producer.stop()
