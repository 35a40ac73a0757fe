"""Bug: the program ends while its producer still has records to send."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "lost"


async def save(servers: str, correct: bool) -> None:
    """Writes records and ends."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    await producer.start()
    for value in (b"0", b"1"):
        await producer.send("out", value)  # returns when the record has its place in a batch
    if correct:
        await producer.stop()


def check(zoo: Zoo, correct: bool) -> None:
    """The first attempt fails, as while a leader changes, if there is one."""
    zoo.faults.on("Produce", topic="out", strict=False).error("NOT_LEADER_OR_FOLLOWER")
    asyncio.run(save(zoo.servers, correct))
    same(zoo.written("out"), [b"0", b"1"])
