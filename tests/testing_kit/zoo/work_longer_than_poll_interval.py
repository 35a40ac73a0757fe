"""Bug: the work on one record takes longer than max.poll.interval.ms, so the member has left its group when it commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from barnabas.client import CommitFailed, Consumer, Producer
from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "twice"
INTERVAL_S = 0.5


async def copy(servers: str, correct: bool, service: Callable[[], Awaitable[None]]) -> None:
    """Copies two records from `in` to `out`; a slow service takes part."""
    consumer = Consumer(
        "in", bootstrap_servers=servers, group_id="copy", auto_offset_reset="earliest",
        enable_auto_commit=False, max_poll_interval_ms=int(INTERVAL_S * 1000), heartbeat_interval_ms=100,
    )  # fmt: skip
    committed = 0
    async with consumer, Producer(bootstrap_servers=servers) as producer:
        while committed < 2:
            record = await consumer.getone()
            working = asyncio.ensure_future(service())
            if correct:  # polls on, and gets no other records
                consumer.pause(*consumer.assignment())
                while not working.done():
                    await consumer.getmany(timeout_ms=50)
                consumer.resume(*consumer.assignment())
            await working
            await producer.send_and_wait("out", record.value)
            try:
                await consumer.commit()
                committed += 1
            except CommitFailed:  # the record comes again
                continue


def check(zoo: Zoo, correct: bool) -> None:
    """The service is slow once."""
    zoo.fill("in", b"0", b"1")
    seconds = iter([3 * INTERVAL_S])
    asyncio.run(copy(zoo.servers, correct, lambda: asyncio.sleep(next(seconds, 0.0))))
    same(zoo.written("out"), [b"0", b"1"])
