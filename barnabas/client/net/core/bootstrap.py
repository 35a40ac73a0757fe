"""Parser of `bootstrap_servers`."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.client.errors import IllegalState


def parse_bootstrap(servers: str | Iterable[str]) -> list[tuple[str, int]]:
    """Addresses of "host:port,host:port" or a list. The default port is 9092; IPv6 needs brackets. Raises IllegalState."""
    if isinstance(servers, str):
        servers = servers.split(",")
    parts = list(servers) if isinstance(servers, Iterable) else [servers]
    if not all(isinstance(part, str) for part in parts):
        raise IllegalState(f"bootstrap_servers must be 'host:port' or a list of such strings, not {servers!r}")
    addresses = []
    for part in (p.strip() for p in parts):
        if not part:
            continue
        if "/" in part:
            raise IllegalState(f"bootstrap_servers: {part!r} is a URL or path; use host:port")
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, "9092"
        if not port.isdecimal() or not host:
            raise IllegalState(f"bootstrap_servers: {part!r} is not host:port")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise IllegalState(f"bootstrap_servers: {part!r}: an IPv6 address needs brackets: '[::1]:9092'")
        if not 0 < int(port) < 65_536:
            raise IllegalState(f"bootstrap_servers: {part!r}: the port must be a number from 1 to 65535")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise IllegalState("bootstrap_servers: it contains no address; set for example 'localhost:9092'")
    return addresses
