"""How soon the same thing is tried again: the one rule behind every pause of the client.

A pause is a share of how long the trouble has lasted, so that what takes 0.3 s to mend is not waited for a second, and what
takes a minute is not asked for a thousand times: whenever the end comes, it is noticed a quarter too late at most. Doubling
pauses would notice it as late again as it came. Jitter spreads clients that lost the same broker at the same moment.

Pure: fed with times and an Rng.
"""

from __future__ import annotations

from barnabas.ports import Rng

__all__ = ["PAUSE_MAX_MS", "Backoff", "retry_pause_ms"]

PAUSE_MAX_MS = 1_000
_SHARE = 4  # a pause is a quarter of the trouble so far
_JITTER = 0.2  # more or less, of each pause


def retry_pause_ms(lasted_ms: int, first_ms: int, rng: Rng) -> int:
    """The pause before the next attempt.

    Args:
        lasted_ms: since the first attempt failed; 0 where it has failed just now.
        first_ms: the shortest pause, ≥ 0.
    """
    pause = min(max(first_ms, lasted_ms // _SHARE), max(first_ms, PAUSE_MAX_MS))
    return int(pause * (1 - _JITTER + 2 * _JITTER * rng.random()))


class Backoff:
    """The pauses of one thing that is tried until it goes well.

    Args:
        first_ms: the shortest pause, ≥ 0.
    """

    __slots__ = ("_first_ms", "_rng", "_since_ms")

    def __init__(self, first_ms: int, rng: Rng) -> None:
        self._first_ms = first_ms
        self._rng = rng
        self._since_ms: int | None = None

    def pause_ms(self, now_ms: int) -> int:
        """It failed: how long to wait."""
        if self._since_ms is None:
            self._since_ms = now_ms
        return retry_pause_ms(now_ms - self._since_ms, self._first_ms, self._rng)

    def settle(self) -> None:
        """It went well, or it is another thing now: the next trouble begins anew."""
        self._since_ms = None
