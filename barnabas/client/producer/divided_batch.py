"""Outcome of an encoded batch that was divided because the broker found it too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from barnabas.client.errors import KafkaError, PartlyWritten
from barnabas.client.types import RecordMetadata

Fail = Callable[[Sequence[asyncio.Future[RecordMetadata]], KafkaError], None]


class _Tally:
    """Counts the outcomes of one batch's records; its future completes with the last."""

    def __init__(self, fail: Fail, future: asyncio.Future[RecordMetadata], count: int) -> None:
        self._fail = fail
        self._future = future
        self._left = count
        self._count = count
        self._first: RecordMetadata | None = None
        self._failed: dict[int, BaseException] = {}

    def count(self, place: int, outcome: RecordMetadata | BaseException) -> None:
        self._left -= 1
        if isinstance(outcome, BaseException):
            self._failed[place] = outcome
        elif place == 0:
            self._first = outcome
        if self._left:
            return
        if self._failed or self._first is None:
            self._fail([self._future], PartlyWritten(dict(sorted(self._failed.items())), self._count))
        elif not self._future.done():
            self._future.set_result(self._first)


class DividedRecord:
    """One record of a divided batch, in place of a future."""

    __slots__ = ("_place", "_tally")

    def __init__(self, tally: _Tally, place: int) -> None:
        self._tally = tally
        self._place = place

    def done(self) -> bool:
        return False

    def set_result(self, metadata: RecordMetadata) -> None:
        self._tally.count(self._place, metadata)

    def set_exception(self, error: BaseException) -> None:
        self._tally.count(self._place, error)


def divided(fail: Fail, future: asyncio.Future[RecordMetadata], count: int) -> list[object]:
    """Handles of `count` records whose outcomes together complete `future`; `fail` sets its error."""
    tally = _Tally(fail, future, count)
    return [DividedRecord(tally, place) for place in range(count)]
