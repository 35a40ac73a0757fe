"""ShardHost over a real replica on a memory disk: grouping, commit before answer, undo, loading, and lost leadership."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp
from barnabas.broker.coordinator.host.partitioning import java_hash, partition_for
from barnabas.broker.coordinator.shard_host import LONG_DECISION
from barnabas.broker.scheduling.slices import TURN_UNITS_MAX
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.log_config import AppendOrigin
from barnabas.storage.steps import DECODED_RECORDS, INLINE_BYTES_MAX
from tests.support.bench.shard_host import HostBench, Registry, Threaded, ask


@pytest.mark.parametrize(
    ("text", "value"),
    # As String.hashCode() of a JVM has it; negative ones, the most negative one, and beyond the basic plane.
    [("", 0), ("a", 97), ("my-group", -1906497762), ("polygenelubricants", -(1 << 31)), ("größe 𝄞", 175603673)],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_most_negative_hash_has_a_partition() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("my-group", 50) == 12


def test_writes_of_a_wake_up_are_one_batch_and_are_answered_in_order() -> None:
    bench = HostBench()
    shard = bench.elect()
    outcomes = [bench.put(b"a", 1), bench.put(b"b", 2), bench.look(b"a"), bench.put(b"a", 3)]
    assert outcomes == [[], [], [], []]
    assert shard.staged == {b"a": 3, b"b": 2}
    bench.wake()
    assert outcomes == [["1"], ["2"], [1], ["3"]]
    assert bench.batches() == [[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]]
    assert shard.settled == [(b"a", 1), (b"b", 2), (b"a", 3)]
    assert bench.look(b"b") == [2]  # nothing is under way: at once


def test_the_records_of_a_decision_count_as_work_of_the_turn() -> None:
    """So the next requests of a client whose decisions have many records are served in later turns."""
    bench = HostBench()
    bench.elect()
    bench.put(b"a", 1)
    for over in (False, True):
        records = tuple((b"%d" % number, 1) for number in range(TURN_UNITS_MAX + over))
        bench.host.write(0, lambda *_, records=records: Decision(None, records), lambda _: None)
        assert bench.slices.turn_is_over is over
        bench.wake()


def test_nothing_is_answered_before_it_is_committed() -> None:
    bench = HostBench(flush_messages=1)
    shard = bench.elect()
    first = bench.put(b"a", 1)
    bench.wake()
    second = bench.put(b"b", 2)
    look = bench.look(b"a")
    assert (first, look, shard.settled) == ([], [], [])
    bench.sync()
    assert (first, second, look) == (["1"], [], [])
    bench.wake()
    assert (second, look) == ([], [])
    bench.sync()
    assert (second, look) == (["2"], [1])
    assert shard.settled == [(b"a", 1), (b"b", 2)]


def test_a_refused_decision_writes_nothing_and_answers_at_once() -> None:
    bench = HostBench()
    bench.elect()
    outcome: list[Any] = []

    def refuse(shard: Registry, now_ms: int) -> Decision[None, Any]:
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)

    bench.host.write(0, refuse, outcome.append)
    assert [error.code for error in outcome] == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert bench.due == []


def test_a_failed_append_takes_back_what_was_staged_and_all_that_built_on_it() -> None:
    bench = HostBench(max_message_bytes=300)
    shard = bench.elect()
    small = bench.put(b"a", 1)
    large = bench.put(b"b" * 400, 2)
    after = bench.put(b"a", 3)
    look = bench.look(b"a")
    bench.wake()
    assert small == ["1"]
    for outcome in (large, after, look):
        assert [error.code for error in outcome] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert shard.staged == {b"a": 1}
    assert bench.put(b"a", 4) == []
    bench.wake()
    assert shard.staged == {b"a": 4}


def test_a_long_decision_that_no_batch_can_hold_is_not_encoded_to_its_end() -> None:
    """Each key may have 32,000 bytes: 10,000 records would take 300 MB."""
    bench = HostBench(max_message_bytes=3_000)
    shard = bench.elect()
    encoded: list[int] = []
    encode = shard.encode

    def counted(record: Any) -> tuple[bytes, bytes | None]:
        encoded.append(1)
        return encode(record)

    shard.encode = counted  # type: ignore[method-assign]  # counts what the host encodes
    outcome: list[Any] = []
    records = [(b"k" * 1_000, number) for number in range(10 * LONG_DECISION)]
    bench.host.write(0, lambda _shard, _now_ms: Decision(None, records), outcome.append)
    assert [error.code for error in outcome] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert len(encoded) <= 3
    assert shard.staged == {}
    assert bench.due == []


def test_batches_stay_below_the_largest_message() -> None:
    bench = HostBench(max_message_bytes=400)
    bench.elect()
    outcomes = [bench.put(b"%050d" % number, number) for number in range(20)]
    bench.wake()
    assert [outcome for (outcome,) in outcomes] == [str(number) for number in range(20)]
    assert 5 <= len(bench.batches()) <= 10
    assert [key for batch in bench.batches() for key, _ in batch] == [b"%050d" % number for number in range(20)]


def test_a_lost_partition_drops_what_is_uncommitted() -> None:
    bench = HostBench(flush_messages=1)
    shard = bench.elect()
    appended = bench.put(b"a", 1)
    bench.wake()
    queued = bench.put(b"b", 2)
    bench.host.on_resigned(0)
    bench.wake()
    bench.sync()
    for outcome in (appended, queued):
        assert [error.code for error in outcome] == [ErrorCode.NOT_COORDINATOR]
    assert shard.resigned
    assert shard.settled == []
    assert [error.code for error in bench.put(b"c", 3)] == [ErrorCode.NOT_COORDINATOR]


def test_a_replica_that_leads_no_more_refuses_the_append() -> None:
    bench = HostBench()
    bench.elect()
    bench.replica.follow(2, 1, (2,), 1)
    outcome = bench.put(b"a", 1)
    bench.wake()
    assert [error.code for error in outcome] == [ErrorCode.NOT_COORDINATOR]


def test_a_disk_that_fails_is_no_coordinator() -> None:
    bench = HostBench()
    shard = bench.elect()
    bench.disk.fail("pwrite")
    outcome = bench.put(b"a", 1)
    bench.wake()
    assert [error.code for error in outcome] == [ErrorCode.NOT_COORDINATOR]
    assert shard.staged == {}


@pytest.mark.parametrize("answers_early", [True, False])
def test_a_session_that_is_over_ends_no_decision(answers_early: bool) -> None:
    """The leadership may go on with the next session: then what was appended is committed, and settled, after all."""
    bench = HostBench(flush_messages=1)
    bench.host = bench.new_host((lambda: 5_000) if answers_early else None)
    shard = bench.elect()
    bench.later.clear()  # the line about the load
    outcome = bench.put(b"a", 1)
    bench.wake()
    for _ in range(2):
        bench.replica._refuse_waiting(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    refused = [] if not answers_early else [ErrorCode.NOT_COORDINATOR]
    assert [getattr(error, "code", error) for error in outcome] == refused
    assert bench.host.shard(0) is shard
    assert (shard.staged, shard.settled) == ({b"a": 1}, [])
    bench.sync()
    assert shard.settled == [(b"a", 1)]
    assert len(outcome) == 1
    assert not bench.later


def test_a_session_that_is_over_while_a_shard_loads_holds_it_up_only() -> None:
    bench = HostBench(flush_messages=1)
    bench.elect()
    bench.put(b"a", 1)
    bench.wake()
    bench.host = bench.new_host()
    bench.host.on_elected(0, 0)
    bench.replica._refuse_waiting(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    with pytest.raises(BrokerError) as loading:
        bench.host.shard(0)
    assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.sync()
    assert bench.host.shard(0).staged == {b"a": 1}


def test_a_newer_epoch_loads_anew_and_an_older_one_is_passed_over() -> None:
    bench = HostBench()
    first = bench.elect()
    bench.put(b"a", 1)
    bench.wake()
    bench.host.on_elected(0, 0)
    assert bench.host.shard(0) is first
    bench.replica.lead(7, (1,), 1)
    bench.host.on_elected(0, 7)
    second = bench.host.shard(0)
    assert (second is first, first.resigned, second.epoch) == (False, True, 7)
    assert second.staged == {b"a": 1}
    assert bench.host.coordinator_epoch(0) == 7


def test_loads_in_slices_and_serves_when_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = HostBench()
    bench.elect()
    for number in range(50):
        bench.put(b"k%d" % number, number)
        bench.wake()
    monkeypatch.setattr("barnabas.broker.coordinator.host.loading.LOAD_SLICE_BYTES", 500)
    bench.host = bench.new_host()
    bench.host.on_elected(0, 0)
    with pytest.raises(BrokerError) as loading:
        bench.host.shard(0)
    assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.host.is_loading
    slices = 1
    while bench.later:
        bench.later.pop(0)()
        slices += 1
    assert slices > 5
    shard = bench.host.shard(0)
    assert shard.active
    assert shard.staged == {b"k%d" % number: number for number in range(50)}


def test_a_batch_of_many_records_is_loaded_in_steps() -> None:
    bench = HostBench()
    bench.elect()
    count = 3 * DECODED_RECORDS
    rows = [NewRecord(b"k%d" % number, b"%d" % number, 0) for number in range(count)]
    bench.replica.append(build_batch(rows, compression=4), origin=AppendOrigin.COORDINATOR)
    bench.replica.log.mark_synced(count)
    bench.host = bench.new_host()
    bench.host.on_elected(0, 0)
    steps = 1
    while bench.later:
        bench.later.pop(0)()
        steps += 1
    assert steps >= 3
    bench.replica.on_synced(count)
    assert len(bench.host.shard(0).replayed) == count


def test_a_large_batch_is_decompressed_beside_the_loop() -> None:
    """Also when the leadership ends meanwhile."""
    bench = HostBench()
    bench.elect()
    bench.replica.append(
        build_batch([NewRecord(bytes(INLINE_BYTES_MAX), b"1", 0)], compression=4), origin=AppendOrigin.COORDINATOR
    )
    bench.replica.log.mark_synced(1)
    for stays in (True, False):
        beside: list[Threaded] = []
        bench.slices.in_thread = partial(ask, beside)
        bench.host = bench.new_host()
        bench.host.on_elected(0, 0)
        while not beside:
            bench.later.pop(0)()
        ((work, done),) = beside
        while bench.later:
            bench.later.pop(0)()
        work()
        if not stays:
            bench.host.on_resigned(0)
        done(None)
        while bench.later:
            bench.later.pop(0)()
        bench.replica.on_synced(1)
        assert [len(shard.replayed) for _, shard in bench.host.active_shards()] == ([1] if stays else [])


def test_of_what_was_written_over_the_last_is_replayed() -> None:
    """As if the cleaner had been there; what an open transaction wrote is beside it."""
    bench = HostBench()
    bench.elect()
    for number in range(10):
        bench.put(b"a", number)
        bench.put(b"b", number)
        bench.put(b"a", 10 + number)
    bench.wake()
    bench.put(b"a", 30, ProducerStamp(7, 2, bench.replica.verification_guard(7, 2, -1)))
    bench.wake()
    bench.put(b"b", 31)
    bench.wake()
    bench.host = bench.new_host()
    assert bench.elect().replayed == [(b"a", 19, -1), (b"a", 30, 7), (b"b", 31, -1)]


def test_a_resignation_in_the_middle_of_loading_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = HostBench()
    bench.elect()
    for number in range(50):
        bench.put(b"k%d" % number, number)
        bench.wake()
    monkeypatch.setattr("barnabas.broker.coordinator.host.loading.LOAD_SLICE_BYTES", 500)
    bench.host = bench.new_host()
    bench.host.on_elected(0, 0)
    bench.host.on_resigned(0)
    bench.run_timers()
    assert bench.host.active_shards() == []
    assert not bench.host.is_loading


def test_nothing_is_written_while_too_few_replicas_are_in_sync() -> None:
    bench = HostBench()
    shard = bench.elect()
    bench.replica.require(2)
    refused = bench.put(b"a", 1)
    look = bench.look(b"a")
    bench.wake()
    assert [error.code for error in refused] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert (bench.batches(), shard.staged) == ([], {})
    # What was decided on top of it is taken back with it.
    assert [error.code for error in look] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    bench.replica.require(1)
    accepted = bench.put(b"a", 2)
    bench.wake()
    assert (accepted, shard.settled) == (["2"], [(b"a", 2)])


def test_an_answer_that_replicas_keep_waiting_is_given_up_and_what_was_decided_is_not() -> None:
    bench = HostBench(flush_messages=1)
    bench.host = bench.new_host(lambda: 5_000)
    shard = bench.elect()
    bench.later.clear()  # the line about the load
    first = bench.put(b"a", 1)
    bench.wake()
    (overdue,) = bench.later
    overdue()
    assert [error.code for error in first] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    look = bench.look(b"a")
    bench.wake()
    bench.sync()
    assert (len(first), look, shard.settled) == (1, [1], [(b"a", 1)])
    bench.later.clear()
    second = bench.put(b"b", 2)
    bench.wake()
    bench.sync()
    assert (second, bench.later) == (["2"], [])


def test_what_is_in_the_log_is_served_only_once_it_is_committed() -> None:
    bench = HostBench(flush_messages=1)
    bench.elect()
    bench.put(b"a", 1)
    bench.wake()
    bench.host = bench.new_host()
    bench.host.on_elected(0, 0)
    assert bench.host.is_loading
    bench.sync()
    assert bench.host.shard(0).staged == {b"a": 1}


def test_transactional_records_have_batches_of_their_own_and_markers_are_replayed() -> None:
    bench = HostBench()
    bench.elect()
    stamps = [
        ProducerStamp(7, 2, bench.replica.verification_guard(7, 2, -1)),
        ProducerStamp(8, 0, bench.replica.verification_guard(8, 0, -1)),
    ]
    outcomes = [bench.put(b"a", 1), bench.put(b"b", 2, stamps[0]), bench.put(b"c", 3, stamps[1]), bench.put(b"d", 4)]
    bench.wake()
    assert outcomes == [["1"], ["2"], ["3"], ["4"]]
    assert [len(batch) for batch in bench.batches()] == [1, 1, 1, 1]
    bench.replica.append_marker(7, 2, commit=True, coordinator_epoch=0, transaction_version=0)
    bench.replica.append_marker(8, 0, commit=False, coordinator_epoch=0, transaction_version=0)
    bench.host = bench.new_host()
    shard = bench.elect()
    assert shard.replayed == [(b"a", 1, -1), (b"b", 2, -1), (b"c", 3, 8), (b"d", 4, -1)]
    assert shard.markers == [(7, 2, True), (8, 0, False)]


def test_a_record_of_an_unknown_kind_is_passed_over() -> None:
    bench = HostBench()
    bench.elect()
    bench.put(b"strange", 1)
    bench.put(b"a", 2)
    bench.wake()
    bench.host = bench.new_host()
    assert bench.elect().staged == {b"a": 2}


def test_flush_appends_before_the_wake_up_ends() -> None:
    bench = HostBench()
    bench.elect()
    outcome = bench.put(b"a", 1)
    bench.host.flush(0)
    assert outcome == ["1"]
    bench.wake()
    assert len(bench.batches()) == 1


def test_a_topic_that_does_not_exist_has_no_coordinator() -> None:
    bench = HostBench()
    bench.replicas.all.clear()
    with pytest.raises(BrokerError) as refused:
        bench.host.shard_for("anything")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
