"""Unretrieved record failures: `flush` and `stop` raise them, so that none is lost silently.
asyncio marks in its futures (`_callbacks`, `_log_traceback`) whether a caller waits or has read the exception; a test
checks that. Reading them costs nothing for written records, unlike a custom future class.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from barnabas.client.errors import KafkaError, SendFailed
from barnabas.client.producer.divided_batch import DividedRecord

FUTURES_MAX = 10_000
ERRORS_MAX = 100  # errors of one SendFailed; all records are counted

_Future = asyncio.Future[Any]


class UnretrievedErrors:
    """Failures of one producer since they were last taken. Above FUTURES_MAX futures the oldest are decided at once."""

    def __init__(self) -> None:
        self._held: deque[tuple[KafkaError, list[_Future]]] = deque()
        self._held_count = 0
        self._errors: list[KafkaError] = []
        self._record_count = 0

    def fail(self, handles: Sequence[_Future | DividedRecord], error: KafkaError) -> None:
        """Sets the error of one batch's futures; keeps those that no caller waits for."""
        held: list[_Future] = []
        untold = 0
        for future in handles:
            if isinstance(future, DividedRecord):
                future.set_exception(error)
                continue
            if future.done():
                untold += 1  # only its caller can have ended it, by a cancellation
                continue
            watched = bool(future._callbacks)
            try:
                future.set_exception(error)
            except RuntimeError:  # its event loop is closed, so its callbacks cannot run
                untold += 1
                continue
            if not watched:
                held.append(future)
        if untold:
            self._count(error, untold)
        if held:
            self._held.append((error, held))
            self._held_count += len(held)
            while self._held_count > FUTURES_MAX:
                self._decide()

    def take(self) -> SendFailed | None:
        """All unretrieved failures as one error, or None. The next call begins anew."""
        while self._held:
            self._decide()
        errors, count = self._errors, self._record_count
        self._errors, self._record_count = [], 0
        return SendFailed(count, errors) if errors else None

    def clear(self) -> None:
        self.take()

    def _decide(self) -> None:
        error, futures = self._held.popleft()
        self._held_count -= len(futures)
        left = 0
        for future in futures:
            if future._log_traceback:
                future._log_traceback = False
                left += 1
        if left:
            self._count(error, left)

    def _count(self, error: KafkaError, records: int) -> None:
        self._record_count += records
        if len(self._errors) < ERRORS_MAX:
            self._errors.append(error)
