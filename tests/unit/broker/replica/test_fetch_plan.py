"""The fetch plan: what a request names, which answers still count, sessions that end, pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.replica.core.fetch_plan import REST_BYTES_MAX, SEGMENTS_AT_ONCE, FetchLimits, FetchPlan
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.partition_log import RESERVED_BYTES_MIN
from barnabas.storage.producer_entries import ProducerEntry
from barnabas.work import finished
from tests.support.bench.replica import TOPIC_ID, open_replica
from tests.support.clock import WALL_MS, ManualClock

SESSION = 77


def batch(offset: int, epoch: int = 1) -> bytes:
    return bytes(build_batch([NewRecord(None, b"v", WALL_MS)], base_offset=offset, leader_epoch=epoch))


def data(partition: int, records: bytes = b"", **fields: Any) -> PartitionData:
    defaults: dict[str, Any] = {"high_watermark": 0, "log_start_offset": 0, "records": records}
    return PartitionData(partition_index=partition, **(defaults | fields))


def response(*parts: PartitionData, **fields: Any) -> FetchResponse:
    topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(parts))] if parts else []
    defaults: dict[str, Any] = {"session_id": SESSION, "responses": topics}
    return FetchResponse(**(defaults | fields))


class PlanBench:
    """Node 2 follows node 1 in epoch 1."""

    def __init__(self, partitions: int = 2) -> None:
        self.disk = MemoryDisk()
        self.plan = FetchPlan(2, FetchLimits())
        self.replicas = [self.replica(number) for number in range(partitions)]
        for replica in self.replicas:
            self.plan.follow(replica)

    def replica(self, number: int) -> Replica:
        replica = open_replica(
            self.disk,
            "t",
            number,
            clock=ManualClock(),
            request_sync=lambda one: one.on_synced(10**6),
            node_id=2,
        )
        replica.follow(1, 1, (1, 2), 0)
        return replica

    def ask(self) -> FetchRequest:
        request = self.plan.next_request(9)
        assert request is not None
        return request

    def answer(self, *parts: PartitionData, now_ms: int = 0, **fields: Any) -> list[Replica]:
        return self.plan.on_response(response(*parts, **fields), now_ms)

    def diverge(self) -> None:
        """Fetches two records of partition 0; the next answer says that the leader's log diverges after the first."""
        self.ask()
        self.answer(data(0, batch(0) + batch(1)))
        self.ask()
        self.answer(data(0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=1)))


def named(request: FetchRequest) -> dict[int, tuple[int, int]]:
    """(leader epoch, offset) by partition."""
    return {
        one.partition: (one.current_leader_epoch, one.fetch_offset)
        for topic in request.topics
        for one in topic.partitions
    }


def forgotten(request: FetchRequest) -> list[int]:
    return [number for topic in request.forgotten_topics_data for number in topic.partitions]


def test_a_session_begins_with_everything_and_goes_on_with_changes() -> None:
    bench = PlanBench()
    first = bench.ask()
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {0: (1, 0), 1: (1, 0)})
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 9)
    assert bench.plan.next_request(9) is None, "one at a time"
    assert bench.answer(data(0, batch(0)), data(1)) == [bench.replicas[0]]
    second = bench.ask()
    assert (second.session_id, second.session_epoch, named(second)) == (SESSION, 1, {0: (1, 1)})
    bench.answer()
    third = bench.ask()
    assert (third.session_epoch, named(third)) == (2, {}), "nothing changed: the session is asked as it stands"


def test_an_answer_begins_a_few_segments_and_the_rest_is_fetched_again() -> None:
    """Records whose timestamps or sizes make every batch begin a segment."""
    bench = PlanBench(3)
    for replica in bench.replicas[:2]:
        replica.log.reconfigure(replace(replica.log.config, segment_bytes=100))
    total = 30
    ask = bench.ask()
    for _ in range(20):
        offsets = {one.partition: one.fetch_offset for topic in ask.topics for one in topic.partitions}
        before = [len(replica.log.segments) for replica in bench.replicas]
        bench.answer(
            *(data(n, b"".join(map(batch, range(at, total))), high_watermark=total) for n, at in offsets.items())
        )
        begun = [len(replica.log.segments) - was for replica, was in zip(bench.replicas, before, strict=True)]
        assert sum(begun) <= SEGMENTS_AT_ONCE
        ask = bench.ask()
        whole = all(replica.log.log_end_offset == total for replica in bench.replicas)
        sizes = {one.partition_max_bytes for topic in ask.topics for one in topic.partitions}
        if whole:
            break
        assert named(ask), "the rest is asked for without a pause"
        assert sizes <= {REST_BYTES_MAX, 1_048_576}
        assert REST_BYTES_MAX in sizes
    assert whole
    assert [replica.high_watermark for replica in bench.replicas] == [total] * 3
    assert [len(replica.log.segments) for replica in bench.replicas] == [total, total, 1]


