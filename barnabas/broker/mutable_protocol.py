"""MutableProtocol: the part of a connection that serves and reads nothing while its client is throttled (KIP-219).

Driven by: charges of requests (`quotas/enforcement`), the reactor's timers. Emits: a core that is muted, and reading that pauses.
"""

from __future__ import annotations

import asyncio

from barnabas.broker.reactor import Reactor
from barnabas.broker.waiting import Timer
from barnabas.protocol.connection import ServerConnection

__all__ = ["MutableProtocol"]


class MutableProtocol(asyncio.BufferedProtocol):
    """Base of a connection.

    Attributes:
        core: decides what is served and read.
    """

    __slots__ = ("_muted_until_ms", "_reactor", "_turn", "_unmute_timer", "core")

    def __init__(self, reactor: Reactor, core: ServerConnection) -> None:
        self._reactor = reactor
        self.core = core
        self._turn = False  # requests are being served: answers are written, and limits applied, at the end
        self._muted_until_ms = 0
        self._unmute_timer: Timer | None = None

    def mute(self, throttle_ms: int) -> None:
        """Serves and reads nothing for a time: the client exceeds a quota. Answers still leave."""
        until_ms = self._reactor.clock.monotonic_ms() + throttle_ms
        if self.core.closed or until_ms <= self._muted_until_ms:
            return
        self._end_mute()
        self._muted_until_ms = until_ms
        self._unmute_timer = self._reactor.call_later(throttle_ms, self._unmute)
        self.core.mute()
        if not self._turn:
            self._apply_limits()

    def _unmute(self) -> None:
        self._unmute_timer = None
        self.core.unmute()
        self._apply_limits()

    def _end_mute(self) -> None:
        """Ends the timer."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = None

    def _apply_limits(self) -> None:
        """Serves and reads again what the core allows."""
        raise NotImplementedError
