"""HandshakeGate: rate limiter of a listener's TLS handshakes, with a log of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from barnabas.errors import RemoteProtocolError
from barnabas.loggers import logger

log = logger("kafka.network.SocketServer")

HANDSHAKES_MAX: Final = 512  # of one listener at once: about 60 kB each
HANDSHAKE_TIMEOUT_S: Final = 10.0  # from accept to the end of the handshake
PATIENCE_S: Final = 1.0
TURN_S: Final = 0.004
LOG_EVERY_S: Final = 1.0
REASONS_MAX: Final = 32  # whose lines are limited one by one
RECORD_BYTES: Final = 16 * 1024  # plaintext of a TLS record
_RECORD_HEADER_BYTES: Final = 5
_HANDSHAKE_RECORD: Final = 0x16


def has_first_record(received: bytearray) -> bool:
    """Whether a client's first TLS record is complete. Raises RemoteProtocolError if it is no handshake."""
    if received[0] != _HANDSHAKE_RECORD or (len(received) > 1 and received[1] != 3):
        raise RemoteProtocolError("the client speaks PLAINTEXT, or no TLS, to a listener with TLS")
    if len(received) < _RECORD_HEADER_BYTES:
        return False
    size = int.from_bytes(received[3:5], "big")
    if not 0 < size <= RECORD_BYTES:
        raise RemoteProtocolError("the first message is longer than a TLS record, or empty")
    return len(received) >= _RECORD_HEADER_BYTES + size


class Handshaking(Protocol):
    """A connection before the end of its handshake."""

    def begin_handshake(self) -> None:
        """Starts the handshake; may call `HandshakeGate.leave`."""
        ...

    def go_on_handshake(self) -> None:
        """Continues with received bytes; may call `HandshakeGate.leave`."""
        ...

    def fail(self, reason: str) -> None:
        """Closes the connection."""
        ...


class HandshakeGate:
    """Handshakes of one listener, at most TURN_S in a turn of the loop (a signature takes 0.1 to 5 ms).

    If `most` run and others wait, the oldest fails after PATIENCE_S. The newest starts first: behind thousands of
    stalled ones a client would wait until its deadline. `on_failure` is called for each failure.
    """

    def __init__(self, most: int = HANDSHAKES_MAX, *, on_failure: Callable[[], None] | None = None) -> None:
        self._most = most
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._running: dict[Handshaking, float] = {}  # with the time of the start, oldest first
        self._waiting: dict[Handshaking, None] = {}
        self._ready: dict[Handshaking, None] = {}  # running ones whose next bytes have arrived
        self._pump_due: asyncio.Handle | None = None
        self._untold: dict[str, int] = {}  # failures since the last log line, by reason
        self._next_line_s: dict[str, float] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    def enter(self, connection: Handshaking) -> None:
        """A connection is ready: begins its handshake now or later."""
        self._waiting[connection] = None
        self._pump_soon(0.0)

    def go_on(self, connection: Handshaking) -> None:
        """More bytes of a running handshake: continues now or later. Until then the connection reads nothing."""
        self._ready[connection] = None
        self._pump_soon(0.0)

    def leave(self, connection: Handshaking) -> None:
        self._waiting.pop(connection, None)
        self._ready.pop(connection, None)
        if self._running.pop(connection, None) is not None and self._waiting:
            self._pump_soon(0.0)

    def failed(self, host: str, port: int, reason: str) -> None:
        """Logs a failed handshake, at most one line a second and reason."""
        if self._on_failure is not None:
            self._on_failure()
        if len(self._untold) >= REASONS_MAX and reason not in self._untold:
            self._untold.clear()
            self._next_line_s.clear()
        untold = self._untold[reason] = self._untold.get(reason, 0) + 1
        now_s = self._loop.time()
        if now_s >= self._next_line_s.get(reason, 0.0):
            self._next_line_s[reason] = now_s + LOG_EVERY_S
            log.info(
                "Failed authentication (SSL handshake failed): host=%s port=%d reason=%s count=%d",
                host,
                port,
                reason,
                untold,
            )
            self._untold[reason] = 0

    def _pump_soon(self, delay_s: float) -> None:
        if delay_s == 0.0 and isinstance(self._pump_due, asyncio.TimerHandle):
            self._pump_due.cancel()
            self._pump_due = None
        if self._pump_due is None:
            later = self._loop.call_later
            self._pump_due = later(delay_s, self._pump) if delay_s else self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = None
        began_s = self._loop.time()
        while self._ready or self._waiting:
            if self._ready:
                ready = next(iter(self._ready))
                del self._ready[ready]
                ready.go_on_handshake()
            elif not self._begin_next(began_s):
                return
            if (self._ready or self._waiting) and self._loop.time() - began_s > TURN_S:
                self._pump_soon(0.0)
                return

    def _begin_next(self, now_s: float) -> bool:
        """Begins the newest waiting handshake; False without room: the pump runs again when the oldest may be closed."""
        if len(self._running) >= self._most:
            oldest, since_s = next(iter(self._running.items()))
            left_s = since_s + PATIENCE_S - now_s
            if left_s > 0:
                self._pump_soon(left_s)
                return False
            del self._running[oldest]
            oldest.fail(f"not finished after {PATIENCE_S:g} s, and others wait")
        connection, _ = self._waiting.popitem()
        self._running[connection] = now_s
        connection.begin_handshake()
        return True
