"""The fetcher on built batches: positions, sessions, limits, aborted data, errors; bytes in, records out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from barnabas.client.consumer.fetching import FetchConfig, Fetcher, InFlightFetch
from barnabas.client.errors import BrokerUnreachable, KafkaError, OffsetOutOfRange
from barnabas.client.net.metadata import ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from barnabas.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.protocol.records import NewRecord, build_batch, build_end_txn_marker
from barnabas.protocol.schema import decode, encode
from tests.support.rng import SeededRng

ID = bytes(15) + b"\x01"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def metadata(leaders: dict[int, int], topic_id: bytes = ID, epoch: int = 3) -> ClusterMetadata:
    view = ClusterMetadata()
    partitions = [
        MetadataResponsePartition(partition_index=p, leader_id=leader, leader_epoch=epoch)
        for p, leader in leaders.items()
    ]
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n) for n in sorted(set(leaders.values()))],
        topics=[MetadataResponseTopic(name="t", topic_id=topic_id, partitions=partitions)],
    )
    view.update(response, 0, whole=False)
    return view


def batch(base_offset: int, *values: bytes, producer_id: int = -1, transactional: bool = False) -> bytes:
    records = [NewRecord(None, v, 1_000 + i) for i, v in enumerate(values)]
    return bytes(
        build_batch(
            records, base_offset=base_offset, leader_epoch=3, producer_id=producer_id, transactional=transactional
        )
    )


class World:
    """A fetcher and its one broker, whose answers the test gives."""

    def __init__(
        self, positions: dict[TopicPartition, int | None], leaders: dict[int, int] | None = None, **config: Any
    ):
        self.now = 1_000
        self.fetcher = Fetcher(FetchConfig(**config), metadata(leaders or {0: 1, 1: 1}), SeededRng())
        self.fetcher.assign(positions)
        self.session = 0

    def fetches(self) -> list[InFlightFetch]:
        return self.fetcher.next_fetches(self.now, lambda _: True)

    def fetch(self) -> InFlightFetch:
        (fetch,) = self.fetches()
        return fetch

    def answer(
        self,
        fetch: InFlightFetch,
        data: dict[int, bytes] | None = None,
        *,
        code: ErrorCode = ErrorCode.NONE,
        codes: dict[int, ErrorCode] | None = None,
        aborted: Iterable[tuple[int, int]] = (),
        leader: tuple[int, int] = (-1, -1),
    ) -> None:
        partitions = [
            PartitionData(
                partition_index=p,
                high_watermark=100,
                last_stable_offset=90,
                aborted_transactions=[AbortedTransaction(producer_id=i, first_offset=o) for i, o in aborted],
                records=records,
            )
            for p, records in (data or {}).items()
        ]
        partitions += [
            PartitionData(
                partition_index=p,
                error_code=c,
                current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
            )
            for p, c in (codes or {}).items()
        ]
        response = FetchResponse(
            error_code=code,
            session_id=self.session,
            responses=[FetchableTopicResponse(topic_id=ID, partitions=partitions)] if partitions else [],
        )
        self.fetcher.on_answer(fetch, decode(FetchResponse, encode(response, 16), 16), self.now)

    def values(self, **how: object) -> list[Any]:
        return [r.value for rs in self.fetcher.take(**how).values() for r in rs]  # type: ignore[arg-type]


def offsets(request: FetchRequest) -> dict[int, int]:
    return {p.partition: p.fetch_offset for t in request.topics for p in t.partitions}


def test_what_is_asked_and_what_is_delivered() -> None:
    world = World({T0: 5, T1: 7}, fetch_max_wait_ms=123, max_partition_fetch_bytes=456, read_committed=True)
    fetch = world.fetch()
    request = fetch.request
    assert (fetch.node_id, fetch.version_max) == (1, 18)
    assert (request.max_wait_ms, request.isolation_level, request.replica_id) == (123, 1, -1)
    assert offsets(request) == {0: 5, 1: 7}
    assert [(p.partition_max_bytes, p.current_leader_epoch) for p in request.topics[0].partitions] == [(456, 3)] * 2
    assert world.fetches() == [], "one fetch a broker"
    world.answer(fetch, {0: batch(5, b"a", b"b") + batch(7, b"c"), 1: batch(7, b"x")})
    taken = world.fetcher.take()
    (a, b, c), (x,) = taken[T0], taken[T1]
    assert [(r.offset, r.timestamp, r.value, r.partition, r.leader_epoch) for r in (a, b, c, x)] == [
        (5, 1_000, b"a", 0, 3), (6, 1_001, b"b", 0, 3), (7, 1_000, b"c", 0, 3), (7, 1_000, b"x", 1, 3),
    ]  # fmt: skip
    assert world.fetcher.partitions[T0].position == 8
    assert (world.fetcher.partitions[T0].high_watermark, world.fetcher.partitions[T0].last_stable_offset) == (100, 90)


def test_records_below_the_position_are_left_out() -> None:
    world = World({T0: 7})
    world.answer(world.fetch(), {0: batch(5, b"a", b"b", b"c", b"d")})
    assert world.values() == [b"c", b"d"]


def test_limits_split_batches_and_partitions_take_turns() -> None:
    world = World({T0: 0, T1: 0})
    world.answer(world.fetch(), {0: batch(0, b"a", b"b", b"c"), 1: batch(0, b"x", b"y", b"z")})
    assert world.values(max_records=2) == [b"a", b"b"]
    assert world.fetcher.partitions[T0].position == 2
    assert world.values(max_records=2) == [b"x", b"y"]
    assert world.values(max_records=2) == [b"c", b"z"]
    assert world.values(max_records=2) == []
    assert world.fetcher.partitions[T1].position == 3


def test_only_some_partitions() -> None:
    world = World({T0: 0, T1: 0})
    world.answer(world.fetch(), {0: batch(0, b"a"), 1: batch(0, b"x")})
    assert world.values(only=[T1]) == [b"x"]
    assert world.values() == [b"a"]


def test_one_by_one() -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), {0: batch(0, b"a", b"b") + batch(2, b"c")})
    got = []
    while (found := world.fetcher.take_one()) is not None:
        got.append((found[1].value, found[0].position))
    assert got == [(b"a", 1), (b"b", 2), (b"c", 3)]


def test_the_next_bytes_are_fetched_while_these_are_taken() -> None:
    world = World({T0: 0}, max_partition_fetch_bytes=150)
    world.answer(world.fetch(), {0: batch(0, b"a" * 10)})
    fetch = world.fetch()
    assert offsets(fetch.request) == {0: 1}
    world.answer(fetch, {0: batch(1, b"b" * 100)})
    assert world.fetches() == [], "enough is there"
    assert world.values(max_records=1) == [b"a" * 10]
    assert world.values() == [b"b" * 100]
    assert offsets(world.fetch().request) == {0: 2}


def test_a_partition_with_enough_does_not_make_the_others_wait_long() -> None:
    world = World({T0: 0, T1: 0}, max_partition_fetch_bytes=50, fetch_max_wait_ms=500)
    world.answer(world.fetch(), {0: batch(0, b"a")})
    fetch = world.fetch()
    assert offsets(fetch.request) == {1: 0}
    assert fetch.request.max_wait_ms == 20


def test_a_cut_off_batch_is_left_for_the_next_fetch() -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), {0: batch(0, b"a") + batch(1, b"b" * 50)[:-1]})
    assert world.values() == [b"a"]
    assert offsets(world.fetch().request) == {0: 1}


def test_compacted_gaps_and_empty_batches_move_the_position() -> None:
    world = World({T0: 0}, check_crcs=False)
    empty = bytearray(batch(0, b"x")[:61])  # the cleaner keeps a producer's last batch, without records
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[23:27] = (9).to_bytes(4, "big")  # last offset delta
    world.answer(world.fetch(), {0: bytes(empty) + batch(15, b"after")})
    assert world.values() == [b"after"]
    assert world.fetcher.partitions[T0].position == 16


def test_a_seek_drops_what_is_on_its_way_and_what_is_there() -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), {0: batch(0, b"a")})
    fetch = world.fetch()
    world.fetcher.seek(T0, 50)
    assert world.values() == []
    world.answer(fetch, {0: batch(1, b"b")})
    assert world.values() == []
    assert offsets(world.fetch().request) == {0: 50}


def test_a_partition_that_was_given_up_and_comes_back_takes_no_answer_of_before() -> None:
    """Two rebalances in a row: the same partition, again at the first position of its life, but an earlier one."""
    world = World({T0: None})
    world.fetcher.seek(T0, 5)
    before = world.fetch()
    world.fetcher.assign({})
    world.fetcher.assign({T0: None})
    world.fetcher.seek(T0, 4)
    world.answer(before, {0: batch(5, b"five")})
    assert world.values() == []
    now = world.fetch()
    assert offsets(now.request) == {0: 4}
    world.answer(now, {0: batch(4, b"four", b"five")})
    assert world.values() == [b"four", b"five"]


def test_a_partition_that_moved_does_not_wait_behind_a_fetch_that_waits() -> None:
    world = World({T0: 0, T1: 0})
    fetch = world.fetch()
    world.fetcher.seek(T0, 50)
    assert world.fetches() == []
    assert world.fetcher.interrupts == []
    assert world.fetcher.wake_at() == 1_010
    world.now = 1_010
    assert world.fetches() == []
    assert world.fetcher.interrupts == [1]
    world.fetcher.on_failure(fetch, BrokerUnreachable("given up"), world.now)
    assert not world.fetcher.metadata_wanted
    assert offsets(world.fetch().request) == {0: 50, 1: 0}


def test_pause_keeps_what_is_there() -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), {0: batch(0, b"a")})
    world.fetcher.partitions[T0].paused = True
    assert world.values() == []
    assert not world.fetcher.has_records()
    assert world.fetches() == []
    world.fetcher.partitions[T0].paused = False
    assert world.values() == [b"a"]


def test_an_assignment_keeps_what_stays() -> None:
    world = World({T0: 0, T1: 0})
    world.answer(world.fetch(), {0: batch(0, b"a"), 1: batch(0, b"x")})
    world.fetcher.assign({T1: None})
    assert world.values() == [b"x"]
    assert world.fetcher.partitions[T1].position == 1
    assert not list(world.fetcher.unresolved())


# -- read_committed ----------------------------------------------------------------------------------------------------


def test_aborted_transactions_are_left_out_and_positions_pass_them() -> None:
    world = World({T0: 0}, read_committed=True)
    marker = {"coordinator_epoch": 0, "timestamp": 0}
    log = (
        batch(0, b"plain")
        + batch(1, b"aborted", producer_id=7, transactional=True)
        + batch(2, b"committed", producer_id=8, transactional=True)
        + bytes(build_end_txn_marker(7, 0, commit=False, base_offset=3, **marker))
        + bytes(build_end_txn_marker(8, 0, commit=True, base_offset=4, **marker))
        + batch(5, b"next of 7", producer_id=7, transactional=True)
        + bytes(build_end_txn_marker(7, 0, commit=True, base_offset=6, **marker))
    )
    world.answer(world.fetch(), {0: log}, aborted=[(7, 1)])
    assert world.values() == [b"plain", b"committed", b"next of 7"]
    assert world.values() == []
    assert world.fetcher.partitions[T0].position == 7


def test_read_uncommitted_delivers_all_but_markers() -> None:
    world = World({T0: 0})
    log = batch(0, b"aborted", producer_id=7, transactional=True) + bytes(
        build_end_txn_marker(7, 0, commit=False, coordinator_epoch=0, timestamp=0, base_offset=1)
    )
    world.answer(world.fetch(), {0: log})
    assert world.values() == [b"aborted"]
    assert world.fetcher.take() == {}
    assert world.fetcher.partitions[T0].position == 2
    assert world.fetcher.partitions[T0].safe_position == 0, "the record has not been left behind yet"


# -- errors ------------------------------------------------------------------------------------------------------------


def test_out_of_range_is_reset_by_the_policy() -> None:
    world = World({T0: 500}, auto_offset_reset="earliest")
    world.answer(world.fetch(), codes={0: ErrorCode.OFFSET_OUT_OF_RANGE})
    (state,) = world.fetcher.unresolved()
    assert (state.tp, state.reset) == (T0, "earliest")
    assert world.fetches() == []
    world.fetcher.seek(T0, 3)
    assert offsets(world.fetch().request) == {0: 3}


def test_out_of_range_without_a_policy_is_told() -> None:
    world = World({T0: 500}, auto_offset_reset="none")
    world.answer(world.fetch(), codes={0: ErrorCode.OFFSET_OUT_OF_RANGE})
    with pytest.raises(OffsetOutOfRange) as refused:
        world.fetcher.take()
    assert (refused.value.topic, refused.value.partition, refused.value.broker) == ("t", 0, 1)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_a_leader_that_moved_is_looked_for(code: ErrorCode) -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), codes={0: code})
    assert world.fetcher.metadata_wanted
    assert world.fetches() == []
    wake_at = world.fetcher.wake_at()
    assert wake_at is not None
    assert 1_016 <= wake_at <= 1_024
    world.now = wake_at
    assert offsets(world.fetch().request) == {0: 0}


def test_a_new_leader_is_asked_at_once_also_where_it_is_waiting_for_news_of_others() -> None:
    world = World({T0: 0, T1: 0}, leaders={0: 1, 1: 2})
    first, second = world.fetches()
    world.fetcher.on_failure(first, BrokerUnreachable("killed"), world.now)
    world.fetcher.metadata.hint(T0, 2, 4)
    world.now += 10
    assert world.fetches() == []
    assert world.fetcher.interrupts == [2]
    world.fetcher.on_failure(second, BrokerUnreachable("given up"), world.now)
    assert offsets(world.fetch().request) == {0: 0, 1: 0}


def test_a_leader_that_goes_on_refusing_is_asked_less_and_less_often() -> None:
    world = World({T0: 0})
    asked = []
    while world.now < 21_000:
        world.answer(world.fetch(), codes={0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
        assert world.fetches() == []
        asked.append(world.now)
        world.now = world.fetcher.wake_at() or 0
    assert asked[1] - asked[0] < 30
    assert 700 < asked[-1] - asked[-2] < 1_300
    world.answer(world.fetch())
    world.answer(world.fetch(), codes={0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    assert world.fetches() == []
    assert (world.fetcher.wake_at() or 0) - world.now < 30


def test_a_leader_that_is_named_is_asked_at_once() -> None:
    """KIP-951."""
    world = World({T0: 0}, leaders={0: 1, 1: 2})
    fetches = world.fetches()
    world.answer(fetches[0], codes={0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, leader=(2, 4))
    assert world.fetch().node_id == 2


def test_a_refusal_that_stays_is_told() -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), codes={0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    with pytest.raises(KafkaError) as refused:
        world.fetcher.take()
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_broken_checksum_is_told_and_can_be_passed() -> None:
    world = World({T0: 0})
    broken = bytearray(batch(1, b"broken"))
    broken[-1] ^= 1
    world.answer(world.fetch(), {0: batch(0, b"fine") + bytes(broken) + batch(2, b"behind")})
    assert world.values() == [b"fine"], "what was there before comes first"
    for _ in range(2):
        with pytest.raises(KafkaError, match="after offset 1 cannot be read") as refused:
            world.fetcher.take()
        assert (refused.value.code, refused.value.topic) == (ErrorCode.CORRUPT_MESSAGE, "t")
    world.fetcher.seek(T0, 2)
    world.answer(world.fetch(), {0: batch(2, b"behind")})
    assert world.values() == [b"behind"]


def test_a_length_that_cannot_be_does_not_spin() -> None:
    world = World({T0: 0})
    world.answer(world.fetch(), {0: batch(0, b"x")[:8] + b"\xff\xff\xff\xff" + bytes(60)})
    with pytest.raises(KafkaError, match="cannot be read"):
        world.fetcher.take()
    assert world.fetches() == []


def test_a_deserializer_that_raises_names_the_offset() -> None:
    fetcher = Fetcher(FetchConfig(), metadata({0: 1}), SeededRng(), value_deserializer=int)
    fetcher.assign({T0: 0})
    (fetch,) = fetcher.next_fetches(0, lambda _: True)
    data = PartitionData(partition_index=0, records=batch(0, b"1", b"one"))
    fetcher.on_answer(fetch, FetchResponse(responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])]), 0)
    assert [record.value for record in fetcher.take()[T0]] == [1]
    with pytest.raises(KafkaError, match="offset 1"):
        fetcher.take()


def test_what_comes_before_a_record_that_cannot_be_deserialized_is_delivered_first() -> None:
    fetcher = Fetcher(FetchConfig(), metadata({0: 1}), SeededRng(), value_deserializer=int)
    world = World({T0: 0})
    world.fetcher = fetcher
    fetcher.assign({T0: 1})
    world.answer(world.fetch(), {0: batch(0, b"no", b"1", b"2", b"no", b"4")})
    assert world.values() == [1, 2], "and what lies before the position is not looked at"
    for _ in range(2):
        with pytest.raises(KafkaError, match="at offset 3"):
            fetcher.take()
    assert fetcher.partitions[T0].position == 3
    fetcher.seek(T0, 4)
    world.answer(world.fetch(), {0: batch(0, b"no", b"1", b"2", b"no", b"4")})
    assert world.values() == [4]


# -- sessions (KIP-227) ------------------------------------------------------------------------------------------------


def test_a_session_sends_only_what_changed() -> None:
    world = World({T0: 0, T1: 0})
    world.session = 77
    fetch = world.fetch()
    assert (fetch.request.session_id, fetch.request.session_epoch) == (0, 0)
    world.answer(fetch, {0: batch(0, b"a")})
    fetch = world.fetch()
    assert (fetch.request.session_id, fetch.request.session_epoch) == (77, 1)
    assert offsets(fetch.request) == {0: 1}, "partition 1 is where it was"
    world.answer(fetch)
    world.fetcher.partitions[T1].paused = True
    fetch = world.fetch()
    assert (fetch.request.session_epoch, offsets(fetch.request)) == (2, {})
    assert [(f.topic_id, f.partitions) for f in fetch.request.forgotten_topics_data] == [(ID, [1])]
    world.answer(fetch)
    world.fetcher.partitions[T1].paused = False
    assert offsets(world.fetch().request) == {1: 0}


@pytest.mark.parametrize("code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_the_broker_forgot_begins_anew_at_once(code: ErrorCode) -> None:
    world = World({T0: 0})
    world.session = 77
    world.answer(world.fetch())
    world.answer(world.fetch(), code=code)
    request = world.fetch().request
    assert (request.session_id, request.session_epoch, offsets(request)) == (0, 0, {0: 0})


def test_a_lost_connection_ends_the_session() -> None:
    world = World({T0: 0})
    world.session = 77
    world.answer(world.fetch())
    world.fetcher.on_failure(world.fetch(), BrokerUnreachable("lost"), world.now)
    assert world.fetches() == []
    world.now += 100
    request = world.fetch().request
    assert (request.session_id, request.session_epoch) == (0, 0)


def test_a_broker_without_sessions_is_told_everything_each_time() -> None:
    world = World({T0: 0, T1: 0})
    for _ in range(2):
        fetch = world.fetch()
        assert (fetch.request.session_id, fetch.request.session_epoch, len(offsets(fetch.request))) == (0, 0, 2)
        world.answer(fetch)


def test_a_topic_that_was_made_anew_is_asked_for_by_its_new_id() -> None:
    world = World({T0: 0})
    world.session = 77
    world.answer(world.fetch())
    other = bytes(15) + b"\x02"
    world.fetcher.metadata.update(
        MetadataResponse(
            topics=[
                MetadataResponseTopic(
                    name="t",
                    topic_id=other,
                    partitions=[MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)],
                )
            ]
        ),
        0,
        whole=False,
    )
    request = world.fetch().request
    assert (request.session_epoch, request.topics[0].topic_id) == (0, other)
    assert request.topics[0].partitions[0].current_leader_epoch == 0


def test_without_topic_ids_the_request_goes_by_name() -> None:
    fetcher = Fetcher(FetchConfig(), metadata({0: 1}, topic_id=bytes(16)), SeededRng())
    fetcher.assign({T0: 0})
    (fetch,) = fetcher.next_fetches(0, lambda _: True)
    assert (fetch.version_max, fetch.request.topics[0].topic) == (12, "t")