def test_a_change_does_not_wait_for_the_request_that_waits() -> None:
    bench = PlanBench(1)
    bench.ask()
    bench.answer(data(0))
    bench.ask()
    late = bench.replica(5)
    bench.plan.follow(late)
    request = bench.ask()
    assert (request.session_epoch, named(request)) == (2, {5: (1, 0)})
    bench.plan.unfollow(late)
    assert bench.plan.next_request(9) is None, "two at most are out"
    bench.answer()
    assert forgotten(bench.ask()) == [5]


def test_an_answer_to_what_was_named_anew_since_is_not_heard() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.ask()
    bench.answer(data(0, batch(0) + batch(1)))
    bench.ask()
    bench.plan.follow(bench.replica(5))
    replica.follow(1, 2, (1, 2), 1)
    bench.plan.follow(replica)
    assert named(bench.ask()) == {5: (1, 0), 0: (2, 2)}
    bench.answer(data(0, batch(2)))
    assert replica.log.log_end_offset == 2, "it was read in the epoch before"
    bench.answer(data(0, batch(2, 2)))
    assert replica.log.log_end_offset == 3


def test_the_same_records_twice_are_appended_once() -> None:
    bench = PlanBench(1)
    bench.ask()
    bench.answer(data(0))
    bench.ask()
    bench.plan.follow(bench.replica(5))
    bench.ask()
    bench.answer(data(0, batch(0)))
    assert bench.answer(data(0, batch(0))) == []
    assert bench.replicas[0].log.log_end_offset == 1
    assert named(bench.ask()) == {0: (1, 1)}


def test_a_divergence_cuts_and_asks_again() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.diverge()
    assert named(bench.ask()) == {}, "nothing is fetched before the truncation"
    [(truncated, work)] = bench.plan.pending_work()
    assert (truncated, bench.plan.pending_work()) == (replica, [])
    assert finished(work)
    bench.plan.on_work_done(replica, None, 0)
    assert replica.log.log_end_offset == 1
    assert named(bench.ask()) == {0: (1, 1)}


def test_a_truncation_ends_without_effect_when_the_leader_changes_before_its_last_slice() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.diverge()
    [(_, work)] = bench.plan.pending_work()
    next(work)
    replica.lead(2, (2,), 1)
    replica.append(bytearray(batch(0)))
    assert not finished(work)
    assert replica.log.log_end_offset == 3


def test_a_new_epoch_fetches_although_the_truncation_of_the_last_one_has_not_ended() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.diverge()
    [(_, work)] = bench.plan.pending_work()
    next(work)
    replica.follow(1, 2, (1, 2), 1)
    bench.plan.follow(replica)
    assert named(bench.ask()) == {0: (2, 2)}
    assert not finished(work)
    bench.plan.on_work_done(replica, None, 0)
    assert replica.log.log_end_offset == 2
    bench.answer(data(0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=1)))
    [(_, work)] = bench.plan.pending_work()
    assert finished(work)
    assert replica.log.log_end_offset == 1


def test_a_second_truncation_leaves_what_was_fetched_after_the_first() -> None:
    """A change of the ISR lets the partition be fetched before its truncation has ended: the leader answers the same again."""
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.diverge()
    [(_, first)] = bench.plan.pending_work()
    bench.plan.follow(replica)
    assert named(bench.ask()) == {0: (1, 2)}
    bench.answer(data(0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=1)))
    [(_, second)] = bench.plan.pending_work()
    assert finished(first)
    bench.plan.on_work_done(replica, None, 0)
    assert named(bench.ask()) == {0: (1, 1)}
    bench.answer(data(0, batch(1)))
    assert not finished(second)
    bench.plan.on_work_done(replica, None, 0)
    assert replica.log.log_end_offset == 2


def test_a_truncation_that_fails_is_tried_again_after_a_pause() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.diverge()
    bench.plan.pending_work()
    bench.plan.on_work_done(replica, BrokerError(ErrorCode.KAFKA_STORAGE_ERROR), 5)
    assert named(bench.ask()) == {}
    bench.plan.resume(10_000)
    assert named(bench.ask()) == {0: (1, 2)}


def long_batch(offset: int, epoch: int = 1) -> bytes:
    record = NewRecord(None, bytes(RESERVED_BYTES_MIN), WALL_MS)
    return bytes(build_batch([record], base_offset=offset, leader_epoch=epoch))


