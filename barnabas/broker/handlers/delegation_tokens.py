"""Handles CreateDelegationToken (38) 1 to 3, RenewDelegationToken (39) and ExpireDelegationToken (40) 1 to 2, DescribeDelegationToken (41) 1 to 3.

Behaviour (KIP-48, KIP-373): a client that has authenticated, and not by a token itself, may make tokens for itself; for another owner it
needs CREATE_TOKENS of that user. The controller decides, on behalf of the client, and asks for the permission again; the answer is sent
once this node's own image has the token. DescribeDelegationToken shows the tokens of which the client is owner, requester or renewer, and
those that it may DESCRIBE. The controller listener serves 38 to 40 by the same rules.

Version notes: version 3 has the owner of a new token, and its requester.
Deviations: an owner must be a user, because a login by a token gives a user; a token has 100 renewers at most. A request that a broker
forwards is decided whatever protocol the controller listener has; Kafka refuses it where that listener is PLAINTEXT.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Table
from barnabas.broker.api.principal import ANONYMOUS, USER, Principal
from barnabas.broker.controller.core.delegation_tokens import token_parties
from barnabas.broker.handlers.admin import forwarded
from barnabas.broker.handlers.envelope import ForwardedOrigin
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse
from barnabas.broker.sasl.scram_server import token_hmac
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    TokenPrincipal,
)
from barnabas.protocol.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.image.records import DelegationTokenRecord

TokenChange = CreateDelegationTokenRequest | RenewDelegationTokenRequest | ExpireDelegationTokenRequest
TokenRefusal = CreateDelegationTokenResponse | RenewDelegationTokenResponse | ExpireDelegationTokenResponse

_REFUSED_BEFORE: Final = {
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def create_delegation_token(needs: Needs, call: Call[CreateDelegationTokenRequest]) -> Answer:
    """Makes a token."""
    check_change(needs.config, call)
    if any(each.principal_type != USER for each in call.request.renewers):
        raise BrokerError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    return _asked(needs, call)


def change_delegation_token(
    needs: Needs, call: Call[RenewDelegationTokenRequest] | Call[ExpireDelegationTokenRequest]
) -> Answer:
    """Renews a token, or lets it expire."""
    check_change(needs.config, call)
    call.request.hmac = bytes(call.request.hmac)  # a copy, because the request waits
    return _asked(needs, call)


def describe_delegation_tokens(needs: Needs, call: Call[DescribeDelegationTokenRequest]) -> Computed:
    """Lists the tokens that the client may see."""
    _check_allowed(needs.config, call)
    secret = needs.config.get_str("delegation.token.secret.key")
    if not secret:
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    tokens = needs.current_image.image.delegation_tokens
    return Computed(call, partial(_visible, call.request, tokens, secret), len(tokens))


def _visible(
    request: DescribeDelegationTokenRequest, tokens: Mapping[str, DelegationTokenRecord], secret: str, access: Access
) -> DescribeDelegationTokenResponse:
    owners = request.owners
    wanted = None if owners is None else {f"{each.principal_type}:{each.principal_name}" for each in owners}
    me = str(access.principal)
    found = []
    for token in tokens.values():
        parties = token_parties(token)
        if wanted is not None and wanted.isdisjoint(parties):
            continue
        if (
            me in parties
            or access.allows(AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token.token_id)
            or access.allows(AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, token.owner)
        ):
            found.append(_described(token, secret))
    return DescribeDelegationTokenResponse(tokens=found)


def _described(token: DelegationTokenRecord, secret: str) -> DescribedDelegationToken:
    owner, requester = _principal(token.owner), _principal(token.requester)
    return DescribedDelegationToken(
        principal_type=owner.principal_type,
        principal_name=owner.principal_name,
        token_requester_principal_type=requester.principal_type,
        token_requester_principal_name=requester.principal_name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=[_principal(each) for each in token.renewers],
    )


def check_change(config: BrokerConfig, call: Call[TokenChange]) -> None:
    """Refuses a request to make, renew or expire a token; asked by the broker, and again by the controller.

    Raises:
        BrokerError: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTHORIZATION_FAILED.
    """
    _check_allowed(config, call)
    request, principal = call.request, call.access.principal
    if isinstance(request, CreateDelegationTokenRequest) and request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
        same = (owner.kind, owner.name) == (principal.kind, principal.name)
        if not same and not call.access.allows(AclOperation.CREATE_TOKENS, AclResourceType.USER, str(owner)):
            raise BrokerError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)


def _check_allowed(config: BrokerConfig, call: Call[Message]) -> None:
    """Raises BrokerError for a client that has not proved who it is, or has done so by a token."""
    principal = call.access.principal
    # The listener of a forwarded request is that of the broker's connection: the broker has checked the client's.
    protocol = "" if isinstance(call.connection, ForwardedOrigin) else config.security_protocol(call.listener)
    if principal.token or protocol == "PLAINTEXT" or (protocol in ("", "SSL") and principal == ANONYMOUS):
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _asked(needs: Needs, call: Call[TokenChange]) -> Answer:
    return forwarded(needs.controller, call, _refused_by_controller)


def _principal(text: str) -> TokenPrincipal:
    kind, _, name = text.partition(":")
    return TokenPrincipal(principal_type=kind, principal_name=name)


def _refused_creation(
    request: CreateDelegationTokenRequest, requester: Principal, error: BrokerError
) -> CreateDelegationTokenResponse:
    named = bool(request.owner_principal_name)
    return CreateDelegationTokenResponse(
        error_code=error.code,
        principal_type=(request.owner_principal_type or "") if named else requester.kind,
        principal_name=(request.owner_principal_name or "") if named else requester.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )


def refuse_token_request(call: Call[TokenChange], error: BrokerError) -> TokenRefusal:
    """Refuses a request before it is decided."""
    if isinstance(call.request, CreateDelegationTokenRequest):
        return _refused_creation(call.request, call.access.principal, error)
    if isinstance(call.request, RenewDelegationTokenRequest):
        return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
    return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)


def _refused_by_controller(call: Call[TokenChange], error: BrokerError) -> TokenRefusal:
    """A refusal of the controller names no time, as in Kafka. Its refusals for lack of permission are those of the broker."""
    refused = refuse_token_request(call, error)
    if error.code not in _REFUSED_BEFORE:
        if isinstance(refused, CreateDelegationTokenResponse):
            refused.issue_timestamp_ms = refused.max_timestamp_ms = 0
        refused.expiry_timestamp_ms = 0
    return refused


HANDLERS: Final[Table] = {
    CreateDelegationTokenRequest: (create_delegation_token, refuse_token_request),
    RenewDelegationTokenRequest: (change_delegation_token, refuse_token_request),
    ExpireDelegationTokenRequest: (change_delegation_token, refuse_token_request),
    DescribeDelegationTokenRequest: (describe_delegation_tokens, refuse),
}
