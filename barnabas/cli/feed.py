"""The input of `barnabas demo`: rows that come in while they are copied, so that there is something to copy at every kill.

Rows are let in at the pace at which they last for the kills that are still to come (`hold_s`), the last one only after them; then
all at once. The input ends neither early on a fast machine nor with few rows, and waits for nobody on a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.client import Producer

__all__ = ["feed", "let_in"]

TICK_S: Final = 0.02
BURST: Final = 1024  # rows between two looks at the progress bar


def let_in(left: int, hold_s: float, credit: float) -> tuple[int, float]:
    """How many rows may come in during one tick, and what fraction of a row is kept for the next.

    Args:
        left: rows that are still outside.
        hold_s: for how long they should last; 0: all of them may come.
        credit: what the tick before kept, 0 ≤ credit < 1.
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
    """Sends every row, keyed by its number, to the partitions in turn; `on_sent` is told how many were let in so far."""
    sent, credit = 0, 0.0
    async with Producer(bootstrap_servers=bootstrap, linger_ms=5, max_batch_size=256 * 1024) as producer:
        while sent < len(rows):
            count, credit = let_in(len(rows) - sent, hold_s(), credit)
            for number in range(sent, sent + count):
                await producer.send(topic, rows[number], key=b"%d" % number, partition=number % partitions)
                if number % BURST == 0:
                    on_sent(number)
            sent += count
            on_sent(sent)
            await asyncio.sleep(TICK_S)
        await producer.flush()
