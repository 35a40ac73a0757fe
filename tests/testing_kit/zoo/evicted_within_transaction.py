"""Bug: a member of a group leaves the group within its transaction, and its client (aiokafka) commits offsets without its generation."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.testing_kit.zoo.keeper import LIMIT_S, Zoo, same

SYMPTOM = "twice"


async def copy(servers: str, correct: bool) -> None:
    """Copies `in` to `out` up to the record `end`, a transaction for each record."""
    place = TopicPartition("in", 0)
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="copy")
    settings = {"bootstrap_servers": servers, "group_id": "copy", "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(enable_auto_commit=False, **settings)
    if correct:
        consumer.assign([place])  # and a transactional id for each partition: no rebalance, and a second process fences
    else:
        consumer.subscribe(["in"])
    async with producer, consumer:
        async for record in consumer:
            async with producer.transaction():
                await producer.send("out", record.value)
                await producer.send_offsets_to_transaction({place: record.offset + 1}, "copy")
            if record.value == b"end":
                return


def check(zoo: Zoo, correct: bool) -> None:
    """The member is evicted, and joins again, before its offsets are committed."""
    zoo.fill("in", b"0", b"end")
    held = zoo.faults.on("TxnOffsetCommit").hold()
    group, fetched = zoo.kafka.group("copy").aio, zoo.faults.on("OffsetFetch", strict=False, times=None).delay(0)

    async def run() -> None:
        copying = asyncio.create_task(copy(zoo.servers, correct))
        await held.aio.wait(timeout=LIMIT_S)
        before = fetched.hits
        for member in await group.members():
            await group.evict(member.member_id)
            await fetched.aio.wait(
                before + 1, timeout=LIMIT_S
            )  # it has joined again, and asks for its committed offset
        held.release()
        await asyncio.wait_for(copying, LIMIT_S)

    asyncio.run(run())
    same(zoo.written("out"), [b"0", b"end"])
