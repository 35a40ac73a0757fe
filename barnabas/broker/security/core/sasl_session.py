"""SaslSession: handshake, exchange and re-authentication of one connection (KIP-43, KIP-152, KIP-368).
Errors, and what closes without a response, are those of Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from barnabas.broker.api.principal import USER, Principal
from barnabas.broker.sasl.server_mechanism import LoginFailed, LoginIdentity, ServerMechanism
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.protocol.kerberos import GSSAPI_MECHANISM
from barnabas.protocol.messages.authentication import SaslAuthenticateResponse, SaslHandshakeResponse
from barnabas.protocol.messages.metadata import ApiVersionsResponse
from barnabas.protocol.schema import Message

STEPS_MAX: Final = 16  # requests before one login is complete: mechanisms need four at most
AGAIN_INTERVAL_MS: Final = 1_000  # between the starts of two re-authentications, as in Kafka


class SessionState(Enum):
    """What the session expects next."""

    START = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    TOKEN = "SaslAuthenticate"
    RAW_TOKEN = "a token without a request header"
    OPEN = "requests"
    OVER = "SaslHandshake of a re-authentication"  # the session has ended
    ENDED = "nothing"


class LoginStep(NamedTuple):
    """Effect of one login request.

    Attributes:
        response: None: the connection ends without one, or the token was raw.
        raw: response to a raw token or None.
        failure: why the connection ends after the response and the delay of failed logins; empty: it stays open.
        principal: of the client, if this completes the login.
        lifetime_ms: duration of the session; None: unlimited.
    """

    response: Message | None = None
    raw: bytes | None = None
    failure: str = ""
    principal: Principal | None = None
    lifetime_ms: int | None = None


class SaslSession:
    """Logins of one connection.

    Before the first login the client may send ApiVersions once, then SaslHandshake, then tokens: at most STEPS_MAX
    requests. An expired session accepts only a handshake. A re-authentication keeps mechanism and principal.

    Args:
        mechanisms: the enabled ones.
        begin: creates the server's side of an exchange of a mechanism.
        reauth_ms_max: longest session of a mechanism (connections.max.reauth.ms); 0: no limit.

    Attributes:
        mechanism: of the present or the last exchange.
        principal: of the last complete login, or None.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        begin: Callable[[str], ServerMechanism],
        reauth_ms_max: Callable[[str], int],
    ) -> None:
        self.state = SessionState.START
        self.mechanism = ""
        self.principal: Principal | None = None
        self._mechanisms = mechanisms
        self._begin = begin
        self._reauth_ms_max = reauth_ms_max
        self._exchange: ServerMechanism | None = None
        self._limited = False  # the session has an end
        self._again_ms: int | None = None  # when the last re-authentication began
        self._other_mechanism = False
        self._steps = 0

    def on_api_versions(self, *, answered: bool) -> LoginStep | None:
        """ApiVersions request; None: respond, perhaps without versions (not `answered`). Raises RemoteProtocolError."""
        self._count()
        if self.state in (SessionState.TOKEN, SessionState.RAW_TOKEN):
            self.state = SessionState.ENDED
            refused = ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            return LoginStep(refused, failure="ApiVersions during an exchange")
        if self.state is not SessionState.START:
            raise self._unexpected("ApiVersions")
        if answered:
            self.state = SessionState.HANDSHAKE
        return None

    def may_begin_again(self, now_ms: int) -> bool:
        """Whether a handshake starts a re-authentication now; `now_ms` is monotonic."""
        return (
            self.state in (SessionState.OPEN, SessionState.OVER)
            and self._limited
            and (self._again_ms is None or now_ms - self._again_ms >= AGAIN_INTERVAL_MS)
        )

    def on_handshake(self, mechanism: str, version: int, now_ms: int) -> LoginStep:
        """The client chooses a mechanism. Raises RemoteProtocolError."""
        self._count()
        if self.state is SessionState.TOKEN:
            self.state = SessionState.ENDED
            refused = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            return LoginStep(refused, failure="SaslHandshake during an exchange")
        if self.state is SessionState.OVER and not self.may_begin_again(now_ms):
            raise self._unexpected("SaslHandshake")
        if self.state in (SessionState.RAW_TOKEN, SessionState.ENDED):
            raise self._unexpected("SaslHandshake")
        again = self.state in (SessionState.OPEN, SessionState.OVER)
        if again:
            self._again_ms, self._steps = now_ms, 1
        if mechanism not in self._mechanisms:
            self.state = SessionState.ENDED
            if again:
                raise RemoteProtocolError("a re-authentication with a mechanism that is not enabled")
            answer = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(self._mechanisms)
            )
            return LoginStep(answer, failure="the client's SASL mechanism is not enabled")
        self._other_mechanism = again and mechanism != self.mechanism
        if not self._other_mechanism:
            self.mechanism = mechanism
        self._exchange = self._begin(mechanism)
        self.state = SessionState.TOKEN if version >= 1 else SessionState.RAW_TOKEN
        return LoginStep(SaslHandshakeResponse(mechanisms=list(self._mechanisms)))

    def work(self, token: bytes, *, raw: bool = False) -> Callable[[], None] | None:
        """Slow computation of `on_token` or `on_raw_token`, for a thread; None if it is quick."""
        if (
            self.state is not (SessionState.RAW_TOKEN if raw else SessionState.TOKEN)
            or self._other_mechanism
            or self._exchange is None
        ):
            return None
        return self._exchange.work(token)

    def on_token(self, token: bytes, now_ms: int) -> LoginStep:
        """A token in a SaslAuthenticate request; `now_ms` since 1970. Raises RemoteProtocolError."""
        self._count()
        if self.state is SessionState.RAW_TOKEN:  # a request is no token of the mechanism
            self.state = SessionState.ENDED
            return LoginStep(failure=self._invalid_credentials())
        if self.state is not SessionState.TOKEN:
            raise self._unexpected("SaslAuthenticate")
        step = self._stepped(token, now_ms)
        if step.failure:
            return step
        response = SaslAuthenticateResponse(
            auth_bytes=step.raw or b"", error_message="", session_lifetime_ms=step.lifetime_ms or 0
        )
        return step._replace(response=response, raw=None)

    def on_raw_token(self, token: bytes, now_ms: int) -> LoginStep:
        """A token without a request header, after SaslHandshake 0; `now_ms` since 1970. Raises RemoteProtocolError."""
        self._count()
        if self.state is not SessionState.RAW_TOKEN:
            raise self._unexpected("a raw token")
        step = self._stepped(token, now_ms)
        # GSSAPI has no message after the client's last one.
        silent = bool(step.failure) or (step.principal is not None and self.mechanism == GSSAPI_MECHANISM)
        return step._replace(response=None, raw=None) if silent else step

    def on_over(self) -> None:
        """The session has expired: the next request must be a handshake."""
        if self.state is SessionState.OPEN:
            self.state = SessionState.OVER
            self._steps = 0

    def _stepped(self, token: bytes, now_ms: int) -> LoginStep:
        """The mechanism's answer is in `raw`, the refusal of a SaslAuthenticate in `response`."""
        if self._other_mechanism:
            self.state = SessionState.ENDED
            return LoginStep(failure="a re-authentication with another mechanism")
        if self._exchange is None:
            raise RemoteProtocolError("a token without a handshake")
        try:
            answer = self._exchange.step(token, now_ms)
            identity = self._exchange.identity
            if identity is not None:
                self._check_same_principal(identity)
        except LoginFailed as failed:
            self.state = SessionState.ENDED
            message = failed.message or self._invalid_credentials()
            refused = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message)
            return LoginStep(refused, failure=message)
        if identity is None:
            return LoginStep(raw=answer)
        lifetime_ms = self._open(identity, now_ms)
        return LoginStep(raw=answer, principal=self.principal, lifetime_ms=lifetime_ms)

    def _check_same_principal(self, identity: LoginIdentity) -> None:
        before, now = self.principal, Principal(USER, identity.name, identity.token)
        if before is not None and before != now:
            raise LoginFailed(
                f"Cannot change principals during re-authentication from {before.kind}.{before.name}: {now.kind}.{now.name}"
            )

    def _open(self, identity: LoginIdentity, now_ms: int) -> int | None:
        """Completes the login; returns the duration of the session, None if unlimited."""
        self.state = SessionState.OPEN
        self.principal = Principal(USER, identity.name, identity.token)
        self._exchange = None
        self._steps = 0
        limits = []
        longest_ms = self._reauth_ms_max(self.mechanism)
        if longest_ms > 0:
            limits.append(longest_ms)
        if identity.expires_at_ms is not None:
            limits.append(max(0, identity.expires_at_ms - now_ms))
        self._limited = bool(limits)
        return min(limits) if limits else None

    def _count(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            self.state = SessionState.ENDED
            raise RemoteProtocolError(f"more than {STEPS_MAX} requests before the login is complete")

    def _unexpected(self, what: str) -> RemoteProtocolError:
        expected = self.state.value
        self.state = SessionState.ENDED
        return RemoteProtocolError(f"{what} where {expected} is expected: the client has not authenticated")

    def _invalid_credentials(self) -> str:
        during = "authentication" if self.principal is None else "re-authentication"
        return f"Authentication failed during {during} due to invalid credentials with SASL mechanism {self.mechanism}"
