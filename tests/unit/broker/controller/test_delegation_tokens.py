"""Delegation tokens: which requests the controller takes, and what it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.api.principal import Principal
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.controller.core.delegation_tokens import (
    EXPIRED_OF_A_DECISION_MAX,
    create_token,
    expire_token,
    expired_tokens,
    renew_token,
)
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.sasl.scram_server import token_hmac
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from barnabas.work import finished
from tests.support.broker.metadata_images import changed, cluster, replayed, view

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))


def seen(image: MetadataImage, principal: Principal = ALICE, now_ms: int = NOW_MS, secret: str = "secret") -> Any:
    config = BrokerConfig({"delegation.token.secret.key": secret} if secret else {})
    return replace(view(image), principal=principal, now_ms=now_ms, config=config)


def made(image: MetadataImage, **fields: Any) -> tuple[MetadataImage, CreateDelegationTokenResponse]:
    decision = create_token(seen(image), CreateDelegationTokenRequest(**{"max_lifetime_ms": -1, **fields}))
    return replayed(image, decision.records), decision.answer


def code_of(decide: Any, image: Any, request: Any) -> ErrorCode:
    with pytest.raises(BrokerError) as refused:
        decide(image, request)
    return refused.value.code


def test_a_token_is_made() -> None:
    bob = TokenPrincipal(principal_type="User", principal_name="bob")
    image, answer = made(cluster((1,)), renewers=[bob])
    token = image.delegation_tokens[answer.token_id]
    assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ["User:bob"])
    assert (token.issue_timestamp, token.expiration_timestamp, token.max_timestamp) == (
        NOW_MS,
        NOW_MS + DAY_MS,
        NOW_MS + 7 * DAY_MS,
    )
    assert answer.hmac == token_hmac("secret", answer.token_id)
    assert len(answer.hmac) == 64
    shorter = made(image, max_lifetime_ms=1_000)[1]
    assert shorter.expiry_timestamp_ms == shorter.max_timestamp_ms == NOW_MS + 1_000
    other = made(image, owner_principal_type="User", owner_principal_name="carol")[1]
    assert (other.principal_name, other.token_requester_principal_name) == ("carol", "alice")


def test_tokens_that_are_not_made() -> None:
    image = cluster((1,))
    group = TokenPrincipal(principal_type="Group", principal_name="g")
    disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert code_of(create_token, seen(image, secret=""), CreateDelegationTokenRequest()) == disabled
    for fields in ({"renewers": [group]}, {"owner_principal_type": "Group", "owner_principal_name": "g"}):
        request = CreateDelegationTokenRequest(**fields)
        assert code_of(create_token, seen(image), request) == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_the_tokens_of_one_owner_are_limited() -> None:
    image, answer = made(cluster((1,)))
    token = image.delegation_tokens[answer.token_id]
    many = {str(number): changed(token, token_id=str(number)) for number in range(999)}
    full = replace(image, delegation_tokens={**many, "bob": changed(token, token_id="bob", owner="User:bob")})
    full, _ = made(full)
    refused = code_of(create_token, seen(full), CreateDelegationTokenRequest(max_lifetime_ms=-1))
    assert refused == ErrorCode.POLICY_VIOLATION
    assert made(full, owner_principal_type="User", owner_principal_name="bob")[1].error_code == 0
    assert next(create_token.in_slices(seen(full), CreateDelegationTokenRequest())) == 1  # it runs in slices


def test_a_token_is_renewed_by_its_parties() -> None:
    bob = TokenPrincipal(principal_type="User", principal_name="bob")
    image, answer = made(cluster((1,)), renewers=[bob])
    request = RenewDelegationTokenRequest(hmac=answer.hmac, renew_period_ms=-1)
    later_ms = NOW_MS + 1_000
    for principal in (ALICE, BOB):
        decision = renew_token(seen(image, principal, later_ms), request)
        assert decision.answer.expiry_timestamp_ms == later_ms + DAY_MS
        assert (
            replayed(image, decision.records).delegation_tokens[answer.token_id].expiration_timestamp
            == later_ms + DAY_MS
        )
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    token = image.delegation_tokens[answer.token_id]
    others = replace(image, delegation_tokens={token.token_id: changed(token, owner="User:carol")})
    assert code_of(renew_token, seen(others, ALICE), request) == mismatch  # the requester
    assert code_of(renew_token, seen(image, CAROL), request) == mismatch
    assert code_of(renew_token, seen(image, now_ms=NOW_MS + 2 * DAY_MS), request) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    other = RenewDelegationTokenRequest(hmac=b"x" * 64)
    assert code_of(renew_token, seen(image), other) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_token_expires() -> None:
    image, answer = made(cluster((1,)))
    later = ExpireDelegationTokenRequest(hmac=answer.hmac, expiry_time_period_ms=5)
    decision = expire_token(seen(image), later)
    assert decision.answer.expiry_timestamp_ms == NOW_MS + 5
    assert replayed(image, decision.records).delegation_tokens[answer.token_id].expiration_timestamp == NOW_MS + 5
    now = ExpireDelegationTokenRequest(hmac=answer.hmac, expiry_time_period_ms=-1)
    assert code_of(expire_token, seen(image, BOB), now) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert not replayed(image, expire_token(seen(image), now).records).delegation_tokens
    assert finished(expired_tokens(image, NOW_MS + DAY_MS)) == MetadataDecision(False, [])
    (removed,) = finished(expired_tokens(image, NOW_MS + DAY_MS + 1)).records
    assert removed.token_id == answer.token_id


def test_many_expired_tokens_are_removed_by_several_decisions() -> None:
    image, answer = made(cluster((1,)))
    token = image.delegation_tokens[answer.token_id]
    many = {str(number): changed(token, token_id=str(number)) for number in range(2 * EXPIRED_OF_A_DECISION_MAX + 1)}
    image = replace(image, delegation_tokens=many)
    removed = []
    for more in (True, True, False):
        work = expired_tokens(image, NOW_MS + DAY_MS + 1)
        assert next(work) == 1  # it runs in slices
        decision = finished(work)
        assert decision.answer is more
        removed.append(len(decision.records))
        image = replayed(image, decision.records)
    assert removed == [EXPIRED_OF_A_DECISION_MAX, EXPIRED_OF_A_DECISION_MAX, 1]
    assert not image.delegation_tokens
