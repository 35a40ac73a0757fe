"""Kafka's keys of delegation tokens, and a token's HMAC."""

from __future__ import annotations

import hmac
from typing import Final

from barnabas.broker.config.key import ConfigKey, ConfigType, at_least, integer, long

SECRET_KEY: Final = "delegation.token.secret.key"

TOKEN_KEYS: Final[list[ConfigKey]] = [
    long(
        "delegation.token.expiry.check.interval.ms", 3_600_000, "Between two searches for expired tokens.", at_least(1)
    ),
    long("delegation.token.expiry.time.ms", 86_400_000, "Time until a token must be renewed.", at_least(1)),
    long("delegation.token.max.lifetime.ms", 604_800_000, "Time after which a token cannot be renewed.", at_least(1)),
    integer(
        "delegation.token.max.per.owner",
        1_000,
        "Barnabas only: tokens that one owner may have; a request for another one gets POLICY_VIOLATION.",
        at_least(1),
    ),
    ConfigKey(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "Secret from which the HMAC of tokens is made, the same on all nodes; no tokens where not set.",
    ),
]


def token_hmac(secret: str, token_id: str) -> bytes:
    """Its holder proves to know it."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")
