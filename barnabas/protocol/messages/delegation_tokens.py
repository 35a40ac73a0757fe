"""Delegation tokens (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import ClassVar

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bytes, Int16, Int32, Int64, String


class TokenPrincipal(Struct):
    """A principal, such as an owner or a renewer."""

    principal_type: str = field(String)
    principal_name: str = field(String)


class CreateDelegationTokenRequest(Message, api_key=38, versions=(1, 3), flexible_since=2):
    """Creates a token. The default owner is the requester."""

    owner_principal_type: str | None = field(String, since=3, nullable_since=3)
    owner_principal_name: str | None = field(String, since=3, nullable_since=3)
    renewers: list[TokenPrincipal] = field(Array(TokenPrincipal))
    max_lifetime_ms: int = field(Int64)  # -1: the broker's


class CreateDelegationTokenResponse(Message, api_key=38, versions=(1, 3), flexible_since=2):
    """The token. Times are in ms since 1970."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"hmac"})

    error_code: int = field(Int16)
    principal_type: str = field(String)
    principal_name: str = field(String)
    token_requester_principal_type: str = field(String, since=3)
    token_requester_principal_name: str = field(String, since=3)
    issue_timestamp_ms: int = field(Int64)
    expiry_timestamp_ms: int = field(Int64)
    max_timestamp_ms: int = field(Int64)
    token_id: str = field(String)
    hmac: bytes = field(Bytes)
    throttle_time_ms: int = field(Int32)


class RenewDelegationTokenRequest(Message, api_key=39, versions=(1, 2), flexible_since=2):
    """Extends the expiry of a token."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"hmac"})

    hmac: bytes = field(Bytes)
    renew_period_ms: int = field(Int64)


class RenewDelegationTokenResponse(Message, api_key=39, versions=(1, 2), flexible_since=2):
    """The new expiry, in ms since 1970."""

    error_code: int = field(Int16)
    expiry_timestamp_ms: int = field(Int64)
    throttle_time_ms: int = field(Int32)


class ExpireDelegationTokenRequest(Message, api_key=40, versions=(1, 2), flexible_since=2):
    """Expires a token sooner, or at once."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"hmac"})

    hmac: bytes = field(Bytes)
    expiry_time_period_ms: int = field(Int64)  # negative: at once


class ExpireDelegationTokenResponse(Message, api_key=40, versions=(1, 2), flexible_since=2):
    """The new expiry, in ms since 1970."""

    error_code: int = field(Int16)
    expiry_timestamp_ms: int = field(Int64)
    throttle_time_ms: int = field(Int32)


class DescribeDelegationTokenRequest(Message, api_key=41, versions=(1, 3), flexible_since=2):
    """Requests tokens."""

    owners: list[TokenPrincipal] | None = field(Array(TokenPrincipal), nullable_since=0)  # None: of all owners


class DescribedDelegationToken(Struct):
    """One token. Times are in ms since 1970."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"hmac"})

    principal_type: str = field(String)
    principal_name: str = field(String)
    token_requester_principal_type: str = field(String, since=3)
    token_requester_principal_name: str = field(String, since=3)
    issue_timestamp: int = field(Int64)
    expiry_timestamp: int = field(Int64)
    max_timestamp: int = field(Int64)
    token_id: str = field(String)
    hmac: bytes = field(Bytes)
    renewers: list[TokenPrincipal] = field(Array(TokenPrincipal))


class DescribeDelegationTokenResponse(Message, api_key=41, versions=(1, 3), flexible_since=2):
    """The tokens that the client may see."""

    error_code: int = field(Int16)
    tokens: list[DescribedDelegationToken] = field(Array(DescribedDelegationToken))
    throttle_time_ms: int = field(Int32)
