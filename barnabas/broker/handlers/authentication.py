"""Handles SaslHandshake 0 to 1 and SaslAuthenticate 0 to 2; and ApiVersions of connections that have not logged in.

Behaviour: `security/core/sasl_session.py` has the rules. A connection that has logged in, or needs no login, gets ILLEGAL_SASL_STATE and stays
open, as with Kafka; SaslHandshake begins a re-authentication if the session has an end (KIP-368).

Deviations: any other request before the login closes the connection. After SaslHandshake Kafka decodes such a request and answers it with
ILLEGAL_SASL_STATE before it closes; here no other request is decoded before the login.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.api.call import Answer, Call, Table
from barnabas.broker.handlers import metadata
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from barnabas.protocol.messages.metadata import ApiVersionsRequest

TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


# -- connections that have not logged in


def login_api_versions(needs: Needs, call: Call[ApiVersionsRequest]) -> Answer:
    """Lists the served APIs, once."""
    login = call.connection.login
    try:
        response = metadata.api_versions(needs, call)
    except BrokerError:
        if login is not None:
            login.on_api_versions(answered=False)
        raise
    refused = None if login is None else login.on_api_versions()
    return response if refused is None else refused


def login_handshake(needs: Needs, call: Call[SaslHandshakeRequest]) -> Answer:
    """Chooses the mechanism of a login."""
    login = call.connection.login
    if login is None:
        raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE)
    return login.on_handshake(call.request.mechanism, call.version)


def login_authenticate(needs: Needs, call: Call[SaslAuthenticateRequest]) -> Answer:
    """Takes a token of a login."""
    login = call.connection.login
    if login is None:
        raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE, TOO_LATE)
    return login.on_token(bytes(call.request.auth_bytes))


# -- other connections


def sasl_handshake(needs: Needs, call: Call[SaslHandshakeRequest]) -> Answer:
    """Begins a re-authentication; refuses a handshake on a connection that needs none."""
    login = call.connection.login
    if login is None or not login.may_begin_again():
        raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE)
    return login.on_handshake(call.request.mechanism, call.version)


def sasl_authenticate(needs: Needs, call: Call[SaslAuthenticateRequest]) -> SaslAuthenticateResponse:
    """Refuses a token on a connection that needs none."""
    raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE, TOO_LATE)


HANDLERS: Final[Table] = {
    SaslHandshakeRequest: (sasl_handshake, refuse),
    SaslAuthenticateRequest: (sasl_authenticate, refuse),
}
CONTROLLER_HANDLERS: Final[Table] = HANDLERS
LOGIN_HANDLERS: Final[Table] = {
    ApiVersionsRequest: (login_api_versions, refuse),
    SaslHandshakeRequest: (login_handshake, refuse),
    SaslAuthenticateRequest: (login_authenticate, refuse),
}
