"""Retries and dead letters: a record whose handling fails is tried three times, and then kept with the reason.

A failed record moves to the topic of retries, so it holds up no other. It moves in the transaction that commits its offset, so
there is one copy of it, and none is lost. `handle` itself runs at least once for each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from barnabas.client import Consumer, CopyProgress, NewMessage, Producer, Record, exactly_once

__all__ = ["deliver"]

ATTEMPTS = 3


async def deliver(kafka: dict[str, Any], handle: Callable[[bytes], None], attempts: int) -> None:
    """Handles the records of "deliveries" and of "deliveries.retry", until `attempts` attempts are committed."""

    def attempt(record: Record[Any, Any]) -> Iterator[NewMessage]:
        headers = dict(record.headers)
        number = int(headers.get("attempt") or 1)
        try:
            handle(record.value)
        except Exception as error:  # whatever is wrong with one record, the others go on
            if number < ATTEMPTS:
                yield NewMessage("deliveries.retry", record.value, record.key, [("attempt", b"%d" % (number + 1))])
            else:
                yield NewMessage("deliveries.dead", record.value, record.key, [("error", repr(error).encode())])

    async def enough(progress: CopyProgress) -> bool:
        return progress.records_in >= attempts

    consumer = Consumer(
        "deliveries",
        "deliveries.retry",
        **kafka,
        group_id="deliveries",
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with consumer, Producer(**kafka, transactional_id="deliveries-1") as producer:
        await exactly_once(consumer, producer, attempt, on_transaction=enough)
