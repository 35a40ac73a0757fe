"""Bug: the reader of transactional output has the default isolation level, and counts what was aborted."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from barnabas.client import Producer
from barnabas.client.errors import KafkaError
from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "twice"


async def read(servers: str, correct: bool) -> list[bytes]:
    """Reads the bookings."""
    isolation: dict[str, Any] = {"isolation_level": "read_committed"} if correct else {}
    place, found = TopicPartition("out", 0), []
    async with AIOKafkaConsumer(bootstrap_servers=servers, **isolation) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [each.value for each in records]
    return found


async def book(servers: str) -> None:
    """Writes debit and credit; once more if that fails."""
    async with Producer(bootstrap_servers=servers, transactional_id="bookings") as producer:
        for _ in range(2):
            try:
                async with producer.transaction():
                    await producer.send_and_wait("out", b"debit")
                    await producer.send_and_wait("out", b"credit")
                return
            except KafkaError:
                continue


def check(zoo: Zoo, correct: bool) -> None:
    """The second record of a transaction is refused, so it is aborted and done again."""
    zoo.faults.on("Produce", topic="out", nth=2).error("INVALID_RECORD")
    asyncio.run(book(zoo.servers))
    same(asyncio.run(read(zoo.servers, correct)), [b"debit", b"credit"])
