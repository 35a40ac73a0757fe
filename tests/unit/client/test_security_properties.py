"""Kafka's client properties of TLS and SASL: what they mean, and what their errors say."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from barnabas.client.errors import IllegalState
from barnabas.client.net.security import ClientSecurity, check_security
from barnabas.client.net.security_config import SecurityConfig
from barnabas.client.net.security_properties import (
    oauth_tokens,
    security_from_properties,
)
from barnabas.runtime.randomness import SystemRng
from tests.support.security.certificates import CertificateAuthority

MODULE = "org.apache.kafka.common.security"
PLAIN = f'{MODULE}.plain.PlainLoginModule required username="alice" password="planted-secret";'
SCRAM = f'{MODULE}.scram.ScramLoginModule required username="alice" password="planted-secret"'


def properties(protocol: str = "SASL_SSL", mechanism: str = "PLAIN", jaas: str = PLAIN) -> dict[str, str]:
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


KRB5 = "com.sun.security.auth.module.Krb5LoginModule required"
KEYTAB = f'{KRB5} useKeyTab=true keyTab="/k" principal="alice@R"'


def kerberos(jaas: str, service: str = "kafka") -> dict[str, str]:
    return {**properties("SASL_PLAINTEXT", "GSSAPI", jaas), "sasl.kerberos.service.name": service}


def test_properties_without_security() -> None:
    assert security_from_properties({"client.id": "x"}) == {}
    assert security_from_properties({"security.protocol": "plaintext"}) == {"security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (properties(), {"sasl_mechanism": "PLAIN"}),
        (properties("sasl_plaintext", "scram-sha-512", f"{SCRAM};"), {"sasl_mechanism": "SCRAM-SHA-512"}),
        (
            properties("SASL_SSL", "SCRAM-SHA-256", f'{SCRAM} tokenauth="true";'),
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_delegation_token": True},
        ),
    ],
)
def test_logins(given: dict[str, str], found: dict[str, Any]) -> None:
    arguments = security_from_properties(given)
    tls: dict[str, Any] = {"ssl_properties": {}} if arguments["security_protocol"] == "SASL_SSL" else {}
    login = {"sasl_plain_username": "alice", "sasl_plain_password": "planted-secret"}
    assert arguments == {"security_protocol": given["security.protocol"].upper(), **tls, **login, **found}
    config = SecurityConfig(**arguments)
    assert pickle.loads(pickle.dumps(config)) == config  # Spark sends it to other processes
    assert "planted-secret" not in repr(config)


@pytest.mark.parametrize(
    ("jaas", "found"),
    [
        (f"{KEYTAB};", {"sasl_kerberos_principal": "alice@R", "sasl_kerberos_keytab": "/k"}),
        (f"{KRB5} useTicketCache=true;", {}),
        (f'{KRB5} useTicketCache=true ticketCache="/t";', {"sasl_kerberos_ticket_cache": "/t"}),
        (f"{KRB5} useTicketCache=true principal=bob;", {"sasl_kerberos_principal": "bob"}),
    ],
)
def test_kerberos(jaas: str, found: dict[str, str]) -> None:
    arguments = security_from_properties(kerberos(jaas, "broker"))
    assert arguments == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "broker",
        **found,
    }
    config = SecurityConfig(**arguments)
    assert pickle.loads(pickle.dumps(config)) == config
    in_jaas = {**kerberos(jaas, ""), "sasl.jaas.config": jaas.replace(";", ' serviceName="broker";')}
    assert security_from_properties(in_jaas) == arguments


async def test_tokens(tmp_path: Path) -> None:
    jaas = f'{MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="bob" extension_a="b";'
    found = security_from_properties(properties("SASL_PLAINTEXT", "OAUTHBEARER", jaas))
    tokens = pickle.loads(pickle.dumps(found["sasl_oauth_token_provider"]))
    claims = (await tokens.token()).split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(claims + "=="))["sub"] == "bob"
    assert tokens.extensions() == {"a": "b"}
    (tmp_path / "token").write_text("a.b.c\n")
    file = {"sasl.oauthbearer.token.endpoint.url": f"file://{tmp_path}/token"}
    found = security_from_properties({**properties("SASL_PLAINTEXT", "OAUTHBEARER", jaas), **file})
    assert await found["sasl_oauth_token_provider"].token() == "a.b.c"


def test_client_credentials() -> None:
    jaas = f'{MODULE}.oauthbearer.OAuthBearerLoginModule required clientId="bob" clientSecret="planted-secret" extension_a="b";'
    endpoint = {"sasl.oauthbearer.token.endpoint.url": "http://idp/token"}
    found = security_from_properties({**properties("SASL_PLAINTEXT", "OAUTHBEARER", jaas), **endpoint})
    tokens = pickle.loads(pickle.dumps(found["sasl_oauth_token_provider"]))  # Spark sends it to other processes
    assert tokens.extensions() == {"a": "b"}
    assert repr(tokens) == "EndpointTokens(http://idp/token)"
    assert tokens._settings == found["sasl_oauth_token_provider"]._settings
    assert "planted-secret" not in repr(tokens._settings)


def test_a_provider_of_tokens_for_programs() -> None:
    given = {
        "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
        "sasl.oauthbearer.client.credentials.client.id": "bob",
    }
    with pytest.raises(IllegalState, match=r"needs sasl\.oauthbearer\.client\.credentials\.client\.secret"):
        oauth_tokens(given)
    jaas = f'{MODULE}.oauthbearer.OAuthBearerLoginModule required clientSecret="planted-secret";'
    assert repr(oauth_tokens({**given, "sasl.jaas.config": jaas})) == "EndpointTokens(http://idp/token)"
    with pytest.raises(IllegalState, match=r"sasl\.mechanism does not concern tokens"):
        oauth_tokens({**given, "sasl.mechanism": "OAUTHBEARER"})


def test_stores(ca: CertificateAuthority) -> None:
    client = ca.issue("properties", password="planted-key")
    stores = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(client.pkcs12)}
    for keys in (client.inline(), client.by_file(), {**stores, "ssl.keystore.password": "planted-key"}):
        for trust in (ca.truststore(), ca.truststore_inline()):
            arguments = security_from_properties({"security.protocol": "SSL", **keys, **trust})
            context = ClientSecurity(SecurityConfig(**arguments), SystemRng()).tls
            assert context is not None
            assert context.check_hostname
            assert len(context.get_ca_certs()) == 1
    unchecked = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    context = ClientSecurity(SecurityConfig(**security_from_properties(unchecked)), SystemRng()).tls
    assert context is not None
    assert not context.check_hostname


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"security.protocol": "TLS"}, "security.protocol='TLS' is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"ssl.truststore.location": "x"}, "ssl.truststore.location needs security.protocol=SSL"),
        ({"sasl.jaas.config": PLAIN}, "sasl.jaas.config needs security.protocol"),
        ({"security.protocol": "SASL_SSL"}, "security.protocol=SASL_SSL needs sasl.mechanism: choose from PLAIN"),
        (properties(mechanism="NTLM"), "sasl.mechanism=NTLM is not supported"),
        (properties(mechanism="GSSAPI"), "'PlainLoginModule', which is not that of GSSAPI: write"),
        (kerberos(f"{KEYTAB};", service=""), "sasl.kerberos.service.name is missing"),
        (kerberos(f'{KEYTAB} serviceName="x";'), "sasl.kerberos.service.name differs from serviceName"),
        (kerberos(f"{KRB5} useKeyTab=true;"), "sasl.jaas.config has no keyTab: write"),
        (kerberos(f'{KRB5} useKeyTab=true keyTab="k";'), "sasl.jaas.config has no principal: write"),
        (kerberos(f"{KRB5};"), "has neither useKeyTab=true nor useTicketCache=true"),
        (
            properties(jaas=""),
            f"needs sasl.jaas.config: write sasl.jaas.config={MODULE}.plain.PlainLoginModule required",
        ),
        (properties(jaas=f"{SCRAM};"), "'ScramLoginModule', which is not that of PLAIN"),
        (properties(jaas=PLAIN.replace(";", "")), "sasl.jaas.config: "),
        (properties(jaas=PLAIN.replace("username", "user")), "sasl.jaas.config has no username: write"),
        (properties(jaas=PLAIN.replace("password", "pass")), "sasl.jaas.config has no password: write"),
        (
            properties("SASL_SSL", "OAUTHBEARER", f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;"),
            "needs sasl.oauthbearer.token.endpoint.url=https://HOST/PATH with",
        ),
        (
            {
                **properties("SASL_SSL", "OAUTHBEARER", f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;"),
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
            },
            "needs sasl.oauthbearer.client.credentials.client.id: set it",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/none"}, "/none"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/none/x.jks"}, "ssl.truststore"),
    ],
)
def test_errors_name_the_property_and_what_to_write(given: dict[str, str], why: str) -> None:
    with pytest.raises(IllegalState) as refused:
        check_security(security_from_properties(given))
    assert why in str(refused.value)
    assert "planted-secret" not in str(refused.value)
