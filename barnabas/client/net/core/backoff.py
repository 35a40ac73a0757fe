"""Retry backoff: a quarter of the time for which attempts have failed, within limits and with jitter.
Recovery is noticed at most 25 % late (doubling: 100 %). Pure.
"""

from __future__ import annotations

from barnabas.ports import Rng

PAUSE_MAX_MS = 1_000
_SHARE = 4  # a pause is a quarter of the time since the first failure
_JITTER = 0.2  # each pause varies by ±20 %


def retry_pause_ms(failing_ms: int, first_ms: int, rng: Rng) -> int:
    """Backoff in milliseconds after `failing_ms` of failures, at least `first_ms`."""
    pause = min(max(first_ms, failing_ms // _SHARE), max(first_ms, PAUSE_MAX_MS))
    return int(pause * (1 - _JITTER + 2 * _JITTER * rng.random()))


class Backoff:
    """Backoff between the attempts of one operation, at least `first_ms`."""

    __slots__ = ("_first_ms", "_rng", "_since_ms")

    def __init__(self, first_ms: int, rng: Rng) -> None:
        self._first_ms = first_ms
        self._rng = rng
        self._since_ms: int | None = None

    def pause_ms(self, now_ms: int) -> int:
        """After a failed attempt: the backoff before the next one."""
        if self._since_ms is None:
            self._since_ms = now_ms
        return retry_pause_ms(now_ms - self._since_ms, self._first_ms, self._rng)

    def reset(self) -> None:
        self._since_ms = None
