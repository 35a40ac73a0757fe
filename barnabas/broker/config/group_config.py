"""Group configuration (KIP-848, KIP-1263): the brokers' `group.consumer.*` and a GROUP resource's own settings, clamped to the brokers' present bounds.
Keys of share and streams groups are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.table import GROUP_KEYS
from barnabas.errors import BrokerError, ErrorCode

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"


def group_value(config: BrokerConfig, settings: Mapping[str, str], name: str) -> int:
    """`name` is one of GROUP_KEYS."""
    own, words = settings.get(name), name.removeprefix("consumer.")
    if own is None:
        return config.get_int(f"group.consumer.{words}")
    return max(
        config.get_int(f"group.consumer.min.{words}"), min(int(own), config.get_int(f"group.consumer.max.{words}"))
    )


def validate_group_config(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Raises BrokerError(INVALID_CONFIG), naming the key."""
    for name, text in settings.items():
        key = GROUP_KEYS.get(name)
        if key is None:
            kind = name.partition(".")[0]
            hint = f" ({kind} groups are not served)" if kind in ("share", "streams") else ""
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}{hint}")
        key.parse(text)
        words = name.removeprefix("consumer.")
        for bound, relation, sign in (
            (f"group.consumer.min.{words}", "greater", 1),
            (f"group.consumer.max.{words}", "less", -1),
        ):
            if (int(text) - config.get_int(bound)) * sign < 0:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} must be {relation} than or equal to {bound}")
    if group_value(config, settings, SESSION_TIMEOUT) <= group_value(config, settings, HEARTBEAT_INTERVAL):
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
