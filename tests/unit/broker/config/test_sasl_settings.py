"""A configuration that enables SASL: half of it is refused with the key that is missing and a block that works."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sasl_settings import SaslSettings
from barnabas.errors import BrokerError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = "listener.name.client.plain.sasl.jaas.config"
KRB5 = "com.sun.security.auth.module.Krb5LoginModule"
KERBEROS = "listener.name.client.gssapi.sasl.jaas.config"
ACCOUNT = f"{KRB5} required useKeyTab=true keyTab=k principal=kafka/h@R;"
USERS = f'{PLAIN} required user_alice="planted-secret";'
BASE = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "(GSSAPI is the default of sasl.enabled.mechanisms)"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, f"{KERBEROS}: it is not set"),
        ({"sasl.enabled.mechanisms": "GSSAPI", KERBEROS: f"{KRB5} required;"}, "a broker needs useKeyTab=true"),
        ({"sasl.enabled.mechanisms": "GSSAPI", KERBEROS: f"{KRB5} required useKeyTab=true;"}, "it has no keyTab"),
        (
            {"sasl.enabled.mechanisms": "GSSAPI", KERBEROS: f"{KRB5} required useKeyTab=true keyTab=k;"},
            "it has no principal",
        ),
        (
            {"sasl.enabled.mechanisms": "GSSAPI", KERBEROS: ACCOUNT},
            "configuration sasl.kerberos.service.name: it is not set",
        ),
        (
            {
                "sasl.enabled.mechanisms": "GSSAPI",
                KERBEROS: ACCOUNT.replace(";", " serviceName=x;"),
                "sasl.kerberos.service.name": "y",
            },
            f"it differs from serviceName in {KERBEROS}",
        ),
        ({"sasl.enabled.mechanisms": "GSSAPI", KERBEROS: USERS}, f"the login module of GSSAPI is {KRB5}"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "PLAIN,NOPE", JAAS: USERS}, "NOPE is not served"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, JAAS),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: f"{PLAIN} required;"}, "names no user"),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: f'{PLAIN} required user_alice="" user_="x";'}, "names no user"),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: USERS[:-1]}, "character"),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: USERS.replace("Plain", "Scram")}, "the login module of PLAIN is"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", JAAS: USERS, "sasl.jaas.config": USERS},
            "with the listener and the mechanism",
        ),
    ],
    ids=range(16),
)
def test_half_a_configuration_is_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(BrokerError) as caught:
        BrokerConfig({**BASE, **settings})
    assert says in str(caught.value)
    assert "required" in str(caught.value)  # of the block that works
    assert "planted-secret" not in str(caught.value)


def test_settings_of_a_mechanism_are_found_by_listener_and_mechanism() -> None:
    config = BrokerConfig(
        {
            **BASE,
            "listener.name.client.sasl.enabled.mechanisms": "plain,SCRAM-SHA-256",
            JAAS: USERS,
            "connections.max.reauth.ms": "1000",
            "listener.name.client.connections.max.reauth.ms": "2000",
            "listener.name.client.plain.connections.max.reauth.ms": "3000",
        }
    )
    settings = SaslSettings(config, "CLIENT")
    assert settings.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert settings.plain_users() == {"alice": "planted-secret"}
    assert settings.number("PLAIN", "connections.max.reauth.ms") == 3_000
    assert settings.number("SCRAM-SHA-256", "connections.max.reauth.ms") == 2_000
    assert SaslSettings(config, "OTHER").number("PLAIN", "connections.max.reauth.ms") == 1_000


def test_the_account_of_a_node_in_kerberos() -> None:
    settings = {**BASE, "sasl.enabled.mechanisms": "GSSAPI"}
    config = BrokerConfig({**settings, KERBEROS: ACCOUNT, "sasl.kerberos.service.name": "kafka"})
    assert SaslSettings(config, "CLIENT").kerberos_service() == ("k", "kafka/h@R", "kafka")
    assert SaslSettings(config, "CLIENT").kerberos_rules() == ("DEFAULT",)
    config = BrokerConfig(
        {
            **settings,
            KERBEROS: ACCOUNT.replace(";", " serviceName=broker;"),
            "listener.name.client.sasl.kerberos.principal.to.local.rules": "RULE:[2:$1],DEFAULT",
        }
    )
    assert SaslSettings(config, "CLIENT").kerberos_service().service_name == "broker"
    assert SaslSettings(config, "CLIENT").kerberos_rules() == ("RULE:[2:$1]", "DEFAULT")
