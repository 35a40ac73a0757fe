"""A broker with two listeners for clients: each peer is told addresses of the listener by which it came."""

from __future__ import annotations

import asyncio

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node.node import Node
from barnabas.client import Admin, Consumer, Producer
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.disk import MemoryDisk


async def test_peers_are_told_addresses_of_their_own_listener() -> None:
    config = BrokerConfig(
        {
            "node.id": "7",
            "log.dirs": "data",
            "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "advertised.listeners": "INSIDE://127.0.0.1:0,OUTSIDE://localhost:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    node = Node(config, clock=SystemClock(), rng=SystemRng(), disk=MemoryDisk(), network=AsyncioNetwork())
    await node.start()
    try:
        told = {}
        for listener, (host, port) in node.server.addresses.items():
            async with Admin(bootstrap_servers=f"{host}:{port}") as admin:
                _, _, ((_, told_host, told_port, _),) = await admin.describe_cluster()
            assert told_port == port
            told[listener] = told_host
            topic, group = f"topic-{listener}", f"group-{listener}"
            # Coordinators are told by it, too: a transaction finds its own, a group its own.
            producer = Producer(bootstrap_servers=f"{host}:{port}", transactional_id=listener)
            async with producer, producer.transaction():
                await producer.send(topic, b"1")
            async with Consumer(
                topic, bootstrap_servers=f"{host}:{port}", group_id=group, auto_offset_reset="earliest"
            ) as consumer:
                record = await asyncio.wait_for(anext(aiter(consumer)), 60)
            assert record.value == b"1"
        assert told == {"INSIDE": "127.0.0.1", "OUTSIDE": "localhost"}
    finally:
        await node.stop()
