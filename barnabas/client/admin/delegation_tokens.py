"""Delegation token requests (KIP-48, KIP-373)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from barnabas.client.admin.requests import AdminRequests
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token. Its representation hides the HMAC, which is its password.

    Attributes:
        token_id: the user name of a SCRAM login with the extension tokenauth=true.
        hmac: in base64 it is the password of that login.
        owner, requester, renewers: names of users.
        issued_ms, expiry_ms, max_ms: in ms since 1970.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expiry_ms: int
    max_ms: int


class DelegationTokenAdmin(AdminRequests):
    """Delegation token requests. They need an authenticated connection, and not by a token."""

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
        timeout_ms: int | None = None,
    ) -> DelegationToken:
        """Creates a token.

        Args:
            owner: a user; by default the authenticated one.
            renewers: other users that may renew it.
            max_lifetime_ms: its maximum lifetime; -1: the longest that the broker allows.

        Raises:
            KafkaError: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED,
                DELEGATION_TOKEN_AUTHORIZATION_FAILED.
        """
        named = tuple(renewers)
        request = CreateDelegationTokenRequest(
            owner_principal_type=None if owner is None else "User",
            owner_principal_name=owner,
            renewers=_users(named),
            max_lifetime_ms=max_lifetime_ms,
        )
        made: CreateDelegationTokenResponse = await self._retried(request, timeout_ms=timeout_ms)
        return DelegationToken(
            made.token_id,
            bytes(made.hmac),
            made.principal_name,
            made.token_requester_principal_name,
            named,
            made.issue_timestamp_ms,
            made.expiry_timestamp_ms,
            made.max_timestamp_ms,
        )

    async def renew_delegation_token(
        self, hmac: bytes, *, renew_period_ms: int = -1, timeout_ms: int | None = None
    ) -> int:
        """Extends a token; returns its expiry in ms since 1970.

        Raises:
            KafkaError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        return await self._expiry(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=renew_period_ms), timeout_ms)

    async def expire_delegation_token(
        self, hmac: bytes, *, expiry_period_ms: int = -1, timeout_ms: int | None = None
    ) -> int:
        """Sets a token's expiry (negative: now); returns it in ms since 1970. Raises as `renew_delegation_token`."""
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=expiry_period_ms)
        return await self._expiry(request, timeout_ms)

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> list[DelegationToken]:
        """Returns the visible tokens of these users, by default of all users."""
        request = DescribeDelegationTokenRequest(owners=None if owners is None else _users(owners))
        response: DescribeDelegationTokenResponse = await self._retried(request, timeout_ms=timeout_ms)
        return [
            DelegationToken(
                each.token_id,
                bytes(each.hmac),
                each.principal_name,
                each.token_requester_principal_name,
                tuple(renewer.principal_name for renewer in each.renewers),
                each.issue_timestamp,
                each.expiry_timestamp,
                each.max_timestamp,
            )
            for each in response.tokens
        ]

    async def _expiry(
        self, request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest, timeout_ms: int | None
    ) -> int:
        answer: Any = await self._retried(request, timeout_ms=timeout_ms)
        expiry_ms: int = answer.expiry_timestamp_ms
        return expiry_ms


def _users(names: Iterable[str]) -> list[TokenPrincipal]:
    return [TokenPrincipal(principal_type="User", principal_name=each) for each in names]
