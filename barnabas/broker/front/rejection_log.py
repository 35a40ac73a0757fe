"""RejectionLogLimiter: rate limit of the log lines about rejected connections, one a minute for each client and reason.

A client that tries again, such as one with TLS at a listener without TLS, would otherwise fill the log.
"""

from __future__ import annotations

from typing import Final

from barnabas.ports import Clock

AGAIN_MS: Final = 60_000
KEPT_MAX: Final = 1_000  # addresses and listeners; the oldest is forgotten


class RejectionLogLimiter:
    """Rate limit of the log lines about rejected connections."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[
            tuple[str, str], tuple[str, int]
        ] = {}  # the last reason of an address, and until when it is not repeated

    def before(self, host: str, listener: str, reason: str) -> bool:
        """Whether this is the last reason that was logged for the address, less than AGAIN_MS ago. If not, it is now."""
        now_ms = self._clock.monotonic_ms()
        key = host, listener
        last, until_ms = self._told.get(key, ("", 0))
        if last == reason and now_ms < until_ms:
            return True
        self._told.pop(key, None)
        if len(self._told) >= KEPT_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = reason, now_ms + AGAIN_MS
        return False
