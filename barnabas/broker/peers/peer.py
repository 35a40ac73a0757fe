"""Peer: this node's connection to one address of another node, for one purpose."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind, ProbeResult
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload, Slices
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import InvariantViolated, LocalProtocolError, RemoteProtocolError
from barnabas.limits import INFLIGHT_REQUESTS_MAX
from barnabas.loggers import logger
from barnabas.network_port import Network
from barnabas.ports import Buffer
from barnabas.protocol.exchange import (
    VERSION_MAX,
    EncodedRequest,
    Exchange,
    ExchangeState,
    NoCommonVersion,
    NotReady,
    OnResponse,
    is_long,
)
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.sasl import SaslClient, SaslFailed
from barnabas.protocol.schema import Message
from barnabas.runtime.framed_socket import FramedSocket
from barnabas.runtime.tls_errors import end_reason
from barnabas.work import Steps

log = logger("kafka.server")

# Of one attempt; a request's own deadline may come earlier. Short, because the next attempt finds a restarted node.
CONNECT_TIMEOUT_MS: Final = 2_000
NEGOTIATE_TIMEOUT_MS: Final = 10_000  # for the first answer: long, because a process may be suspended or starting
BACKOFF_MS: Final = 50  # after the first failed attempt, doubled by each further one
BACKOFF_MS_MAX: Final = 1_000
MISSING_MS: Final = 2_000  # longer than the controller needs to fence a dead node
QUEUED_MAX: Final = INFLIGHT_REQUESTS_MAX  # requests that wait for one connection to open


async def probe(network: Network, host: str, port: int, timeout_ms: int) -> ProbeResult:
    """Connects and disconnects, without TLS: proves a listening process, not its health. UNREACHABLE after `timeout_ms`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            transport, _ = await network.connect(asyncio.Protocol, host, port)
    except ConnectionRefusedError:
        return ProbeResult.REFUSED
    except (OSError, UnicodeError, TimeoutError):
        return ProbeResult.UNREACHABLE
    transport.abort()
    return ProbeResult.ACCEPTED