def test_a_long_append_takes_many_turns() -> None:
    bench = PlanBench(2)
    replica = bench.replicas[0]
    bench.ask()
    assert bench.answer(data(0, long_batch(0), high_watermark=1), data(1, batch(0))) == [bench.replicas[1]]
    assert named(bench.ask()) == {1: (1, 1)}, "nothing more is fetched before the append"
    assert replica.log.log_end_offset == 0
    [(appended, work)] = bench.plan.pending_work()
    assert appended is replica
    assert len(list(iter(lambda: next(work, None), None))) > 8
    assert (replica.log.log_end_offset, replica.high_watermark) == (1, 1)
    assert replica.log.read(0, 1, end_offset=1).records == long_batch(0)
    bench.plan.on_work_done(replica, None, 0)
    bench.answer()
    assert named(bench.ask()) == {0: (1, 1)}


def test_a_long_append_begins_a_few_segments() -> None:
    bench = PlanBench(1)
    (replica,) = bench.replicas
    replica.log.reconfigure(replace(replica.log.config, segment_bytes=600_000))
    record = NewRecord(None, bytes(500_000), WALL_MS)
    bench.ask()
    records = b"".join(build_batch([record], base_offset=number, leader_epoch=1) for number in range(20))
    bench.answer(data(0, records, high_watermark=1))
    [(_, work)] = bench.plan.pending_work()
    assert finished(work)
    assert len(replica.log.segments) == 1 + SEGMENTS_AT_ONCE
    bench.plan.on_work_done(replica, None, 0)
    assert named(bench.ask()) == {0: (1, replica.log.log_end_offset)}, "the rest is fetched"


@pytest.mark.parametrize("leads", [False, True])
def test_a_long_append_of_an_old_leader_epoch_has_no_effect(leads: bool) -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.ask()
    bench.answer(data(0, long_batch(0)))
    [(_, work)] = bench.plan.pending_work()
    next(work)
    if leads:
        replica.lead(2, (2,), 1)
        replica.append(bytearray(batch(0)))
    else:
        replica.follow(1, 2, (1, 2), 1)
    assert not finished(work)
    assert replica.log.log_end_offset == int(leads)


def test_a_damaged_long_batch_is_fetched_again_after_a_pause() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    damaged = bytearray(long_batch(0))
    damaged[-1] ^= 1
    bench.ask()
    bench.answer(data(0, bytes(damaged)))
    [(_, work)] = bench.plan.pending_work()
    with pytest.raises(BrokerError) as refused:
        finished(work)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    bench.plan.on_work_done(replica, refused.value, 0)
    assert named(bench.ask()) == {}
    bench.plan.resume(10_000)
    bench.answer()
    assert named(bench.ask()) == {0: (1, 0)}


def test_a_refused_partition_leaves_the_session_and_comes_back_after_a_growing_pause() -> None:
    bench = PlanBench()
    bench.ask()
    bench.answer(data(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), data(1))
    request = bench.ask()
    assert (forgotten(request), named(request)) == ([0], {})
    assert bench.plan.resume(9) == 10
    assert bench.plan.resume(10) is None
    assert named(bench.ask()) == {0: (1, 0)}
    bench.answer()
    bench.answer(data(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), now_ms=10)
    assert bench.plan.resume(29) == 30
    bench.replicas[0].follow(1, 2, (1, 2), 1)
    bench.plan.follow(bench.replicas[0])
    assert named(bench.ask()) == {0: (2, 0)}, "a new epoch ends every pause"


def test_what_is_named_again_is_not_forgotten_with_the_same_request() -> None:
    """A pause may be over before the request that was to take the partition out could leave: the leader takes out last."""
    bench = PlanBench()
    bench.ask()
    bench.answer(data(0, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH), data(1))
    bench.plan.resume(10)
    request = bench.ask()
    assert (named(request), forgotten(request)) == ({0: (1, 0)}, [])
    other = bench.replica(1)  # the same partition, opened anew
    bench.plan.follow(other)
    request = bench.ask()
    assert (named(request), forgotten(request)) == ({1: (1, 0)}, [])


def test_a_damaged_batch_costs_its_partition_a_pause_and_leaves_the_others_alone() -> None:
    bench = PlanBench()
    bench.ask()
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    assert bench.answer(data(0, bytes(damaged)), data(1, batch(0))) == [bench.replicas[1]]
    assert bench.replicas[0].log.log_end_offset == 0
    request = bench.ask()
    assert (forgotten(request), named(request)) == ([0], {1: (1, 1)})
    assert bench.plan.resume(0) == FetchLimits().backoff_ms


