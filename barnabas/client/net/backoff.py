"""The pause before a retry: one rule for every retry of the client.

A pause is a quarter of the time for which the attempts have failed, within limits. A failure that lasts 0.3 s causes short
pauses, and a failure of a minute causes few requests; recovery is noticed at most 25 % late. (With doubling pauses it can be
noticed 100 % late.) Jitter spreads clients that lost the same broker at the same moment.

Pure: time and randomness are arguments.
"""

from __future__ import annotations

from barnabas.ports import Rng

PAUSE_MAX_MS = 1_000
_SHARE = 4  # a pause is a quarter of the time since the first failure
_JITTER = 0.2  # each pause varies by ±20 %


def retry_pause_ms(failing_ms: int, first_ms: int, rng: Rng) -> int:
    """The pause before the next attempt, in milliseconds.

    Args:
        failing_ms: time since the first failed attempt; 0 for the first failure.
        first_ms: the shortest pause, ≥ 0.
    """
    pause = min(max(first_ms, failing_ms // _SHARE), max(first_ms, PAUSE_MAX_MS))
    return int(pause * (1 - _JITTER + 2 * _JITTER * rng.random()))


class Backoff:
    """The pauses between the attempts of one operation.

    Args:
        first_ms: the shortest pause, ≥ 0.
    """

    __slots__ = ("_first_ms", "_rng", "_since_ms")

    def __init__(self, first_ms: int, rng: Rng) -> None:
        self._first_ms = first_ms
        self._rng = rng
        self._since_ms: int | None = None

    def pause_ms(self, now_ms: int) -> int:
        """Records a failed attempt and returns the pause before the next one."""
        if self._since_ms is None:
            self._since_ms = now_ms
        return retry_pause_ms(now_ms - self._since_ms, self._first_ms, self._rng)

    def reset(self) -> None:
        """Records a success: the next failure starts with the shortest pause."""
        self._since_ms = None
