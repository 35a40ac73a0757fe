"""A node of the test's process with SASL listeners, and users in its metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node.node import Node
from barnabas.broker.scheduling.slices import Offload, in_place
from barnabas.client import Admin
from barnabas.client.admin.types import ScramMechanism
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.disk import MemoryDisk


async def add_scram_user(node: Node, name: str, password: str, mechanism: ScramMechanism) -> None:
    """Makes a user through the plaintext listener."""
    async with Admin(bootstrap_servers=address_of(node, "PLAINTEXT")) as admin:
        await admin.set_scram_password(name, password, mechanism=mechanism)


def node_of(settings: Mapping[str, str], *listeners: str, offload: Offload = in_place) -> Node:
    """A node with a plaintext listener and SASL listeners on free ports."""
    names = ("PLAINTEXT", *listeners)
    mapped = ",".join(f"{name}:SASL_PLAINTEXT" for name in listeners)
    config = BrokerConfig(
        {
            "node.id": "1",
            "log.dirs": "data",
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{mapped}",
            "inter.broker.listener.name": "PLAINTEXT",
            **settings,
        }
    )
    return Node(
        config, clock=SystemClock(), rng=SystemRng(), disk=MemoryDisk(), network=AsyncioNetwork(), offload=offload
    )


@asynccontextmanager
async def sasl_node(settings: Mapping[str, str], *listeners: str, offload: Offload = in_place) -> AsyncIterator[Node]:
    """As `node_of`, started."""
    node = node_of(settings, *listeners, offload=offload)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def address_of(node: Node, listener: str) -> str:
    """The bound address of a listener."""
    host, port = node.server.addresses[listener]
    return f"{host}:{port}"
