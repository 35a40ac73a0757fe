"""Feeds the input of `make demo`, so that rows are left to copy at every kill.

The pace is such that the rows last for the remaining kills (`hold_s`). The last row is sent after the last kill; the
rows left by then are sent without delay. So the input lasts for all kills, on fast and slow machines and with few rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.client import Producer

TICK_S: Final = 0.02
BURST: Final = 1024  # rows between two updates of the progress bar


def rows_of_tick(left: int, hold_s: float, credit: float) -> tuple[int, float]:
    """Computes how many rows to send in one tick, and the fraction of a row carried over to the next.

    Args:
        left: rows not sent yet.
        hold_s: seconds that they should last; 0 sends all of them.
        credit: fraction carried over from the tick before, 0 ≤ credit < 1.
    """
    if hold_s <= 0:
        return left, 0.0
    due = credit + left * TICK_S / hold_s
    count = min(int(due), left - 1)
    return count, min(due - count, 0.999)


async def feed(
    bootstrap: str,
    topic: str,
    rows: Sequence[bytes],
    partitions: int,
    hold_s: Callable[[], float],
    on_sent: Callable[[int], None],
) -> None:
    """Sends every row, keyed by its number, to the partitions in turn; `on_sent` receives the number of rows so far."""
    sent, credit = 0, 0.0
    async with Producer(bootstrap_servers=bootstrap, linger_ms=5, max_batch_size=256 * 1024) as producer:
        while sent < len(rows):
            count, credit = rows_of_tick(len(rows) - sent, hold_s(), credit)
            for number in range(sent, sent + count):
                await producer.send(topic, rows[number], key=b"%d" % number, partition=number % partitions)
                if number % BURST == 0:
                    on_sent(number)
            sent += count
            on_sent(sent)
            await asyncio.sleep(TICK_S)
        await producer.flush()
