"""Settings of producer and consumer: one frozen value each, with the names and defaults of the keyword arguments."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_args

import pytest

from barnabas import client
from barnabas.client import errors
from barnabas.client.errors import IllegalState, KafkaError
from barnabas.client.group.assignors import ASSIGNORS
from barnabas.client.types import Acks, AssignorName, AutoOffsetReset, CompressionType, GroupProtocol, IsolationLevel

NOT_SETTINGS = {"clock", "rng", "network", "listener"}
PAIRS = [(client.Producer, client.ProducerConfig), (client.Consumer, client.ConsumerConfig)]


@pytest.mark.parametrize(("of", "config"), PAIRS)
def test_the_settings_are_the_keyword_arguments(of: Any, config: Any) -> None:
    parameters = inspect.signature(of).parameters.values()
    arguments = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in NOT_SETTINGS}
    assert arguments == {field.name: field.default for field in dataclasses.fields(config)}


@pytest.mark.parametrize("config", [config for _, config in PAIRS])
def test_settings_are_frozen_and_have_no_other_attributes(config: Any) -> None:
    made = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.client_id = "other"
    assert not hasattr(made, "__dict__")


@pytest.mark.parametrize("acks", get_args(Acks))
def test_every_choice_of_acks_is_accepted(acks: Any) -> None:
    assert client.ProducerConfig(acks=acks).required_acks == (-1 if acks == "all" else int(acks))


@pytest.mark.parametrize("name", get_args(CompressionType))
def test_every_choice_of_a_codec_is_accepted(name: Any) -> None:
    assert (client.ProducerConfig(compression_type=name).codec == 0) == (name == "none")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"acks": 2}, "acks=2 is none of"),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence needs acks"),
        ({"acks": 1, "transactional_id": "t"}, "a transactional_id needs"),
        ({"max_in_flight_requests_per_connection": 6}, "must be 1 to 5"),
        ({"transaction_version": 3}, "transaction_version=3"),
        ({"two_phase_commit": True}, "two_phase_commit needs a transactional_id"),
        ({"two_phase_commit": True, "transactional_id": "t", "transaction_version": 1}, "transaction_version 2"),
        ({"keep_prepared": True}, "keep_prepared needs two_phase_commit"),
        ({"compression_type": "lzma"}, "compression_type='lzma'"),
        ({"bootstrap_servers": "http://x"}, "URL"),
    ],
)
def test_invalid_producer_settings_are_refused(settings: dict[str, Any], why: str) -> None:
    for make in (client.ProducerConfig, client.Producer):
        with pytest.raises(IllegalState, match=why):
            make(**settings)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("auto_offset_reset", AutoOffsetReset),
        ("isolation_level", IsolationLevel),
        ("group_protocol", GroupProtocol),
    ],
)
def test_every_choice_of_a_consumer_is_accepted_and_no_other(name: str, choices: Any) -> None:
    for choice in get_args(choices):
        assert getattr(client.ConsumerConfig(**{name: choice}), name) == choice
    settings: Any = {name: "other"}
    with pytest.raises(IllegalState, match=f"{name}='other' is none of '{get_args(choices)[0]}'"):
        client.Consumer(**settings)


def test_every_assignor_is_accepted_and_no_other() -> None:
    assert set(get_args(AssignorName)) == set(ASSIGNORS)
    strategies: list[Any] = [["fair"], []]
    for strategy in strategies:
        with pytest.raises(IllegalState, match="known are"):
            client.ConsumerConfig(group_id="g", partition_assignment_strategy=strategy)


def test_a_remote_assignor_needs_the_consumer_protocol() -> None:
    assert client.ConsumerConfig(group_protocol="consumer", group_remote_assignor="uniform").group_remote_assignor
    with pytest.raises(IllegalState, match="partition_assignment_strategy"):
        client.Consumer(group_remote_assignor="uniform")


SHARED = [client.ConnectionConfig, client.ProducerConfig, client.ConsumerConfig]


@pytest.mark.parametrize("config", SHARED)
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"bootstrap_servers": ""}, "contains no address"),
        ({"request_timeout_ms": 0}, "request_timeout_ms=0 is below 1"),
        ({"retry_backoff_ms": -1}, "retry_backoff_ms=-1 is below 0"),
        ({"metadata_max_age_ms": -1}, "metadata_max_age_ms=-1 is below 0"),
    ],
)
def test_connections_are_checked_in_one_place_for_all(config: Any, settings: dict[str, Any], why: str) -> None:
    assert issubclass(config, client.ConnectionConfig)
    assert "bootstrap_servers" not in vars(config).get("__annotations__", {}) or config is client.ConnectionConfig
    with pytest.raises(IllegalState, match=why):
        config(**settings)


def test_an_admin_client_has_the_same_settings() -> None:
    arguments = inspect.signature(client.Admin).parameters
    shared = {field.name: field.default for field in dataclasses.fields(client.ConnectionConfig)}
    assert {n: p.default for n, p in arguments.items() if n not in {*NOT_SETTINGS, "client_id"}} == {
        name: default for name, default in shared.items() if name not in {"client_id", "metadata_max_age_ms"}
    }
    with pytest.raises(IllegalState, match="request_timeout_ms=0"):
        client.Admin(request_timeout_ms=0)


def test_every_error_is_a_public_name() -> None:
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, KafkaError)}
    assert len(classes) > 20
    assert classes <= set(client.__all__)
    assert all(getattr(client, name) is getattr(errors, name) for name in classes)
