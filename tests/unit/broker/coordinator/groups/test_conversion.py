"""Conversions between classic groups and consumer groups, and members of both protocols in one group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import decode_versioned, encode_versioned
from tests.support.bench.consumer_group import group, image, settle
from tests.support.bench.group import Client, GroupBench


@pytest.fixture
def bench() -> GroupBench:
    found = GroupBench()
    found.image = image(t=4, u=3)
    return found


def subscription(*topics: str, owned: set[tuple[str, int]] | None = None) -> list[tuple[str, bytes]]:
    partitions = [TopicPartitions(topic=topic, partitions=[number]) for topic, number in sorted(owned or set())]
    value = ConsumerProtocolSubscription(topics=list(topics), owned_partitions=partitions)
    return [("range", encode_versioned(value, 1))]


def assignment(topic: str, *numbers: int) -> bytes:
    value = ConsumerProtocolAssignment(assigned_partitions=[TopicPartitions(topic=topic, partitions=list(numbers))])
    return encode_versioned(value, 1)


def assigned(data: bytes) -> set[tuple[str, int]]:
    read = decode_versioned(ConsumerProtocolAssignment, data)
    return {(each.topic, number) for each in read.assigned_partitions for number in each.partitions}


def classic_group(bench: GroupBench) -> str:
    """A Stable classic group of one consumer that has all of t."""
    member_id, ticket = bench.member(protocols=subscription("t"))
    bench.advance(0)
    bench.sync(member_id, ticket.response.generation_id, {member_id: assignment("t", 0, 1, 2, 3)})
    return member_id


def test_a_classic_group_takes_a_consumer_and_becomes_classic_again(bench: GroupBench) -> None:
    classic = classic_group(bench)
    b = Client(bench, "b", ["t"])
    b.join()
    assert (b.epoch, b.owned) == (2, set())
    assert "g" not in bench.shard.tables.classic
    assert bench.heartbeat(classic, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    everything = {("t", number) for number in range(4)}
    first = bench.join(classic, protocols=subscription("t", owned=everything)).response
    assert first.generation_id == 1
    kept = assigned(bench.sync(classic, 1).response.assignment)
    assert len(kept) == 2
    b.beat()
    assert b.owned == set()  # the classic member has not said that it gave up the others
    assert bench.heartbeat(classic, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    second = bench.join(classic, protocols=subscription("t", owned=kept)).response
    assert assigned(bench.sync(classic, second.generation_id).response.assignment) == kept
    b.beat()
    assert b.owned == everything - kept
    bench.fail_over()
    assert bench.heartbeat(classic, second.generation_id) is ErrorCode.NONE
    b.leave()
    assert "g" not in bench.shard.tables.consumer
    assert bench.shard.tables.classic["g"].state is GroupState.PREPARING_REBALANCE
    again = bench.join(classic, protocols=subscription("t"))
    assert again.response.generation_id == 3
    loaded = bench.replayed()
    assert loaded.tables.consumer == {}
    assert list(loaded.tables.classic["g"].members) == [classic]


def test_who_waits_in_the_classic_group_is_told_to_join_again(bench: GroupBench) -> None:
    classic = classic_group(bench)
    newcomer, waiting = bench.member(protocols=subscription("t"))
    assert not waiting.answered
    Client(bench, "b", ["t"]).join()
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert set(group(bench).members) == {classic, newcomer, "b"}


def test_a_dead_classic_member_is_put_out_of_the_consumer_group(bench: GroupBench) -> None:
    classic = classic_group(bench)
    b = Client(bench, "b", ["t"])
    b.join()
    bench.advance(10_000)
    assert classic not in group(bench).members
    settle(b)
    assert len(b.owned) == 4


@pytest.mark.parametrize("wanted", ["disabled", "not consumers"])
def test_groups_that_may_not_change_their_protocol(bench: GroupBench, wanted: str) -> None:
    if wanted == "disabled":
        bench.consumers = replace(bench.consumers, upgrades=False)
        classic_group(bench)
    else:
        bench.member(protocol_type="connect")
        bench.advance(0)
    b = Client(bench, "b", ["t"])
    b.join()
    assert b.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert "g" in bench.shard.tables.classic


def test_without_downgrade_the_group_stays_one_of_consumers(bench: GroupBench) -> None:
    bench.consumers = replace(bench.consumers, downgrades=False)
    classic = classic_group(bench)
    b = Client(bench, "b", ["t"])
    b.join()
    b.leave()
    assert list(group(bench).members) == [classic]


def test_an_upgrade_that_cannot_be_stored_leaves_the_classic_group(bench: GroupBench) -> None:
    classic = classic_group(bench)
    bench.append_fails = True
    with pytest.raises(BrokerError):
        Client(bench, "b", ["t"]).join()
    bench.append_fails = False
    bench.start_converted()
    assert list(bench.shard.tables.classic["g"].members) == [classic]
    assert "g" not in bench.shard.tables.consumer
    bench.advance(10_000)  # its session runs on
    assert not bench.shard.tables.classic["g"].members
