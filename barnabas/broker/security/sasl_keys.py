"""Kafka's configuration keys of SASL and delegation tokens, for the table of server keys."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config_key import ConfigKey, ConfigType, at_least, integer, long, several

__all__ = ["SASL_KEYS"]

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
    integer(
        "sasl.server.max.receive.size", 524_288, "Largest request before a login is complete, in bytes.", at_least(1)
    ),
]
