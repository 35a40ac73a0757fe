"""max.connections.per.ip.overrides (KIP-402)."""

from __future__ import annotations

import ipaddress

from barnabas.broker.config.key import ConfigValue


def check_overrides(value: ConfigValue) -> str | None:
    """ADDRESS:COUNT pairs, separated by commas."""
    try:
        parse_overrides(str(value or ""))
    except ValueError:
        return "write pairs of an IP address and a number of connections, e.g. 192.0.2.7:100,::1:20"
    return None


def parse_overrides(text: str) -> dict[str, int]:
    """Connections by address. Raises ValueError."""
    found = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        host, _, count = pair.rpartition(":")
        number = int(count)
        if number < 0:
            raise ValueError(pair)
        found[str(ipaddress.ip_address(host.strip("[] ")))] = number
    return found
