"""Bounds, choices and lists of every setting that is served, compared with the ConfigDefs of Kafka 4.3.1 (golden/metadata/config-bounds.json).

A setting may be stricter than in Kafka, if `STRICTER` says why. None is laxer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.key import INT32_MAX, INT64_MAX, ConfigKey
from barnabas.broker.config.table import SERVER_KEYS, TOPIC_KEYS
from barnabas.broker.config.topic_config import log_config, validate_topic_config
from barnabas.errors import BrokerError

BOUNDS = json.loads((Path(__file__).parents[3] / "golden" / "metadata" / "config-bounds.json").read_text())
OURS: dict[str, dict[str, ConfigKey]] = {
    "broker": SERVER_KEYS,
    "topic": TOPIC_KEYS,
}
SERVED = [(of, name) for of, keys in OURS.items() for name in keys if name in BOUNDS[of]]

TYPE_BOUNDS = {
    "INT": (-(2**31), INT32_MAX),
    "SHORT": (-(2**15), 2**15 - 1),
    "LONG": (-(2**63), INT64_MAX),
    "DOUBLE": (-1e300, 1e300),
}
INTERVAL = re.compile(r"\[(-?[\d.]+),\.\.\.(?:,(-?[\d.]+))?\](?: or (-?\d+))?")
CHOICES = re.compile(r"(\(case insensitive\) )?\[([\w, ]+)\]")

# Settings whose values this broker refuses and Kafka accepts: Kafka then fails later, or not as wanted.
NO_SENSE = "a period, a limit or a number of replicas that would stop the node from working"
IMPOSSIBLE = "Kafka's internal topic cannot be created with it: its segment.bytes must be at least 1048576"
OF_CLIENTS = "the bounds that Kafka has for the same setting of a client"
STRICTER = {
    **dict.fromkeys(
        (
            "broker.heartbeat.interval.ms",
            "broker.session.timeout.ms",
            "controller.socket.timeout.ms",
            "default.replication.factor",
            "group.initial.rebalance.delay.ms",
            "group.max.session.timeout.ms",
            "group.min.session.timeout.ms",
            "offset.metadata.max.bytes",
            "replica.fetch.wait.max.ms",
            "replica.high.watermark.checkpoint.interval.ms",
            "replica.lag.time.max.ms",
            "replica.socket.timeout.ms",
            "request.timeout.ms",
            "sasl.server.max.receive.size",
            "socket.receive.buffer.bytes",
            "socket.send.buffer.bytes",
        ),
        NO_SENSE,
    ),
    "offsets.topic.compression.codec": "there are codecs 0 to 4",
    "offsets.topic.segment.bytes": IMPOSSIBLE,
    "transaction.state.log.segment.bytes": IMPOSSIBLE,
    **dict.fromkeys(
        (
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
        ),
        OF_CLIENTS,
    ),
}
# Settings that BrokerConfig checks, not their key: with the others that they depend on.
CHECKED_TOGETHER = ("security.inter.broker.protocol",)


def accepts(key: ConfigKey, text: str) -> bool:
    try:
        key.parse(text)
    except BrokerError:
        return False
    return True


def verdicts(kind: str, validator: str | None, refused: list[str]) -> dict[str, bool]:
    """Whether Kafka accepts each of the values that tell most about a setting."""
    if kind == "LIST":
        return {text: text not in refused for text in ("", "x,x", "a,,b")}
    if kind in TYPE_BOUNDS:
        low, high = TYPE_BOUNDS[kind]
        number = float if kind == "DOUBLE" else int
        other = None
        if validator is not None:
            found = INTERVAL.fullmatch(validator)
            assert found is not None, validator
            low, high = number(found[1]), number(found[2]) if found[2] else high
            other = found[3]
        step = 0.25 if kind == "DOUBLE" else 1
        inside = {str(low): True, str(high): True}
        outside = {} if kind == "DOUBLE" and validator is None else {str(low - step): False, str(high + step): False}
        return {**outside, **inside, **({other: True} if other else {})}
    found = CHOICES.fullmatch(validator or "")
    if found is None:
        return {}
    choices = dict.fromkeys(found[2].split(", "), True)
    return {**choices, **({text.lower(): True for text in choices} if found[1] else {}), "x": False}


def test_a_golden_key_is_compared_for_every_setting_of_kafka_that_is_served() -> None:
    assert len(SERVED) > 260


@pytest.mark.parametrize(("of", "name"), SERVED, ids=[f"{of}:{name}" for of, name in SERVED])
def test_values_are_accepted_as_by_kafka(of: str, name: str) -> None:
    kind, validator, *refused = BOUNDS[of][name]
    key = OURS[of][name]
    assert key.type.name == kind
    if name in CHECKED_TOGETHER:
        return
    expected = verdicts(kind, validator, refused)
    laxer = [text for text, accepted in expected.items() if not accepted and accepts(key, text)]
    stricter = [text for text, accepted in expected.items() if accepted and not accepts(key, text)]
    assert laxer == []
    if stricter:
        assert name in STRICTER, stricter


def test_settings_that_are_called_stricter_are() -> None:
    def is_stricter(name: str) -> bool:
        kind, validator, *refused = BOUNDS["broker"][name]
        return any(
            accepted and not accepts(SERVER_KEYS[name], text)
            for text, accepted in verdicts(kind, validator, refused).items()
        )

    assert [name for name in STRICTER if not is_stricter(name)] == []


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("transaction.state.log.segment.bytes", "6000", "Value must be at least 1048576"),
        ("offsets.topic.segment.bytes", "6000", "Value must be at least 1048576"),
        ("log.dirs", "/a,/a", "values must not be duplicated"),
        ("ssl.cipher.suites", "a,,b", "values must not be empty"),
    ],
)
def test_an_error_names_the_setting_its_value_and_what_is_wrong(name: str, text: str, why: str) -> None:
    with pytest.raises(BrokerError, match=f"Invalid value {text} for configuration {name}: {why}"):
        SERVER_KEYS[name].parse(text)


def test_the_migration_policy_may_be_in_upper_case_as_in_kafka() -> None:
    assert accepts(SERVER_KEYS["group.consumer.migration.policy"], "BIDIRECTIONAL")


def test_stored_lists_may_have_a_member_twice() -> None:
    """Older releases of Kafka stored them; a node must start with them, and must not fall back to deletion."""
    stored = {"cleanup.policy": "compact, compact"}
    assert log_config(BrokerConfig({}), stored).cleanup_policy == {"compact"}
    with pytest.raises(BrokerError, match="values must not be duplicated"):
        validate_topic_config(stored)
