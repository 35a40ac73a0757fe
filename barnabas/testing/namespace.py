"""Namespace: one test's use of shared brokers. On the kit's brokers all new topics and groups are deleted, on a foreign Kafka only those that the kit
named. Transactional ids stay: Kafka has no request to delete them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from barnabas.client.errors import KafkaError
from barnabas.testing.cluster import Cluster
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


ATTEMPTS = 3  # to delete a group


class Namespace:
    """The topics, groups and clients of one test."""

    def __init__(self, kafka: Cluster) -> None:
        self._kafka = kafka
        self._topics: set[str] = set()  # that were there before
        self._groups: set[str] = set()
        self.clients: set[str] = set()  # client ids that were connected before

    def open(self) -> None:
        """Notes what is there."""
        self._kafka.wait(self._note(self._kafka.core()))

    def close(self, own_names: str) -> None:
        """Restores the brokers and deletes what the test made.

        `own_names`: a part of every group id that the fixtures gave to tests of this run.
        """
        kafka = self._kafka
        for extension in kafka.core().extensions:
            kafka.wait(extension.on_test_end())
        if kafka.mode != "remote":
            for broker in kafka.brokers:
                if broker.state == "paused":
                    broker.resume()
            down = [broker.id for broker in kafka.brokers if broker.state == "down"]
            if down:
                kafka.restart(*down)
            kafka.wait_until_ready()
        kafka.wait(self._delete(kafka.core(), own_names))

    async def _note(self, core: Core) -> None:
        self._topics = set(await core.topics())
        self._groups = await _groups(core)
        self.clients = set() if core.backend.mode == "remote" else set(await core.client_connections())
        core.created.clear()

    async def _delete(self, core: Core, own_names: str) -> None:
        topics = set(await core.topics()) - self._topics
        groups = await _groups(core) - self._groups
        if core.backend.mode == "remote":
            topics &= set(core.created)
            groups = {each for each in groups if own_names in each}
        if topics:
            await core.delete_topics(*sorted(topics))
        for group in sorted(groups):
            await _delete_group(core, group)


async def _groups(core: Core) -> set[str]:
    return {each.group_id for each in await (await core.admin()).list_groups()}


async def _delete_group(core: Core, group: str) -> None:
    """Deletes a group with its members. A consumer that a test has leaked joins again at once: then the group stays."""
    admin = await core.admin()
    for _ in range(ATTEMPTS):
        try:
            if (await admin.describe_group(group)).members:
                await admin.remove_group_members(group)
            await admin.delete_group(group)
        except KafkaError:
            continue
        return
