"""Configuration of client metrics (KIP-714, resource type 16), with Kafka's errors. `match` runs in linear time (`patterns`): look-around and
back references are refused, unlike in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.broker.config.key import ConfigValue
from barnabas.broker.config.table import CLIENT_METRICS_KEYS
from barnabas.broker.patterns import Pattern, compile_pattern
from barnabas.errors import BrokerError, ErrorCode

ALL_METRICS: Final = "*"
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
# What `match` may name, of a client.
MATCHED: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
MATCHES_MAX: Final = 64  # patterns of one subscription
METRICS_MAX: Final = 1_000  # prefixes of one subscription


class MetricsSubscription(NamedTuple):
    """One client-metrics resource: prefixes of metric names, the interval, and a pattern by client property."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Pattern]


def validate_client_metrics_config(name: str, settings: Mapping[str, str]) -> None:
    """Raises BrokerError: INVALID_REQUEST or INVALID_CONFIG."""
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in settings:
        if key not in CLIENT_METRICS_KEYS:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    subscription(settings)


def subscription(settings: Mapping[str, str]) -> MetricsSubscription:
    """Raises BrokerError for a wrong value."""
    interval_ms = int(str(_value(settings, INTERVAL)))
    metrics, match = _texts(settings, METRICS), _texts(settings, MATCH)
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for {INTERVAL}, interval must be between 100 and 3600000 (1 hour)",
        )
    for values, values_max in ((metrics, METRICS_MAX), (match, MATCHES_MAX)):
        if len(values) > values_max:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"More than {values_max} values in one list")
    return MetricsSubscription(metrics, interval_ms, dict(map(_matched, match)))


def _value(settings: Mapping[str, str], name: str) -> ConfigValue:
    key = CLIENT_METRICS_KEYS[name]
    return key.parse(settings[name]) if name in settings else key.default


def _texts(settings: Mapping[str, str], name: str) -> tuple[str, ...]:
    value = _value(settings, name)
    return value if isinstance(value, tuple) else ()


def _matched(text: str) -> tuple[str, Pattern]:
    parts = text.split("=")
    name = parts[0].strip()
    if len(parts) == 2 and name in MATCHED:
        try:
            return name, compile_pattern(parts[1].strip())
        except BrokerError:
            pass
    raise BrokerError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {text}")
