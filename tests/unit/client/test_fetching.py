"""The fetcher on built batches: positions, sessions, limits, aborted data, errors; bytes in, records out."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.fetching import Fetcher
from barnabas.client.errors import BrokerUnreachable, KafkaError, OffsetOutOfRange
from barnabas.client.types import ValueRun
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from barnabas.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.protocol.records import build_end_txn_marker
from tests.support.bench.fetcher import ID, T0, T1, FetcherBench, batch, metadata, offsets
from tests.support.rng import SeededRng


def test_what_is_asked_and_what_is_delivered() -> None:
    bench = FetcherBench(
        {T0: 5, T1: 7}, fetch_max_wait_ms=123, max_partition_fetch_bytes=456, isolation_level="read_committed"
    )
    fetch = bench.fetch()
    request = fetch.request
    assert (fetch.node_id, fetch.version_max) == (1, 18)
    assert (request.max_wait_ms, request.isolation_level, request.replica_id) == (123, 1, -1)
    assert offsets(request) == {0: 5, 1: 7}
    assert [(p.partition_max_bytes, p.current_leader_epoch) for p in request.topics[0].partitions] == [(456, 3)] * 2
    assert bench.fetches() == [], "one fetch a broker"
    bench.answer(fetch, {0: batch(5, b"a", b"b") + batch(7, b"c"), 1: batch(7, b"x")})
    taken = bench.fetcher.take()
    (a, b, c), (x,) = taken[T0], taken[T1]
    assert [(r.offset, r.timestamp, r.value, r.partition, r.leader_epoch) for r in (a, b, c, x)] == [
        (5, 1_000, b"a", 0, 3), (6, 1_001, b"b", 0, 3), (7, 1_000, b"c", 0, 3), (7, 1_000, b"x", 1, 3),
    ]  # fmt: skip
    assert bench.fetcher.partitions[T0].position == 8
    assert (bench.fetcher.partitions[T0].high_watermark, bench.fetcher.partitions[T0].last_stable_offset) == (100, 90)


def test_records_below_the_position_are_left_out() -> None:
    bench = FetcherBench({T0: 7})
    bench.answer(bench.fetch(), {0: batch(5, b"a", b"b", b"c", b"d")})
    assert bench.values() == [b"c", b"d"]


def test_values_alone_come_as_a_run_for_each_batch_that_is_worth_one() -> None:
    bench = FetcherBench({T0: 23}, value_runs=True)
    many = [b"%d" % number for number in range(20)]
    batches = batch(0, *many) + batch(20, *many) + batch(40, b"few") + batch(41, *many, None) + batch(62, *many)
    bench.answer(bench.fetch(), {0: batches})
    taken: list[Any] = bench.fetcher.take(max_records=16)[T0]
    [run] = taken
    assert run == ValueRun(23, many[3:], *T0)
    (few, *records) = bench.fetcher.take(max_records=21)[T0]
    assert [(each.offset, each.value) for each in (few, records[-1])] == [(40, b"few"), (60, b"19")]
    assert bench.fetcher.partitions[T0].position == 61
    assert [each.offset for each in bench.fetcher.take()[T0]] == [61, 62]
    assert bench.fetcher.partitions[T0].position == 82
    assert run.part(0, 25) == ValueRun(23, [b"3", b"4"], *T0)


def test_limits_split_batches_and_partitions_take_turns() -> None:
    bench = FetcherBench({T0: 0, T1: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a", b"b", b"c"), 1: batch(0, b"x", b"y", b"z")})
    assert bench.values(max_records=2) == [b"a", b"b"]
    assert bench.fetcher.partitions[T0].position == 2
    assert bench.values(max_records=2) == [b"x", b"y"]
    assert bench.values(max_records=2) == [b"c", b"z"]
    assert bench.values(max_records=2) == []
    assert bench.fetcher.partitions[T1].position == 3


def test_only_some_partitions() -> None:
    bench = FetcherBench({T0: 0, T1: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a"), 1: batch(0, b"x")})
    assert bench.values(only=[T1]) == [b"x"]
    assert bench.values() == [b"a"]


def test_one_by_one() -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a", b"b") + batch(2, b"c")})
    got = []
    while (found := bench.fetcher.take_one()) is not None:
        got.append((found[1].value, found[0].position))
    assert got == [(b"a", 1), (b"b", 2), (b"c", 3)]


def test_the_next_bytes_are_fetched_while_these_are_taken() -> None:
    bench = FetcherBench({T0: 0}, max_partition_fetch_bytes=150)
    bench.answer(bench.fetch(), {0: batch(0, b"a" * 10)})
    fetch = bench.fetch()
    assert offsets(fetch.request) == {0: 1}
    bench.answer(fetch, {0: batch(1, b"b" * 100)})
    assert bench.fetches() == [], "enough is there"
    assert bench.values(max_records=1) == [b"a" * 10]
    assert bench.values() == [b"b" * 100]
    assert offsets(bench.fetch().request) == {0: 2}


def test_a_partition_with_enough_does_not_make_the_others_wait_long() -> None:
    bench = FetcherBench({T0: 0, T1: 0}, max_partition_fetch_bytes=50, fetch_max_wait_ms=500)
    bench.answer(bench.fetch(), {0: batch(0, b"a")})
    fetch = bench.fetch()
    assert offsets(fetch.request) == {1: 0}
    assert fetch.request.max_wait_ms == 20


def test_a_cut_off_batch_is_left_for_the_next_fetch() -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a") + batch(1, b"b" * 50)[:-1]})
    assert bench.values() == [b"a"]
    assert offsets(bench.fetch().request) == {0: 1}


def test_compacted_gaps_and_empty_batches_move_the_position() -> None:
    bench = FetcherBench({T0: 0}, check_crcs=False)
    empty = bytearray(batch(0, b"x")[:61])  # the cleaner keeps a producer's last batch, without records
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[23:27] = (9).to_bytes(4, "big")  # last offset delta
    bench.answer(bench.fetch(), {0: bytes(empty) + batch(15, b"after")})
    assert bench.values() == [b"after"]
    assert bench.fetcher.partitions[T0].position == 16


def test_a_seek_drops_what_is_on_its_way_and_what_is_there() -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a")})
    fetch = bench.fetch()
    bench.fetcher.seek(T0, 50)
    assert bench.values() == []
    bench.answer(fetch, {0: batch(1, b"b")})
    assert bench.values() == []
    assert offsets(bench.fetch().request) == {0: 50}


def test_a_partition_that_was_given_up_and_comes_back_takes_no_answer_of_before() -> None:
    """Two rebalances in a row: the same partition, again at the first position of its life, but an earlier one."""
    bench = FetcherBench({T0: None})
    bench.fetcher.seek(T0, 5)
    before = bench.fetch()
    bench.fetcher.assign({})
    bench.fetcher.assign({T0: None})
    bench.fetcher.seek(T0, 4)
    bench.answer(before, {0: batch(5, b"five")})
    assert bench.values() == []
    now = bench.fetch()
    assert offsets(now.request) == {0: 4}
    bench.answer(now, {0: batch(4, b"four", b"five")})
    assert bench.values() == [b"four", b"five"]


def test_a_partition_that_moved_does_not_wait_behind_a_fetch_that_waits() -> None:
    bench = FetcherBench({T0: 0, T1: 0})
    fetch = bench.fetch()
    bench.fetcher.seek(T0, 50)
    assert bench.fetches() == []
    assert bench.fetcher.interrupts == []
    assert bench.fetcher.wake_at() == 1_010
    bench.now = 1_010
    assert bench.fetches() == []
    assert bench.fetcher.interrupts == [1]
    bench.fetcher.on_failure(fetch, BrokerUnreachable("given up"), bench.now)
    assert not bench.fetcher.metadata_wanted
    assert offsets(bench.fetch().request) == {0: 50, 1: 0}


def test_pause_keeps_what_is_there() -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a")})
    bench.fetcher.partitions[T0].paused = True
    assert bench.values() == []
    assert not bench.fetcher.has_records()
    assert bench.fetches() == []
    bench.fetcher.partitions[T0].paused = False
    assert bench.values() == [b"a"]


def test_an_assignment_keeps_what_stays() -> None:
    bench = FetcherBench({T0: 0, T1: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"a"), 1: batch(0, b"x")})
    bench.fetcher.assign({T1: None})
    assert bench.values() == [b"x"]
    assert bench.fetcher.partitions[T1].position == 1
    assert not list(bench.fetcher.unresolved())


# -- read_committed ----------------------------------------------------------------------------------------------------


def test_aborted_transactions_are_left_out_and_positions_pass_them() -> None:
    bench = FetcherBench({T0: 0}, isolation_level="read_committed")
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
    bench.answer(bench.fetch(), {0: log}, aborted=[(7, 1)])
    assert bench.values() == [b"plain", b"committed", b"next of 7"]
    assert bench.values() == []
    assert bench.fetcher.partitions[T0].position == 7


def test_read_uncommitted_delivers_all_but_markers() -> None:
    bench = FetcherBench({T0: 0})
    log = batch(0, b"aborted", producer_id=7, transactional=True) + bytes(
        build_end_txn_marker(7, 0, commit=False, coordinator_epoch=0, timestamp=0, base_offset=1)
    )
    bench.answer(bench.fetch(), {0: log})
    assert bench.values() == [b"aborted"]
    assert bench.fetcher.take() == {}
    assert bench.fetcher.partitions[T0].position == 2
    assert bench.fetcher.partitions[T0].safe_position == 0, "the record has not been left behind yet"


# -- errors ------------------------------------------------------------------------------------------------------------


def test_out_of_range_is_reset_by_the_policy() -> None:
    bench = FetcherBench({T0: 500}, auto_offset_reset="earliest")
    bench.answer(bench.fetch(), codes={0: ErrorCode.OFFSET_OUT_OF_RANGE})
    (state,) = bench.fetcher.unresolved()
    assert (state.tp, state.reset) == (T0, "earliest")
    assert bench.fetches() == []
    bench.fetcher.seek(T0, 3)
    assert offsets(bench.fetch().request) == {0: 3}


def test_out_of_range_without_a_policy_is_told() -> None:
    bench = FetcherBench({T0: 500}, auto_offset_reset="none")
    bench.answer(bench.fetch(), codes={0: ErrorCode.OFFSET_OUT_OF_RANGE})
    with pytest.raises(OffsetOutOfRange) as refused:
        bench.fetcher.take()
    assert (refused.value.topic, refused.value.partition, refused.value.broker) == ("t", 0, 1)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_a_leader_that_moved_is_looked_for(code: ErrorCode) -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), codes={0: code})
    assert bench.fetcher.metadata_wanted
    assert bench.fetches() == []
    wake_at = bench.fetcher.wake_at()
    assert wake_at is not None
    assert 1_016 <= wake_at <= 1_024
    bench.now = wake_at
    assert offsets(bench.fetch().request) == {0: 0}


def test_a_new_leader_is_asked_at_once_also_where_it_is_waiting_for_news_of_others() -> None:
    bench = FetcherBench({T0: 0, T1: 0}, leaders={0: 1, 1: 2})
    first, second = bench.fetches()
    bench.fetcher.on_failure(first, BrokerUnreachable("killed"), bench.now)
    bench.fetcher.metadata.hint(T0, 2, 4)
    bench.now += 10
    assert bench.fetches() == []
    assert bench.fetcher.interrupts == [2]
    bench.fetcher.on_failure(second, BrokerUnreachable("given up"), bench.now)
    assert offsets(bench.fetch().request) == {0: 0, 1: 0}


def test_a_leader_that_goes_on_refusing_is_asked_less_and_less_often() -> None:
    bench = FetcherBench({T0: 0})
    asked = []
    while bench.now < 21_000:
        bench.answer(bench.fetch(), codes={0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
        assert bench.fetches() == []
        asked.append(bench.now)
        bench.now = bench.fetcher.wake_at() or 0
    assert asked[1] - asked[0] < 30
    assert 700 < asked[-1] - asked[-2] < 1_300
    bench.answer(bench.fetch())
    bench.answer(bench.fetch(), codes={0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    assert bench.fetches() == []
    assert (bench.fetcher.wake_at() or 0) - bench.now < 30


def test_a_leader_that_is_named_is_asked_at_once() -> None:
    """KIP-951."""
    bench = FetcherBench({T0: 0}, leaders={0: 1, 1: 2})
    fetches = bench.fetches()
    bench.answer(fetches[0], codes={0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, leader=(2, 4))
    assert bench.fetch().node_id == 2


def test_a_refusal_that_stays_is_told() -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), codes={0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    with pytest.raises(KafkaError) as refused:
        bench.fetcher.take()
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_broken_checksum_is_told_and_can_be_passed() -> None:
    bench = FetcherBench({T0: 0})
    broken = bytearray(batch(1, b"broken"))
    broken[-1] ^= 1
    bench.answer(bench.fetch(), {0: batch(0, b"fine") + bytes(broken) + batch(2, b"behind")})
    assert bench.values() == [b"fine"], "what was there before comes first"
    for _ in range(2):
        with pytest.raises(KafkaError, match="after offset 1 cannot be read") as refused:
            bench.fetcher.take()
        assert (refused.value.code, refused.value.topic) == (ErrorCode.CORRUPT_MESSAGE, "t")
    bench.fetcher.seek(T0, 2)
    bench.answer(bench.fetch(), {0: batch(2, b"behind")})
    assert bench.values() == [b"behind"]


def test_a_length_that_cannot_be_does_not_spin() -> None:
    bench = FetcherBench({T0: 0})
    bench.answer(bench.fetch(), {0: batch(0, b"x")[:8] + b"\xff\xff\xff\xff" + bytes(60)})
    with pytest.raises(KafkaError, match="cannot be read"):
        bench.fetcher.take()
    assert bench.fetches() == []


def test_a_deserializer_that_raises_names_the_offset() -> None:
    fetcher = Fetcher(ConsumerConfig(value_deserializer=int), metadata({0: 1}), SeededRng())
    fetcher.assign({T0: 0})
    (fetch,) = fetcher.next_fetches(0, lambda _: True)
    data = PartitionData(partition_index=0, records=batch(0, b"1", b"one"))
    fetcher.on_answer(fetch, FetchResponse(responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])]), 0)
    assert [record.value for record in fetcher.take()[T0]] == [1]
    with pytest.raises(KafkaError, match="offset 1"):
        fetcher.take()


def test_what_comes_before_a_record_that_cannot_be_deserialized_is_delivered_first() -> None:
    fetcher = Fetcher(ConsumerConfig(value_deserializer=int), metadata({0: 1}), SeededRng())
    bench = FetcherBench({T0: 0})
    bench.fetcher = fetcher
    fetcher.assign({T0: 1})
    bench.answer(bench.fetch(), {0: batch(0, b"no", b"1", b"2", b"no", b"4")})
    assert bench.values() == [1, 2], "and what lies before the position is not looked at"
    for _ in range(2):
        with pytest.raises(KafkaError, match="at offset 3"):
            fetcher.take()
    assert fetcher.partitions[T0].position == 3
    fetcher.seek(T0, 4)
    bench.answer(bench.fetch(), {0: batch(0, b"no", b"1", b"2", b"no", b"4")})
    assert bench.values() == [4]


# -- sessions (KIP-227) ------------------------------------------------------------------------------------------------


def test_a_session_sends_only_what_changed() -> None:
    bench = FetcherBench({T0: 0, T1: 0})
    bench.session = 77
    fetch = bench.fetch()
    assert (fetch.request.session_id, fetch.request.session_epoch) == (0, 0)
    bench.answer(fetch, {0: batch(0, b"a")})
    fetch = bench.fetch()
    assert (fetch.request.session_id, fetch.request.session_epoch) == (77, 1)
    assert offsets(fetch.request) == {0: 1}, "partition 1 is where it was"
    bench.answer(fetch)
    bench.fetcher.partitions[T1].paused = True
    fetch = bench.fetch()
    assert (fetch.request.session_epoch, offsets(fetch.request)) == (2, {})
    assert [(f.topic_id, f.partitions) for f in fetch.request.forgotten_topics_data] == [(ID, [1])]
    bench.answer(fetch)
    bench.fetcher.partitions[T1].paused = False
    assert offsets(bench.fetch().request) == {1: 0}


@pytest.mark.parametrize("code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_the_broker_forgot_begins_anew_at_once(code: ErrorCode) -> None:
    bench = FetcherBench({T0: 0})
    bench.session = 77
    bench.answer(bench.fetch())
    bench.answer(bench.fetch(), code=code)
    request = bench.fetch().request
    assert (request.session_id, request.session_epoch, offsets(request)) == (0, 0, {0: 0})


def test_a_lost_connection_ends_the_session() -> None:
    bench = FetcherBench({T0: 0})
    bench.session = 77
    bench.answer(bench.fetch())
    bench.fetcher.on_failure(bench.fetch(), BrokerUnreachable("lost"), bench.now)
    assert bench.fetches() == []
    bench.now += 100
    request = bench.fetch().request
    assert (request.session_id, request.session_epoch) == (0, 0)


def test_a_broker_without_sessions_is_told_everything_each_time() -> None:
    bench = FetcherBench({T0: 0, T1: 0})
    for _ in range(2):
        fetch = bench.fetch()
        assert (fetch.request.session_id, fetch.request.session_epoch, len(offsets(fetch.request))) == (0, 0, 2)
        bench.answer(fetch)


def test_a_topic_that_was_made_anew_is_asked_for_by_its_new_id() -> None:
    bench = FetcherBench({T0: 0})
    bench.session = 77
    bench.answer(bench.fetch())
    other = bytes(15) + b"\x02"
    bench.fetcher.metadata.update(
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
    request = bench.fetch().request
    assert (request.session_epoch, request.topics[0].topic_id) == (0, other)
    assert request.topics[0].partitions[0].current_leader_epoch == 0


def test_without_topic_ids_the_request_goes_by_name() -> None:
    fetcher = Fetcher(ConsumerConfig(), metadata({0: 1}, topic_id=bytes(16)), SeededRng())
    fetcher.assign({T0: 0})
    (fetch,) = fetcher.next_fetches(0, lambda _: True)
    assert (fetch.version_max, fetch.request.topics[0].topic) == (12, "t")
