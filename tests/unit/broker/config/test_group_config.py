"""Configuration of single consumer groups: bounds, defaults, and bounds that changed since."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.entries import group_entries
from barnabas.broker.config.group_config import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, group_value, validate_group_config
from barnabas.broker.config.key import ConfigSource
from barnabas.broker.config.table import GROUP_KEYS
from barnabas.errors import BrokerError, ErrorCode


def test_a_group_falls_back_on_the_brokers_values() -> None:
    config = BrokerConfig({"group.consumer.session.timeout.ms": "50000"})
    assert group_value(config, {}, SESSION_TIMEOUT) == 50_000
    assert group_value(config, {SESSION_TIMEOUT: "48000"}, SESSION_TIMEOUT) == 48_000


def test_a_value_out_of_bounds_that_were_drawn_since_is_the_nearest_bound() -> None:
    config = BrokerConfig({"group.consumer.max.session.timeout.ms": "50000"})
    assert group_value(config, {SESSION_TIMEOUT: "60000"}, SESSION_TIMEOUT) == 50_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({SESSION_TIMEOUT: "100"}, "greater than or equal to group.consumer.min.session.timeout.ms"),
        ({SESSION_TIMEOUT: "100000"}, "less than or equal to group.consumer.max.session.timeout.ms"),
        ({HEARTBEAT_INTERVAL: "x"}, "Not a number"),
        ({"what": "1"}, "Unknown group config name: what"),
    ],
)
def test_refusals_name_the_key(settings: dict[str, str], message: str) -> None:
    with pytest.raises(BrokerError, match=message) as caught:
        validate_group_config(BrokerConfig({}), settings)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_described_with_where_each_value_comes_from() -> None:
    entries = {entry.name: entry for entry in group_entries(BrokerConfig({}), {SESSION_TIMEOUT: "46000"})}
    assert list(entries) == list(GROUP_KEYS)
    assert (entries[SESSION_TIMEOUT].value, entries[SESSION_TIMEOUT].source) == ("46000", ConfigSource.GROUP)
    assert entries[HEARTBEAT_INTERVAL].source is ConfigSource.DEFAULT
