"""What is committed when a consumer is left, and what `exactly_once` loses or repeats when it fails: nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    CopyProgress,
    NewMessage,
    Producer,
    Record,
    TopicPartition,
    exactly_once,
)
from barnabas.testing import Broker
from tests.support.clients.bundled import make_topic, read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def bootstrap(shared_broker: Broker) -> str:
    return shared_broker.bootstrap_servers


TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
async def ten(bootstrap: str, admin: Admin, name: str) -> str:
    """A topic of one partition with ten records."""
    return await filled(bootstrap, await make_topic(admin, name), TEN)


async def filled(bootstrap: str, topic: str, records: list[bytes]) -> str:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for value in records:
            await producer.send(topic, value)
    return topic


async def committed(bootstrap: str, topic: str, group: str) -> int | None:
    async with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        return await consumer.committed(TopicPartition(topic, 0))


# -- automatic commits -------------------------------------------------------------------------------------------------


def automatic(bootstrap: str, topic: str) -> Consumer:
    """Of a group that is named as the topic is."""
    return Consumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")


async def some(consumer: Consumer, count: int) -> list[Record[Any, Any]]:
    """One poll that gives out `count` records."""
    async with asyncio.timeout(60):
        while not (polled := await consumer.getmany(timeout_ms=1_000, max_records=count)):
            pass
    (records,) = polled.values()
    assert len(records) == count
    return records


class Left(Exception):
    """Raised while the last poll's records are processed."""


async def raises_in_a_with_block(consumer: Consumer) -> None:
    async with consumer:
        await some(consumer, 3)
        await some(consumer, 4)
        raise Left


async def raises_in_a_loop(consumer: Consumer) -> None:
    async with consumer:
        async for record in consumer:
            if record.offset == 3:
                raise Left


async def stops_in_a_finally(consumer: Consumer) -> None:
    await consumer.start()
    try:
        await some(consumer, 3)
        await some(consumer, 4)
        raise Left
    finally:
        await consumer.stop()


async def stops_in_a_finally_with_a_time_limit(consumer: Consumer) -> None:
    """`wait_for` gives the call a task of its own, which knows of no exception."""
    await consumer.start()
    try:
        await some(consumer, 3)
        await some(consumer, 4)
        raise Left
    finally:
        await asyncio.create_task(consumer.stop())


async def is_cancelled_in_a_with_block(consumer: Consumer) -> None:
    async def work() -> None:
        async with consumer:
            await some(consumer, 3)
            await some(consumer, 4)
            reached.set()
            await asyncio.sleep(60)

    reached = asyncio.Event()
    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    raise Left


async def is_stopped_from_outside_after_its_task_was_cancelled(consumer: Consumer) -> None:
    async def work() -> None:
        async for record in consumer:
            if record.offset == 3:
                reached.set()
                await asyncio.sleep(60)

    await consumer.start()
    reached = asyncio.Event()
    task = asyncio.create_task(work())
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await consumer.stop()
    raise Left


async def is_stopped_from_outside_while_its_task_processes(consumer: Consumer) -> None:
    async def work() -> None:
        await some(consumer, 3)
        await some(consumer, 4)
        reached.set()
        await asyncio.sleep(60)

    await consumer.start()
    reached = asyncio.Event()
    task = asyncio.create_task(work())
    await reached.wait()
    await consumer.stop()
    task.cancel()
    raise Left


@pytest.mark.parametrize(
    "leave",
    [
        raises_in_a_with_block,
        raises_in_a_loop,
        stops_in_a_finally,
        stops_in_a_finally_with_a_time_limit,
        is_cancelled_in_a_with_block,
        is_stopped_from_outside_after_its_task_was_cancelled,
        is_stopped_from_outside_while_its_task_processes,
    ],
)
async def test_what_the_last_poll_gave_out_is_not_committed_by_a_consumer_that_is_left(
    bootstrap: str, ten: str, leave: Callable[[Consumer], Any]
) -> None:
    with pytest.raises(Left):
        await leave(automatic(bootstrap, ten))
    assert await committed(bootstrap, ten, ten) == 3, "what was polled before is committed, the last poll is not"


