"""Kafka's keys of a node's own OAUTHBEARER logins at other nodes; `protocol/oauth_settings.py` reads them."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.key import (
    ConfigKey,
    ConfigType,
    between,
    boolean,
    double,
    integer,
    long,
    one_of,
    string,
)

_ASSERTION: Final = "sasl.oauthbearer.assertion."
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"

OAUTH_KEYS: Final[list[ConfigKey]] = [
    ConfigKey(
        "sasl.login.callback.handler.class",
        ConfigType.CLASS,
        None,
        "OAUTHBEARER between nodes: Kafka's class that gets tokens.",
    ),
    integer("sasl.login.connect.timeout.ms", None, "Time to connect to the token endpoint; 10 s where not set."),
    integer("sasl.login.read.timeout.ms", None, "Time for the whole answer of the token endpoint; 10 s where not set."),
    ConfigKey(
        "sasl.login.refresh.buffer.seconds",
        ConfigType.SHORT,
        300,
        "A token is renewed at least this time before its end.",
        between(0, 3_600),
        dynamic=True,
    ),
    ConfigKey(
        "sasl.login.refresh.min.period.seconds",
        ConfigType.SHORT,
        60,
        "A token is not renewed earlier after it was got.",
        between(0, 900),
        dynamic=True,
    ),
    double(
        "sasl.login.refresh.window.factor",
        0.8,
        "Part of a token's time until it is renewed.",
        between(0.5, 1.0),
        dynamic=True,
    ),
    double(
        "sasl.login.refresh.window.jitter",
        0.05,
        "Random part of a token's time, added.",
        between(0.0, 0.25),
        dynamic=True,
    ),
    long("sasl.login.retry.backoff.max.ms", 10_000, "Time in which requests to the token endpoint are repeated."),
    long("sasl.login.retry.backoff.ms", 100, "First pause after a failed request to the token endpoint."),
    string(
        f"{_ASSERTION}algorithm",
        "RS256",
        "Signs assertions: RS256 or ES256.",
        one_of("RS256", "ES256", "rs256", "es256"),
    ),
    string(f"{_ASSERTION}claim.aud", None, "Audience in an assertion."),
    integer(f"{_ASSERTION}claim.exp.seconds", 300, "How long an assertion is valid.", between(0, 86_400)),
    string(
        f"{_ASSERTION}claim.iss", None, "Issuer in an assertion; with it an assertion replaces the client's secret."
    ),
    boolean(f"{_ASSERTION}claim.jti.include", False, "Whether an assertion has an id."),
    integer(
        f"{_ASSERTION}claim.nbf.seconds", 60, "How long before now an assertion begins to be valid.", between(0, 3_600)
    ),
    string(f"{_ASSERTION}claim.sub", None, "Subject in an assertion."),
    string(f"{_ASSERTION}file", None, "File with a whole assertion, which replaces the client's secret."),
    string(f"{_ASSERTION}private.key.file", None, "File with the private key in PEM that signs assertions."),
    ConfigKey(
        f"{_ASSERTION}private.key.passphrase", ConfigType.PASSWORD, None, "Decrypts the private key of assertions."
    ),
    string(f"{_ASSERTION}template.file", None, "JSON file with header and payload that are added to assertions."),
    string("sasl.oauthbearer.client.credentials.client.id", None, "This node's name at the token endpoint."),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.secret",
        ConfigType.PASSWORD,
        None,
        "This node's secret at the token endpoint.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwt.retriever.class",
        ConfigType.CLASS,
        f"{_PACKAGE}.DefaultJwtRetriever",
        "Kafka's class that gets a token: client_credentials, a file, or jwt-bearer.",
    ),
    string("sasl.oauthbearer.scope", None, "Scope that a token is asked for with."),
    string("sasl.oauthbearer.token.endpoint.url", None, "Where nodes get their tokens: https://, http://, file://."),
]
