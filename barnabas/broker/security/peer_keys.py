"""Kafka's configuration keys of a node's logins at other nodes, for the table of server keys."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config_key import ConfigKey, string

__all__ = ["CONTROLLER_MECHANISM", "INTER_BROKER_MECHANISM", "PEER_KEYS"]

CONTROLLER_MECHANISM: Final = "sasl.mechanism.controller.protocol"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"

PEER_KEYS: Final[list[ConfigKey]] = [
    string(CONTROLLER_MECHANISM, "GSSAPI", "SASL mechanism of this node's connections to controllers."),
    string(INTER_BROKER_MECHANISM, "GSSAPI", "SASL mechanism of this node's connections to brokers."),
]
