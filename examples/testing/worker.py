"""An application on the bundled client: a member of a group that processes records and then commits them.

A record whose processing has failed is not committed, so the next member processes it again: at least once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.client import Consumer

__all__ = ["process"]


async def process(kafka: dict[str, Any], topic: str, count: int, handle: Callable[[bytes], None]) -> None:
    """Calls `handle` with the next `count` records of the group, and commits each one when `handle` has returned."""
    consumer = Consumer(topic, **kafka, group_id="worker", enable_auto_commit=False, auto_offset_reset="earliest")
    async with consumer:
        for _ in range(count):
            record = await consumer.getone()
            if record.value is not None:  # a tombstone has no value
                handle(record.value)
            await consumer.commit()
