"""Clients that a test left connected, as warnings."""

from __future__ import annotations

import asyncio
from typing import Final

from barnabas.testing.core import Core

GROUPS_S: Final = 1.0  # to find out the groups of leaked clients
POLL_S: Final = 0.001


async def leaked_clients(core: Core, grace_s: float, known: set[str]) -> list[str]:
    """A sentence for each client that is still connected after `grace_s`, with the group of which it is a member.

    `known`: client ids that were connected before.
    """
    deadline = asyncio.get_running_loop().time() + grace_s
    while True:
        found = {name: each for name, each in (await core.client_connections()).items() if name not in known}
        if not found or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(POLL_S)
    if not found:
        return []
    groups = await _groups_of_clients(core)
    return [
        f"client id '{client_id}'{groups.get(client_id, '')} ({address} at broker {broker_id})"
        for client_id, (broker_id, address) in found.items()
    ]


async def _groups_of_clients(core: Core) -> dict[str, str]:
    """For a leaked client's sentence: the group of which it is a member, by client id. Empty if that takes long."""
    from barnabas.client import KafkaError

    found: dict[str, str] = {}
    try:
        async with asyncio.timeout(GROUPS_S):
            admin = await core.admin()
            for listed in await admin.list_groups():
                for member in (await admin.describe_group(listed.group_id)).members:
                    found[member.client_id] = f", a member of group '{listed.group_id}'"
    except (TimeoutError, KafkaError):
        pass
    return found
