"""What a refused commit means to a member whose coordinator assigns, and whose turn it is to commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from barnabas.client.consumer.commits import Commits, _Turns
from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.fetching import Fetcher
from barnabas.client.errors import CommitFailed
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.consumer_group import ConsumerGroup
from barnabas.client.group.core.consumer_member import ConsumerMemberState
from barnabas.client.group.group import Group, GroupHooks
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from tests.support.bench.classic_member import joined, make

TENURE = 1


async def nothing() -> None:
    pass


@pytest.fixture
async def group() -> ConsumerGroup:
    """Its member has joined, has epoch 3, and holds nothing."""
    hooks = GroupHooks(lambda partitions: None, nothing, lambda: None)
    group = ConsumerGroup(NetworkClient(ConnectionConfig()), "g", hooks)
    group.member.subscribe(["t"])
    join(group)
    assert (group.member.state, group.membership_number) == (ConsumerMemberState.STABLE, TENURE)
    return group


def join(group: ConsumerGroup) -> None:
    group.member.join()
    request = group.member.heartbeat_request(0)
    group.member.on_heartbeat(request, ConsumerGroupHeartbeatResponse(member_epoch=3, heartbeat_interval_ms=1_000), 0)
    group.member.on_assigned([], {})


def who(epoch: int) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata("g", epoch, "me")


async def test_a_commit_in_a_former_epoch_is_tried_in_the_present_one(group: ConsumerGroup) -> None:
    assert group.on_commit_refused(ErrorCode.STALE_MEMBER_EPOCH, who(2), TENURE)
    assert group.member.heartbeat_at() == 1_000, "nothing to ask"


async def test_an_epoch_that_is_not_known_yet_is_asked_for(group: ConsumerGroup) -> None:
    assert group.on_commit_refused(ErrorCode.STALE_MEMBER_EPOCH, who(3), TENURE)
    assert group.member.heartbeat_at() == 0
    assert group.member.heartbeat_request(0).topic_partitions == [], "all of it is said, so that the coordinator does"


async def test_what_was_read_in_a_former_membership_is_not_committed_in_this_one(group: ConsumerGroup) -> None:
    assert not group.on_commit_refused(ErrorCode.STALE_MEMBER_EPOCH, who(2), TENURE - 1)
    assert not group.on_commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, who(2), TENURE - 1)
    assert group.member.state is ConsumerMemberState.STABLE


async def test_a_refusal_may_tell_that_the_membership_is_lost(group: ConsumerGroup) -> None:
    assert not group.on_commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, who(3), TENURE)
    assert group.member.state is ConsumerMemberState.FENCED
    assert not group.on_commit_refused(ErrorCode.STALE_MEMBER_EPOCH, who(3), TENURE), "nor is it tried again"


async def test_turns_are_first_come_first_served() -> None:
    turns = _Turns()
    first, second, third = turns.take(), turns.take(), turns.take()
    assert [turn.done() for turn in (first, second, third)] == [True, False, False]
    turns.give_back(second)  # cancelled before it came to it
    assert not third.done()
    turns.give_back(first)
    assert third.done()
    turns.give_back(first)  # twice does no harm
    turns.give_back(third)
    assert turns.take().done()


async def test_a_commit_cut_off_by_the_close_is_over_for_whoever_waits() -> None:
    cluster = NetworkClient(ConnectionConfig())
    fetcher = Fetcher(ConsumerConfig(), cluster.metadata, cluster.rng)
    commits = Commits(cluster, fetcher, group=lambda: None, who=lambda: who(1), interval_ms=None)
    outcome = commits.commit_soon({TopicPartition("t", 0): OffsetAndMetadata(1)})
    await cluster.close()  # before its task's first step
    await asyncio.sleep(0)
    assert outcome.cancelled()


async def fails_behind_another(group: Group, lose_and_join: Callable[[], None]) -> None:
    """A commit waits for its turn while its membership is lost; in that of a next one it must not be sent."""
    cluster = NetworkClient(ConnectionConfig())
    fetcher = Fetcher(ConsumerConfig(), cluster.metadata, cluster.rng)
    fetcher.assign({TopicPartition("t", 0): 0})  # before and afterwards
    commits = Commits(cluster, fetcher, group=lambda: group, who=lambda: group.metadata, interval_ms=None)
    before = commits._turns.take()
    outcome = commits.commit_soon({TopicPartition("t", 0): OffsetAndMetadata(1)})
    await asyncio.sleep(0)
    lose_and_join()
    commits._turns.give_back(before)
    for _ in range(5):
        await asyncio.sleep(0)
    assert outcome.done(), "it was sent"
    with pytest.raises(CommitFailed, match="the membership in which the records were read has ended"):
        outcome.result()
    await cluster.close()


async def test_a_commit_that_waited_through_a_loss_fails(group: ConsumerGroup) -> None:
    def lose_and_join() -> None:
        group.member.fence()
        group.member.forget()
        join(group)

    await fails_behind_another(group, lose_and_join)


async def test_a_commit_that_waited_through_a_loss_fails_in_the_classic_protocol() -> None:
    cluster = NetworkClient(ConnectionConfig())
    member = joined(make())

    def lose_and_join() -> None:
        member.on_lost(ErrorCode.ILLEGAL_GENERATION)
        joined(member, generation=7)

    hooks = GroupHooks(lambda partitions: None, nothing, lambda: None)
    await fails_behind_another(ClassicGroup(cluster, member, hooks), lose_and_join)


async def test_a_commit_that_waited_through_a_rebalance_is_sent_in_the_next_generation() -> None:
    """Partitions that stay are this member's all the time, and those that go wait for their commits."""
    cluster = NetworkClient(ConnectionConfig())
    member = joined(make(strategies=["cooperative-sticky"]))
    group = ClassicGroup(cluster, member, GroupHooks(lambda partitions: None, nothing, lambda: None))
    before = group.membership_number
    joined(member, generation=2)
    assert (group.membership_number, group.metadata.generation_id) == (before, 2)
