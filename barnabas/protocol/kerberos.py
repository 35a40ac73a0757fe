"""GSSAPI (Kerberos): port of a security context, and the client's side of the mechanism (RFC 4752).
No security layer is chosen: only TLS protects requests. Steps call the Kerberos library: run `work` in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from barnabas.errors import BarnabasError
from barnabas.protocol.sasl import SaslFailed

GSSAPI_MECHANISM: Final = "GSSAPI"
NO_LAYER: Final = 1  # of the bits of RFC 4752, 3.3: no security layer


class GssFailed(BarnabasError):
    """The Kerberos library rejected a step. The text is the library's, without secrets."""


class GssContext(Protocol):
    """One side of a security context. Its methods may block."""

    @property
    def complete(self) -> bool:
        """Whether both sides are authenticated."""
        ...

    @property
    def client(self) -> str:
        """The client's principal, once complete."""
        ...

    def step(self, token: bytes) -> bytes:
        """Consumes a message of the other side (empty at the start); returns the next, maybe empty. Raises GssFailed."""
        ...

    def wrap(self, data: bytes) -> bytes:
        """Signs. Raises GssFailed."""
        ...

    def unwrap(self, data: bytes) -> bytes:
        """Verifies. Raises GssFailed."""
        ...


class _Outcome(NamedTuple):
    message: bytes
    failure: str = ""  # a text, because an error would keep its frames in a reference cycle


class GssapiClient:
    """Conversation of the initiator's `context`."""

    mechanism = GSSAPI_MECHANISM

    def __init__(self, context: GssContext) -> None:
        self._context = context
        self._chosen = False  # the last message was created
        self._outcome: _Outcome | None = None  # of `work`

    def start(self) -> bytes:
        return self._taken(b"")

    def step(self, challenge: bytes) -> bytes | None:
        if self._chosen and self._outcome is None:
            if challenge:
                raise SaslFailed("GSSAPI: the broker continues after the last message")
            return None
        return self._taken(challenge)

    def work(self, challenge: bytes | None) -> Callable[[], None] | None:
        if self._chosen:
            return None

        def compute() -> None:
            self._outcome = self._computed(challenge or b"")

        return compute

    def _taken(self, challenge: bytes) -> bytes:
        outcome, self._outcome = self._outcome or self._computed(challenge), None
        if outcome.failure:
            raise SaslFailed(outcome.failure)
        return outcome.message

    def _computed(self, challenge: bytes) -> _Outcome:
        try:
            return _Outcome(self._next(challenge))
        except GssFailed as error:
            return _Outcome(b"", f"GSSAPI: {error}")

    def _next(self, challenge: bytes) -> bytes:
        if not self._context.complete:
            return self._context.step(challenge)
        offer = self._context.unwrap(challenge)
        if len(offer) != 4 or not offer[0] & NO_LAYER:
            raise GssFailed("the broker insists on a security layer, which Kafka does not have")
        self._chosen = True
        return self._context.wrap(bytes((NO_LAYER, 0, 0, 0)))  # without an authorization id: that of the ticket
