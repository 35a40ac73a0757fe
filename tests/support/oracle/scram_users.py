"""Users of SCRAM in a Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from barnabas.client import Admin
from barnabas.client.admin.types import ScramMechanism
from tests.support.oracle.sasl_script import SaslWire, Scram
from tests.support.processes.attempts import attempts

HASHES: dict[ScramMechanism, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def make_scram_users(plaintext: str, guarded: str, users: Iterable[tuple[str, str, ScramMechanism, int]]) -> None:
    """Makes users by one listener and waits until each can log in at another: Kafka's broker learns of them later.

    Args:
        users: name, password, mechanism, iterations.
    """
    every = list(users)

    async def make() -> None:
        async with Admin(bootstrap_servers=plaintext) as admin:
            for name, password, mechanism, iterations in every:
                await admin.set_scram_password(name, password, mechanism=mechanism, iterations=iterations)

    asyncio.run(make())
    for name, password, mechanism, _ in every:
        for _ in attempts(f"{name} can log in by {mechanism}"):
            if _can_log_in(guarded, name, password, mechanism):
                break


def _can_log_in(address: str, name: str, password: str, mechanism: ScramMechanism) -> bool:
    client = Scram(name, password, HASHES[mechanism])
    with SaslWire(address) as wire:
        wire.handshake(mechanism)
        challenge = wire.token(client.first())
        if challenge:
            wire.token(client.final(challenge))
        return bool(wire.said[-1][:2] == ("token", 0))
