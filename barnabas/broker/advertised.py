"""The addresses that a node gives to its clients. A pure function of its settings and of the bound addresses."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.broker.config import BrokerConfig, Endpoint

__all__ = ["advertised_endpoints"]


def advertised_endpoints(config: BrokerConfig, bound: Mapping[str, tuple[str, int]]) -> list[Endpoint]:
    """advertised.listeners, with port 0 replaced by the bound port.

    Args:
        bound: address by listener name.
    """
    found = []
    for endpoint in config.advertised_listeners:
        address = bound.get(endpoint.name, (endpoint.host, endpoint.port))
        host = endpoint.host or address[0]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # clients cannot connect to a wildcard address
        found.append(Endpoint(endpoint.name, host, endpoint.port or address[1], endpoint.security_protocol))
    return found
