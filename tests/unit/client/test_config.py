"""Settings of producer and consumer: one frozen value each, with the names and defaults of the keyword arguments."""

from __future__ import annotations

import dataclasses
import inspect
import ssl
from typing import Any, get_args

import pytest

from barnabas import client
from barnabas.client import errors
from barnabas.client.errors import IllegalState, KafkaError
from barnabas.client.group.core.assignors import ASSIGNORS
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.client.net.security_config import SecurityConfig
from barnabas.client.types import Acks, AssignorName, AutoOffsetReset, CompressionType, GroupProtocol, IsolationLevel
from tests.support.security.certificates import CertificateAuthority

NOT_SETTINGS = {"clock", "rng", "network", "listener"}
SECURITY = {field.name: field.default for field in dataclasses.fields(SecurityConfig)}
PAIRS = [(client.Producer, client.ProducerConfig), (client.Consumer, client.ConsumerConfig)]


@pytest.mark.parametrize(("of", "config"), PAIRS)
def test_the_settings_are_the_keyword_arguments(of: Any, config: Any) -> None:
    parameters = inspect.signature(of).parameters.values()
    arguments = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in NOT_SETTINGS}
    assert {**arguments, **SECURITY} == {field.name: field.default for field in dataclasses.fields(config)}
    assert "security" in inspect.signature(of).parameters


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
        ({"compression_type": 5}, "compression_type=5 is none of"),
        ({"acks": ["all"]}, r"acks=\['all'\] is none of"),
        ({"linger_ms": "5"}, "linger_ms must be an int, not str"),
        ({"max_in_flight_requests_per_connection": None}, "must be an int, not NoneType"),
        ({"transactional_id": 7}, "transactional_id must be a str, not int"),
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


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"enable_auto_commit": "false"}, "enable_auto_commit must be a bool, not str"),
        ({"max_poll_records": 0}, "max_poll_records=0 must be from 1 to"),
        ({"session_timeout_ms": True}, "session_timeout_ms must be an int, not bool"),
    ],
)
def test_invalid_consumer_settings_are_refused(settings: dict[str, Any], why: str) -> None:
    for make in (client.ConsumerConfig, client.Consumer):
        with pytest.raises(IllegalState, match=why):
            make(**settings)


def test_every_assignor_is_accepted_and_no_other() -> None:
    assert set(get_args(AssignorName)) == set(ASSIGNORS)
    strategies: list[Any] = [["fair"], []]
    for strategy in strategies:
        with pytest.raises(IllegalState, match="known are"):
            client.ConsumerConfig(group_id="g", partition_assignment_strategy=strategy)


def test_values_alone_are_neither_raw_nor_deserialized() -> None:
    excluded: list[dict[str, Any]] = [{"raw_records": True}, {"value_deserializer": int}, {"key_deserializer": int}]
    for others in excluded:
        with pytest.raises(IllegalState, match="value_runs excludes"):
            client.ConsumerConfig(value_runs=True, **others)


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
        ({"request_timeout_ms": 0}, "request_timeout_ms=0 must be from 1 to 2147483647"),
        ({"retry_backoff_ms": -1}, "retry_backoff_ms=-1 must be from 0 to"),
        ({"metadata_max_age_ms": 1 << 31}, "metadata_max_age_ms=2147483648 must be from 0 to 2147483647"),
        ({"request_timeout_ms": "30000"}, "request_timeout_ms must be an int, not str"),
        ({"retry_backoff_ms": 1.5}, "retry_backoff_ms must be an int, not float"),
        ({"client_id": 7}, "client_id must be a str, not int"),
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
    assert {n: p.default for n, p in arguments.items() if n not in {*NOT_SETTINGS, "client_id", "security"}} == {
        name: default for name, default in shared.items() if name not in {"client_id", "metadata_max_age_ms", *SECURITY}
    }
    with pytest.raises(IllegalState, match="request_timeout_ms=0"):
        client.Admin(request_timeout_ms=0)


class Tokens:
    async def token(self) -> str:
        return "t"


SASL: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
LOGIN: dict[str, Any] = {"sasl_plain_username": "alice", "sasl_plain_password": "planted-secret"}


def test_the_arguments_of_security_are_its_settings() -> None:
    assert list(SecurityArguments.__annotations__) == list(SECURITY)


