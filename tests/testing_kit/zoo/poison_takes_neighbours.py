"""Bug: a record that cannot be processed ends the work on its whole batch, which is then committed."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "lost"


async def copy(servers: str, correct: bool) -> None:
    """Copies `in` to `out` and what cannot be copied to `dead`."""
    place = TopicPartition("in", 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id="copy", enable_auto_commit=False)
    async with consumer, AIOKafkaProducer(bootstrap_servers=servers) as producer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for record in (await consumer.getmany(timeout_ms=100)).get(place, []):
                try:
                    await producer.send_and_wait("out", record.value)
                except KafkaError:
                    await producer.send_and_wait("dead", record.value)
                    if not correct:
                        break
            await consumer.commit()


def check(zoo: Zoo, correct: bool) -> None:
    """One write is refused."""
    zoo.fill("in", b"0", b"1", b"2", b"3")
    zoo.faults.on("Produce", topic="out", nth=2).error("MESSAGE_TOO_LARGE")
    asyncio.run(copy(zoo.servers, correct))
    same(zoo.written("out") + zoo.written("dead"), [b"0", b"2", b"3", b"1"])
