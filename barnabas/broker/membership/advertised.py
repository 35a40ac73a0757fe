"""Advertised addresses of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig, Endpoint
from barnabas.broker.config.key import WILDCARDS

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", *WILDCARDS)  # a wildcard is advertised as a loopback address


def advertised_endpoints(config: BrokerConfig, bound: Mapping[str, tuple[str, int]]) -> list[Endpoint]:
    """advertised.listeners, with port 0 replaced by the `bound` port. `bound`: address by listener name."""
    found = []
    for endpoint in config.advertised_listeners:
        address = bound.get(endpoint.name, (endpoint.host, endpoint.port))
        host = endpoint.host or config.host_name  # Kafka resolves an empty host to the machine's canonical name
        if host in WILDCARDS:
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # clients cannot connect to a wildcard address
        found.append(Endpoint(endpoint.name, host, endpoint.port or address[1], endpoint.security_protocol))
    return found


def loopback_only(config: BrokerConfig) -> list[str]:
    """Listeners that accept remote connections but advertise a loopback address, without advertised.listeners."""
    if config.advertised_listeners is not config.listeners:
        return []
    every = ((each.name, each.host) for each in config.listeners if each.host in ("", *WILDCARDS))
    return [name for name, host in every if (host or config.host_name) in _LOOPBACK]