@pytest.mark.parametrize(
    ("make", "given", "meant"),
    [
        (client.Producer, "sasl_mechanisms", "sasl_mechanism"),
        (client.Producer, "linger", "linger_ms"),
        (client.Consumer, "group", "group_id"),
        (client.Consumer, "group.id", "group_id"),
        (client.Consumer, "listeners", "listener"),
        (client.Admin, "bootstrap_server", "bootstrap_servers"),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest_one(make: Any, given: str, meant: str) -> None:
    with pytest.raises(TypeError) as refused:
        make(**{given: "x"})
    assert str(refused.value) == f"{make.__name__}: unknown setting {given!r}; did you mean {meant!r}?"
    with pytest.raises(TypeError, match=f"^{make.__name__}: unknown setting 'quite_other'$"):
        make(quite_other=1)


@pytest.mark.parametrize("make", [client.Producer, client.Admin])
def test_a_positional_argument_is_refused_in_the_name_of_the_client(make: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"^{make.__name__}\.__init__\(\) takes 1 positional argument but 2 were given"
    ):
        make("localhost:9092")


@pytest.mark.parametrize(
    "settings",
    [
        {"security_protocol": "SSL"},
        {**SASL, **LOGIN},
        {**SASL, **LOGIN, "sasl_mechanism": "SCRAM-SHA-512", "sasl_delegation_token": True},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens()},
    ],
)
def test_secured_clients_are_made(settings: dict[str, Any]) -> None:
    for make in (client.Producer, client.Consumer, client.Admin):
        make(**settings)
    config = client.ConnectionConfig(**settings)
    assert "planted-secret" not in repr(config)
    assert client.ConnectionConfig(**config.as_arguments()) == config


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"security_protocol": "TLS"}, "security_protocol='TLS' is none of 'PLAINTEXT', 'SSL'"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism, one of 'PLAIN'"),
        ({**SASL, "sasl_mechanism": "DIGEST"}, "sasl_mechanism='DIGEST' is none of"),
        (SASL, "needs sasl_plain_username"),
        ({**SASL, "sasl_plain_username": "a"}, "needs sasl_plain_password"),
        ({**SASL, "sasl_plain_password": "planted-secret"}, "needs sasl_plain_username"),
        ({**SASL, **LOGIN, "sasl_plain_password": "planted-secret\0"}, "needs sasl_plain_password"),
        ({**SASL, **LOGIN, "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_provider"),
        (
            {**SASL, **LOGIN, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens()},
            "does not use sasl_plain_username",
        ),
        ({**SASL, **LOGIN, "sasl_oauth_token_provider": Tokens()}, "does not use sasl_oauth_token_provider"),
        ({**SASL, **LOGIN, "sasl_delegation_token": True}, "needs sasl_mechanism='SCRAM-SHA-256'"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism needs security_protocol='SASL_SSL'"),
        (LOGIN, "sasl_plain_username needs security_protocol"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile needs security_protocol='SSL' or 'SASL_SSL'"),
        ({"security_protocol": "SSL", "ssl_keyfile": "k"}, "ssl_keyfile needs ssl_certfile"),
        ({"security_protocol": "SSL", "ssl_context": ssl.create_default_context(), "ssl_cafile": "c"}, "exclude each"),
        ({"security_protocol": "SSL", "ssl_cafile": "/missing"}, "ssl_cafile='/missing' cannot be read: No such file"),
        ({"security_protocol": "SSL", "ssl_cafile": __file__}, "it must contain certificates in PEM"),
        ({"security_protocol": "SSL", "ssl_certfile": "/missing"}, "ssl_certfile='/missing' cannot be read"),
        ({"security_protocol": "SSL", "ssl_certfile": __file__}, "must contain a private key in PEM"),
    ],
)
def test_invalid_security_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(IllegalState, match=why) as refused:
        client.Producer(**settings)
    assert "planted-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "password", "why"),
    [
        ("locked", None, "set ssl_password if it is encrypted"),
        ("locked", "planted-wrong", "belongs to ssl_certfile; ssl_password must decrypt it"),
        ("another", "planted-right", r"belongs to ssl_certfile \(KEY_VALUES_MISMATCH\)"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused(
    ca: CertificateAuthority, key: str, password: str | None, why: str
) -> None:
    identities = {name: ca.issue(name, password="planted-right") for name in ("locked", "another")}
    files: dict[str, Any] = {
        "ssl_certfile": str(identities["locked"].certificate),
        "ssl_keyfile": str(identities[key].key),
    }
    with pytest.raises(IllegalState, match=why) as refused:
        client.Producer(**{"security_protocol": "SSL", "ssl_password": password, **files})
    assert "planted" not in str(refused.value)


def test_every_error_is_a_public_name() -> None:
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, KafkaError)}
    assert len(classes) > 20
    assert classes <= set(client.__all__)
    assert all(getattr(client, name) is getattr(errors, name) for name in classes)
