"""One connection to one broker: a core that knows which request awaits which answer, and the asyncio shell that carries it.

`ConnectionCore` is driven by: on_connected, send, on_frame, on_lost, on_timer. It emits buffers to write and calls `done` of
each request exactly once, with the decoded response or a KafkaError. `Connection` owns the socket: connects with
exponential backoff, writes once per wake-up, keeps one timer for the earliest deadline.

Invariants: states change after VALID_PREVIOUS; the first exchange is ApiVersions (KIP-511: version 4, then what the broker
can; KIP-35), other requests are accepted only once READY; answers come in request order, a request without answer in time
costs the connection, as in Kafka: what follows it would be late too. An abandoned request (its caller was cancelled) keeps
its place and its answer is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from barnabas.client.errors import (
    BrokerUnreachable,
    KafkaError,
    NotKafka,
    RequestTimedOut,
    UnsupportedByBroker,
    code_of,
)
from barnabas.errors import ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.ports import Buffer, Clock, Network, Rng
from barnabas.protocol.connection import FrameReader
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.registry import API, request_header_version, response_header_version
from barnabas.protocol.schema import codec, decode, encode_parts
from barnabas.runtime.scope import Scope

__all__ = ["VALID_PREVIOUS", "Connection", "ConnectionCore", "ConnectionState", "Features", "pick_version"]

SOFTWARE_NAME = "barnabas"
SOFTWARE_VERSION = "0.1.0"
API_VERSIONS_KEY = 18
PRODUCE_KEY = 0
_VERSION_MAX = 0x7FFF
_UNWRITTEN_BYTES_MAX = 1024 * 1024  # above it a socket is not `writable`: batches rather grow than queue up there
_HEADER_CODECS = {version: codec(RequestHeader, version) for version in (1, 2)}


class ConnectionState(Enum):
    """States of one connection."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    READY = "ready"
    CLOSED = "closed"


_S = ConnectionState

VALID_PREVIOUS: dict[ConnectionState, frozenset[ConnectionState]] = {
    _S.DISCONNECTED: frozenset({_S.CONNECTING, _S.NEGOTIATING, _S.READY}),
    _S.CONNECTING: frozenset({_S.DISCONNECTED}),
    _S.NEGOTIATING: frozenset({_S.CONNECTING}),
    _S.READY: frozenset({_S.NEGOTIATING}),
    _S.CLOSED: frozenset(_S) - {_S.CLOSED},
}

Done = Callable[[Any], None]  # called once with the response, None (acks=0), or a KafkaError


class Features(NamedTuple):
    """The cluster's finalized features as this broker knows them; the epoch is −1 where it knows none."""

    epoch: int
    levels: dict[str, int]


