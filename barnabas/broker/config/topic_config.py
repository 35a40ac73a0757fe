"""Topic configuration: validation as in Kafka 4.3.1, the defaults of the node, and the resulting LogConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.key import INT64_MAX, ConfigValue
from barnabas.broker.config.table import TOPIC_KEYS
from barnabas.errors import BrokerError, ErrorCode
from barnabas.storage.log_config import LogConfig

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

_UNITS_MS: Final = {"hours": 3_600_000, "minutes": 60_000}  # by the last word of a node's key


def validate_topic_config(overrides: Mapping[str, str | None]) -> None:
    """Raises BrokerError(INVALID_CONFIG) with Kafka's text: an unknown key, null, a wrong type, or out of bounds."""
    nulls = [name for name, value in overrides.items() if value is None]
    if nulls:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    values: dict[str, ConfigValue] = {}
    for name, text in overrides.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        values[name] = key.parse(text or "")
    least = values.get("min.compaction.lag.ms", 0)
    most = values.get("max.compaction.lag.ms", INT64_MAX)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})",
        )
    if values.get("remote.storage.enable") is True:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        )


def topic_value(config: BrokerConfig, overrides: Mapping[str, str], name: str) -> ConfigValue:
    """The topic's own, else the broker's, else the default. Raises KeyError for an unknown topic key."""
    key = TOPIC_KEYS[name]
    own = overrides.get(name)
    if own is not None:
        return key.parse_stored(own)
    for synonym in key.synonyms:
        value = config.value(synonym)
        if value is not None:
            unit_ms = _UNITS_MS.get(synonym.rpartition(".")[2])
            if unit_ms is not None and isinstance(value, int):
                return value * unit_ms if value >= 0 else -1
            return value
    return key.default


# Lists without a relevant order.
_SETS: Final = (
    "cleanup.policy",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
)

# Topic keys that LogConfig has under the same name, with underscores for dots.
_LOG_KEYS: Final = tuple(
    name
    for name in TOPIC_KEYS
    if name.replace(".", "_") in {field.name for field in fields(LogConfig)} and name not in _SETS
)


def log_config(
    config: BrokerConfig, overrides: Mapping[str, str], randrange: Callable[[int], int] | None = None
) -> LogConfig:
    """`randrange`: of the Rng port; segment.jitter.ms has no effect without it."""
    values: dict[str, Any] = {name.replace(".", "_"): topic_value(config, overrides, name) for name in _LOG_KEYS}
    if randrange is not None:
        values["randrange"] = randrange
    for name in _SETS:
        members = topic_value(config, overrides, name)
        values[name.replace(".", "_")] = frozenset(members if isinstance(members, tuple) else ())
    return LogConfig(
        **values,
        producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        transaction_partition_verification_enable=config.get_bool("transaction.partition.verification.enable"),
        record_validation=config.get_str("record.validation") or "full",
    )