async def test_a_consumer_that_is_closed_without_trouble_commits_what_it_gave_out(bootstrap: str, ten: str) -> None:
    async with automatic(bootstrap, ten) as consumer:
        await some(consumer, 2)
    assert await committed(bootstrap, ten, ten) == 2
    consumer = automatic(bootstrap, ten)
    await consumer.start()
    await some(consumer, 1)
    await consumer.stop()
    assert await committed(bootstrap, ten, ten) == 3
    consumer = automatic(bootstrap, ten)
    await consumer.start()
    await asyncio.create_task(some(consumer, 3))  # nothing shows whether its task has processed them
    await consumer.commit()
    await consumer.stop()
    assert await committed(bootstrap, ten, ten) == 6


# -- exactly_once ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def out(admin: Admin, name: str) -> str:
    return await make_topic(admin, f"{name}-out")


def reader(bootstrap: str, topic: str, **settings: Any) -> Consumer:
    defaults: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": topic,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
    }
    return Consumer(topic, **defaults | settings)


@pytest.fixture
async def writer(bootstrap: str, name: str) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        yield producer


async def test_a_transform_that_raises_commits_nothing(bootstrap: str, ten: str, out: str, writer: Producer) -> None:
    def transform(record: Record[Any, Any]) -> list[NewMessage]:
        if record.offset == 7:
            raise Left
        return [NewMessage(out, record.value)]

    with pytest.raises(Left):
        async with reader(bootstrap, ten) as consumer:
            await exactly_once(consumer, writer, transform)
    assert await committed(bootstrap, ten, ten) is None
    assert await read_all(bootstrap, out, "read_committed") == []


@pytest.mark.parametrize("broken", ["the transform raises", "a value that cannot be sent", "a veto"])
async def test_the_same_consumer_goes_on_where_a_failed_transaction_began(
    bootstrap: str, ten: str, out: str, writer: Producer, broken: str
) -> None:
    """Also where the group has committed nothing yet, and a reset would lead to the end of the log."""
    failed = False

    def transform(record: Record[Any, Any]) -> list[NewMessage]:
        nonlocal failed
        if record.offset == 7 and not failed and broken != "a veto":
            failed = True
            if broken == "the transform raises":
                raise Left
            return [NewMessage(out, "text")]  # type: ignore[arg-type]  # what the caller gets wrong
        return [NewMessage(out, record.value)]

    def vetoes(_progress: CopyProgress) -> bool:
        nonlocal failed
        vetoed, failed = not failed, True
        return vetoed and broken == "a veto"

    async def until_all(progress: CopyProgress) -> bool:
        return progress.records_in == 10

    async with reader(bootstrap, ten, auto_offset_reset="latest") as consumer:
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
        consumer.seek(TopicPartition(ten, 0), 0)
        for _ in range(2):
            try:
                async with asyncio.timeout(60):
                    await exactly_once(consumer, writer, transform, on_transaction=until_all, vetoes=vetoes)
                break
            except Exception:
                assert failed
                assert broken != "a veto"
    assert values(await read_all(bootstrap, out, "read_committed")) == TEN
    assert await committed(bootstrap, ten, ten) == 10


@pytest.mark.parametrize("anew", [True, False], ids=["anew each time", "one consumer and producer"])
async def test_a_copy_that_is_cancelled_four_times_is_complete(
    bootstrap: str, admin: Admin, name: str, out: str, anew: bool
) -> None:
    many = [b"%d" % number for number in range(3_000)]
    source = await filled(bootstrap, await make_topic(admin, name), many)
    moments = random.Random(3)
    moving = asyncio.Event()

    async def told(progress: CopyProgress) -> bool:
        if progress.committed:
            moving.set()
        return await consumer.position(TopicPartition(source, 0)) >= len(many)

    async def copy() -> None:
        await exactly_once(
            consumer,
            producer,
            lambda record: [NewMessage(out, record.value)],
            transaction_records_max=50,
            on_transaction=told,
        )

    async def begin() -> tuple[Consumer, Producer]:
        consumer = reader(bootstrap, source)
        producer = Producer(bootstrap_servers=bootstrap, transactional_id=name)
        await consumer.start()
        await producer.start()
        return consumer, producer

    consumer, producer = await begin()
    try:
        for _ in range(4):
            moving.clear()
            task = asyncio.create_task(copy())
            await asyncio.wait_for(moving.wait(), 60)
            await asyncio.sleep(moments.random() * 0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if anew:
                await consumer.stop()
                await producer.stop()
                consumer, producer = await begin()
        assert len(await read_all(bootstrap, out, "read_committed")) < len(many), "cancelled on its way"
        await asyncio.wait_for(copy(), 60)
    finally:
        await consumer.stop()
        await producer.stop()
    assert values(await read_all(bootstrap, out, "read_committed")) == many