class _Waiting(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    deadline_ms: int
    done: Done


def pick_version(request: type[Any], offered: dict[int, tuple[int, int]], version_max: int, broker: int) -> int:
    """The highest version that both sides speak and the caller allows.

    Raises:
        UnsupportedByBroker: there is none; the text names both ranges.
    """
    low, high = request.VERSIONS
    theirs = offered.get(request.API_KEY)
    if theirs is None:
        raise UnsupportedByBroker(f"the broker does not serve {request.__name__}", broker=broker)
    version: int = min(high, theirs[1], version_max)
    if version < low or version < theirs[0]:
        raise UnsupportedByBroker(
            f"{request.__name__}: this client speaks {low}-{min(high, version_max)}, the broker {theirs[0]}-{theirs[1]}",
            broker=broker,
        )
    return version


class ConnectionCore:
    """The bookkeeping of one connection.

    Args:
        node_id: the broker's id, −1 while it is only an address.
        client_id: sent in every header.
        request_timeout_ms: how long an answer may take where the caller does not say.
    """

    def __init__(self, node_id: int, client_id: str, *, request_timeout_ms: int) -> None:
        self.node_id = node_id
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.state = ConnectionState.DISCONNECTED
        self.versions: dict[int, tuple[int, int]] = {}
        self.features = Features(-1, {})
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._earliest_ms: int | None = None
        self.versions_answer: ApiVersionsResponse | None = None  # until the shell hands it to on_versions

    @property
    def in_flight(self) -> int:
        """Requests that await their answer."""
        return len(self._waiting)

    def on_connecting(self) -> None:
        self._transition(ConnectionState.CONNECTING)

    def on_connected(self, now_ms: int) -> list[Buffer]:
        """The socket is open; returns the first thing to write."""
        self._transition(ConnectionState.NEGOTIATING)
        return self._ask_versions(ApiVersionsRequest.VERSIONS[1], now_ms)

    def send(
        self,
        request: Any,
        done: Done,
        now_ms: int,
        *,
        timeout_ms: int | None = None,
        version_max: int = _VERSION_MAX,
        answered: bool = True,
    ) -> list[Buffer]:
        """A request's bytes. `done` is called once: with the response, or with a KafkaError.

        Raises:
            UnsupportedByBroker: no common version; nothing is sent.
            BrokerUnreachable: the connection is not READY; nothing is sent.
        """
        if self.state is not ConnectionState.READY:
            raise BrokerUnreachable(f"the connection is {self.state.value}", broker=self.node_id)
        version = pick_version(type(request), self.versions, version_max, self.node_id)
        deadline = now_ms + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        return self._send(request, version, deadline, done, answered)

    def on_frame(self, frame: memoryview, now_ms: int) -> None:
        """Takes one whole frame.

        Raises:
            RemoteProtocolError: it is no answer to the oldest request; the connection must be closed.
        """
        if not self._waiting:
            raise RemoteProtocolError("an answer came to a request that was never sent")
        waiting = self._waiting[0]
        correlation_id = int.from_bytes(frame[:4], "big")
        if correlation_id != waiting.correlation_id:
            raise RemoteProtocolError(f"answer {correlation_id} came where {waiting.correlation_id} was due")
        position = 4
        if response_header_version(waiting.api_key, waiting.version) >= 1:
            position = _skip_tags(frame, position)
        version = waiting.version
        if waiting.api_key == API_VERSIONS_KEY and int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # KIP-511: a broker that cannot read the request answers with version 0 and its range
        response = decode(API[waiting.api_key].response, frame, version, position)
        self._waiting.popleft()
        if waiting.deadline_ms == self._earliest_ms:
            self._earliest_ms = min((w.deadline_ms for w in self._waiting), default=None)
        waiting.done(response)

    def on_versions(self, response: ApiVersionsResponse, now_ms: int) -> list[Buffer]:
        """Takes the answer to ApiVersions; returns what to write next, nothing once READY.

        Raises:
            RemoteProtocolError: an error answer that offers no way on.
        """
        code = code_of(response.error_code)
        if code is ErrorCode.UNSUPPORTED_VERSION:
            theirs = next((k for k in response.api_keys if k.api_key == API_VERSIONS_KEY), None)
            best = min(theirs.max_version, ApiVersionsRequest.VERSIONS[1]) if theirs is not None else 0
            return self._ask_versions(best, now_ms)
        if code is not ErrorCode.NONE:
            raise RemoteProtocolError(f"ApiVersions was answered with {code.name}")
        self.versions = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
        self.features = Features(
            response.finalized_features_epoch,
            {f.name: f.max_version_level for f in response.finalized_features},
        )
        self._transition(ConnectionState.READY)
        return []

    def timer_at(self) -> int | None:
        """Earliest deadline among the waiting requests, in monotonic ms."""
        return self._earliest_ms

    def on_timer(self, now_ms: int) -> KafkaError | None:
        """The reason to close the connection, where the oldest request is overdue."""
        if self._earliest_ms is not None and self._earliest_ms <= now_ms:
            waiting = min(self._waiting, key=lambda w: w.deadline_ms)
            return RequestTimedOut(f"no answer to {API[waiting.api_key].name} in time", broker=self.node_id)
        return None

    def on_lost(self, error: KafkaError) -> None:
        """The connection is gone: every waiting request fails with `error`, oldest first."""
        if self.state is not ConnectionState.CLOSED:
            self._transition(ConnectionState.DISCONNECTED)
        waiting, self._waiting = self._waiting, deque()
        self._earliest_ms = None
        for entry in waiting:
            entry.done(error)

    def close(self) -> None:
        """No more requests; those that wait still get `on_lost`."""
        if self.state is not ConnectionState.CLOSED:
            self._transition(ConnectionState.CLOSED)

    def _ask_versions(self, version: int, now_ms: int) -> list[Buffer]:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        return self._send(request, version, now_ms + self.request_timeout_ms, self._versions_done, True)

    def _versions_done(self, answer: Any) -> None:
        if isinstance(answer, ApiVersionsResponse):
            self.versions_answer = answer

    def _send(self, request: Any, version: int, deadline_ms: int, done: Done, answered: bool) -> list[Buffer]:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        api_key = request.API_KEY
        head = bytearray(4)
        header = RequestHeader(
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self.client_id,
        )
        _HEADER_CODECS[request_header_version(api_key, version)].encode_into(head, header)
        parts = encode_parts(request, version, head)
        first = parts[0]
        if not isinstance(first, bytearray):
            raise InvariantViolated("the first part of an encoded request must be its own buffer")
        first[:4] = (sum(map(len, parts)) - 4).to_bytes(4, "big")
        if answered:
            self._waiting.append(_Waiting(self._correlation_id, api_key, version, deadline_ms, done))
            if self._earliest_ms is None or deadline_ms < self._earliest_ms:
                self._earliest_ms = deadline_ms
        return parts

    def _transition(self, state: ConnectionState) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a connection cannot become {state.value} from {self.state.value}")
        self.state = state


def _skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tagged fields of a response header."""
    count, position = _unsigned(frame, position)
    for _ in range(count):
        _, position = _unsigned(frame, position)
        size, position = _unsigned(frame, position)
        position += size
        if position > len(frame):
            raise RemoteProtocolError("a tag of a response header ends behind its frame")
    return position


def _unsigned(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(frame) and shift < 35:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise RemoteProtocolError("a response header is cut off")


class _Socket(asyncio.BufferedProtocol):
    """One TCP connection of a Connection. Once detached nothing of it reaches the Connection any more."""

    def __init__(self, owner: Connection) -> None:
        self.owner: Connection | None = owner
        self.transport: asyncio.Transport | None = None
        self.reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream transport
        if self.owner is not None:
            self.owner.on_socket_open()
        else:
            self.detach()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.owner is not None:
            self.owner.on_socket_bytes(self.reader, nbytes)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.owner is not None:
            self.owner.on_socket_lost()

    def detach(self) -> None:
        self.owner = None
        if self.transport is not None:
            self.transport.abort()


class Connection:
    """The shell of one connection. Opened by `open`, again after `backoff`; closed for good by `close`.

    Args:
        host, port: where the broker listens.
        on_change: called whenever the connection became ready, was lost, could not be made, or may be tried again.
    """

    def __init__(
        self,
        host: str,
        port: int,
        core: ConnectionCore,
        *,
        clock: Clock,
        rng: Rng,
        network: Network,
        scope: Scope,
        connect_timeout_ms: int = 10_000,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        on_change: Callable[[], None],
    ) -> None:
        self.host = host
        self.port = port
        self.core = core
        self.error: KafkaError | None = None  # why the last attempt or connection ended
        self._clock = clock
        self._rng = rng
        self._network = network
        self._scope = scope
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff_ms = reconnect_backoff_ms
        self._backoff_max_ms = reconnect_backoff_max_ms
        self._on_change = on_change
        self._failures = 0
        self._retry_at_ms = 0
        self._socket: _Socket | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._unwritten: list[Buffer] = []

    # -- for the cluster -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a request can be sent now."""
        return self.core.state is ConnectionState.READY

    @property
    def backoff(self) -> int:
        """Milliseconds until another attempt to connect is due; 0 = now."""
        return max(0, self._retry_at_ms - self._clock.monotonic_ms())

    @property
    def writable(self) -> bool:
        """Whether little enough waits in the socket's buffer."""
        socket = self._socket
        if socket is None or socket.transport is None:
            return False
        return socket.transport.get_write_buffer_size() < _UNWRITTEN_BYTES_MAX

    def open(self) -> None:
        """Begins to connect where that is due; `on_change` follows."""
        if self.core.state is ConnectionState.DISCONNECTED and self.backoff == 0 and not self._scope.stopping:
            self.core.on_connecting()
            self._scope.start(self._connect(), name=f"connect {self.host}:{self.port}")

    def send(
        self,
        request: Any,
        done: Done,
        *,
        timeout_ms: int | None = None,
        version_max: int = _VERSION_MAX,
        answered: bool = True,
    ) -> None:
        """Sends a request; `done` is called once with its response or a KafkaError, never from within this call.

        Raises:
            UnsupportedByBroker, BrokerUnreachable: nothing was sent, `done` is not called.
            barnabas.errors.LocalProtocolError: the request cannot be encoded.
        """
        parts = self.core.send(
            request, done, self._clock.monotonic_ms(), timeout_ms=timeout_ms, version_max=version_max, answered=answered
        )
        self._write(parts)
        self._arm()

    async def request(self, request: Any, *, timeout_ms: int | None = None, version_max: int = _VERSION_MAX) -> Any:
        """Sends a request and waits for its response. A cancelled wait drops the answer; the request may have taken effect.

        Raises:
            KafkaError: nothing was sent or no answer came.
        """
        answer = asyncio.get_running_loop().create_future()

        def done(outcome: Any) -> None:
            if not answer.done():
                answer.set_result(outcome)

        self.send(request, done, timeout_ms=timeout_ms, version_max=version_max)
        outcome = await answer
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Closes for good; waiting requests fail with BrokerUnreachable."""
        self.core.close()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._lost(BrokerUnreachable("the client was closed", broker=self.core.node_id))

    def drop(self, error: KafkaError, *, at_fault: bool = True) -> None:
        """Gives the present connection up; another is made when one is needed, at once where the broker is not at fault."""
        self._lost(error, at_fault=at_fault)

    # -- from the socket -----------------------------------------------------------------------------------------------

    def on_socket_open(self) -> None:
        self._write(self.core.on_connected(self._clock.monotonic_ms()))
        self._arm()

    def on_socket_bytes(self, reader: FrameReader, count: int) -> None:
        now_ms = self._clock.monotonic_ms()
        core = self.core
        try:
            for frame in reader.received(count):
                core.on_frame(frame, now_ms)
                if core.versions_answer is not None:
                    answer, core.versions_answer = core.versions_answer, None
                    self._write(core.on_versions(answer, now_ms))
                    if self.ready:
                        self._failures = 0
                        self.error = None
                        self._on_change()
        except RemoteProtocolError as error:
            self._lost(NotKafka(f"{self.host}:{self.port} does not answer as a Kafka broker: {error}"))
            return
        self._arm()

    def on_socket_lost(self) -> None:
        negotiating = self.core.state is ConnectionState.NEGOTIATING
        hint = " before it said what it speaks: is it a Kafka broker, without TLS or SASL?" if negotiating else ""
        self._lost(BrokerUnreachable(f"{self.host}:{self.port} closed the connection{hint}", broker=self.core.node_id))

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        socket = self._socket = _Socket(self)
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await self._network.connect(lambda: socket, self.host, self.port)
        except (OSError, TimeoutError) as error:
            reason = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            if socket.owner is not None:
                self._lost(
                    BrokerUnreachable(f"cannot connect to {self.host}:{self.port}: {reason}", broker=self.core.node_id)
                )

    def _write(self, parts: list[Buffer]) -> None:
        """Gathers what one wake-up writes into one call."""
        if not parts:
            return
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten += parts

    def _flush(self) -> None:
        parts, self._unwritten = self._unwritten, []
        socket = self._socket
        if parts and socket is not None and socket.transport is not None and not socket.transport.is_closing():
            socket.transport.writelines(parts)

    def _lost(self, error: KafkaError, *, at_fault: bool = True) -> None:
        socket, self._socket = self._socket, None
        self._unwritten = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if socket is not None:
            socket.detach()
        if self.core.state is ConnectionState.DISCONNECTED:
            return
        if at_fault:
            self.error = error
            pause = min(self._backoff_ms * 2**self._failures, self._backoff_max_ms) * (0.8 + 0.4 * self._rng.random())
            self._failures = min(self._failures + 1, 10)
            self._retry_at_ms = self._clock.monotonic_ms() + int(pause)
            if self.core.state is not ConnectionState.CLOSED:
                self._retry_timer = asyncio.get_running_loop().call_later((int(pause) + 1) / 1000, self._on_change)
        self.core.versions_answer = None
        self.core.on_lost(error)
        self._on_change()

    def _arm(self) -> None:
        """Keeps one timer, at or before the earliest deadline: it is moved only when it fires."""
        deadline = self.core.timer_at()
        if deadline is None or (self._timer is not None and self._timer_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline
        pause = max(0, deadline - self._clock.monotonic_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        error = self.core.on_timer(self._clock.monotonic_ms())
        if error is not None:
            self._lost(error)
        else:
            self._arm()
