"""Replays the year in event-time order: one transaction per day of flights and weather; some are aborted and repeated.

The replay is at most AHEAD in front of what every query has read. So the watermark drops no row, however long a broker
or the driver is down: no partition gets further from the others than the watermark allows. And each process has work at
the time of its kill, on slow and on fast machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from typing import Final

from barnabas.client import Producer
from examples.demo.flights.dataset import Dataset, Event
from examples.demo.flights.story import ReplayedDay, Story

AHEAD: Final = timedelta(days=28)
WATERMARK: Final = "30 days"  # more than AHEAD plus the one transaction whose end a partition may not have received yet
TRANSACTIONAL_ID: Final = "flights-replay"
CLOSING_EVERY_S: Final = 5.0
ABORTED_EVERY: Final = 20  # days; the transaction of every 20th day is aborted first, then repeated


async def send_tables(bootstrap: str, dataset: Dataset) -> None:
    """Sends planes and airlines to their compacted topics."""
    async with Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        await _send(producer, dataset.planes)
        await _send(producer, dataset.airlines)
        await producer.flush()


async def replay_flights(bootstrap: str, dataset: Dataset, story: Story, on_day: Callable[[int], None]) -> None:
    """Sends every day, then the closing records until it is cancelled. `on_day` receives the number of committed days.

    A query whose driver dies after its last batch needs another record: Spark runs a batch that only closes windows after a
    batch of the same run.
    """
    async with Producer(
        bootstrap_servers=bootstrap, transactional_id=TRANSACTIONAL_ID, linger_ms=5, max_batch_size=256 * 1024
    ) as producer:
        for number, day in enumerate(dataset.days, start=1):
            await story.until(partial(_may_send, day.day, dataset.days[0].day, story))
            if number % ABORTED_EVERY == 0:
                await _transaction(producer, str(day.day), day.events, story, commit=False)
            await _transaction(producer, str(day.day), day.events, story, commit=True)
            on_day(number)
        while True:
            await _transaction(producer, "closing", dataset.closing, story, commit=True)
            await asyncio.sleep(CLOSING_EVERY_S)


def _may_send(day: date, first: date, story: Story) -> bool:
    read_until = story.read_until()
    read = date.fromisoformat(read_until[:10]) if read_until else first
    return day < read + AHEAD


async def _transaction(producer: Producer, day: str, events: list[Event], story: Story, *, commit: bool) -> None:
    begin_s = story.now_s
    await producer.begin_transaction()
    await _send(producer, events)
    if commit:
        await producer.commit_transaction()
    else:
        await producer.flush()
        await producer.abort_transaction()
    story.transactions.append(ReplayedDay(day, len(events), begin_s, story.now_s, commit))


async def _send(producer: Producer, events: list[Event]) -> None:
    for event in events:
        await producer.send(event.topic, event.value, event.key, timestamp_ms=event.timestamp_ms)
