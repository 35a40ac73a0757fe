"""Bug: a fenced producer is replaced by a new one with the same transactional id, and the work is done again."""

from __future__ import annotations

import asyncio

from barnabas.client import Producer
from barnabas.client.errors import ProducerFenced
from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "twice"


async def relay(servers: str, rows: list[bytes], correct: bool) -> None:
    """Publishes the rows of an outbox table."""
    again = True
    while again:
        again = False
        try:
            producer = Producer(bootstrap_servers=servers, transactional_id="relay")
            async with producer, producer.transaction():
                for row in rows:
                    await producer.send_and_wait("out", row)
        except ProducerFenced:
            again = not correct  # a successor has taken over: it publishes these rows


def check(zoo: Zoo, correct: bool) -> None:
    """A successor starts while the first one commits."""
    held = zoo.faults.on("EndTxn", txn="relay").hold()

    async def run() -> None:
        first = asyncio.create_task(relay(zoo.servers, [b"row"], correct))
        await held.aio.wait(timeout=60)
        await relay(zoo.servers, [b"row"], correct)
        held.release()
        await first

    asyncio.run(run())
    same(zoo.written("out"), [b"row"])
