"""The events of a run, in order: transactions of the replay, Spark batches, open transactions, kills and recoveries.

Times are seconds since the run began.

Invariants: events of one kind are in the order of their beginnings; a run has recovered from a kill when each query has
completed a batch that began after it, or has come to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class ReplayedDay:
    """One transaction of the replay: a day of flights and weather."""

    day: str
    records: int
    begin_s: float
    end_s: float
    committed: bool


@dataclass(slots=True)
class MicroBatch:
    """One completed micro-batch. `driver_index` is the number of drivers that ran before its driver."""

    query: str
    batch_id: int
    begin_s: float
    end_s: float
    rows: int
    event_time_max: str
    watermark: str
    driver_index: int


@dataclass(slots=True)
class Sample:
    """The number of open transactions of the sinks at one time."""

    at_s: float
    open: int


@dataclass(slots=True)
class QueryKill:
    """One SIGKILL. back_s: when the last query completed a batch that began after it; None until then."""

    what: str
    detail: str
    at_s: float
    back_s: float | None = None
    queries_back: dict[str, float] = field(default_factory=dict)


class Story:
    """Records the events of a run; see the module."""

    def __init__(self, queries: tuple[str, ...]) -> None:
        self.queries = queries
        self.transactions: list[ReplayedDay] = []
        self.batches: list[MicroBatch] = []
        self.samples: list[Sample] = []
        self.kills: list[QueryKill] = []
        self.notes: list[tuple[float, str]] = []
        self._idle: dict[str, float] = {}  # when a query last had nothing to read
        self._ended: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._began_s = time.monotonic()
        self._began_wall_s = time.time()

    @property
    def now_s(self) -> float:
        """The time in seconds since the run began."""
        return time.monotonic() - self._began_s

    def at_s(self, wall_s: float) -> float:
        """Converts a wall-clock time of this machine (seconds since 1970) to seconds since the run began."""
        return wall_s - self._began_wall_s

    def note(self, text: str) -> None:
        """Records an event of the present time."""
        self.notes.append((self.now_s, text))

    def on_kill(self, what: str, detail: str) -> None:
        """Records that a process was killed now."""
        self.kills.append(QueryKill(what, detail, self.now_s))

    def on_batch(self, batch: MicroBatch) -> None:
        """Records a completed batch."""
        self.batches.append(batch)
        for kill in self.kills:
            if kill.back_s is None and batch.begin_s > kill.at_s:
                kill.queries_back.setdefault(batch.query, batch.end_s)
        self._on_progress()

    def on_idle(self, query: str, at_s: float) -> None:
        """Records that a query had nothing to read. A driver that was killed may not have reported the batches that read it."""
        self._idle[query] = at_s
        self._on_progress()

    def on_end(self, query: str, at_s: float) -> None:
        """Records that a query has come to its end: it has nothing to recover."""
        self._ended[query] = at_s
        self._on_progress()

    def _on_progress(self) -> None:
        for kill in self.kills:
            back = self._ended | kill.queries_back
            if kill.back_s is None and len(back) == len(self.queries):
                kill.back_s = max(kill.at_s, *back.values())
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits until a condition holds; checks it again after each event of a query."""
        while not reached():
            await self._changed.wait()

    def read_until(self) -> str:
        """The latest event time that every query has read; "" until each query has read a record."""
        latest = dict.fromkeys(self.queries, "")
        for batch in self.batches:
            latest[batch.query] = max(latest[batch.query], batch.event_time_max)
        for query, at_s in self._idle.items():
            days = [each.day for each in self.transactions if each.committed and each.end_s < at_s]
            latest[query] = max(latest[query], *days[-1:])
        return min(latest.values())

    def as_dict(self) -> dict[str, Any]:
        """The events as plain values, for JSON."""
        return {
            "queries": list(self.queries),
            "transactions": [asdict(each) for each in self.transactions],
            "batches": [asdict(each) for each in self.batches],
            "samples": [[round(each.at_s, 2), each.open] for each in self.samples],
            "kills": [asdict(each) for each in self.kills],
            "notes": [[round(at_s, 2), text] for at_s, text in self.notes],
            "seconds": self.now_s,
        }
