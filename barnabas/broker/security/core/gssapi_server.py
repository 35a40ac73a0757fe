"""GSSAPI (Kerberos) server exchange (RFC 4752). No security layer; the ticket's principal counts, as in Kafka.
Kafka ends a session only by connections.max.reauth.ms, not with its ticket. Clients get no reason of a rejection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.config.kerberos_names import KerberosNameError
from barnabas.broker.sasl.server_mechanism import LoginFailed, LoginIdentity
from barnabas.protocol.kerberos import NO_LAYER, GssContext, GssFailed

OFFER: Final = bytes((NO_LAYER, 0, 0, 0))  # the layers, and the longest message with a layer: 0 without one


class _Outcome(NamedTuple):
    answer: bytes = b""
    refused: str = ""  # why; a text, because an error would keep its frames in a reference cycle
    client: str = ""  # its principal, after the last message


class GssapiServer:
    """One exchange. Run `work` in a thread before `step`: the Kerberos library reads and writes files.

    Args:
        context: of the acceptor.
        local_name: maps a principal to a name in the cluster; raises KerberosNameError.
        on_refused: called with the reason of a failed login, for the log.
    """

    def __init__(
        self, context: GssContext, local_name: Callable[[str], str], on_refused: Callable[[str], None]
    ) -> None:
        self._context = context
        self._local_name = local_name
        self._on_refused = on_refused
        self._offered = False
        self._outcome: _Outcome | None = None  # of `work`
        self.identity: LoginIdentity | None = None

    def work(self, token: bytes) -> Callable[[], None]:
        """The computation of `step`. It raises nothing."""

        def compute() -> None:
            self._outcome = self._computed(token)

        return compute

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Responds to a message. Raises LoginFailed."""
        outcome, self._outcome = self._outcome or self._computed(token), None
        if outcome.refused:
            self._on_refused(outcome.refused)
            raise LoginFailed(why=outcome.refused)
        if outcome.client:
            self.identity = self._identified(outcome.client)
        return outcome.answer

    def _computed(self, token: bytes) -> _Outcome:
        try:
            return self._next(token)
        except GssFailed as error:
            return _Outcome(refused=str(error) or "no reason")

    def _next(self, token: bytes) -> _Outcome:
        context = self._context
        if not self._is_complete():
            answer = context.step(token)
            if answer or not self._is_complete():
                return _Outcome(answer)
            token = b""
        if not self._offered:
            if token:
                raise GssFailed("a message where an empty one is expected")
            self._offered = True
            return _Outcome(context.wrap(OFFER))
        chosen = context.unwrap(token)
        if len(chosen) < 4 or not chosen[0] & NO_LAYER:
            raise GssFailed("the client chose a security layer that was not offered")
        return _Outcome(client=context.client)

    def _is_complete(self) -> bool:
        return self._context.complete

    def _identified(self, client: str) -> LoginIdentity:
        try:
            return LoginIdentity(self._local_name(client))
        except KerberosNameError as error:
            self._on_refused(str(error))
            raise LoginFailed(why=str(error)) from None
