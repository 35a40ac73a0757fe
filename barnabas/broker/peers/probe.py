"""Probe: whether a process listens at an address."""

from __future__ import annotations

import asyncio

from barnabas.broker.peers.probe_result import ProbeResult
from barnabas.network_port import Network


async def probe(network: Network, host: str, port: int, timeout_ms: int) -> ProbeResult:
    """Connects and disconnects, without TLS: proves a listening process, not its health. UNREACHABLE after `timeout_ms`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            transport, _ = await network.connect(asyncio.Protocol, host, port)
    except ConnectionRefusedError:
        return ProbeResult.REFUSED
    except (OSError, UnicodeError, TimeoutError):
        return ProbeResult.UNREACHABLE
    transport.abort()
    return ProbeResult.ACCEPTED
