"""KIP-320 in the fetcher: what is asked after a change of leader, and what a truncated log does to positions."""

from __future__ import annotations

import logging

import pytest

from barnabas.client.consumer.core.fetch_state import LeaderEpochHistory
from barnabas.client.consumer.core.fetching import InFlightFetch
from barnabas.client.consumer.core.position_checks import OLD_METADATA_MS, InFlightCheck
from barnabas.client.errors import BrokerUnreachable, KafkaError, LogTruncated, OffsetOutOfRange, UnsupportedByBroker
from barnabas.errors import ErrorCode
from barnabas.limits import EPOCHS_REMEMBERED_MAX
from barnabas.protocol.messages import fetch as fetches
from barnabas.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.bench.fetcher import ID, T0, T1, FetcherBench, offsets


def records(base_offset: int, epoch: int, *values: bytes) -> bytes:
    """A batch that the leader of an epoch has written."""
    return bytes(build_batch([NewRecord(None, v, 0) for v in values], base_offset=base_offset, leader_epoch=epoch))


def fetched_epochs(fetch: InFlightFetch) -> dict[int, int]:
    return {p.partition: p.last_fetched_epoch for t in fetch.request.topics for p in t.partitions}


class Leaders(FetcherBench):
    """A bench whose leaders change: the metadata begins with leader 1 in epoch 3."""

    def lead(self, node_id: int, epoch: int, partition: int = 0) -> None:
        assert self.fetcher.metadata.hint((T0, T1)[partition], node_id, epoch)

    def check(self) -> InFlightCheck:
        """The one check that is sent now, instead of a fetch."""
        assert self.fetches() == []
        (check,) = self.fetcher.checks.requests(lambda _: True)
        return check

    def tell(self, check: InFlightCheck, epoch: int, end_offset: int, code: ErrorCode = ErrorCode.NONE) -> None:
        end = EpochEndOffset(error_code=code, partition=0, leader_epoch=epoch, end_offset=end_offset)
        answer = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[end])])
        self.fetcher.checks.on_answer(check, answer, self.now)

    def diverge(self, fetch: InFlightFetch, epoch: int, end_offset: int) -> None:
        """A Fetch answer that names a diverging epoch."""
        data = PartitionData(
            partition_index=0, diverging_epoch=fetches.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        )
        answer = FetchResponse(responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])])
        self.fetcher.on_answer(fetch, answer, self.now)


def read_ten(**config: object) -> Leaders:
    """Offsets 0 to 4 in epoch 2 and 5 to 9 in epoch 3 have been delivered."""
    bench = Leaders({T0: 0}, {0: 1}, **config)
    bench.answer(bench.fetch(), {0: records(0, 2, *[b"a"] * 5) + records(5, 3, *[b"b"] * 5)})
    assert len(bench.values()) == 10
    return bench


def test_each_fetch_carries_the_epoch_of_the_last_fetched_record() -> None:
    bench = Leaders({T0: 0}, {0: 1})
    fetch = bench.fetch()
    assert fetched_epochs(fetch) == {0: -1}, "nothing is known yet"
    bench.answer(fetch, {0: records(0, 2, b"a") + records(1, 3, b"b")})
    fetch = bench.fetch()
    assert (offsets(fetch.request), fetched_epochs(fetch)) == ({0: 2}, {0: 3})


def test_a_session_is_told_a_new_epoch_at_the_same_offset() -> None:
    bench = Leaders({T0: 0, T1: 0})
    bench.session = 7
    bench.answer(bench.fetch(), {0: records(0, 3, b"a")})
    bench.answer(bench.fetch())
    bench.fetcher.seek(T0, 1, epoch=2)
    bench.answer(bench.fetch())  # of the other partition
    (check,) = bench.fetcher.checks.requests(lambda _: True)
    bench.tell(check, 2, 1)
    fetch = bench.fetch()
    assert (offsets(fetch.request), fetched_epochs(fetch)) == ({0: 1}, {0: 2})


def test_the_leader_is_not_asked_while_it_stays() -> None:
    bench = read_ten()
    bench.fetch()
    assert bench.fetcher.checks.requests(lambda _: True) == []


