"""Kafka's configuration keys of SASL and delegation tokens, for the table of server keys."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.kerberos_names import check_local_rules
from barnabas.broker.config.key import (
    ConfigKey,
    ConfigType,
    at_least,
    double,
    integer,
    long,
    several,
    string,
    without_effect,
)

NO_RELOGIN: Final = "the Kerberos library gets new tickets from the keytab before they end"

SASL_KEYS: Final[list[ConfigKey]] = [
    integer(
        "connection.failed.authentication.delay.ms",
        100,
        "Wait before a failed login is answered and closed.",
        at_least(0),
    ),
    long("connections.max.reauth.ms", 0, "Longest duration of a SASL session; 0: no limit."),
    several(
        "sasl.enabled.mechanisms", ("GSSAPI",), "SASL mechanisms of a listener, separated by commas.", dynamic=True
    ),
    ConfigKey(
        "sasl.jaas.config",
        ConfigType.PASSWORD,
        None,
        "Login module of a listener and mechanism, with its users or its own name and password.",
        dynamic=True,
    ),
    without_effect(
        string("sasl.kerberos.kinit.cmd", "/usr/bin/kinit", "Command that renews a ticket cache.", dynamic=True),
        NO_RELOGIN,
    ),
    without_effect(
        long(
            "sasl.kerberos.min.time.before.relogin",
            60_000,
            "Shortest time between two logins at the KDC.",
            dynamic=True,
        ),
        NO_RELOGIN,
    ),
    several(
        "sasl.kerberos.principal.to.local.rules",
        ("DEFAULT",),
        "Rules that make a name of a Kerberos principal; the first one that applies decides.",
        check_local_rules,
        dynamic=True,
    ),
    string(
        "sasl.kerberos.service.name",
        None,
        "First component of the brokers' Kerberos principals, usually kafka.",
        dynamic=True,
    ),
    without_effect(
        double("sasl.kerberos.ticket.renew.jitter", 0.05, "Random share added to the time of a renewal.", dynamic=True),
        NO_RELOGIN,
    ),
    without_effect(
        double(
            "sasl.kerberos.ticket.renew.window.factor",
            0.8,
            "Share of a ticket's life after which it is renewed.",
            dynamic=True,
        ),
        NO_RELOGIN,
    ),
    integer("sasl.oauthbearer.clock.skew.seconds", 30, "Difference of clocks that a token may have."),
    several("sasl.oauthbearer.expected.audience", (), "Audiences, one of which a token must name; any where not set."),
    string("sasl.oauthbearer.expected.issuer", None, "Issuer that a token must name; any where not set."),
    long("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "Between two readings of the signing keys."),
    long("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000, "Longest pause after a failed reading."),
    long("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100, "First pause after a failed reading of the keys."),
    string(
        "sasl.oauthbearer.jwks.endpoint.url", None, "Where the signing keys of tokens are: file://, http://, https://."
    ),
    ConfigKey(
        "sasl.oauthbearer.jwt.validator.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "Kafka's class that checks a signed token; another one is refused.",
    ),
    string("sasl.oauthbearer.scope.claim.name", "scope", "Claim of a token that has its scopes."),
    string("sasl.oauthbearer.sub.claim.name", "sub", "Claim of a token that has the name of the client."),
    ConfigKey(
        "sasl.server.callback.handler.class",
        ConfigType.CLASS,
        None,
        "OAUTHBEARER: Kafka's class that validates tokens; needed for unsecured tokens only.",
    ),
    integer(
        "sasl.server.max.receive.size", 524_288, "Largest request before a login is complete, in bytes.", at_least(1)
    ),
]
