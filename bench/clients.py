"""Python clients side by side: records a second and CPU a record, one partition, against one broker that is running.

usage: clients.py BOOTSTRAP [--records 300000] [--size 100] [--only barnabas,aiokafka,confluent] [--rounds 2]

Each client produces to a topic of its own and then reads it; the best round of each is told, with the client's own CPU.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Awaitable, Callable

from barnabas.runtime.loop import run

Figures = tuple[float, float]  # seconds, CPU seconds


async def timed(work: Awaitable[None]) -> Figures:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    return time.perf_counter() - wall, time.process_time() - cpu


async def bundled(bootstrap: str, topic: str, records: int, size: int) -> tuple[Figures, Figures]:
    from barnabas.client import Consumer, Producer, TopicPartition

    value = b"x" * size
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, value)

        async def produce() -> None:
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()

        produced = await timed(produce())
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)

        async def consume() -> None:
            left = records
            while left > 0:
                for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                    left -= len(batch)

        return produced, await timed(consume())


async def aiokafka(bootstrap: str, topic: str, records: int, size: int) -> tuple[Figures, Figures]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    value = b"x" * size
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, value)

        async def produce() -> None:
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()

        produced = await timed(produce())
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    consumer.assign([TopicPartition(topic, 0)])
    await consumer.start()
    consumer.seek(TopicPartition(topic, 0), 0)

    async def consume() -> None:
        left = records
        while left > 0:
            for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                left -= len(batch)

    consumed = await timed(consume())
    await consumer.stop()
    return produced, consumed


async def confluent(bootstrap: str, topic: str, records: int, size: int) -> tuple[Figures, Figures]:
    from confluent_kafka import Consumer, Producer, TopicPartition

    value = b"x" * size
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "queue.buffering.max.messages": 2_000_000}
    )

    async def produce() -> None:
        for i in range(records):
            producer.produce(topic, value)
            if not i & 1023:
                producer.poll(0)
        producer.flush()

    produced = await timed(produce())
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])

    async def consume() -> None:
        left = records
        while left > 0:
            left -= len(consumer.consume(10_000, 1.0))

    consumed = await timed(consume())
    consumer.close()
    return produced, consumed


CLIENTS: dict[str, Callable[[str, str, int, int], Awaitable[tuple[Figures, Figures]]]] = {
    "barnabas": bundled,
    "aiokafka": aiokafka,
    "confluent": confluent,
}


async def main(bootstrap: str, records: int, size: int, names: list[str], rounds: int) -> None:
    best: dict[str, list[Figures]] = {}
    for _ in range(rounds):
        for name in names:
            figures = await CLIENTS[name](bootstrap, f"bench-{uuid.uuid4().hex[:10]}", records, size)
            best[name] = [min(pair) for pair in zip(figures, best.get(name, list(figures)), strict=True)]
    for name, (produced, consumed) in best.items():
        print(
            f"{name:10} produce {records / produced[0]:9,.0f}/s {produced[1] / records * 1e6:5.2f} µs CPU"
            f"   consume {records / consumed[0]:9,.0f}/s {consumed[1] / records * 1e6:5.2f} µs CPU"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--only", default=",".join(CLIENTS))
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    run(main(arguments.bootstrap, arguments.records, arguments.size, arguments.only.split(","), arguments.rounds))
