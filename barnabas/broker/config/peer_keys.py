"""Kafka's configuration keys of a node's logins at other nodes, for the table of server keys."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.key import ConfigKey, string

PEER_KEYS: Final[list[ConfigKey]] = [
    string("sasl.mechanism.controller.protocol", "GSSAPI", "SASL mechanism of this node's connections to controllers."),
    string(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "SASL mechanism of this node's connections to brokers.",
        dynamic=True,
    ),
]
