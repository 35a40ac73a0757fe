"""Server: accepts a node's client connections, limits their shared memory and closes idle ones.

Addresses are bound first and refuse connections until `accept`; requests of accepted connections are served once the node is ready.
All connections share a `protocol/memory_budget`. Connections that are silent, or whose peer reads none of its answers, release their
buffers and are closed after `connections.max.idle.ms`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.broker.api.access import Access, FullAccess
from barnabas.broker.api.principal import ANONYMOUS, Principal
from barnabas.broker.api.router import Router
from barnabas.broker.config.broker_config import BrokerConfig, Endpoint
from barnabas.broker.front.connection import Connection
from barnabas.broker.front.connection_quotas import ConnectionQuotas
from barnabas.broker.front.quota_enforcement import QuotaEnforcement
from barnabas.broker.replica.core.fetch_sessions import FetchSessions
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.broker.scheduling.timers import Timer
from barnabas.broker.security.login import ServerLogins
from barnabas.broker.security.server_login import LOGIN_BUFFER_BYTES, Authentications, LoginService, ServerLogin
from barnabas.limits import ENVELOPE_BYTES_MAX, FRAME_BYTES_SMALL_MAX, QUEUED_BYTES_MAX, UNREAD_ANSWER_BYTES_MAX
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.network_port import Listener, ListenerOptions, Network
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.memory_budget import SWEEP_MS as FRAMES_SWEEP_MS
from barnabas.protocol.memory_budget import MemoryBudget
from barnabas.protocol.registry import API, API_VERSIONS_KEY, ENVELOPE_KEY, PRODUCE_KEY
from barnabas.protocol.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.security.node_tls import NodeTls

log = logger("kafka.network.SocketServer")

DESCRIPTORS_FOR_NODES: Final = 16  # file descriptors that client listeners leave for connections between nodes
DELAYED_MAX: Final = 1_000  # connections above the rate of their address that wait for their end
LOGINS_BYTES_MAX: Final = (
    32 * 1024 * 1024
)  # of the requests of all connections that have to log in and are being received
REFUSAL_LINES_MS: Final = 1_000  # between log lines about refused connections
SWEEP_MS: Final = 5_000  # between searches for silent connections


class Server:
    """All client connections of a node.

    Attributes:
        accepted: connections so far, by listener.
        authentications: logins and TLS handshakes so far, by listener with TLS or SASL.
        client_quotas: charges clients; without effect until it gets images.
        access: makes the access rights of a principal from a host.
        rejection_log: limits lines about connections that are closed at their first bytes.
        logins: makes the logins of connections of SASL listeners; None if there is no such listener.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        network: Network,
        router: Router,
        slices: Slices,
        tls: NodeTls | None = None,
        *,
        logins: ServerLogins | None = None,
        access: Callable[[Principal, str], Access] = FullAccess,
        fetch_sessions: FetchSessions | None = None,
    ) -> None:
        self.reactor = reactor
        self.slices = slices
        self.router = router
        self.rejection_log = RateLimitedLogger(log, reactor.clock.monotonic_ms)
        self.client_quotas = QuotaEnforcement(reactor, config, slices, fetch_sessions)
        self.access = access
        self.logins = logins
        self._config = config
        self._network = network
        self._tls = tls
        self.connections: dict[Connection, None] = {}
        self.serving = False
        self._request_bytes_max = config.get_int("socket.request.max.bytes")
        # Frame size that any API may send. A larger one is answered with an error.
        self._frame_bytes_free = self._request_bytes_max
        if "socket.request.max.bytes" not in config.static:
            self._frame_bytes_free = FRAME_BYTES_SMALL_MAX
        self.api_versions_range = API[API_VERSIONS_KEY].versions
        self.addresses: dict[str, tuple[str, int]] = {}  # bound addresses, by listener name
        self.accepted: dict[str, int] = {}
        self.authentications: dict[str, Authentications] = {}
        self.quotas = ConnectionQuotas(config, config.inter_broker_listener)
        self._listeners: dict[str, Listener] = {}
        self._held_back: dict[str, None] = {}  # listeners that accept no connections at present
        self._hold_back_timer: Timer | None = None  # armed while only time lets a listener accept again
        self._ended = False
        self.refusals = 0  # connections over max.connections.per.ip since the start
        self.evictions = 0  # connections closed for another listener (max.connections) since the start
        self._delayed = 0  # connections above the rate of their address
        self._refused = 0  # connections over max.connections.per.ip since the last log line
        self._next_line_ms = 0
        self._numbers = itertools.count(1)
        queued_bytes_max = config.get_int("queued.max.request.bytes")
        if queued_bytes_max <= 0:
            queued_bytes_max = QUEUED_BYTES_MAX
        self.budget = MemoryBudget(
            queued_bytes_max, UNREAD_ANSWER_BYTES_MAX, small_bytes_max=max(1, queued_bytes_max // 2)
        )
        self._logins_budget = MemoryBudget(
            LOGINS_BYTES_MAX, UNREAD_ANSWER_BYTES_MAX, ordinary_bytes=2 * LOGIN_BUFFER_BYTES, evicts=True
        )

    async def bind(self, endpoint: Endpoint) -> tuple[str, int]:
        """Binds an address and returns it; refuses connections until `accept`. Raises OSError if the address is in use."""
        name, config = endpoint.name, self._config
        self.quotas.add_listener(name)
        counts = Authentications()
        if endpoint.security_protocol != "PLAINTEXT":
            self.authentications[name] = counts
        options = ListenerOptions(
            backlog=config.get_int("socket.listen.backlog.size"),
            send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
            receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
            descriptors_left=DESCRIPTORS_FOR_NODES if name in self._names_of_clients() else 0,
            tls=None if self._tls is None else self._tls.provider(name),
            on_tls_failure=counts.on_failed_handshake,
        )
        listener = await self._network.listen(
            lambda: self._accepted(name), endpoint.host, endpoint.port, accept=False, options=options
        )
        self._listeners[name] = listener
        self.addresses[name] = listener.address
        self.accepted[name] = 0
        return listener.address

    def _names_of_clients(self) -> list[str]:
        """Names of the listeners that only clients use: those of a broker that has another listener for nodes."""
        config = self._config
        return [each.name for each in config.listeners if each.name != config.inter_broker_listener]

    def _accepted(self, listener: str) -> Connection:
        """Makes the protocol of an accepted connection and counts it."""
        connection = Connection(self, listener)
        self.accepted[listener] += 1
        self.quotas.opened(listener, self.reactor.clock.monotonic_ms())
        self._hold_back()
        return connection

    def on_config(self) -> None:
        """Applies changed settings."""
        self._hold_back()

    def _hold_back(self) -> None:
        """Pauses listeners at their connection limit, resumes the others, and closes excess connections."""
        if self.quotas.excess:
            self._close_excess(self.quotas.excess)
        now_ms = self.reactor.clock.monotonic_ms()
        soonest_ms = 0
        for name, listener in self._listeners.items():
            wait_ms = self.quotas.wait_ms(name, now_ms)
            if wait_ms == 0:
                if name in self._held_back:
                    del self._held_back[name]
                    listener.resume()
                continue
            if name not in self._held_back:
                self._held_back[name] = None
                listener.pause()
            if wait_ms > 0:
                soonest_ms = min(wait_ms, soonest_ms or wait_ms)
        if self._hold_back_timer is not None:
            self._hold_back_timer.cancel()
            self._hold_back_timer = None
        if soonest_ms:
            self._hold_back_timer = self.reactor.call_later(soonest_ms, self._hold_back)

    def _close_excess(self, count: int) -> None:
        """Closes connections of unprotected listeners, the longest silent first."""
        others = [each for each in self.connections if not self.quotas.protects(each.listener_name)]
        others.sort(key=lambda each: (each.core.waits, each.active, each.silent_since_ms, each.number))
        for connection in others[:count]:
            self.evictions += 1
            connection.close("another listener needs the connection (max.connections)", level=logging.INFO)

    async def accept(self) -> None:
        """Accepts connections but serves no requests yet. Raises OSError if an address is in use."""
        for listener in self._listeners.values():
            await listener.accept()

    def serve(self) -> None:
        """The node is ready: serves the requests received so far and all later ones."""
        self.serving = True
        self._sweep_later()
        self._sweep_frames_later()
        for connection in list(self.connections):
            connection.begin()

    def abort(self) -> None:
        """Accepts no more connections and aborts all; used when the node crashes."""
        self._end()
        for connection in list(self.connections):
            connection.abort()

    def close(self) -> None:
        """Accepts no more connections and closes all; answers that are ready are still sent."""
        self._end()
        for connection in list(self.connections):
            connection.close("the broker stops", level=logging.DEBUG)

    def _end(self) -> None:
        self._ended = True
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def begin_login(self, connection: Connection, listener: str) -> ServerLogin | None:
        """The login of a new connection; None if its listener needs none."""
        counts, limits = self.authentications.get(listener), (self._request_bytes_max, self._frame_bytes_free)
        if counts is None:
            return None
        service = LoginService(self.router, self.budget, limits)
        login = None if self.logins is None else self.logins.begin(connection, listener, service, counts)
        if login is None:
            counts.successful += 1  # by its TLS handshake
        return login

    def budget_of(self, listener: str) -> MemoryBudget:
        """The memory that a new connection shares with others."""
        return self._logins_budget if self.logins is not None and self.logins.asks(listener) else self.budget

    def frame_reader(self, listener: str = "") -> FrameReader:
        """Splits the bytes of one connection into frames and limits their size."""
        if self.logins is not None and self.logins.asks(listener):
            size_bytes_max = self.logins.size_bytes_max(listener)
            return FrameReader(
                size_bytes_max=size_bytes_max,
                limit_of=self._frame_limit,
                size_bytes_free=size_bytes_max,
                buffer_bytes=LOGIN_BUFFER_BYTES,
            )
        return FrameReader(
            size_bytes_max=self._request_bytes_max,
            limit_of=self._frame_limit,
            size_bytes_free=self._frame_bytes_free,
        )

    def _frame_limit(self, api_key: int) -> int:
        if api_key == ENVELOPE_KEY and self.router.listener == "controller":
            return max(ENVELOPE_BYTES_MAX, self._frame_bytes_free)
        return self._request_bytes_max if api_key == PRODUCE_KEY else self._frame_bytes_free

    def unsupported_api_versions(self) -> Message:
        """The body of the answer to ApiVersions in an unknown version."""
        from barnabas.broker.handlers.metadata import unsupported_api_versions

        return unsupported_api_versions(self.api_versions_range)

    def next_number(self) -> int:
        """Numbers connections in the order of acceptance."""
        return next(self._numbers)

    def principal_of(self, listener: str, transport: asyncio.BaseTransport) -> Principal:
        """The principal of a new connection: its certificate's, or ANONYMOUS. Raises BarnabasError if it has none."""
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            return ANONYMOUS
        from barnabas.broker.security.node_tls import certificate_principal

        return certificate_principal(self._config, listener, tls.getpeercert(binary_form=True))

    def on_connected(self, connection: Connection) -> None:
        """A connection was made; closes it if its address has too many."""
        self.connections[connection] = None
        refusal = self.quotas.arrived(connection.client_host)
        delay_ms = self.client_quotas.delay_connection(connection.client_host)
        if self._ended:
            connection.abort()  # it was accepted while the server closed
        elif delay_ms:
            self._close_later(connection, delay_ms)
        elif refusal is not None:
            self._refused += 1
            self.refusals += 1
            now_ms = self.reactor.clock.monotonic_ms()
            if now_ms >= self._next_line_ms:
                self._next_line_ms = now_ms + REFUSAL_LINES_MS
                log.info("Connections are refused: count=%d reason=%s", self._refused, refusal)
                self._refused = 0
            connection.abort()

    def _close_later(self, connection: Connection, delay_ms: int) -> None:
        """Closes a connection above the rate of its address, after a wait, so that the client does not try again at once (KIP-612)."""
        self.quotas.not_opened(connection.listener_name)
        if self._delayed >= DELAYED_MAX:
            connection.abort()
            return
        self._delayed += 1

        def close() -> None:
            self._delayed -= 1
            connection.abort()

        connection.mute(delay_ms + 1)
        self.reactor.call_later(delay_ms, close)

    def on_disconnected(self, connection: Connection) -> None:
        """A connection ended."""
        self.quotas.closed(connection.listener_name)
        if self.connections.pop(connection, 0) is None:
            self.quotas.left(connection.client_host)
        if self._held_back:
            self._hold_back()

    def answer_bytes_max(self, wanted: int) -> int:
        """How many bytes of records one answer may carry; fewer while peers leave answers unread."""
        return self.budget.answer_bytes_max(wanted)

    def _sweep_frames_later(self) -> None:
        due_ms = self.reactor.clock.monotonic_ms() + FRAMES_SWEEP_MS
        self.reactor.call_later(FRAMES_SWEEP_MS, lambda: self._sweep_frames(due_ms))

    def _sweep_frames(self, due_ms: int) -> None:
        if not self.reactor.stall_ms(due_ms):  # else what has arrived in between is not read yet
            self.budget.sweep()
        self._sweep_frames_later()

    def _sweep_later(self) -> None:
        self.reactor.call_later(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        """Releases the buffers of silent connections and closes them after `connections.max.idle.ms`."""
        now_ms = self.reactor.clock.monotonic_ms()
        idle_ms_max = self._config.get_int("connections.max.idle.ms")
        for connection in list(self.connections):
            if not connection.is_idle():
                connection.silent_since_ms = now_ms
                continue
            connection.core.reader.release()
            if 0 <= idle_ms_max <= now_ms - connection.silent_since_ms:
                connection.close(f"idle for {idle_ms_max} ms (connections.max.idle.ms)", level=logging.INFO)
        self._sweep_later()
