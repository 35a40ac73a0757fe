"""What happened in a run, in order: transactions of the replay, batches of Spark, open transactions, kills and recoveries.

Driven by: whoever does or sees it. Emits: the events as plain values, for the page and for the table at the end. Times are seconds
since the run began.

Invariants: events of a kind stand in the order of their beginnings; a kill has recovered when each query has completed a batch that
began after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Batch", "Kill", "Sample", "Story", "Transaction"]


@dataclass(slots=True)
class Transaction:
    """One of the replay: a day of flights and weather."""

    day: str
    records: int
    begin_s: float
    end_s: float
    committed: bool


@dataclass(slots=True)
class Batch:
    """One micro-batch that Spark has completed; `life` counts the drivers before."""

    query: str
    batch_id: int
    begin_s: float
    end_s: float
    rows: int
    event_time_max: str
    watermark: str
    life: int


@dataclass(slots=True)
class Sample:
    """How many transactions of the sinks were under way at a moment."""

    at_s: float
    open: int


@dataclass(slots=True)
class Kill:
    """One SIGKILL. back_s: when the last query had completed a batch that began after it; None until then."""

    what: str
    detail: str
    at_s: float
    back_s: float | None = None
    queries_back: dict[str, float] = field(default_factory=dict)


class Story:
    """See the module."""

    def __init__(self, queries: tuple[str, ...]) -> None:
        self.queries = queries
        self.transactions: list[Transaction] = []
        self.batches: list[Batch] = []
        self.samples: list[Sample] = []
        self.kills: list[Kill] = []
        self.notes: list[tuple[float, str]] = []
        self._changed = asyncio.Event()
        self._began_s = time.monotonic()
        self._began_wall_s = time.time()

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began_s

    def at_s(self, wall_s: float) -> float:
        """A moment of the wall clock (seconds since 1970), as another process on this machine tells it."""
        return wall_s - self._began_wall_s

    def note(self, text: str) -> None:
        """Something that happened now."""
        self.notes.append((self.now_s, text))

    def on_kill(self, what: str, detail: str) -> None:
        """A process was killed now."""
        self.kills.append(Kill(what, detail, self.now_s))

    def on_batch(self, batch: Batch) -> None:
        """A batch was completed."""
        self.batches.append(batch)
        for kill in self.kills:
            if kill.back_s is None and batch.begin_s > kill.at_s:
                kill.queries_back.setdefault(batch.query, batch.end_s)
                if len(kill.queries_back) == len(self.queries):
                    kill.back_s = max(kill.queries_back.values())

        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Returns when a condition holds; it is asked again after each batch."""
        while not reached():
            await self._changed.wait()

    def read_until(self) -> str:
        """The latest event time that every query has read; "" before each has read something."""
        latest = dict.fromkeys(self.queries, "")
        for batch in self.batches:
            latest[batch.query] = max(latest[batch.query], batch.event_time_max)
        return min(latest.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "queries": list(self.queries),
            "transactions": [asdict(each) for each in self.transactions],
            "batches": [asdict(each) for each in self.batches],
            "samples": [[round(each.at_s, 2), each.open] for each in self.samples],
            "kills": [asdict(each) for each in self.kills],
            "notes": [[round(at_s, 2), text] for at_s, text in self.notes],
            "seconds": self.now_s,
        }
