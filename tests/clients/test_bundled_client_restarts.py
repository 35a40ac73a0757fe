"""The bundled client while its broker is stopped, killed and frozen: nothing lost, nothing doubled, order kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from barnabas.client import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from barnabas.client.errors import DeliveryTimedOut, TransactionFailed
from barnabas.client.types import TransactionVersion
from barnabas.testing import Broker
from tests.support.clients.bundled import read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

Serve = Callable[..., Broker]


@pytest.fixture
async def broker(serve: Serve) -> Broker:
    broker = serve("group.initial.rebalance.delay.ms=0")
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic("in", 3), NewTopic("out", 2), NewTopic("one", 1)])
    return broker


async def restart(broker: Broker, *, kill: bool) -> None:
    if kill:
        await broker.aio.kill()
    await broker.aio.restart()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_produce_through_restarts(broker: Broker, kill: bool) -> None:
    """SIGKILL leaves the page cache, so what was acknowledged is there; idempotence tells retries from new records."""
    sent: list[asyncio.Future[object]] = []
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        running = True

        async def produce() -> None:
            while running:
                for _ in range(20):
                    sent.append(await producer.send("one", b"%d" % len(sent)))  # type: ignore[arg-type]
                await asyncio.sleep(0.001)

        task = asyncio.create_task(produce())
        for _ in range(2):
            await asyncio.sleep(0.3)
            await restart(broker, kill=kill)
        await asyncio.sleep(0.3)
        running = False
        await task
        async with asyncio.timeout(60):
            await producer.flush()
        offsets = [future.result().offset for future in sent]  # type: ignore[attr-defined]
    assert offsets == list(range(len(sent)))
    assert values(await read_all(broker.bootstrap_servers, "one")) == [b"%d" % i for i in range(len(sent))]


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


async def test_a_group_member_reads_on_through_restarts(broker: Broker) -> None:
    async with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Consumer(
            "in", bootstrap_servers=broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False,
            heartbeat_interval_ms=100,
        ) as consumer,
    ):  # fmt: skip
        read: list[int] = []
        for n in range(3):
            for i in range(100):
                await producer.send("in", b"%d" % (100 * n + i))
            async with asyncio.timeout(60):
                while len(set(read)) < 100 * (n + 1):
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        read += [int(r.value or b"") for r in records]
                    await consumer.commit()
            if n < 2:
                await restart(broker, kill=n == 1)
        assert sorted(read) == list(range(300)), "positions outlive the connection"
        committed = [await consumer.committed(TopicPartition("in", p)) for p in range(3)]
        assert sum(c or 0 for c in committed) == 300


@pytest.mark.parametrize("version", [1, 2])
async def test_copying_in_transactions_through_kills(broker: Broker, version: TransactionVersion) -> None:
    """Exactly once: whatever the kill interrupts, the copy has every record once."""
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for i in range(1_500):
            await producer.send("in", b"%d" % i)
    kills = 0
    async with (
        Consumer(
            "in", bootstrap_servers=broker.bootstrap_servers, group_id="copy", auto_offset_reset="earliest",
            enable_auto_commit=False, isolation_level="read_committed", max_poll_records=60, heartbeat_interval_ms=100,
        ) as consumer,
        Producer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="copy", transaction_version=version
        ) as producer,
        Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="copy") as auditor,
    ):  # fmt: skip

        async def progress() -> int:
            return sum([await auditor.committed(TopicPartition("in", p)) or 0 for p in range(3)])

        async with asyncio.timeout(240):
            rounds = 0
            while await progress() < 1_500:
                batch = await consumer.getmany(timeout_ms=300)
                if not batch:
                    continue
                rounds += 1
                killing: asyncio.Task[None] | None = None
                try:
                    await producer.begin_transaction()
                    for records in batch.values():
                        for record in records:
                            await producer.send("out", record.value)
                    if rounds in (4, 9, 14):
                        killing = asyncio.create_task(restart(broker, kill=True))
                        kills += 1
                        await asyncio.sleep(0.002 * rounds)
                    await producer.send_offsets(
                        {tp: records[-1].offset + 1 for tp, records in batch.items()}, consumer.group_metadata()
                    )
                    await producer.commit_transaction()
                except TransactionFailed:
                    await producer.abort_transaction()
                    await consumer.seek_to_committed()
                if killing is not None:
                    await killing
    assert kills == 3
    copies = values(await read_all(broker.bootstrap_servers, "out", "read_committed"))
    assert sorted(map(int, copies)) == list(range(1_500))


async def test_a_client_that_starts_before_its_broker(broker: Broker) -> None:
    broker.kill()
    producer = Producer(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=60_000)
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0.3)
    assert not starting.done()
    await broker.aio.restart()
    await starting
    try:
        assert (await producer.send_and_wait("one", b"x")).offset == 0
    except KafkaError as error:
        raise AssertionError(str(error)) from error
    finally:
        await producer.stop()


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
