"""What a read_committed reader finds in a topic of numbers."""

from __future__ import annotations

from typing import Any

from barnabas.client import Consumer


async def committed(settings: dict[str, Any], topic: str) -> list[bytes]:
    """The values, by number.

    Args:
        settings: of the consumer: the address, and what a login needs.
    """
    reading: Any = Consumer(topic, auto_offset_reset="earliest", isolation_level="read_committed", **settings)
    found: list[bytes] = []
    async with reading as consumer:
        while polled := await consumer.getmany(timeout_ms=1_000):
            found += [record.value for records in polled.values() for record in records]
    return sorted(found, key=int)
