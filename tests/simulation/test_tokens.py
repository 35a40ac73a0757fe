"""Delegation tokens in a simulated cluster: made at one broker, used at all, through the kill of the controller and a restart of all nodes.

A token ends while connections that logged in by it are open: nothing of its holder is accepted after that, on any broker.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from barnabas.client import Admin, KafkaError, Producer
from barnabas.client.admin.types import DelegationToken
from barnabas.errors import ErrorCode
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.cluster import bootstrap
from tests.support.simulation.secured import SPREAD_S, WORKER, allow_the_copy, login, secured_brokers, started
from tests.support.simulation.workload import Broker, Journal

pytestmark = pytest.mark.simulation

LIFE_S = 60.0
CHECK_S = 5.0
SETTINGS = {
    "delegation.token.secret.key": "planted-secret-of-tokens",
    "delegation.token.expiry.check.interval.ms": str(int(CHECK_S * 1000)),
    "connections.max.reauth.ms": "0",  # the token alone limits sessions
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}
STRANGER = login("outsider")


@dataclass
class Notes:
    """What the holder of the token saw."""

    written_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    partitions: set[int] = field(default_factory=set)


def by_token(token: DelegationToken) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": token.token_id,
        "sasl_plain_password": base64.b64encode(token.hmac).decode(),
        "sasl_delegation_token": True,
    }


async def make(ports: Ports) -> DelegationToken:
    async with Admin(**Journal(bootstrap="broker-1:9092", login=WORKER).clients(ports)) as admin:
        made = await admin.create_delegation_token(max_lifetime_ms=int(LIFE_S * 1000))
    await asyncio.sleep(SPREAD_S)
    return made


async def seen_at(ports: Ports, broker: str) -> list[DelegationToken]:
    async with Admin(**Journal(bootstrap=f"{broker}:9092", login=WORKER).clients(ports)) as admin:
        return await admin.describe_delegation_tokens()


async def refused_to_a_stranger(ports: Ports, token: DelegationToken) -> ErrorCode | None:
    async with Admin(**Journal(bootstrap="broker-3:9092", login=STRANGER).clients(ports)) as admin:
        assert await admin.describe_delegation_tokens() == []
        with pytest.raises(KafkaError) as refused:
            await admin.renew_delegation_token(token.hmac)
        return refused.value.code


async def hold(ports: Ports, token: DelegationToken, notes: Notes) -> None:
    """Writes to every partition until the token no longer counts for ten seconds."""
    loop = asyncio.get_running_loop()
    while not notes.refused_s or loop.time() < notes.refused_s[0] + 10:
        try:
            clients = Journal(bootstrap=bootstrap(), login=by_token(token)).clients(ports)
            async with Producer(delivery_timeout_ms=10_000, request_timeout_ms=5_000, **clients) as producer:
                while True:
                    for partition in range(3):
                        await producer.send_and_wait("input", b"x", partition=partition)
                        notes.written_s.append(loop.time())
                        notes.partitions.add(partition)
                    await asyncio.sleep(0.2)
        except KafkaError as error:
            if "Authentication failed" in str(error):
                notes.refused_s.append(loop.time())
        await asyncio.sleep(0.5)


def tokens(brokers: dict[str, Broker]) -> list[int]:
    return [
        0 if each.node is None else len(each.node.current_image.image.delegation_tokens) for each in brokers.values()
    ]


async def story(world: World, notes: Notes) -> None:
    loop = asyncio.get_running_loop()
    brokers = secured_brokers(**SETTINGS)
    await started(world, brokers)
    await world.machine("admin").start(allow_the_copy)
    made_s = loop.time()
    token = await world.machine("maker").start(make)
    held = world.machine("holder").start(lambda ports: hold(ports, token, notes))
    await asyncio.sleep(5)
    assert await world.machine("stranger").start(lambda ports: refused_to_a_stranger(ports, token)) == (
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    )
    controllers = {name: each.node.quorum_controller for name, each in brokers.items() if each.node is not None}
    (active,) = [name for name, controller in controllers.items() if controller is not None and controller.active]
    world.machine(active).kill()
    await asyncio.sleep(5)
    world.machine(active).start(brokers[active])
    await asyncio.sleep(10)
    for name in brokers:
        assert await world.machine(f"reader-of-{name}").start(partial(seen_at, broker=name)) == [token]
    for name in brokers:
        world.machine(name).kill()
        files = world.machine(name).disk.listdir("__cluster_metadata-0")
        assert any(each.endswith(".checkpoint") for each in files), files  # the restart begins with a snapshot
    await started(world, brokers)
    await asyncio.sleep(10)
    assert tokens(brokers) == [1, 1, 1]
    written = len(notes.written_s)
    assert notes.written_s[-1] > loop.time() - 2
    await held
    assert len(notes.written_s) > written
    assert made_s + LIFE_S - 5 < notes.written_s[-1] < made_s + LIFE_S + 1
    await asyncio.sleep(2 * CHECK_S)
    assert tokens(brokers) == [0, 0, 0]


@pytest.mark.parametrize("seed", range(2))
def test_tokens_through_failovers(seed: int) -> None:
    notes = Notes()
    with World(seed) as world:
        world.run(story(world, notes), time_limit_s=600)
    assert notes.partitions == {0, 1, 2}
    assert notes.refused_s
