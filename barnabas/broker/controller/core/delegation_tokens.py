"""Decisions on delegation tokens (KIP-48, KIP-373, KIP-900): creation, renewal, expiry. Codes are Kafka's (DelegationTokenControlManager)."""

from __future__ import annotations

import hmac
from copy import copy
from typing import Final

from barnabas.broker.api.principal import USER, Principal
from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import DelegationTokenRecord, MetadataRecord, RemoveDelegationTokenRecord
from barnabas.broker.sasl.scram_server import token_hmac
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from barnabas.work import Work

RENEWERS_MAX: Final = 100  # of one token
TOKENS_MAX: Final = 100_000  # in the cluster: every node keeps them
NAME_LENGTH_MAX: Final = 1_000
TOKENS_A_YIELD: Final = 64
EXPIRED_OF_A_DECISION_MAX: Final = 1_000
MS_MAX: Final = 2**62


def token_parties(token: DelegationTokenRecord) -> tuple[str, ...]:
    """Owner, requester and renewers, as "User:alice": they may describe the token."""
    return (token.owner, token.requester, *token.renewers)


@LongDecision[CreateDelegationTokenRequest, CreateDelegationTokenResponse]
def create_token(view: ClusterView, request: CreateDelegationTokenRequest) -> Work:
    secret = _secret(view)
    now_ms, requester = view.now_ms, view.principal
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    if owner.kind != USER or any(each.principal_type != USER for each in request.renewers):
        raise BrokerError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    names = [owner.name, *(each.principal_name for each in request.renewers)]
    if len(request.renewers) > RENEWERS_MAX or any(len(each) > NAME_LENGTH_MAX for each in names):
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    if len(view.image.delegation_tokens) >= TOKENS_MAX:
        raise BrokerError(ErrorCode.POLICY_VIOLATION)
    yield from _check_number(view, str(owner))
    longest_ms = view.config.get_int("delegation.token.max.lifetime.ms")
    if request.max_lifetime_ms > 0:
        longest_ms = min(longest_ms, request.max_lifetime_ms)
    max_ms = min(now_ms + longest_ms, MS_MAX)
    expiry_ms = min(max_ms, now_ms + view.config.get_int("delegation.token.expiry.time.ms"))
    token_id = _text(view.new_id())
    record = DelegationTokenRecord(
        owner=str(owner),
        requester=str(requester),
        renewers=[f"{USER}:{each.principal_name}" for each in request.renewers],
        issue_timestamp=now_ms,
        max_timestamp=max_ms,
        expiration_timestamp=expiry_ms,
        token_id=token_id,
    )
    answer = CreateDelegationTokenResponse(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=now_ms,
        expiry_timestamp_ms=expiry_ms,
        max_timestamp_ms=max_ms,
        token_id=token_id,
        hmac=token_hmac(secret, token_id),
    )
    return MetadataDecision(answer, [record])


@LongDecision[RenewDelegationTokenRequest, RenewDelegationTokenResponse]
def renew_token(view: ClusterView, request: RenewDelegationTokenRequest) -> Work:
    token = yield from _found(view, bytes(request.hmac))
    _check_alive(token, view.now_ms)
    _check_party(token, view.principal)
    period_ms = view.config.get_int("delegation.token.expiry.time.ms")
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    expiry_ms = min(token.max_timestamp, view.now_ms + period_ms)
    return MetadataDecision(RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms), [_renewed(token, expiry_ms)])


@LongDecision[ExpireDelegationTokenRequest, ExpireDelegationTokenResponse]
def expire_token(view: ClusterView, request: ExpireDelegationTokenRequest) -> Work:
    token = yield from _found(view, bytes(request.hmac))
    _check_party(token, view.principal)
    if request.expiry_time_period_ms < 0:
        answer = ExpireDelegationTokenResponse(expiry_timestamp_ms=view.now_ms)
        return MetadataDecision(answer, [RemoveDelegationTokenRecord(token_id=token.token_id)])
    _check_alive(token, view.now_ms)
    expiry_ms = min(token.max_timestamp, view.now_ms + request.expiry_time_period_ms)
    return MetadataDecision(ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms), [_renewed(token, expiry_ms)])


def expired_tokens(image: MetadataImage, now_ms: int) -> Work:
    """Removes a limited number of expired tokens; the answer is whether more may remain."""
    found: list[MetadataRecord] = []
    for number, token in enumerate(image.delegation_tokens.values()):
        if number % TOKENS_A_YIELD == 0:
            yield 1
        if min(token.max_timestamp, token.expiration_timestamp) < now_ms:
            found.append(RemoveDelegationTokenRecord(token_id=token.token_id))
            if len(found) == EXPIRED_OF_A_DECISION_MAX:
                return MetadataDecision(True, found)
    return MetadataDecision(False, found)


def _secret(view: ClusterView) -> str:
    secret = view.config.get_str("delegation.token.secret.key")
    if not secret:
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return secret


def _check_number(view: ClusterView, owner: str) -> Work:
    """Raises BrokerError(POLICY_VIOLATION) for one token too many of an owner; expired ones count until they are removed."""
    left = view.config.get_int("delegation.token.max.per.owner")
    for number, token in enumerate(view.image.delegation_tokens.values()):
        if number % TOKENS_A_YIELD == 0:
            yield 1
        if token.owner == owner:
            left -= 1
            if left <= 0:
                raise BrokerError(ErrorCode.POLICY_VIOLATION)


def _found(view: ClusterView, wanted: bytes) -> Work:
    secret = _secret(view)
    for number, token in enumerate(view.image.delegation_tokens.values()):
        if number % TOKENS_A_YIELD == 0:
            yield 4
        if hmac.compare_digest(token_hmac(secret, token.token_id), wanted):
            return token
    raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def _check_alive(token: DelegationTokenRecord, now_ms: int) -> None:
    if min(token.max_timestamp, token.expiration_timestamp) < now_ms:
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _check_party(token: DelegationTokenRecord, principal: Principal) -> None:
    if str(principal) not in (token.owner, *token.renewers):
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _renewed(token: DelegationTokenRecord, expiry_ms: int) -> DelegationTokenRecord:
    renewed = copy(token)
    renewed.expiration_timestamp = expiry_ms
    return renewed


def _text(raw: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(raw).decode().rstrip("=")
