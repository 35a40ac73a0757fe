"""Ports of a local cluster: client ports PORT, PORT+1, …; quorum ports 10,000 above, if free and outside the ephemeral range, whose ports a restarted node
may find taken by outgoing connections. DATA/quorum-ports keeps the choice.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from barnabas.runtime.randomness import SystemRng

HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535
PORT_MIN: Final = 1_024  # below, ports need more rights
QUORUM_PORTS_ABOVE: Final = 10_000
_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RANGE_ELSEWHERE: Final = range(49_152, 65_536)  # of IANA, as macOS and Windows have it
_TRIES: Final = 200


def ephemeral_ports() -> range:
    """Returns the ports that this machine gives to outgoing connections."""
    try:
        first, last = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return _RANGE_ELSEWHERE
    return range(first, last + 1)


def is_free(port: int) -> bool:
    """Returns whether a server could bind the port on HOST now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def chosen_ports(count: int) -> list[int]:
    """Returns free ports outside the ephemeral range, at random: clusters that start at the same time take different ones."""
    ephemeral, rng = ephemeral_ports(), SystemRng()
    found: dict[int, None] = {}
    for _ in range(_TRIES):
        port = 10_000 + rng.randrange(PORT_MAX - 10_000)
        if port not in ephemeral and is_free(port):
            found[port] = None
        if len(found) == count:
            return list(found)
    return _any_ports(count)


def quorum_ports(clients: list[int], saved: list[int] | None) -> list[int]:
    """Returns a port for each node, none of them in `clients`: the saved ones if all are free, else as the module says."""
    count, ephemeral = len(clients), ephemeral_ports()

    def usable(ports: list[int]) -> bool:
        return all(PORT_MIN <= each <= PORT_MAX and each not in clients and is_free(each) for each in ports)

    if saved is not None and len(saved) == count and len(set(saved)) == count and usable(saved):
        return saved
    first = clients[0]
    for start in (first + QUORUM_PORTS_ABOVE, first - QUORUM_PORTS_ABOVE, *range(10_000, PORT_MAX, count)):
        ports = list(range(start, start + count))
        if not any(each in ephemeral for each in ports) and usable(ports):
            return ports
    return _any_ports(count)  # the whole range is ephemeral


def saved_ports(file: Path) -> list[int] | None:
    """Returns the ports that an earlier start wrote to the file; None if there are none, or the file has another content."""
    try:
        return [int(each) for each in file.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return None


def _any_ports(count: int) -> list[int]:
    """Ports that the system chooses; they are released before they are returned."""
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()
