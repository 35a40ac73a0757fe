"""Bug: two workers have one transactional id, so each fences the other."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "lost"


async def work(servers: str, number: int, correct: bool) -> None:
    """Writes the result of one worker."""
    name = f"work-{number}" if correct else "work"
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name, client_id=f"worker-{number}")
    async with producer, producer.transaction():
        await producer.send_and_wait("out", b"%d" % number)


def check(zoo: Zoo, correct: bool) -> None:
    """A worker runs while another one commits."""
    held = zoo.faults.on("EndTxn", client="worker-0").hold()

    async def run() -> None:
        first = asyncio.create_task(work(zoo.servers, 0, correct))
        await held.aio.wait(timeout=60)
        await work(zoo.servers, 1, correct)
        held.release()
        await asyncio.gather(first, return_exceptions=True)

    asyncio.run(run())
    same(sorted(zoo.written("out")), [b"0", b"1"])