def test_a_new_leader_is_asked_before_anything_is_fetched_from_it() -> None:
    bench = read_ten()
    bench.lead(2, 4)
    check = bench.check()
    (topic,) = check.request.topics
    (asked,) = topic.partitions
    assert (check.node_id, check.request.replica_id, topic.topic) == (2, -1, "t")
    assert (asked.partition, asked.current_leader_epoch, asked.leader_epoch) == (0, 4, 3)
    assert bench.fetches() == []
    assert bench.fetcher.checks.requests(lambda _: True) == [], "it is asked once"
    bench.tell(check, 3, 12)
    fetch = bench.fetch()
    assert (fetch.node_id, offsets(fetch.request), fetched_epochs(fetch)) == (2, {0: 10}, {0: 3})


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("told_by", ["check", "fetch"])
@pytest.mark.parametrize(
    ("epoch", "end_offset", "at"),
    [
        (3, 7, 7),  # the end of epoch 3 is gone
        (2, 5, 5),  # all of epoch 3 is gone
        (2, 8, 5),  # the leader has more of epoch 2 than was read, and nothing of epoch 3
        (2, 30, 5),  # also where its end lies behind the position
        (2, 3, 3),
        (1, 4, 0),  # nothing that was read is there, whatever the leader has of epoch 1
        (0, 0, 0),
    ],
)
def test_the_consumer_goes_back_to_the_first_diverging_offset(
    policy: str, told_by: str, epoch: int, end_offset: int, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = read_ten(auto_offset_reset=policy)
    if told_by == "check":
        bench.lead(2, 4)
        bench.tell(bench.check(), epoch, end_offset)
    else:
        bench.diverge(bench.fetch(), epoch, end_offset)
    state = bench.fetcher.partitions[T0]
    assert (state.position, state.safe_position) == (at, at)
    assert "truncated" in caplog.text
    assert str(at) in caplog.text
    assert bench.values() == []


def test_what_was_fetched_ahead_and_not_delivered_is_dropped_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Leaders({T0: 0}, {0: 1}, auto_offset_reset="none")
    bench.answer(bench.fetch(), {0: records(0, 2, b"a", b"b") + records(2, 3, b"lost", b"lost")})
    assert bench.values(max_records=1) == [b"a"]
    bench.lead(2, 4)
    bench.tell(bench.check(), 2, 2)
    assert bench.values() == [], "the rest is fetched again"
    bench.tell(bench.check(), 2, 2)
    fetch = bench.fetch()
    assert (offsets(fetch.request), fetched_epochs(fetch)) == ({0: 1}, {0: 2})
    bench.answer(fetch, {0: records(0, 2, b"a", b"b") + records(2, 4, b"new")})
    assert bench.values() == [b"b", b"new"]
    assert not caplog.text


def test_without_a_policy_the_truncation_is_raised_until_a_seek() -> None:
    bench = read_ten(auto_offset_reset="none")
    bench.lead(2, 4)
    bench.tell(bench.check(), 3, 7)
    for _ in range(2):
        with pytest.raises(LogTruncated, match=r"from offset 7 on.*up to offset 10.*seek") as told:
            bench.fetcher.take()
        assert isinstance(told.value, OffsetOutOfRange)
        assert (told.value.topic, told.value.partition) == ("t", 0)
        assert (told.value.position, told.value.diverging_offset) == (10, 7)
        assert bench.values() == [], "told once an attempt: other partitions are read"
        bench.now += 2_000
        bench.tell(bench.check(), 3, 7)
    assert bench.fetcher.partitions[T0].position == 10
    bench.fetcher.seek(T0, 7)
    fetch = bench.fetch()
    assert (offsets(fetch.request), fetched_epochs(fetch)) == ({0: 7}, {0: -1})
    assert bench.values() == []


def test_a_caller_who_was_told_may_go_on_anywhere() -> None:
    bench = read_ten(auto_offset_reset="none")
    bench.diverge(bench.fetch(), 3, 7)
    with pytest.raises(LogTruncated):
        bench.fetcher.take()
    bench.fetcher.seek(T0, 9)
    assert (offsets(bench.fetch().request), bench.fetcher.partitions[T0].trail.latest) == ({0: 9}, -1)


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_leader_that_knows_no_such_epoch(policy: str) -> None:
    bench = read_ten(auto_offset_reset=policy)
    bench.lead(2, 4)
    bench.tell(bench.check(), -1, -1)
    if policy == "none":
        with pytest.raises(LogTruncated) as told:
            bench.fetcher.take()
        assert told.value.diverging_offset is None
    else:
        (state,) = bench.fetcher.unresolved()
        assert state.reset == "earliest"


def test_a_committed_offset_is_checked_with_its_epoch() -> None:
    bench = Leaders({T0: None}, {0: 1}, auto_offset_reset="earliest")
    bench.fetcher.seek(T0, 12, epoch=2)
    check = bench.check()
    assert check.request.topics[0].partitions[0].leader_epoch == 2
    bench.tell(check, 1, 15)
    assert bench.fetcher.partitions[T0].position == 11, "the record at 11 was of epoch 2, which this log lacks"


def test_a_former_leader_is_not_asked_about_a_newer_epoch() -> None:
    """A broker that is cut off names itself in Metadata. Asked about a later epoch, it knows no end of it: the position was reset."""
    bench = Leaders({T0: None}, {0: 1}, auto_offset_reset="earliest")  # leader 1 in epoch 3
    bench.fetcher.seek(T0, 26, epoch=4)
    for _ in range(3):
        bench.fetcher.metadata_wanted = False
        assert bench.fetches() == []
        assert bench.fetcher.checks.requests(lambda _: True) == []
        assert bench.fetcher.metadata_wanted
        wake_at = bench.fetcher.wake_at()
        assert wake_at is not None
        bench.now = wake_at
    bench.lead(2, 4)
    check = bench.check()
    assert check.node_id == 2
    bench.tell(check, 4, 40)
    assert offsets(bench.fetch().request) == {0: 26}


def test_a_leader_that_stays_older_than_a_committed_offset_is_asked_in_the_end() -> None:
    """The topic was deleted and created again, and the committed offset is of the former one."""
    bench = Leaders({T0: None}, {0: 1}, auto_offset_reset="earliest")
    bench.fetcher.seek(T0, 26, epoch=4)
    assert bench.fetches() == []
    bench.now += OLD_METADATA_MS
    bench.tell(bench.check(), -1, -1)
    assert [state.reset for state in bench.fetcher.unresolved()] == ["earliest"]


def test_an_offset_without_an_epoch_is_not_checked() -> None:
    bench = Leaders({T0: None}, {0: 1})
    bench.fetcher.seek(T0, 12)
    assert fetched_epochs(bench.fetch()) == {0: -1}


@pytest.mark.parametrize(
    "code",
    [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER],
)
def test_a_check_that_is_refused_is_tried_again_with_fresh_metadata(code: ErrorCode) -> None:
    bench = read_ten()
    bench.lead(2, 4)
    bench.tell(bench.check(), -1, -1, code)
    assert bench.fetcher.metadata_wanted
    assert bench.fetches() == []
    assert bench.fetcher.checks.requests(lambda _: True) == [], "after a pause"
    wake_at = bench.fetcher.wake_at()
    assert wake_at is not None
    bench.now = wake_at
    bench.check()


def test_a_check_that_stays_refused_is_told() -> None:
    bench = read_ten()
    bench.lead(2, 4)
    bench.tell(bench.check(), -1, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match="cannot be checked") as told:
        bench.fetcher.take()
    assert told.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_next_leader_is_asked_where_this_one_died() -> None:
    bench = read_ten()
    bench.lead(2, 4)
    check = bench.check()
    bench.lead(3, 5)
    bench.fetcher.checks.on_failure(check, BrokerUnreachable("killed"), bench.now)
    check = bench.check()
    assert (check.node_id, check.request.topics[0].partitions[0].current_leader_epoch) == (3, 5)


def test_the_leader_may_change_again_before_its_answer() -> None:
    bench = read_ten()
    bench.lead(2, 4)
    check = bench.check()
    bench.lead(3, 5)
    bench.tell(check, 3, 10)
    assert bench.check().node_id == 3


def test_an_answer_from_before_a_seek_is_dropped() -> None:
    bench = read_ten(auto_offset_reset="earliest")
    bench.lead(2, 4)
    check = bench.check()
    bench.fetcher.seek(T0, 20)
    bench.tell(check, 2, 3)
    assert bench.fetcher.partitions[T0].position == 20


def test_an_old_broker_is_not_asked_again() -> None:
    bench = read_ten()
    bench.lead(2, 4)
    bench.fetcher.checks.on_failure(bench.check(), UnsupportedByBroker("of Kafka 2.0"), bench.now)
    assert bench.fetch().node_id == 2


def test_a_seek_back_keeps_what_is_known_of_the_epochs() -> None:
    bench = read_ten()
    bench.fetcher.seek(T0, 5)
    fetch = bench.fetch()
    assert (offsets(fetch.request), fetched_epochs(fetch)) == ({0: 5}, {0: 2})


def test_a_topic_that_was_made_anew_is_another_log() -> None:
    """Its epochs begin anew, too: nothing that was read before tells anything of it."""
    bench = read_ten()
    partition = MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
    topic = MetadataResponseTopic(name="t", topic_id=bytes(15) + b"\x02", partitions=[partition])
    bench.fetcher.metadata.update(MetadataResponse(topics=[topic]), 0, whole=False)
    fetch = bench.fetch()
    assert (offsets(fetch.request), fetched_epochs(fetch)) == ({0: 10}, {0: -1})


def test_a_commit_carries_the_epoch_of_the_record_before_it() -> None:
    trail = read_ten().fetcher.partitions[T0].trail
    assert [trail.before(offset) for offset in (0, 1, 5, 6, 10)] == [-1, 2, 2, 3, 3]


def test_the_trail_is_bounded() -> None:
    trail = LeaderEpochHistory()
    for epoch in range(10 * EPOCHS_REMEMBERED_MAX):
        trail.note(epoch, epoch)
    assert trail.latest == 10 * EPOCHS_REMEMBERED_MAX - 1
    assert trail.before(9 * EPOCHS_REMEMBERED_MAX) == -1
    assert trail.divergence(3, 4) == 4
