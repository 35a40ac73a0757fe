"""Kafka's TLS and SASL client properties as settings of SecurityConfig. No error contains a secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from barnabas.client.errors import IllegalState
from barnabas.client.net.security_config import TokenProvider
from barnabas.protocol.jaas import Jaas, JaasError, parse_jaas
from barnabas.protocol.oauth_settings import LOGIN_KEYS, OAuthInvalid

_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"
_SERVICE: Final = "sasl.kerberos.service.name"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_TLS: Final = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
)
_SASL: Final = (_MECHANISM, _JAAS, _SERVICE, *LOGIN_KEYS)
SECURITY_PROPERTIES: Final = (_PROTOCOL, *_SASL, *_TLS)  # those with an effect
_PACKAGE: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "PLAIN": f"{_PACKAGE}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_PACKAGE}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_PACKAGE}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_OPTIONS: Final = {  # of the login modules, for texts
    "OAUTHBEARER": "…",
    "GSSAPI": 'useKeyTab=true keyTab="…" principal="…"',
}


def security_from_properties(properties: Mapping[str, str], *, shared: bool = False) -> dict[str, Any]:
    """The keyword arguments of a client from properties; others are ignored. Raises IllegalState.

    `shared`: all clients of this process with the same settings share an endpoint's tokens.
    """
    given = {name: value.strip() for name, value in properties.items() if name in SECURITY_PROPERTIES}
    protocol = given.get(_PROTOCOL, "").upper()
    if not protocol:
        for name in given:
            if name != _PROTOCOL:
                raise IllegalState(
                    f"{name} needs {_PROTOCOL}=SSL, SASL_PLAINTEXT or SASL_SSL: without it the client uses neither"
                )
        return {}
    if protocol not in _PROTOCOLS:
        raise IllegalState(f"{_PROTOCOL}={given[_PROTOCOL]!r} is none of {', '.join(_PROTOCOLS)}")
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol in ("SSL", "SASL_SSL"):
        found["ssl_properties"] = {name: given[name] for name in _TLS if name in given}
    if protocol.startswith("SASL"):
        found.update(_login(given, protocol, shared))
    return found


def _login(given: Mapping[str, str], protocol: str, shared: bool) -> dict[str, Any]:
    mechanism = given.get(_MECHANISM, "").upper()
    module = _MODULES.get(mechanism)
    if module is None:
        said = (
            f"{_MECHANISM}={mechanism} is not supported" if mechanism else f"{_PROTOCOL}={protocol} needs {_MECHANISM}"
        )
        raise IllegalState(f"{said}: choose from {', '.join(_MODULES)}")
    text = given.get(_JAAS, "")
    options = _OPTIONS.get(mechanism, 'username="…" password="…"')
    works = f"write {_JAAS}={module} required {options};"
    if not text:
        raise IllegalState(f"{_MECHANISM}={mechanism} needs {_JAAS}: {works}")
    jaas = _parsed(text)
    if jaas.class_name != module.rpartition(".")[2]:
        raise IllegalState(
            f"{_JAAS} names the login module {jaas.class_name[:80]!r}, which is not that of {mechanism}: {works}"
        )
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": _tokens(given, jaas, shared)}
    if mechanism == "GSSAPI":
        return {"sasl_mechanism": mechanism, **_kerberos(given, jaas, works)}
    for name in ("username", "password"):
        if not jaas.options.get(name):
            raise IllegalState(f"{_JAAS} has no {name}: {works}")
    found: dict[str, Any] = {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": jaas.options["username"],
        "sasl_plain_password": jaas.options["password"],
    }
    if jaas.options.get("tokenauth", "").lower() == "true":
        found["sasl_delegation_token"] = True
    return found


def _kerberos(given: Mapping[str, str], jaas: Jaas, works: str) -> dict[str, Any]:
    options = jaas.options
    named = {each for each in (given.get(_SERVICE), options.get("serviceName")) if each}
    if len(named) != 1:
        why = (
            f"differs from serviceName in {_JAAS}"
            if named
            else "is missing: it is the first component of the brokers' principals"
        )
        raise IllegalState(f"{_SERVICE} {why}; write {_SERVICE}=kafka")
    found: dict[str, Any] = {"sasl_kerberos_service_name": named.pop()}
    if options.get("principal"):
        found["sasl_kerberos_principal"] = options["principal"]
    if options.get("useKeyTab", "").lower() == "true":
        for name in ("keyTab", "principal"):
            if not options.get(name):
                raise IllegalState(f"{_JAAS} has no {name}: {works}")
        return {**found, "sasl_kerberos_keytab": options["keyTab"]}
    if options.get("useTicketCache", "").lower() != "true":
        raise IllegalState(f"{_JAAS} has neither useKeyTab=true nor useTicketCache=true: {works}")
    if options.get("ticketCache"):
        found["sasl_kerberos_ticket_cache"] = options["ticketCache"]
    return found


def oauth_tokens(properties: Mapping[str, str]) -> TokenProvider:
    """A `sasl_oauth_token_provider` from Kafka's client properties `sasl.oauthbearer.*` and `sasl.login.*`.

    It asks a token endpoint (client_credentials, client assertions or jwt-bearer) and renews the token before its end.
    Clients may share it.

    Args:
        properties: of `sasl.jaas.config` only the options count: `ssl.…` of the endpoint, SASL extensions, and the
            older names clientId, clientSecret and scope.

    Raises:
        IllegalState: a property is unknown, missing or invalid.
    """
    for name in properties:
        if name not in (_JAAS, *LOGIN_KEYS):
            raise IllegalState(f"{name} does not concern tokens: give it to the client")
    text = properties.get(_JAAS, "").strip()
    return _tokens(properties, _parsed(text) if text else Jaas(_MODULES["OAUTHBEARER"], "required", {}))


def _parsed(text: str) -> Jaas:
    try:
        return parse_jaas(text)
    except JaasError as error:
        raise IllegalState(f"{_JAAS}: {error}") from None


def _tokens(given: Mapping[str, str], jaas: Jaas, shared: bool = False) -> TokenProvider:
    from barnabas.runtime.token_providers import LoginTokens  # here, because few clients use OAUTHBEARER

    try:
        return LoginTokens(shared=shared).of(given.get, jaas.options)
    except OAuthInvalid as error:
        raise IllegalState(str(error)) from None
