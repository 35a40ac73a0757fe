"""Committed and pending offsets: who may commit, what a marker does, what expires, and that the log tells all of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.offsets import CHUNK, OffsetStore
from barnabas.broker.coordinator.groups.record_codec import decode_record, encode_record
from barnabas.broker.coordinator.groups.records import CommittedOffset, GroupRecord, OffsetRecord
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.messages.internal import GroupMetadataValue
from tests.support.bench.group import GroupBench
from tests.support.clock import WALL_MS
from tests.support.python_calls import python_calls

NONE = ErrorCode.NONE
WEEK_MS = 7 * 24 * 3_600_000


def committed(offset: int, *, at_ms: int = WALL_MS, metadata: str = "", expire_ms: int = -1) -> CommittedOffset:
    return CommittedOffset(offset, 3, metadata, at_ms, expire_ms)


def record(offset: int | None, partition: int = 0, *, group: str = "g", topic: str = "t") -> OffsetRecord:
    return OffsetRecord(group, topic, partition, None if offset is None else committed(offset))


def position(bench: GroupBench, partition: int = 0, *, group: str = "g") -> int | None:
    found = bench.shard.offsets.get(group, "t", partition)
    return None if found is None else found.offset


# -- who may commit


def test_anybody_commits_to_a_group_without_members() -> None:
    bench = GroupBench()
    assert bench.offset(record(7)) is NONE
    assert position(bench) == 7
    group = bench.shard.tables.classic["g"]
    assert (group.state, group.protocol_type) == (GroupState.EMPTY, None)
    assert bench.offset(record(8), member_id="whoever") is NONE


def test_a_generation_of_a_group_that_is_not_there() -> None:
    bench = GroupBench()
    assert bench.offset(record(7), generation=1, version=8) is ErrorCode.ILLEGAL_GENERATION
    assert bench.offset(record(7), generation=1, version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.offset(record(7), generation=1, producer_id=5) is ErrorCode.ILLEGAL_GENERATION
    assert bench.shard.tables.classic == {}


def test_only_members_of_the_generation_commit() -> None:
    bench = GroupBench()
    leader, _ = bench.stable(2)
    assert bench.offset(record(1), member_id=leader, generation=1) is NONE
    assert bench.offset(record(2), member_id=leader, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert bench.offset(record(2), member_id="ghost", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.offset(record(2)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.offset(record(2), member_id=leader, generation=1, instance="i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert position(bench) == 1


def test_transactional_commits_check_the_generation_too() -> None:
    bench = GroupBench()
    leader, _ = bench.stable(2)
    assert bench.offset(record(1), member_id=leader, generation=0, producer_id=5) is ErrorCode.ILLEGAL_GENERATION
    assert bench.offset(record(1), member_id="ghost", generation=1, producer_id=5) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.offset(record(1), member_id=leader, generation=1, producer_id=5) is NONE
    assert bench.offset(record(1), producer_id=6) is NONE  # a client from before KIP-447


def test_commits_wait_for_the_rebalance_except_transactional_ones() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    bench.join(leader)
    assert bench.offset(record(1), member_id=follower, generation=1) is NONE  # the join phase: last commits come in
    bench.join(follower)
    assert bench.offset(record(2), member_id=follower, generation=2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.offset(record(3), member_id=follower, generation=2, producer_id=5) is NONE


def test_a_commit_is_a_heartbeat() -> None:
    bench = GroupBench()
    (leader,) = bench.stable(1, session_ms=10_000)
    for offset in range(4):
        bench.advance(9_000)
        assert bench.offset(record(offset), member_id=leader, generation=1) is NONE
    assert bench.heartbeat(leader, 1) is NONE


# -- transactions


def test_pending_offsets_count_from_the_commit_marker_on() -> None:
    bench = GroupBench()
    bench.offset(record(1))
    bench.offset(record(5), producer_id=9)
    assert position(bench) == 1
    assert bench.shard.offsets.is_pending("g", "t", 0)
    bench.marker(9, commit=True)
    assert position(bench) == 5
    assert not bench.shard.offsets.is_pending("g", "t", 0)
    assert bench.replayed().offsets.get("g", "t", 0) == bench.shard.offsets.get("g", "t", 0)


def test_aborted_offsets_never_were() -> None:
    bench = GroupBench()
    bench.offset(record(5), producer_id=9)
    bench.marker(9, commit=False)
    assert position(bench) is None
    assert not bench.shard.offsets.has_any("g")
    assert bench.replayed().offsets.get("g", "t", 0) is None


def test_of_two_commits_the_one_written_later_wins() -> None:
    bench = GroupBench()
    bench.offset(record(5), producer_id=9)
    bench.offset(record(6))
    bench.marker(9, commit=True)
    assert position(bench) == 6
    bench.offset(record(7))
    bench.offset(record(8), producer_id=9)
    bench.marker(9, commit=True)
    assert position(bench) == 8


def test_two_producers_of_one_partition() -> None:
    bench = GroupBench()
    bench.offset(record(5), producer_id=1)
    bench.offset(record(6), producer_id=2)
    bench.marker(1, commit=False)
    assert bench.shard.offsets.is_pending("g", "t", 0)
    bench.marker(2, commit=True)
    assert position(bench) == 6
    assert not bench.shard.offsets.is_pending("g", "t", 0)


def test_tombstone_takes_pending_offsets_along() -> None:
    bench = GroupBench()
    bench.offset(record(1))
    bench.offset(record(5), producer_id=9)
    bench.commit(bench.shard.delete_group("g"))
    assert bench.shard.tables.classic == {}
    bench.marker(9, commit=True)
    assert not bench.shard.offsets.has_any("g")
    assert not bench.replayed().offsets.has_any("g")


# -- undo


@pytest.mark.parametrize("producer_id", [-1, 9])
@pytest.mark.parametrize("offset", [7, None])
def test_a_failed_append_changes_nothing(offset: int | None, producer_id: int) -> None:
    store = OffsetStore()
    store.put([record(1)])
    store.put([record(2)], 9)
    store.put([record(3, partition=1)], 8)
    store.put([record(4, group="without a transaction")])
    groups = ("g", "new", "without a transaction")
    store.put([record(offset, partition, group=group) for group in groups for partition in (0, 1, 0)], producer_id)()
    assert store.get("g", "t", 0) == committed(1)
    assert store.is_pending("g", "t", 0)
    assert not store.has_any("new")
    assert store.topics("without a transaction") == {"t": {0: committed(4)}}
    store.complete(9, commit=True)
    store.complete(8, commit=True)
    assert store.topics("g") == {"t": {0: committed(2), 1: committed(3)}}


@pytest.mark.parametrize("offset", [7, None])
def test_the_offsets_of_a_decision_are_staged_with_at_most_one_call_each(offset: int | None) -> None:
    """A decision has up to 20,000 of them, in one turn of the loop."""
    bench, count = GroupBench(), 1_000
    bench.shard.stage([record(1, partition) for partition in range(count)], None)
    records = [record(offset, partition) for partition in range(count)]
    assert python_calls(lambda: bench.shard.stage(records, None)) < count + 50
    assert (position(bench, count - 1), bench.shard.offsets.has_any("g")) == (offset, offset is not None)


def test_a_simple_group_whose_commit_fails_is_not_there() -> None:
    bench = GroupBench()
    bench.append_fails = True
    assert bench.offset(record(1)) is ErrorCode.MESSAGE_TOO_LARGE
    assert bench.shard.tables.classic == {}
    assert not bench.shard.offsets.has_any("g")


# -- expiry


def expire(bench: GroupBench) -> list[tuple[str, str, int] | str]:
    return [(r.group_id, r.topic, r.partition) if isinstance(r, OffsetRecord) else r.group_id for r in bench.expired()]


def test_offsets_of_simple_groups_expire_from_their_commit() -> None:
    bench = GroupBench()
    bench.offset(record(1))
    bench.advance(WEEK_MS - 1)
    assert expire(bench) == []
    bench.advance(1)
    assert expire(bench) == [("g", "t", 0), "g"]
    assert bench.shard.tables.classic == {}


def test_many_offsets_expire_in_slices_and_the_group_after_them() -> None:
    """An offset that is committed between two slices keeps the group."""
    bench, count = GroupBench(), 10 * CHUNK
    for partition in range(count):
        bench.offset(record(1, partition))
    bench.advance(WEEK_MS)
    slices = bench.shard.expired(bench.at)
    looked, first = next(slices)
    assert looked == len(first) == CHUNK
    bench.shard.stage(first, None)
    bench.offset(record(2, 0))
    sizes = []
    for _, records in slices:
        sizes.append(len(records))
        bench.shard.stage(records, None)
    assert sizes == [CHUNK] * 9, "no tombstone of the group"
    bench.advance(WEEK_MS)
    assert expire(bench) == [("g", "t", 0), "g"]


def test_offsets_of_an_emptied_group_expire_from_that_moment() -> None:
    bench = GroupBench()
    (leader,) = bench.stable(1)
    bench.offset(record(1), member_id=leader, generation=1)
    for _ in range(WEEK_MS // 9_000):
        bench.now_ms += 9_000
        bench.heartbeat(leader, 1)
    assert expire(bench) == []  # somebody is there; what it reads is not known
    bench.leave((leader, None))
    bench.advance(WEEK_MS - 1)
    assert expire(bench) == []
    bench.advance(1)
    assert expire(bench) == [("g", "t", 0), "g"]


def test_a_living_group_loses_offsets_of_topics_it_no_longer_reads() -> None:
    bench = GroupBench()
    subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
    (leader,) = bench.stable(1, protocols=[("range", subscription)], session_ms=1_800_000)
    bench.offset(record(1), member_id=leader, generation=1)
    bench.offset(record(1, topic="left"), member_id=leader, generation=1)
    bench.now_ms += WEEK_MS
    assert expire(bench) == [("g", "left", 0)]


def test_retention_asked_for_by_an_old_client() -> None:
    bench = GroupBench()
    bench.offset(OffsetRecord("g", "t", 0, committed(1, expire_ms=WALL_MS + 1_000)))
    bench.advance(999)
    assert expire(bench) == []
    assert bench.replayed().offsets.get("g", "t", 0) is not None
    bench.advance(1)
    assert expire(bench) == [("g", "t", 0), "g"]


def test_pending_offsets_keep_the_group() -> None:
    bench = GroupBench()
    bench.offset(record(1))
    bench.offset(record(2), producer_id=9)
    bench.advance(WEEK_MS)
    assert expire(bench) == []
    bench.marker(9, commit=False)
    assert expire(bench) == [("g", "t", 0), "g"]


def test_group_that_never_committed_is_forgotten_when_empty() -> None:
    bench = GroupBench(GroupSettings(initial_rebalance_delay_ms=0))
    (leader,) = bench.stable(1)
    assert expire(bench) == []
    bench.leave((leader, None))
    assert expire(bench) == ["g"]


# -- deletion


def test_delete_group_only_without_members() -> None:
    bench = GroupBench()
    (leader,) = bench.stable(1)
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        bench.shard.delete_group("g")
    bench.offset(record(1), member_id=leader, generation=1)
    bench.leave((leader, None))
    bench.commit(bench.shard.delete_group("g"))
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        bench.shard.delete_group("g")
    assert bench.replayed().tables.classic == {}


def test_delete_offsets_of_topics_nobody_reads() -> None:
    bench = GroupBench()
    subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
    (leader,) = bench.stable(1, protocols=[("range", subscription)])
    bench.offset(record(1), member_id=leader, generation=1)
    bench.offset(record(1, topic="left"), member_id=leader, generation=1)
    group = bench.shard.group("g")
    group.check_offset_delete()
    assert group.is_subscribed_to("t")
    assert not group.is_subscribed_to("left")
    assert bench.shard.offsets.existing("g", "left", [0, 1]) == [0]
    bench.offset(record(1, 1, topic="left"), producer_id=9)
    assert bench.shard.offsets.existing("g", "left", [0, 1, 2]) == [0, 1]


def test_offsets_of_others_than_consumers_are_deleted_only_without_members() -> None:
    bench = GroupBench()
    bench.stable(1, protocol_type="connect")
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        bench.shard.group("g").check_offset_delete()
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        bench.shard.group("other").check_offset_delete()


def test_deleted_topics_take_their_offsets() -> None:
    bench = GroupBench()
    bench.offset(record(1))
    bench.offset(record(1, topic="kept"))
    bench.offset(record(2, partition=1, group="h"), producer_id=9)
    found = bench.shard.offsets_of_topics(frozenset({"t"}), bench.shard.offsets.order)
    assert list(found) == [[record(None)], [record(None, partition=1, group="h")]]


def test_offsets_of_the_next_topic_of_that_name_stay() -> None:
    """The tombstones of the former topic are made in slices: the next one may be there before the last of them."""
    bench = GroupBench()
    for partition in range(2 * CHUNK):
        bench.offset(record(1, partition=partition))
    bench.offset(record(1, partition=0, group="h"))
    found = bench.shard.offsets_of_topics(frozenset({"t"}), bench.shard.offsets.order)
    assert len(next(found)) == CHUNK
    bench.offset(record(7, partition=CHUNK))
    bench.offset(record(7, partition=CHUNK + 1), producer_id=9)
    bench.offset(record(7, partition=0, group="h"))
    bench.offset(record(7, partition=0, group="new"))
    rest = [[key.partition for key in records if isinstance(key, OffsetRecord)] for records in found]
    assert rest == [list(range(CHUNK + 2, 2 * CHUNK)), []]


# -- the log


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 99), st.sampled_from([-1, 1, 2])),
            st.tuples(st.just("marker"), st.sampled_from([1, 2]), st.booleans(), st.none()),
            st.tuples(st.just("delete"), st.integers(0, 2), st.none(), st.none()),
        ),
        max_size=25,
    )
)
def test_replay_gives_the_same_offsets(steps: list[tuple[str, int, int, int]]) -> None:
    bench = GroupBench()
    for kind, first, second, producer_id in steps:
        if kind == "commit":
            bench.offset(record(second, first), producer_id=None if producer_id == -1 else producer_id)
        elif kind == "marker":
            bench.marker(first, commit=bool(second))
        elif "g" in bench.shard.tables.classic and bench.shard.offsets.existing("g", "t", [first]) == [first]:
            bench.offset(record(None, first))
    replayed = bench.replayed()
    assert replayed.offsets.topics("g") == bench.shard.offsets.topics("g")
    assert sorted(replayed.offsets.pending_partitions("g")) == sorted(bench.shard.offsets.pending_partitions("g"))
    for producer_id in (1, 2):
        replayed.offsets.complete(producer_id, commit=True)
        bench.shard.offsets.complete(producer_id, commit=True)
    assert replayed.offsets.topics("g") == bench.shard.offsets.topics("g")


# Taken from __consumer_offsets logs of Kafka 4.3.1.
KAFKA_RECORDS = [
    (
        "0001000673696d706c6500017400000000",
        "00040000000000000005ffffffff066d65746100000001a1fd998676010010494cdd3211174fcab68baab0e8633a87",
        OffsetRecord(
            "simple",
            "t",
            0,
            CommittedOffset(5, -1, "meta\0", 1795256059510, -1, bytes.fromhex("494cdd3211174fcab68baab0e8633a87")),
        ),
    ),
    (
        "00010002673200017400000001",
        "00040000000000000004000000000100" + "0001a1fd998b6800",
        OffsetRecord("g2", "t", 1, CommittedOffset(4, 0, "", 1795256060776)),
    ),
]


def test_offset_records_are_kafkas_bytes() -> None:
    for key, value, expected in KAFKA_RECORDS:
        assert decode_record(bytes.fromhex(key), bytes.fromhex(value)) == expected
        encoded_key, encoded_value = encode_record(expected)
        assert (encoded_key.hex(), encoded_value and encoded_value.hex()) == (key, value)


def test_group_record_is_kafkas_bytes() -> None:
    """An empty group, as Kafka 4.3.1 writes one at the first join."""
    empty = GroupRecord("g1", GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=1795256059224))
    key, value = encode_record(empty)
    assert key.hex() == "000200026731"
    assert value is not None
    assert value.hex() == "0003" + "0000" + "00000000" + "ffff" + "ffff" + "000001a1fd998558" + "00000000"
    assert decode_record(key, value) == empty


def test_keys_of_other_kinds_are_passed_over_and_garbage_is_refused() -> None:
    assert decode_record(b"\0\x0b\0\1g", b"\0\0\0\0\0\1") is None
    assert decode_record(b"\0\0\0\1g\0\1t\0\0\0\0", None) == OffsetRecord("g", "t", 0, None)
    for key in (None, b"", b"\0", b"\0\1\0"):
        with pytest.raises(RemoteProtocolError):
            decode_record(key, None)
