"""Connection to one broker: the asyncio shell around `protocol/exchange.py`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from barnabas.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    IllegalState,
    KafkaError,
    NotKafka,
    RequestTimedOut,
    UnsupportedByBroker,
)
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.net.security import ClientSecurity
from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.network_port import Network
from barnabas.ports import Buffer, Clock, Rng
from barnabas.protocol.exchange import VERSION_MAX, Exchange, ExchangeState, NoCommonVersion, NotReady, OnResponse
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.sasl import SaslFailed
from barnabas.runtime.framed_socket import FramedSocket
from barnabas.runtime.scope import Scope

_STEADY_MS = 1_000  # the loss of a connection that lasted this long starts with the shortest pause again
_STALLED_MS = 300  # after this time another address is tried while the attempt continues
_REFUSED_MS = 1_000  # the shortest pause after a login or a certificate was rejected
_BEGINNING = (ExchangeState.CONNECTING, ExchangeState.NEGOTIATING, ExchangeState.AUTHENTICATING)
# above it a socket is not `writable`: records then wait in batches, which can still grow
_UNWRITTEN_BYTES_MAX = 1024 * 1024


class Connection:
    """One connection. `open` connects, and reconnects once `backoff` is 0; `close` is final.

    Args:
        node_id: negative for a bootstrap address.
        on_change: called when the connection becomes ready, is lost, fails, or may be tried again.
        on_lost: called before `on_change` when a ready connection was lost, except by `close` or a `drop` without
            fault.
    """

    def __init__(
        self,
        host: str,
        port: int,
        core: Exchange,
        *,
        node_id: int,
        clock: Clock,
        rng: Rng,
        network: Network,
        security: ClientSecurity | None = None,
        scope: Scope,
        connect_timeout_ms: int = 10_000,
        reconnect_backoff_ms: int = 20,
        on_change: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.host = host
        self.port = port
        self.core = core
        self.node_id = node_id
        self.error: KafkaError | None = None  # why the last attempt or connection ended
        self.silent = False  # a caller timed out, and no bytes have arrived since
        self._clock = clock
        self._network = network
        self._security = security
        self._scope = scope
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff = Backoff(reconnect_backoff_ms, rng)
        self._on_change = on_change
        self._on_lost = on_lost
        self._began_ms = 0  # start of the current attempt
        self._ready_ms = 0
        self._failed_ms = 0  # the end of the last attempt or connection that failed
        self._retry_at_ms = 0
        self._socket: FramedSocket | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._unwritten: list[Buffer] = []
        self._answered = False  # it has answered a request other than ApiVersions
        self._heard_ms = 0  # when the last bytes arrived

    # -- for the cluster -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.core.state is ExchangeState.READY

    @property
    def backoff(self) -> int:
        """Milliseconds until the next attempt to connect is due; 0 = now."""
        return max(0, self._retry_at_ms - self._clock.monotonic_ms())

    @property
    def stalled(self) -> bool:
        """Whether the current attempt to connect takes unusually long."""
        return self.core.state in _BEGINNING and self._clock.monotonic_ms() - self._began_ms > _STALLED_MS

    @property
    def negotiating(self) -> bool:
        """Whether the peer has accepted the connection but not answered ApiVersions yet."""
        return self.core.state is ExchangeState.NEGOTIATING

    @property
    def unanswered_ms(self) -> int:
        """Milliseconds of silence while a response is expected, less the time that the broker may hold the request."""
        limit_ms = self.core.timer_at()
        if limit_ms is None or not self.ready:
            return 0
        expected_ms = max(self._heard_ms, limit_ms - self.core.request_timeout_ms)
        return max(0, self._clock.monotonic_ms() - expected_ms)

    @property
    def writable(self) -> bool:
        socket = self._socket
        if socket is None or socket.transport is None:
            return False
        return socket.transport.get_write_buffer_size() < _UNWRITTEN_BYTES_MAX

    def open(self) -> None:
        if self.core.state is ExchangeState.DISCONNECTED and self.backoff == 0 and not self._scope.stopping:
            self.core.on_connecting()
            self._began_ms = self._clock.monotonic_ms()
            socket = self._socket = FramedSocket(self, FrameReader())
            self._scope.start(self._connect(socket), name=f"connect {self.host}:{self.port}")

    def retry_now(self, alive_ms: int) -> None:
        """Ends the backoff if the broker was alive at `alive_ms`, after the last failure."""
        if self.backoff and self._failed_ms < alive_ms:
            self._retry_at_ms = 0
            self._backoff.reset()

    @property
    def ready_ms(self) -> int:
        """When the connection last became ready, monotonic; 0 before that."""
        return self._ready_ms

    def send(
        self,
        request: Any,
        done: OnResponse,
        *,
        timeout_ms: int | None = None,
        version_max: int = VERSION_MAX,
        version_min: int = 0,
        answered: bool = True,
    ) -> None:
        """Sends a request; `done` is called once with the response or a KafkaError, but not within this call.

        Args:
            version_min: lowest version, even if the broker does not offer it.
            answered: False for Produce with acks=0.

        Raises:
            UnsupportedByBroker, BrokerUnreachable: nothing was sent, and `done` is not called.
            barnabas.errors.LocalProtocolError: the request cannot be encoded.
        """
        now_ms = self._clock.monotonic_ms()
        try:
            parts = self.core.send(
                request,
                done,
                now_ms,
                timeout_ms=timeout_ms,
                version_max=version_max,
                version_min=version_min,
                answered=answered,
            )
        except NoCommonVersion as error:
            raise UnsupportedByBroker(str(error), broker=self.node_id) from None
        except NotReady as error:
            raise BrokerUnreachable(str(error), broker=self.node_id) from None
        self._write(parts)
        self._arm()

    async def request(self, request: Any, *, timeout_ms: int | None = None, version_max: int = VERSION_MAX) -> Any:
        """Sends a request and waits for its response. After a cancellation it may have taken effect. Raises KafkaError."""
        outcome = await self.send_soon(request, timeout_ms=timeout_ms, version_max=version_max)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def send_soon(
        self, request: Any, *, timeout_ms: int | None = None, version_max: int = VERSION_MAX
    ) -> asyncio.Future[Any]:
        """Sends a request; the future's result is the response or a KafkaError. Raises as `send`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(outcome: Any) -> None:
            if not answer.done():
                answer.set_result(outcome)

        try:
            self.send(request, done, timeout_ms=timeout_ms, version_max=version_max)
        except LocalProtocolError as error:  # a number is out of range, or a text is too long or not UTF-8
            raise IllegalState(str(error)) from error
        return answer

    def close(self) -> None:
        self.core.close()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._lost(BrokerUnreachable("the client was closed", broker=self.node_id))

    def abandon(self) -> None:
        """Closes for good without the event loop, which is closed. Requests in flight get no result."""
        self.core.close()
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.abandon()

    def drop(self, error: KafkaError, *, at_fault: bool = True) -> None:
        """Closes the current connection; `open` makes another, without backoff unless the broker is `at_fault`."""
        self._lost(error, at_fault=at_fault)

    # -- from the socket -----------------------------------------------------------------------------------------------

    def on_socket_open(self) -> None:
        self._answered = False
        self._write(self.core.on_connected(self._clock.monotonic_ms()))
        self._arm()

    def on_socket_bytes(self, reader: FrameReader, count: int) -> None:
        now_ms = self._heard_ms = self._clock.monotonic_ms()
        core = self.core
        self.silent = False
        try:
            for frame in reader.received(count):
                self._answered = self.ready
                core.on_frame(frame)
                if core.own_answer is not None:
                    self._continue(now_ms)
        except SaslFailed as error:
            self._lost(self._not_authenticated(error))
            return
        except RemoteProtocolError as error:
            if self._answered:
                text = f"{self.host}:{self.port} broke Kafka's protocol: {error}"
            else:
                text = f"{self.host}:{self.port} does not answer as a Kafka broker: {other_protocol(bytes(reader.unread[:8])) or error}"
            self._lost(NotKafka(text))
            return
        self._arm()

    def on_socket_lost(self) -> None:
        cause = self._socket.error if self._socket is not None else None
        if isinstance(cause, ssl.SSLError):
            self._lost(tls_failure(cause, self.host, self.port, broker=self.node_id))
            return
        secure = self._security is not None and self._security.tls is not None
        hint = ""
        if self.negotiating:
            hint = " before it answered ApiVersions: is it a Kafka broker"
            hint += "?" if secure else ", and a listener without TLS? For one with TLS set security_protocol"
        elif self.core.state is ExchangeState.AUTHENTICATING:
            hint = " during the authentication"
        elif self.ready and not self._answered and not self._has_sasl:
            hint = " at the first request: does this listener require authentication (SASL)? Set security_protocol and sasl_mechanism (for a command: --command-config FILE)"
        self._lost(BrokerUnreachable(f"{self.host}:{self.port} closed the connection{hint}", broker=self.node_id))

    # -- internal --------------------------------------------------------------------------------------------------------

    @property
    def _has_sasl(self) -> bool:
        return self._security is not None and self._security.mechanism is not None

    async def _connect(self, socket: FramedSocket) -> None:
        if socket.owner is None:
            return  # closed before this task began
        secured: Any = {}
        try:
            if self._security is not None:
                await self._security.prepare(self._connect_timeout_ms)
                if self._security.tls is not None:
                    secured = {"tls": self._security.tls, "server_name": self.host}
            if self._socket is not socket:
                return  # closed during the token request
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await self._network.connect(lambda: socket, self.host, self.port, **secured)
        except SaslFailed as error:
            if socket.owner is not None:
                self._lost(self._not_authenticated(error))
        except (OSError, TimeoutError) as error:
            if socket.owner is not None:
                self._lost(connect_failure(error, self.host, self.port, broker=self.node_id, tls=bool(secured)))

    def _continue(self, now_ms: int) -> None:
        """Handles a response to a request of the core itself. Raises SaslFailed, RemoteProtocolError."""
        work = self.core.own_work()
        if work is None or self._security is None:
            self._advance(now_ms)
        else:
            self._scope.start(self._compute(self._security, work), name=f"login {self.host}:{self.port}")

    def _advance(self, now_ms: int) -> None:
        was_ready = self.ready
        self._write(self.core.on_own_answer(now_ms))
        if self.ready and not was_ready:
            if MetadataRequest.API_KEY not in self.core.versions:
                where = f"{self.host}:{self.port} is a controller's port"
                self._lost(NotKafka(f"{where}; use the address of a broker's listener", broker=self.node_id))
                return
            self._ready_ms = now_ms
            self.error = None
            self._on_change()

    async def _compute(self, security: ClientSecurity, work: Callable[[], None]) -> None:
        socket = self._socket
        await security.compute(work)
        if self._socket is socket:
            self._guarded(lambda: self._advance(self._clock.monotonic_ms()))

    async def _reauthenticate(self, security: ClientSecurity) -> None:
        socket = self._socket
        try:
            await security.prepare(self._connect_timeout_ms)
        except SaslFailed as error:
            if self._socket is socket:
                self._lost(self._not_authenticated(error))
            return
        if self._socket is socket:
            self._guarded(lambda: self._write(self.core.reauthenticate(self._clock.monotonic_ms())))

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except SaslFailed as error:
            self._lost(self._not_authenticated(error))
        else:
            self._arm()

    def _not_authenticated(self, error: SaslFailed) -> AuthenticationFailed:
        if self._security is not None:
            self._security.refused()
        return AuthenticationFailed(f"{self.host}:{self.port}: {error}", code=error.code, broker=self.node_id)

    def _write(self, parts: list[Buffer]) -> None:
        """Collects the writes of one event-loop iteration into one call."""
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
        was_ready = self.ready
        self.silent = False
        socket, self._socket = self._socket, None
        self._unwritten = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if socket is not None:
            socket.detach()
        if self.core.state is ExchangeState.DISCONNECTED:
            return
        if at_fault:
            now_ms = self._clock.monotonic_ms()
            self.error = error
            if was_ready and now_ms - self._ready_ms >= _STEADY_MS:
                self._backoff.reset()
            self._failed_ms = now_ms
            pause_ms = self._backoff.pause_ms(now_ms)
            if isinstance(error, AuthenticationFailed):
                pause_ms = max(pause_ms, _REFUSED_MS)
            self._retry_at_ms = now_ms + pause_ms
            if self.core.state is not ExchangeState.CLOSED:
                self._retry_timer = asyncio.get_running_loop().call_later((pause_ms + 1) / 1000, self._on_change)
        self.core.on_lost(error)
        if was_ready and at_fault:
            self._on_lost()
        self._on_change()

    def _arm(self) -> None:
        """Keeps one timer, at or before the earliest deadline. It is rescheduled only when it fires."""
        deadline = self.core.timer_at()
        renewal = self.core.reauthenticate_at_ms
        if renewal is not None:
            deadline = renewal if deadline is None else min(deadline, renewal)
        if deadline is None or (self._timer is not None and self._timer_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline
        pause = max(0, deadline - self._clock.monotonic_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        overdue = self.core.on_timer(now_ms)
        renewal = self.core.reauthenticate_at_ms
        if overdue is None and renewal is not None and renewal <= now_ms and self._security is not None:
            self.core.reauthenticate_at_ms = None
            self._scope.start(self._reauthenticate(self._security), name=f"renew {self.host}:{self.port}")
        if overdue is not None:
            hint = (
                f": {self.host}:{self.port} accepts connections and does not answer; is it a Kafka broker?"
                if self.negotiating
                else ""
            )
            self._lost(RequestTimedOut(f"no answer to {overdue} in time{hint}", broker=self.node_id))
        else:
            self._arm()


def connect_failure(error: OSError | TimeoutError, host: str, port: int, *, broker: int, tls: bool) -> KafkaError:
    if isinstance(error, ssl.SSLError):
        return tls_failure(error, host, port, broker=broker)
    reason = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError):
        reason = "connection refused"
    if tls and isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        reason = (
            "it closed the connection during the TLS handshake: does this listener use TLS? For one without TLS set "
            "security_protocol to 'PLAINTEXT' or 'SASL_PLAINTEXT'"
        )
    elif tls and isinstance(error, TimeoutError):
        reason = "timed out, with the TLS handshake: does this listener use TLS?"
    return BrokerUnreachable(f"cannot connect to {host}:{port}: {reason}", broker=broker)


def tls_failure(error: ssl.SSLError, host: str, port: int, *, broker: int) -> KafkaError:
    where = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(
            f"the certificate of {where} is not accepted: {_verification(error)}", broker=broker
        )
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER_FAILURE" in reason:
        return NotKafka(
            f"{where} does not answer with TLS: is this a listener without TLS? Set security_protocol to 'PLAINTEXT' or "
            f"'SASL_PLAINTEXT', or use the address of a listener with TLS",
            broker=broker,
        )
    set_one = "set ssl_certfile and ssl_keyfile (ssl.keystore.location) to one of an authority that the broker trusts"
    if "CERTIFICATE_EXPIRED" in reason:
        set_one = "make a new one and set ssl_certfile and ssl_keyfile (ssl.keystore.location) to it"
    if "CERTIFICATE_REQUIRED" in reason:
        text = f"requires a certificate of this client: {set_one}"
    elif "BAD_CERTIFICATE" in reason:  # Java's response to a client without a certificate, too
        text = f"requires a certificate of this client, or refuses the one it has: {set_one}"
    elif any(each in reason for each in ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED")):
        text = (
            f"refuses this client's certificate ({reason.partition('ALERT_')[2].replace('_', ' ').lower()}): {set_one}"
        )
    elif "HANDSHAKE_FAILURE" in reason:
        text = "refused the TLS handshake: does it require a certificate of this client (ssl_certfile, ssl.keystore.location), or other ciphers?"
    elif "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        text = "speaks no TLS version that this client allows (1.2 and 1.3)"
    else:
        text = f"ended the TLS connection: {error.reason or error}"
        return BrokerUnreachable(f"{where} {text}", broker=broker)
    return AuthenticationFailed(f"{where} {text}", broker=broker)


def _verification(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message or str(error)
    if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
        return f"{said}; connect to a name in the certificate, or switch the check off if you know the risk (ssl_check_hostname, ssl.endpoint.identification.algorithm)"
    if error.verify_code in (18, 19, 20, 21):  # self-signed, or its issuer is unknown
        return (
            f"{said}; set ssl_cafile (ssl.truststore.location) to the certificate of the authority that issued it"
            + ("" if error.verify_code in (18, 19) else ", or let the broker send its whole chain")
        )
    if error.verify_code in (9, 10):  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
        return f"{said}; the broker needs a new certificate, unless the clock of this machine is wrong"
    return said


def other_protocol(first: bytes) -> str | None:
    if first.startswith(b"HTTP"):
        return "it speaks HTTP; use the address of a broker's Kafka listener"
    if first[:2] == b"\x15\x03":
        return "it speaks TLS; set security_protocol to 'SSL' or 'SASL_SSL' (for a command: --command-config FILE with security.protocol), or use the address of a plaintext listener"
    return None
