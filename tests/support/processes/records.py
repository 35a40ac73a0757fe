"""Topics and their records, for tests of the commands that write and read them."""

from __future__ import annotations

import asyncio
import itertools

from barnabas.client import Admin, Consumer, Record, TopicPartition
from barnabas.testing import Broker

_numbers = itertools.count(1)

Read = Record[bytes | None, bytes | None]


def topic_name(broker: Broker, *, partitions: int = 1, max_message_bytes: int | None = None) -> str:
    """Creates a topic with a name of its own."""
    config = {} if max_message_bytes is None else {"max.message.bytes": max_message_bytes}
    return broker.create_topic(f"records-{next(_numbers)}", partitions, config=config)


def read_topic(broker: Broker, topic: str, *, committed: bool = True) -> list[Read]:
    """All records below the ends of now, partition by partition."""

    async def read() -> list[Read]:
        found: list[Read] = []
        async with Consumer(
            bootstrap_servers=broker.bootstrap_servers,
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="earliest",
        ) as consumer:
            partitions = [TopicPartition(topic, p) for p in sorted(await consumer.partitions_for_topic(topic))]
            ends = await consumer.end_offsets(partitions)
            for tp in partitions:
                consumer.assign([tp])
                while await consumer.position(tp) < ends[tp]:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        found += records
        return found

    return asyncio.run(read())


def committed_offsets(broker: Broker, group: str) -> dict[int, int]:
    """The committed offsets of a group with one topic, by partition."""

    async def ask() -> dict[int, int]:
        async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            found = await admin.list_group_offsets(group)
            return {tp.partition: committed.offset for tp, committed in found.items()}

    return asyncio.run(ask())
