"""Group configuration (KIP-848, KIP-1263): the brokers' `group.consumer.*` and a GROUP resource's own settings, clamped to the brokers' present bounds.
Keys of share and streams groups are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.key import ConfigKey, ConfigType
from barnabas.errors import BrokerError, ErrorCode


class GroupKey(NamedTuple):
    """A group key with its default and the broker keys of its bounds."""

    key: ConfigKey
    server_key: str
    low_key: str
    high_key: str


def _group_key(name: str, default: int, doc: str) -> GroupKey:
    words = name.removeprefix("consumer.")
    return GroupKey(
        ConfigKey(name, ConfigType.INT, default, doc, dynamic=True),
        f"group.consumer.{words}",
        f"group.consumer.min.{words}",
        f"group.consumer.max.{words}",
    )


SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"

GROUP_KEYS: Final[dict[str, GroupKey]] = {
    entry.key.name: entry
    for entry in (
        _group_key(ASSIGNMENT_INTERVAL, 1_000, "Shortest time between two assignments of the group."),
        _group_key(HEARTBEAT_INTERVAL, 5_000, "How often members of the group shall send a heartbeat."),
        _group_key(SESSION_TIMEOUT, 45_000, "After how long without a heartbeat a member of the group is out."),
    )
}


def group_value(config: BrokerConfig, settings: Mapping[str, str], name: str) -> int:
    """`name` is one of GROUP_KEYS."""
    entry = GROUP_KEYS[name]
    own = settings.get(name)
    if own is None:
        return config.get_int(entry.server_key)
    return max(config.get_int(entry.low_key), min(int(own), config.get_int(entry.high_key)))


def validate_group_config(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Raises BrokerError(INVALID_CONFIG), naming the key."""
    for name, text in settings.items():
        entry = GROUP_KEYS.get(name)
        if entry is None:
            kind = name.partition(".")[0]
            hint = f" ({kind} groups are not served)" if kind in ("share", "streams") else ""
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}{hint}")
        entry.key.parse(text)
        for bound, relation, sign in ((entry.low_key, "greater", 1), (entry.high_key, "less", -1)):
            if (int(text) - config.get_int(bound)) * sign < 0:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} must be {relation} than or equal to {bound}")
    if group_value(config, settings, SESSION_TIMEOUT) <= group_value(config, settings, HEARTBEAT_INTERVAL):
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
