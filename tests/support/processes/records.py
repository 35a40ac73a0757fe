"""Topics and their records, for tests of the commands that write and read them."""

from __future__ import annotations

import asyncio
import itertools

from barnabas.client import Admin, Record
from barnabas.testing import Broker
from tests.support.clients.bundled import read_all

_numbers = itertools.count(1)

Read = Record[bytes | None, bytes | None]


def topic_name(broker: Broker, *, partitions: int = 1, max_message_bytes: int | None = None) -> str:
    """Creates a topic with a name of its own."""
    config = {} if max_message_bytes is None else {"max.message.bytes": max_message_bytes}
    return broker.create_topic(f"records-{next(_numbers)}", partitions, config=config)


def read_topic(broker: Broker, topic: str) -> list[Read]:
    """All committed records below the ends of now, partition by partition."""
    return asyncio.run(read_all(broker.bootstrap_servers, topic, "read_committed"))


def committed_offsets(broker: Broker, group: str) -> dict[int, int]:
    """The committed offsets of a group with one topic, by partition."""

    async def ask() -> dict[int, int]:
        async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            found = await admin.list_group_offsets(group)
            return {tp.partition: committed.offset for tp, committed in found.items()}

    return asyncio.run(ask())