class PeerTraffic:
    """Bytes and requests of all connections for one purpose so far. A request counts when it is written, a response when it is received."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "responses")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.requests = self.responses = 0


class _Queued(NamedTuple):
    request: Message
    done: OnResponse
    deadline_ms: int
    version_max: int
    long: bool


class Logins(Protocol):
    """How a node logs in at other nodes."""

    offload: Offload  # runs long steps of conversations

    def sasl(self, host: str, port: int) -> Callable[[], SaslClient] | None:
        """Makes the conversations with the node at an address; None if its listener has no SASL."""
        ...

    async def prepare(self, host: str, port: int) -> None:
        """Prepares the next conversation with the node at an address. Raises SaslFailed."""
        ...

    def refused(self, host: str, port: int) -> None:
        """The node at an address has refused a login."""
        ...


class PeersOfNode(Protocol):
    """The part of `Peers` that a peer uses."""

    reactor: Reactor
    slices: Slices
    network: Network
    below: Network
    logins: Logins | None
    node_id: int
    frame_bytes_max: int
    probes: bool
    traffic: dict[str, PeerTraffic]

    def forget(self, peer: Peer) -> None: ...


class Peer:
    """The connection to one address for one purpose. Made by `Peers.to`.

    It connects on the first send; until then requests wait in a bounded queue. After a failed attempt it fails requests at once until its
    backoff (50 ms to 1 s) is over. Each connect negotiates versions by ApiVersions, then authenticates if the listener has SASL, and renews
    its session in time (KIP-368). An overdue answer closes the connection, as in Kafka. Answers come in request order: slow requests (a
    long-polled fetch) and urgent ones need different purposes. Views in a response (`Records`) are valid only inside `done`.
    """

    def __init__(self, peers: PeersOfNode, host: str, port: int, purpose: str, node_id: int) -> None:
        self.host = host
        self.port = port
        self.purpose = purpose
        self.node_id = node_id
        self._peers = peers
        self._traffic = peers.traffic.setdefault(purpose, PeerTraffic())
        self._reactor = peers.reactor
        self._network = peers.network
        self._exchange = Exchange(
            f"{purpose}-{peers.node_id}",
            request_timeout_ms=NEGOTIATE_TIMEOUT_MS,
            deliver=self._deliver,
            decode_later=self._decode_later,
            sasl=None if peers.logins is None else peers.logins.sasl(host, port),
            jitter=0.5 if peers.logins is None else peers.reactor.rng.random(),
        )
        self._queue: deque[_Queued] = deque()  # requests that wait for the connection to open
        self._socket: FramedSocket | None = None
        self._remote = host, port  # the address that the last connection resolved the name to
        self._unwritten: list[Buffer] = []
        self._timer: Timer | None = None
        self.lost_ms = -MISSING_MS  # monotonic time when the other side last ended a connection
        self.refused_ms = -MISSING_MS  # monotonic time of the last refused connection attempt
        self._failures = 0
        self._failed: PeerError | None = None  # why the last attempt failed
        self._retry_at_ms = 0
        self._lost_listeners: list[Callable[[PeerError], None]] = []

    def __repr__(self) -> str:
        who = f"node {self.node_id} at " if self.node_id >= 0 else ""
        return f"{who}{self.host}:{self.port} ({self.purpose})"

    @property
    def connected(self) -> bool:
        """Whether a request would be sent at once."""
        return self._exchange.state is ExchangeState.READY

    @property
    def in_flight(self) -> int:
        """Requests whose `done` was not called yet."""
        beginning = self._exchange.state in (ExchangeState.NEGOTIATING, ExchangeState.AUTHENTICATING)
        return len(self._queue) + (0 if beginning else self._exchange.in_flight)

    def version_of(self, request: type[Message]) -> int:
        """The version in which a request would be sent now; the highest known one without an open connection."""
        return self._exchange.version_of(request)

    def add_lost_listener(self, listener: Callable[[PeerError], None]) -> None:
        """Calls `listener` for every open connection that ends other than by `close`, after the `done` of its requests."""
        self._lost_listeners.append(listener)

    def send(
        self,
        request: Message,
        done: OnResponse,
        *,
        timeout_ms: int,
        version_max: int | None = None,
        long: bool = False,
    ) -> None:
        """Sends a request, connecting first if needed.

        Args:
            done: called once, not from within this call, with the response or a PeerError.
            timeout_ms: from now until the whole response is received; includes the time to connect.
            version_max: the highest version to use, if the caller needs a limit.
            long: whether the request or its answer may be long: a later request may then be sent before it.
        """
        state = self._exchange.state
        now_ms = self._now_ms()
        version_max = VERSION_MAX if version_max is None else version_max
        if state is ExchangeState.READY:
            self._transmit(request, done, now_ms, timeout_ms, version_max, long)
        elif state is ExchangeState.CLOSED or self._reactor.scope.stopping:
            self._fail_soon(done, PeerError(PeerErrorKind.LOST, f"the connection to {self!r} is closed"))
        elif self._failed is not None and (pause_ms := self._retry_at_ms - now_ms) > 0:
            self._fail_soon(done, PeerError(self._failed.kind, str(self._failed), retry_in_ms=pause_ms))
        elif len(self._queue) >= QUEUED_MAX:
            text = f"{QUEUED_MAX} requests wait for the connection to {self!r}"
            self._fail_soon(done, PeerError(PeerErrorKind.UNREACHABLE, text))
        else:
            deadline_ms = now_ms + timeout_ms
            self._queue.append(_Queued(request, done, deadline_ms, version_max, long))
            if state is ExchangeState.DISCONNECTED:
                self._exchange.on_connecting()
                socket = self._socket = FramedSocket(self, FrameReader(size_bytes_max=self._peers.frame_bytes_max))
                self._reactor.scope.start(self._connect(socket), name=f"connect {self!r}")
            self._arm(deadline_ms)

    async def request(
        self, request: Message, *, timeout_ms: int, version_max: int | None = None, long: bool = False
    ) -> Any:
        """Sends a request and waits for its response. A cancelled wait drops the response; the request may have its effect. Raises PeerError."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(outcome: object) -> None:
            if not answer.done():
                answer.set_result(outcome)

        self.send(request, done, timeout_ms=timeout_ms, version_max=version_max, long=long)
        outcome = await answer
        if isinstance(outcome, PeerError):
            raise outcome
        return outcome

    def disconnect(self, reason: str) -> None:
        """Ends the present connection; the next `send` makes another."""
        self._end(PeerError(PeerErrorKind.LOST, f"left the connection to {self!r}: {reason}"))

    def close(self) -> None:
        """Closes for good: waiting requests fail as LOST."""
        if self._exchange.state is not ExchangeState.CLOSED:
            self._exchange.close()
            self._peers.forget(self)
            self._end(PeerError(PeerErrorKind.LOST, f"the connection to {self!r} was closed"))

    def abort(self) -> None:
        """Closes for good and drops waiting requests (`Peers.abort`)."""
        self._exchange.close()
        self._queue.clear()
        self._detach()

    # -- from the socket -----------------------------------------------------------------------------------------------

    def on_socket_open(self) -> None:
        """Negotiates versions first."""
        transport = None if self._socket is None else self._socket.transport
        remote = None if transport is None else transport.get_extra_info("peername")
        if remote is not None:
            self._remote = str(remote[0]), int(remote[1])
        self._write(self._exchange.on_connected(self._now_ms()))
        self._arm(self._exchange.timer_at())

    def on_socket_bytes(self, reader: FrameReader, count: int) -> None:
        """Calls `done` with each whole response."""
        exchange = self._exchange
        socket = self._socket
        traffic = self._traffic
        traffic.bytes_in += count
        try:
            for frame in reader.received(count):
                traffic.responses += 1
                exchange.on_frame(frame)
                if exchange.own_answer is not None:
                    self._continue()
                if self._socket is not socket:
                    return  # a callback ended the connection
        except RemoteProtocolError as error:
            self._fail(PeerErrorKind.UNREACHABLE, f"{self!r} does not answer as a Kafka broker: {error}")
        if exchange.reauthenticate_at_ms is not None:
            self._arm(exchange.reauthenticate_at_ms)

    def on_socket_lost(self) -> None:
        why = end_reason(None if self._socket is None else self._socket.error)
        if self._exchange.state is ExchangeState.READY:
            self.lost_ms = self._now_ms()
            if self.node_id >= 0 and self._peers.probes and not self._reactor.scope.stopping:
                self._reactor.scope.start(self._probe_refusal(), name=f"probe {self!r}")
            self._end(PeerError(PeerErrorKind.LOST, f"{self!r} closed the connection{why}"))
        else:
            self._fail(PeerErrorKind.UNREACHABLE, f"{self!r} closed the connection before it said what it speaks{why}")

    # -- private -------------------------------------------------------------------------------------------------------

    async def _connect(self, socket: FramedSocket) -> None:
        if self._socket is not socket or not await self._prepared(socket):
            return  # ended before this task's first step, or without a token
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                await self._network.connect(lambda: socket, self.host, self.port)
        except TimeoutError:
            self._not_connected(socket, PeerErrorKind.UNREACHABLE, "timed out")
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            kind = PeerErrorKind.REFUSED if isinstance(error, ConnectionRefusedError) else PeerErrorKind.UNREACHABLE
            self._not_connected(socket, kind, str(error) or type(error).__name__)

    async def _prepared(self, socket: FramedSocket) -> bool:
        """Prepares the next login. False if that failed, or the connection has ended."""
        logins = self._peers.logins
        if logins is not None:
            try:
                await logins.prepare(self.host, self.port)
            except SaslFailed as error:
                if self._socket is socket:
                    self._fail(PeerErrorKind.UNREACHABLE, f"cannot log in at {self!r}: {error}")
        return self._socket is socket

    async def _renew_session(self, socket: FramedSocket) -> None:
        if await self._prepared(socket):
            self._log_in(lambda: self._exchange.reauthenticate(self._now_ms()))

    async def _probe_refusal(self) -> None:
        """After a lost connection: learns whether the machine refuses, before the address of a killed container vanishes."""
        host, port = self._remote
        if await probe(self._peers.below, host, port, CONNECT_TIMEOUT_MS) is ProbeResult.REFUSED:
            self.refused_ms = self._now_ms()

    def _not_connected(self, socket: FramedSocket, kind: PeerErrorKind, reason: str) -> None:
        if self._socket is socket:
            if kind is PeerErrorKind.REFUSED:
                self.refused_ms = self._now_ms()
            self._fail(kind, f"cannot connect to {self!r}: {reason}")

    def _continue(self) -> None:
        """Handles an answer to a request of the exchange itself; a long computation is done in a thread first."""
        work = self._exchange.own_work()
        logins = self._peers.logins
        if work is None or logins is None:
            self._log_in(lambda: self._exchange.on_own_answer(self._now_ms()))
            return
        socket = self._socket

        def computed(_: object) -> None:
            if self._socket is socket:
                self._log_in(lambda: self._exchange.on_own_answer(self._now_ms()))

        self._reactor.run_beside(logins.offload, work, computed)

    def _log_in(self, step: Callable[[], list[Buffer]]) -> None:
        """A step of the negotiation or of a login. Raises RemoteProtocolError."""
        was_ready = self._exchange.state is ExchangeState.READY
        try:
            self._write(step())
        except SaslFailed as error:
            self._fail(PeerErrorKind.UNREACHABLE, f"{self!r} does not let this node log in: {error}")
            if self._peers.logins is not None:
                self._peers.logins.refused(self.host, self.port)
            return
        if not was_ready and self._exchange.state is ExchangeState.READY:
            self._on_ready()
        self._arm(self._exchange.timer_at())

    def _on_ready(self) -> None:
        self._failures = 0
        self.refused_ms = -MISSING_MS
        self._failed = None
        queue, self._queue = self._queue, deque()
        now_ms = self._now_ms()
        for request, done, deadline_ms, version_max, long in queue:
            self._transmit(request, done, now_ms, deadline_ms - now_ms, version_max, long)

    def _transmit(
        self, request: Message, done: OnResponse, now_ms: int, timeout_ms: int, version_max: int, long: bool
    ) -> None:
        if long and is_long(request):
            work = self._exchange.encode_long(request, version_max)
            send = partial(self._transmit_encoded, done, now_ms + timeout_ms)
            self._peers.slices.start(work, send, partial(self._not_encoded, done))
            return
        try:
            parts = self._exchange.send(
                request, done, now_ms, timeout_ms=timeout_ms, version_max=version_max, long=long
            )
        except (NoCommonVersion, LocalProtocolError) as error:
            self._fail_soon(done, PeerError(PeerErrorKind.UNSUPPORTED, f"{self!r}: {error}"))
            return
        self._write(parts)
        self._arm(now_ms + timeout_ms)

    def _transmit_encoded(self, done: OnResponse, deadline_ms: int, encoded: EncodedRequest) -> None:
        try:
            parts = self._exchange.send_encoded(encoded, done, self._now_ms(), deadline_ms)
        except NotReady as error:
            self._deliver(done, PeerError(PeerErrorKind.UNREACHABLE, f"{self!r}: {error}"))
            return
        self._write(parts)
        self._arm(deadline_ms)

    def _not_encoded(self, done: OnResponse, error: BaseException) -> None:
        kind = PeerErrorKind.UNREACHABLE if isinstance(error, NotReady) else PeerErrorKind.UNSUPPORTED
        self._deliver(done, PeerError(kind, f"{self!r}: {error}"))

    def _decode_later(self, work: Steps[object], done: OnResponse) -> None:
        """Decodes a long answer in the worker thread, then calls `done`."""

        def failed(error: BaseException) -> None:
            text = f"{self!r} does not answer as a Kafka broker: {error}"
            self._deliver(done, PeerError(PeerErrorKind.LOST, text))
            if self._exchange.state is not ExchangeState.CLOSED:
                self._fail(PeerErrorKind.UNREACHABLE, text)

        self._peers.slices.start(work, partial(self._deliver, done), failed)

    def _write(self, parts: list[Buffer]) -> None:
        """Collects the writes of one wake-up into one call. `parts` are one request."""
        self._traffic.requests += bool(parts)
        if parts and not self._unwritten:
            self._reactor.soon(self._flush)
        self._unwritten += parts

    def _flush(self) -> None:
        parts, self._unwritten = self._unwritten, []
        socket = self._socket
        if parts and socket is not None and socket.transport is not None and not socket.transport.is_closing():
            self._traffic.bytes_out += sum(map(len, parts))
            if len(parts) == 1:
                socket.transport.write(parts[0])
            else:
                socket.transport.writelines(parts)

    def _fail(self, kind: PeerErrorKind, text: str) -> None:
        """The connection failed because of the peer: the next attempt waits for the backoff."""
        pause_ms = int(min(BACKOFF_MS * 2**self._failures, BACKOFF_MS_MAX) * (0.8 + 0.4 * self._reactor.rng.random()))
        self._failures = min(self._failures + 1, 10)
        self._retry_at_ms = self._now_ms() + pause_ms
        self._failed = PeerError(kind, text, retry_in_ms=pause_ms)
        self._end(self._failed)

    def _end(self, error: PeerError) -> None:
        was_ready = self._exchange.state is ExchangeState.READY
        self._detach()
        queue, self._queue = self._queue, deque()
        lost = error
        if was_ready and not error.sent:
            lost = PeerError(PeerErrorKind.LOST, str(error), retry_in_ms=error.retry_in_ms)
        if self._exchange.state is not ExchangeState.DISCONNECTED:
            self._exchange.on_lost(lost)
        for queued in queue:
            self._deliver(queued.done, error)
        if was_ready:
            for listener in list(self._lost_listeners):
                self._deliver(listener, lost)

    def _detach(self) -> None:
        socket, self._socket = self._socket, None
        self._unwritten = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if socket is not None:
            socket.detach()

    def _arm(self, deadline_ms: int | None) -> None:
        """Keeps one timer, at or before the earliest deadline; moves it only when it fires."""
        if deadline_ms is None or (self._timer is not None and self._timer.deadline_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(deadline_ms - self._now_ms(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        overdue = self._exchange.on_timer(now_ms)
        if overdue is not None:
            self._overdue(overdue, now_ms)
            return
        renewal_ms = self._exchange.reauthenticate_at_ms
        if renewal_ms is not None and renewal_ms <= now_ms:
            self._exchange.reauthenticate_at_ms = renewal_ms = None
            if self._socket is not None and not self._reactor.scope.stopping:
                self._reactor.scope.start(self._renew_session(self._socket), name=f"renew {self!r}")
        late = [queued for queued in self._queue if queued.deadline_ms <= now_ms]
        self._queue = deque(queued for queued in self._queue if queued.deadline_ms > now_ms)
        deadlines = [queued.deadline_ms for queued in self._queue]
        earliest_ms = self._exchange.timer_at()
        self._arm(min([*deadlines, *(each for each in (earliest_ms, renewal_ms) if each is not None)], default=None))
        for queued in late:
            text = f"no connection to {self!r} in time"
            self._deliver(queued.done, PeerError(PeerErrorKind.UNREACHABLE, text))

    def _overdue(self, api: str, now_ms: int) -> None:
        text = f"{self!r} did not answer {api} in time"
        if self._exchange.state is ExchangeState.READY:
            self._end(PeerError(PeerErrorKind.TIMED_OUT, text))
        else:
            self._fail(PeerErrorKind.UNREACHABLE, text)

    def _fail_soon(self, done: OnResponse, error: PeerError) -> None:
        self._reactor.soon(lambda: done(error))

    def _deliver(self, callback: OnResponse, outcome: object) -> None:
        """An exception of the callback concerns this node, not the peer's connection."""
        try:
            callback(outcome)
        except InvariantViolated as error:
            self._reactor.fatal(error)
        except Exception:  # a bug in the callback must not stop the connection's other requests
            log.exception("Callback of a connection to another node failed: peer=%r", self)

    def _now_ms(self) -> int:
        return self._reactor.clock.monotonic_ms()