def test_a_session_that_the_leader_lost_and_a_connection_that_went_begin_anew() -> None:
    bench = PlanBench()
    bench.ask()
    bench.answer(data(0), data(1))
    bench.ask()
    assert bench.answer(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0) == []
    request = bench.ask()
    assert (request.session_epoch, len(named(request))) == (0, 2)
    bench.plan.on_lost()
    request = bench.ask()
    assert (request.session_epoch, len(named(request))) == (0, 2)


def test_a_leader_without_room_for_sessions_is_told_everything_each_time() -> None:
    bench = PlanBench()
    for offset in range(3):
        request = bench.ask()
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert named(request) == {0: (1, offset), 1: (1, 0)}
        bench.answer(data(0, batch(offset)), data(1), session_id=0)
    assert bench.replicas[0].log.log_end_offset == 3


def test_a_plan_without_partitions_asks_nothing() -> None:
    bench = PlanBench(1)
    bench.ask()
    bench.answer(data(0))
    bench.plan.unfollow(bench.replicas[0])
    assert forgotten(bench.ask()) == [0]
    bench.answer(session_id=0)
    assert bench.plan.next_request(9) is None


def test_out_of_range_waits_for_the_leaders_bounds() -> None:
    bench = PlanBench(1)
    replica = bench.replicas[0]
    bench.ask()
    bench.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert bench.plan.out_of_range() == [replica]
    assert bench.plan.out_of_range() == []
    bench.plan.resume(10**9)
    assert named(bench.ask()) == {}
    bench.answer(session_id=0)
    replica.log.producers.entries.update((number, ProducerEntry()) for number in range(1_000))
    bench.plan.on_bounds(replica, 1, (5, 9), 0)
    [(_, work)] = bench.plan.pending_work()
    assert len(list(work)) > 10, "many producers are freed in slices"
    bench.plan.on_work_done(replica, None, 0)
    assert named(bench.ask()) == {0: (1, 5)}


def test_a_new_life_of_the_broker_is_told_by_naming_everything() -> None:
    """Else the leader would go on thinking that idle partitions are fetched by the life that was fenced (KIP-903)."""
    bench = PlanBench()
    bench.ask()
    bench.answer(data(0), data(1))
    bench.ask()
    request = bench.plan.next_request(10)
    assert request is not None
    assert (request.replica_state.replica_epoch, sorted(named(request))) == (10, [0, 1])
    bench.answer()
    bench.answer(data(0), data(1))
    again = bench.plan.next_request(10)
    assert again is not None
    assert named(again) == {}


def test_a_damaged_batch_is_logged_once_however_often_it_is_fetched(caplog: pytest.LogCaptureFixture) -> None:
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    for refusal in (data(0, bytes(damaged)), data(0, error_code=ErrorCode.CORRUPT_MESSAGE)):
        bench = PlanBench(1)
        caplog.clear()
        now_ms = 0
        tries = 0
        while tries < 5:
            request = bench.ask()
            if named(request):
                tries += 1
                bench.answer(refusal, now_ms=now_ms)
            else:
                bench.answer(now_ms=now_ms)
            resumed = bench.plan.resume(now_ms)
            if resumed is not None:
                assert resumed > now_ms
                now_ms = resumed
                bench.plan.resume(now_ms)
        assert len(caplog.records) == 1
        assert bench.replicas[0].log.log_end_offset == 0
        bench.ask()
        bench.answer(data(0, batch(0)), now_ms=now_ms)
        assert bench.replicas[0].log.log_end_offset == 1
        assert len(caplog.records) == 1


def named_by(request: FetchRequest | None) -> list[int]:
    assert request is not None
    return [one.partition for topic in request.topics for one in topic.partitions]


def test_many_partitions_are_named_over_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.replica.core.fetch_plan.PARTITIONS_PER_REQUEST", 3)
    bench = PlanBench(partitions=8)
    assert named_by(bench.plan.next_request(1)) == [0, 1, 2]
    bench.plan.on_response(response(), WALL_MS)
    assert named_by(bench.plan.next_request(1)) == [3, 4, 5]
    assert named_by(bench.plan.next_request(1)) == [6, 7]


def test_a_leader_without_sessions_is_asked_for_all_partitions_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.replica.core.fetch_plan.PARTITIONS_PER_REQUEST", 3)
    bench = PlanBench(partitions=5)
    asked = []
    for _ in range(3):
        asked.append(named_by(bench.plan.next_request(1)))
        bench.plan.on_response(response(session_id=0), WALL_MS)
    assert asked == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
