"""A group id without a group: the first member creates the group, everything else is refused and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import Effects
from barnabas.broker.coordinator.groups.group import Group
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from barnabas.protocol.messages.groups import MemberIdentity, SyncGroupRequest
from tests.support.bench.group import GroupBench, Ticket


def committer(generation: int, version: int | None) -> Committer:
    return Committer("g", "m", None, generation, version)


REFUSED: dict[str, tuple[Callable[[Group, GroupBench], object], ErrorCode]] = {
    "SyncGroup": (
        lambda group, bench: group.sync(SyncGroupRequest(group_id="g"), Ticket(), bench.at, Effects()),
        ErrorCode.UNKNOWN_MEMBER_ID,
    ),
    "Heartbeat": (lambda group, bench: group.heartbeat("m", None, 1, bench.at), ErrorCode.UNKNOWN_MEMBER_ID),
    "LeaveGroup": (
        lambda group, bench: group.leave([MemberIdentity(member_id="m")], bench.at, Effects()),
        ErrorCode.UNKNOWN_MEMBER_ID,
    ),
    "OffsetCommit 8": (
        lambda group, bench: group.check_commit(committer(1, 8), [], bench.at),
        ErrorCode.ILLEGAL_GENERATION,
    ),
    "OffsetCommit 9": (
        lambda group, bench: group.check_commit(committer(1, 9), [], bench.at),
        ErrorCode.GROUP_ID_NOT_FOUND,
    ),
    "TxnOffsetCommit": (
        lambda group, bench: group.check_commit(committer(1, None), [], bench.at),
        ErrorCode.ILLEGAL_GENERATION,
    ),
    "OffsetDelete": (lambda group, _bench: group.check_offset_delete(), ErrorCode.GROUP_ID_NOT_FOUND),
    "DeleteGroups": (lambda group, _bench: group.check_delete(), ErrorCode.GROUP_ID_NOT_FOUND),
}


@pytest.mark.parametrize("request_name", REFUSED)
def test_requests_of_members_are_refused(request_name: str) -> None:
    bench = GroupBench()
    ask, code = REFUSED[request_name]
    with pytest.raises(BrokerError) as refused:
        ask(bench.shard.group("g"), bench)
    assert refused.value.code is code
    assert (bench.shard.tables.classic, bench.shard.tables.consumer, bench.log) == ({}, {}, [])


@pytest.mark.parametrize(
    ("epoch", "message"),
    [(-2, "Group g not found."), (-1, "Group g not found."), (1, "Consumer group g not found.")],
)
def test_a_consumer_heartbeat_that_does_not_join_is_refused(epoch: int, message: str) -> None:
    bench = GroupBench()
    response = bench.consumer_heartbeat(
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, instance_id="i")
    )
    assert (response.error_code, response.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, message)
    assert (bench.shard.tables.consumer, bench.log) == ({}, [])


def test_clients_without_membership_may_commit_and_fetch() -> None:
    bench = GroupBench()
    group = bench.shard.group("g")
    group.check_commit(committer(-1, 9), [], bench.at)
    group.check_fetch("m", 3)
    assert group.is_empty
    assert not group.tombstones()
