"""The shell of a classic membership: that polls see partitions change hands, and what a late failure may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from barnabas.client.errors import AuthorizationFailed
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.core.classic_member import ClassicMemberState
from barnabas.client.group.group import GroupHooks
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from tests.support.bench.classic_member import joined, make
from tests.support.waiting import until

TURNS = 10  # of the loop, for tasks that wait for nothing


@pytest.fixture
async def cluster() -> AsyncIterator[NetworkClient]:
    """Not connected to anything."""
    cluster = NetworkClient(ConnectionConfig())
    yield cluster
    await cluster.close()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_a_poll_sees_that_partitions_change_hands(cluster: NetworkClient) -> None:
    """Also one whose caller was cancelled in the poll that began it: nothing of a partition is given out while it is given up."""
    commit_ends = asyncio.Event()

    async def before_revoke() -> None:
        await commit_ends.wait()

    member = joined(make(strategies=["cooperative-sticky"]), now=cluster.clock.monotonic_ms())
    group = ClassicGroup(cluster, member, GroupHooks(lambda partitions: None, before_revoke, lambda: None))
    member.joined = member.assignment[:1]
    group.begin_poll(cluster.clock.monotonic_ms())
    await turns()
    assert group.blocked, "the commit before the partition goes is on its way"
    assert group.due
    commit_ends.set()
    await turns()
    assert not group.blocked
    assert len(member.assignment) == 1


async def test_a_heartbeat_that_fails_after_the_leave_means_nothing(cluster: NetworkClient) -> None:
    async def nothing() -> None:
        pass

    member = joined(make(), now=cluster.clock.monotonic_ms())
    member.retry_heartbeat_at(0)
    group = ClassicGroup(cluster, member, GroupHooks(lambda partitions: None, nothing, lambda: None))
    group.begin_poll(cluster.clock.monotonic_ms())
    await turns()  # the heartbeat waits for the coordinator to be found
    group.leave_soon("test")
    await turns()
    cluster._coordinators._errors["group", "g"] = AuthorizationFailed("not for you")
    cluster.notify_change()
    await turns()
    assert ("group", "g") not in cluster._coordinators._errors, "raised"
    assert member.state is ClassicMemberState.LEFT
    assert group.error is None
    assert cluster.scope.crash is None


async def test_a_member_without_polls_leaves_at_its_deadline_not_at_its_next_heartbeat(cluster: NetworkClient) -> None:
    async def nothing() -> None:
        pass

    member = joined(make(rebalance_timeout_ms=20, heartbeat_interval_ms=600_000), now=cluster.clock.monotonic_ms())
    group = ClassicGroup(cluster, member, GroupHooks(lambda partitions: None, nothing, lambda: None))
    group.begin_poll(cluster.clock.monotonic_ms())
    await until(lambda: member.state is not ClassicMemberState.STABLE)
    group.leave_soon("test")
