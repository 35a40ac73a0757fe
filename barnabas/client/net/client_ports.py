"""Ports of a client to the operating system."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.network_port import Network
from barnabas.ports import Clock, Rng


class ClientPorts(NamedTuple):
    """Ports of a client; None means the real one."""

    clock: Clock | None = None
    rng: Rng | None = None
    network: Network | None = None


REAL_PORTS = ClientPorts()
