"""ConnectionFlow: reads, writes, throttles and ends one connection, as its core decides.

A throttled client (KIP-219) is muted: nothing is served or read until the throttle time is over.

A client may leave while requests that it has sent are held. They may be Produce requests with acks=0, whose client waits for no answer.
As in Kafka they are served (`ServerConnection.has_work`), and answered if the client has closed only its own side; but requests that
only read are dropped. Then the connection ends. It reads nothing more, so its memory does not grow. A login that is not complete is not continued.

A closed connection sends the rest of its answers, for UNSENT_MS at most: it is not counted any more, so it must not keep its socket.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.broker.scheduling.timers import Timer
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.protocol.connection import ServerConnection
from barnabas.runtime.network import peer_has_left

log: Final = logger("kafka.network.SocketServer")

UNSENT_MS: Final = 10_000  # for a client to read the last answers after this node has closed its connection


class FlowHost(Protocol):
    """What the flow needs from its server."""

    reactor: Reactor
    slices: Slices
    serving: bool  # until it is True every connection is blocked


class ConnectionFlow(asyncio.BufferedProtocol):
    """Base of a connection. The module docstring describes it.

    Attributes:
        core: decides what is served and read.
        listener_name: the listener that accepted it.
        active: bytes were received since the last sweep of idle connections.
    """

    __slots__ = (
        "_continue_due",
        "_flush_due",
        "_host",
        "_muted_until_ms",
        "_on_close",
        "_slices",
        "_transport",
        "_turn",
        "_unmute_timer",
        "_unread_before",
        "_unsent_timer",
        "active",
        "core",
    )

    listener_name: str

    def __init__(self, host: FlowHost, core: ServerConnection) -> None:
        self._host = host
        self._slices = host.slices
        self.core = core
        self.active = True
        self._transport: asyncio.Transport | None = None  # None before the connection is accepted, and after it broke
        self._turn = False  # requests are being served: answers are written, and limits applied, at the end
        self._flush_due = False
        self._continue_due = False
        self._unread_before = 0  # written bytes that the peer had not read at the last check
        self._muted_until_ms = 0
        self._unmute_timer: Timer | None = None
        self._unsent_timer: Timer | None = None
        self._on_close: list[Callable[[], None]] = []

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.core.closed

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls back once after the client has left or this node has closed the connection, at the end of that wake-up; soon if
        that was before.
        """
        core = self.core
        (self._host.reactor.soon if core.closed or core.ended else self._on_close.append)(callback)

    # -- what the other part does

    @abstractmethod
    def _continue(self) -> None:
        """A turn for held requests. Sets `_continue_due` to False."""

    @abstractmethod
    def _has_logged_in(self) -> bool:
        """Whether the client has logged in, or its listener needs no login. If not, nothing more is served once it leaves."""

    @abstractmethod
    def _ended(self) -> None:
        """The connection has ended."""

    # -- throttling

    def mute(self, throttle_ms: int) -> None:
        """Serves and reads nothing for a time: the client exceeds a quota. Answers still leave."""
        until_ms = self._host.reactor.clock.monotonic_ms() + throttle_ms
        if self.core.closed or until_ms <= self._muted_until_ms:
            return
        self._end_mute()
        self._muted_until_ms = until_ms
        self._unmute_timer = self._host.reactor.call_later(throttle_ms, self._unmute)
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

    # -- what the core decides

    def _end_turn(self) -> None:
        """Writes the answers that are ready, and reads on or not."""
        self._turn = False
        out = self.core.end_turn()
        if out:
            self._write(out)
        if self.core.limited:
            self._apply_limits()

    def _write(self, out: list[Buffer]) -> None:
        transport = self._transport
        if transport is None:
            return
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self.core.writing_paused:
            self.core.pause_writing(transport.get_write_buffer_size())

    def _flush_soon(self) -> None:
        """Writes at the end of this wake-up."""
        if not self._turn and not self._flush_due:
            self._flush_due = True
            self._host.reactor.soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._end_turn()

    def go_on(self) -> None:
        """A frame that has blocked the connection is served: writes its answer and serves the next ones."""
        self._flush_soon()
        self._unblock()

    def _unblock(self, reserved_bytes: int = 0) -> None:
        self.core.unblock(reserved_bytes)
        if not self._turn:
            self._apply_limits()

    def _apply_limits(self) -> None:
        """Serves the held requests that may continue; reads only while there is room for more. Ends if the client has left and
        nothing is left to serve.
        """
        core = self.core
        if core.closed:
            return
        if core.may_serve_held and not self._continue_due:
            self._continue_due = True
            (self._slices.later if self._has_logged_in() else self._slices.later_for_login)(self._continue)
        transport = self._transport
        if core.ended:
            if not core.has_work:
                self._end(transport)
            return
        if transport is None:
            return
        reading = core.may_read()
        if reading != core.reading:
            core.reading = reading
            if reading:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # -- the peer

    def pause_writing(self) -> None:
        """Called by the loop: the peer leaves its answers unread."""
        self.core.pause_writing(self._transport.get_write_buffer_size() if self._transport is not None else 0)
        self._apply_limits()

    def resume_writing(self) -> None:
        """Called by the loop: the peer reads again."""
        self._unread_before = 0
        self.core.resume_writing()
        self._apply_limits()

    def eof_received(self) -> bool:
        """Called by the loop, perhaps twice: the client sends no more. Returns whether the connection stays open for what is left to
        serve.
        """
        return self._left()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the loop: the connection is gone. Drops requests that have had no effect, but serves what is held."""
        self._transport = None
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None
        if self._left():
            self.core.resume_writing()  # no peer leaves answers unread
            self._apply_limits()
        else:
            self._shut()

    def has_left(self) -> bool:
        """Whether the client is known to have left. A connection that is not being read learns it only from this question; then it drops
        the requests that only read."""
        if not self.core.reading and not self.core.ended and peer_has_left(self._transport):
            self.core.drop_reads()
            return True
        return self.core.ended

    def _left(self) -> bool:
        """The client has left. Returns whether something is left to serve."""
        core = self.core
        if core.closed or not core.has_work or not self._host.serving or not self._has_logged_in():
            return False
        if not core.ended:
            core.end()
            self._call_back()
        return True

    # -- the end

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Closes from our side with one log line; answers that are ready are still sent."""
        if self.core.closed:
            return
        log.log(
            level,
            "Connection is closed by this node: connection=%r listener=%s reason=%s",
            self,
            self.listener_name,
            reason,
        )
        self._end(self._transport)

    def _end(self, transport: asyncio.Transport | None) -> None:
        out = self.core.end_turn()
        self._shut()
        if transport is not None:
            if self.core.writing_paused:
                transport.abort()  # a client that reads no answers would keep the socket open
                return
            if out:
                transport.writelines(out)
            transport.close()
            if transport.get_write_buffer_size():
                self._unsent_timer = self._host.reactor.call_later(UNSENT_MS, transport.abort)

    def abort(self) -> None:
        """Closes at once without sending ready answers: the node stops."""
        self._shut()
        if self._transport is not None:
            self._transport.abort()

    def is_idle(self) -> bool:
        """Whether nothing was received and no request waited since the last call, or the peer has read none of its answers."""
        active, self.active = self.active, False
        if self.core.writing_paused and self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            before, self._unread_before = self._unread_before, unread
            return 0 < before <= unread
        return not active and not self.core.waits

    def _shut(self) -> None:
        if self.core.closed:
            return
        self._turn = False
        self.core.close()
        self._end_mute()
        self._ended()
        self._call_back()

    def _call_back(self) -> None:
        on_close, self._on_close = self._on_close, []
        for callback in on_close:
            self._host.reactor.soon(callback)
