"""Handles SaslHandshake 0 to 1 and SaslAuthenticate 0 to 2 on connections that need no authentication.

Behaviour: both are answered with ILLEGAL_SASL_STATE, and the connection stays open, as with Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.call import Call, Table
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.reactor import Reactor

__all__ = ["CONTROLLER_HANDLERS", "HANDLERS", "Needs", "sasl_authenticate", "sasl_handshake"]

TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


class Needs(Protocol):
    """What these handlers work on."""

    reactor: Reactor


def sasl_handshake(needs: Needs, call: Call[SaslHandshakeRequest]) -> SaslHandshakeResponse:
    """Refuses a handshake on a connection that needs none."""
    raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(needs: Needs, call: Call[SaslAuthenticateRequest]) -> SaslAuthenticateResponse:
    """Refuses a token on a connection that needs none."""
    raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE, TOO_LATE)


def _refuse_handshake(call: Call[SaslHandshakeRequest], error: BrokerError) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error.code)


def _refuse_authenticate(call: Call[SaslAuthenticateRequest], error: BrokerError) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error.code, error_message=error.message)


HANDLERS: Final[Table] = {
    SaslHandshakeRequest: (sasl_handshake, _refuse_handshake),
    SaslAuthenticateRequest: (sasl_authenticate, _refuse_authenticate),
}
CONTROLLER_HANDLERS: Final[Table] = HANDLERS
