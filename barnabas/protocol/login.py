"""Login on a connection: SaslHandshake, then SaslAuthenticate (KIP-43, KIP-152); also renews a session (KIP-368)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.protocol.sasl import SaslClient, SaslFailed

_STEPS_MAX = 20  # messages of one conversation; the longest mechanism, GSSAPI, needs about five
_MECHANISMS_SHOWN_MAX = 20
_TEXT_LENGTH_MAX = 1_000


class Login:
    """One authentication. `session_lifetime_ms`: until the broker requires another one; 0: without limit."""

    def __init__(self, client: SaslClient) -> None:
        self._client = client
        self._steps = 0
        self.session_lifetime_ms = 0

    def first(self) -> SaslHandshakeRequest:
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def work(self, answer: Any) -> Callable[[], None] | None:
        """Slow computation of `next` for this response; None if it is quick."""
        if getattr(answer, "error_code", None) != ErrorCode.NONE:
            return None
        return self._client.work(bytes(answer.auth_bytes) if isinstance(answer, SaslAuthenticateResponse) else None)

    def next(self, answer: Any) -> SaslAuthenticateRequest | None:
        """The request after a response; None: authenticated. Raises SaslFailed; then close the connection."""
        if isinstance(answer, SaslHandshakeResponse):
            self._check_handshake(answer)
            return SaslAuthenticateRequest(auth_bytes=self._client.start())
        self._check(answer)
        self._steps += 1
        message = self._client.step(bytes(answer.auth_bytes))
        if message is None:
            self.session_lifetime_ms = max(0, answer.session_lifetime_ms)
            return None
        if self._steps >= _STEPS_MAX:
            raise SaslFailed(f"{self._client.mechanism}: the broker sent {_STEPS_MAX} messages without an end")
        return SaslAuthenticateRequest(auth_bytes=message)

    def _check_handshake(self, answer: SaslHandshakeResponse) -> None:
        if answer.error_code == ErrorCode.NONE:
            return
        mechanism = self._client.mechanism
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms[:_MECHANISMS_SHOWN_MAX]) or "none"
            raise SaslFailed(
                f"the broker does not offer SASL mechanism {mechanism} at this listener; it offers: {offered}",
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            )
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise SaslFailed(
                "the broker expects no SASL at this listener: use security_protocol PLAINTEXT or SSL, or a listener with SASL",
                ErrorCode.ILLEGAL_SASL_STATE,
            )
        raise SaslFailed(f"{mechanism}: SaslHandshake was answered with error {answer.error_code}")

    def _check(self, answer: SaslAuthenticateResponse) -> None:
        if answer.error_code == ErrorCode.NONE:
            return
        try:
            code = ErrorCode(answer.error_code)
        except ValueError:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        said = (answer.error_message or code.meaning)[:_TEXT_LENGTH_MAX]
        raise SaslFailed(f"{self._client.mechanism}: the broker refused the login: {said}", code)
