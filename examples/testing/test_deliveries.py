"""Tests of the application in deliveries.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from deliveries import deliver

from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(topics={"deliveries": 1, "deliveries.retry": 1, "deliveries.dead": 1})
DeadLetters = Callable[[], list[tuple[bytes, bytes | None]]]
DEAD = [(b"bomb", b"ValueError('nobody wants this')"), (b"end", None)]


@pytest.fixture
def deliver_all(kafka_producer: KitProducer, kafka_aio_config: dict[str, Any]) -> Callable[[], list[bytes]]:
    """Runs the application over three records, of which one fails three times. Returns what was handled."""

    def run() -> list[bytes]:
        handled: list[bytes] = []

        def handle(value: bytes) -> None:
            if value == b"bomb":
                raise ValueError("nobody wants this")
            handled.append(value)

        for value in (b"tea", b"bomb", b"milk"):
            kafka_producer.send("deliveries", value)
        asyncio.run(asyncio.wait_for(deliver(kafka_aio_config, handle, attempts=5), 60))
        kafka_producer.send("deliveries.dead", b"end")
        return handled

    return run


def letters(records: list[Any]) -> list[tuple[bytes, bytes | None]]:
    """The dead letters and their reasons; the last one is the mark that is written behind all others."""
    return [(each.value, dict(each.headers).get("error")) for each in records]


@pytest.fixture
def dead_reader(make_kafka_consumer: Callable[..., KitConsumer]) -> KitConsumer:
    reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
    reader.assign(("deliveries.dead", 0))
    return reader


@pytest.fixture
def dead_letters(dead_reader: KitConsumer) -> DeadLetters:
    """Reads two dead letters."""
    return lambda: letters(dead_reader.take(2))


def test_a_bad_record_holds_up_no_other(deliver_all: Callable[[], list[bytes]], dead_letters: DeadLetters) -> None:
    assert deliver_all() == [b"tea", b"milk"]
    assert dead_letters() == DEAD


@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
def test_one_dead_letter_whatever_answer_is_lost(
    deliver_all: Callable[[], list[bytes]],
    dead_letters: DeadLetters,
    kafka_faults: Faults,
    api: str,
) -> None:
    kafka_faults.on(api, txn="deliveries-1", nth=3).disconnect(at="applied")
    assert set(deliver_all()) == {b"tea", b"milk"}
    assert dead_letters() == DEAD


async def test_a_process_dies_after_it_has_committed_a_dead_letter(
    kafka_producer: KitProducer, kafka_aio_config: dict[str, Any], dead_reader: KitConsumer, kafka_faults: Faults
) -> None:
    def refuse(value: bytes) -> None:
        raise ValueError("nobody wants this")

    kafka_producer.send("deliveries", b"bomb")
    lost = kafka_faults.on("EndTxn", txn="deliveries-1", nth=3, times=None).disconnect(at="applied")
    dying = asyncio.create_task(deliver(kafka_aio_config, refuse, attempts=3))
    await lost.aio.wait(timeout=60)
    dying.cancel()
    lost.remove()
    await asyncio.wait([dying], timeout=60)
    kafka_producer.send("deliveries", b"tea")
    handled: list[bytes] = []
    await asyncio.wait_for(deliver(kafka_aio_config, handled.append, attempts=1), 60)
    assert handled == [b"tea"]
    kafka_producer.send("deliveries.dead", b"end")
    assert letters(await dead_reader.aio.take(2)) == DEAD
