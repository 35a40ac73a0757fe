"""What the tests of the bundled client share: an Admin, names of their own, topics, and members that poll together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Record

_names = count()


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A name that no other test of any process uses."""
    return f"b-{tmp_path.parent.name}-{tmp_path.name}-{next(_names)}".replace("_", "-")[-200:]


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    """Of the cluster that the module's `bootstrap` names."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        yield admin


async def make_topic(admin: Admin, name: str, partitions: int = 1, **configs: str) -> str:
    await admin.create_topics([NewTopic(name, partitions, 1, {k.replace("_", "."): v for k, v in configs.items()})])
    return name


async def poll_until(consumers: list[Consumer], settled: object) -> list[Record]:
    """Polls all of them until `settled()` holds; what they read meanwhile."""
    read: list[Record] = []
    async with asyncio.timeout(30):
        while not settled():  # type: ignore[operator]
            for consumer in consumers:
                for records in (await consumer.getmany(timeout_ms=20)).values():
                    read += records
    return read
