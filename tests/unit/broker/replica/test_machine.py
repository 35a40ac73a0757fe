"""Replica: high watermark with and without flush, who waits for it, leadership and its epochs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.api.call import Done
from barnabas.broker.replica.core import follower_log
from barnabas.broker.replica.core.machine import GAP_MS, Replica
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, build_end_txn_marker
from barnabas.work import finished
from tests.support.bench.replica import ReplicaBench, ThreeReplicas
from tests.support.clock import WALL_MS


class Watch:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_progress(self, replica: Replica) -> None:
        self.seen.append(replica.high_watermark)


def committed(bench: ReplicaBench, next_offset: int) -> list[BrokerError | None]:
    outcomes: list[BrokerError | None] = []
    bench.replica.when_committed(next_offset, outcomes.append)
    return outcomes


def test_a_sole_replica_commits_with_the_append() -> None:
    bench = ReplicaBench()
    end = bench.append(3)
    assert (end, bench.replica.high_watermark, bench.replica.last_stable_offset) == (3, 3, 3)
    assert committed(bench, 3) == [None]
    assert not bench.asked


def test_flush_messages_1_commits_with_the_sync() -> None:
    bench = ReplicaBench(flush_messages=1)
    end = bench.append(2)
    waiting = committed(bench, end)
    assert (bench.replica.high_watermark, waiting, len(bench.asked)) == (0, [], 1)
    assert bench.replica.read(0, 1000).records == b"", "what is not committed is not served"
    bench.append()
    assert len(bench.asked) == 1, "one request until it is answered"
    bench.sync()
    assert (bench.replica.high_watermark, waiting) == (3, [None])
    bench.append()
    assert len(bench.asked) == 1


def test_a_sync_that_began_before_an_append_does_not_commit_it() -> None:
    bench = ReplicaBench(flush_messages=1)
    first = bench.append()
    second = bench.append()
    one, two = committed(bench, first), committed(bench, second)
    bench.asked.clear()
    bench.replica.on_synced(first)
    assert (bench.replica.high_watermark, one, two) == (1, [None], [])
    assert len(bench.asked) == 1, "the rest is asked for again"
    bench.sync()
    assert two == [None]


def test_flush_messages_n_waits_only_where_n_is_reached() -> None:
    bench = ReplicaBench(flush_messages=3)
    assert committed(bench, bench.append(2)) == [None]
    assert not bench.asked
    waiting = committed(bench, bench.append(1))
    assert (waiting, bench.replica.high_watermark) == ([], 2)
    bench.sync()
    assert (waiting, bench.replica.high_watermark) == ([None], 3)


def test_waiters_go_in_the_order_of_offsets_then_arrival() -> None:
    bench = ReplicaBench(flush_messages=1)
    for _ in range(3):
        bench.append()
    order: list[str] = []
    for name, offset in (("c", 3), ("a", 1), ("b", 2), ("a2", 1), ("later", 4)):
        bench.replica.when_committed(offset, lambda error, name=name: order.append(name))  # type: ignore[misc]  # the name binds early
    bench.sync()
    assert order == ["a", "a2", "b", "c"]


def test_a_waiter_may_append() -> None:
    bench = ReplicaBench(flush_messages=1)
    ends: list[int] = []
    bench.replica.when_committed(bench.append(), lambda error: ends.append(bench.append()))
    bench.sync()
    assert ends == [2]
    assert bench.replica.high_watermark == 1
    bench.sync()
    assert bench.replica.high_watermark == 2


def test_lost_leadership_refuses_who_waits() -> None:
    bench = ReplicaBench(flush_messages=1)
    waiting = committed(bench, bench.append())
    watch = Watch()
    bench.replica.watchers[watch] = None
    assert bench.replica.follow(2, 1, (2, 1), 1)
    assert [error.code for error in waiting if error] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert watch.seen
    with pytest.raises(BrokerError) as refused:
        bench.append()
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [error.code for error in committed(bench, 99) if error] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    bench.sync()
    assert bench.replica.high_watermark == 0, "a follower's high watermark is its leader's business"


def waiting(bench: ReplicaBench) -> tuple[list[tuple[str, ErrorCode | None]], Callable[[str], Done[None]]]:
    """Outcomes of waiters in the order in which they were called, and what makes a waiter."""
    called: list[tuple[str, ErrorCode | None]] = []

    def waiter(name: str) -> Done[None]:
        return lambda error: called.append((name, None if error is None else error.code))

    return called, waiter


def test_a_leader_whose_session_is_over_refuses_who_waits_before_anything_newer() -> None:
    bench = ThreeReplicas((1, 2))
    called, waiter = waiting(bench)
    bench.replica.when_committed(bench.append(2), waiter("second"))
    bench.replica.when_committed(1, waiter("first"))
    bench.session = False
    with pytest.raises(BrokerError) as refused:
        bench.append()
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert called == [("first", ErrorCode.NOT_LEADER_OR_FOLLOWER), ("second", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    bench.replica.refuse_unless_leading()
    assert len(called) == 2
    bench.session = True
    bench.replica.when_committed(
        2, waiter("again")
    )  # it was not fenced after all, and what was appended is still there
    bench.replica.on_follower_fetch(2, -1, 2, 0)
    assert called[2:] == [("again", None)]


def test_a_leader_whose_session_is_over_refuses_who_waits_for_the_disk() -> None:
    bench = ThreeReplicas((1, 2), flush_messages=1)
    called, waiter = waiting(bench)
    bench.replica.when_durable(bench.append(), waiter("acks=1"))
    bench.session = False
    bench.replica.refuse_unless_leading()
    assert called == [("acks=1", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    bench.sync()
    assert len(called) == 1


class Fetches:
    """A follower's partition in its fetch session."""

    def __init__(self, followed_ms: int = 0, current_leader_epoch: int = 0) -> None:
        self.followed_ms = followed_ms
        self.current_leader_epoch = current_leader_epoch


@pytest.mark.parametrize(
    ("isr", "min_insync", "following", "leads"),
    [
        ((1,), 1, {}, True),
        ((1,), 2, {}, False),
        ((1,), 2, {2: Fetches(), 3: Fetches()}, True),
        ((1, 2), 1, {}, False),
        ((1, 2), 1, {3: Fetches()}, False),
        ((1, 2), 1, {2: Fetches()}, True),
        ((1, 2), 1, {2: Fetches(-1)}, False),
        ((1, 2), 1, {2: Fetches(current_leader_epoch=1)}, False),
        ((1, 2), 3, {2: Fetches()}, False),
    ],
    ids=[
        "alone in sync",
        "alone in sync, others may be eligible leaders",
        "these follow",
        "the other one is silent",
        "the other one is silent, one that is not in sync follows",
        "the other one follows",
        "it followed too long ago",
        "it follows in a later epoch",
        "it follows, an eligible leader is silent",
    ],
)
def test_after_its_session_a_leader_leads_what_no_other_broker_can(
    isr: tuple[int, ...], min_insync: int, following: dict[int, Fetches], leads: bool
) -> None:
    bench = ThreeReplicas(isr, min_insync)
    for broker_id, fetches in following.items():
        bench.replica.on_follower_fetch(broker_id, -1, 0, 0, fetches)
    called, waiter = waiting(bench)
    bench.replica.when_committed(bench.append() + 1, waiter("acks=all"))
    bench.session = False
    bench.clock.time_ms = 4_500
    if leads:
        bench.append()
    else:
        with pytest.raises(BrokerError):
            bench.append()
    assert any(error is not None for _, error in called) is not leads


def test_a_replica_that_may_have_joined_the_isr_can_be_elected() -> None:
    bench = ThreeReplicas((1,))
    bench.session = False
    bench.replica.check_leads()
    bench.replica.on_follower_fetch(2, -1, 0, 0)  # proposes it; the answer may be lost
    with pytest.raises(BrokerError):
        bench.replica.check_leads()


def test_an_offset_that_the_log_lacks_is_refused_while_another_broker_can_be_elected() -> None:
    bench = ThreeReplicas((1, 2))
    bench.replica.on_follower_fetch(2, -1, 0, 0, Fetches(10_000))
    bench.session = False
    bench.replica.check_leads()
    with pytest.raises(BrokerError):
        bench.replica.check_leads(by_followers=False)


@pytest.mark.parametrize("commits", [True, False], ids=["at a commit", "at a refusal"])
def test_a_waiter_that_fails_the_replica_has_its_neighbours_called_once(commits: bool) -> None:
    bench = ThreeReplicas((1, 2))
    called, waiter = waiting(bench)

    def failing(error: BrokerError | None) -> None:
        waiter("failing")(error)
        bench.replica.fail()

    end = bench.append()
    bench.replica.when_committed(end, waiter("before"))
    bench.replica.when_committed(end, failing)
    bench.replica.when_committed(end, waiter("after"))
    bench.replica.when_committed(bench.append(), waiter("later"))
    if commits:
        bench.replica.on_follower_fetch(2, -1, 2, 0)
    else:
        bench.session = False
        bench.replica.refuse_unless_leading()
    assert [name for name, _ in called] == ["before", "failing", "after", "later"]
    assert called[3][1] is not None


@pytest.mark.parametrize("synced", [True, False], ids=["at a sync", "at a refusal"])
def test_a_waiter_for_the_disk_that_fails_the_replica_has_its_neighbours_called_once(synced: bool) -> None:
    bench = ThreeReplicas((1, 2), flush_messages=2)
    called, waiter = waiting(bench)

    def failing(error: BrokerError | None) -> None:
        waiter("failing")(error)
        bench.replica.fail()

    bench.append(2)
    bench.replica.when_durable(2, failing)
    bench.replica.when_durable(2, waiter("neighbour"))
    bench.replica.when_durable(bench.append(2), waiter("later"))
    if synced:
        bench.replica.on_synced(2)
    else:
        bench.session = False
        bench.replica.refuse_unless_leading()
    assert sorted(name for name, _ in called) == ["failing", "later", "neighbour"]
    assert dict(called)["later"] is not None


def test_a_failed_write_takes_the_replica_offline() -> None:
    bench = ReplicaBench()
    bench.append()
    bench.disk.fail("pwrite")
    with pytest.raises(BrokerError) as refused:
        bench.append()
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    bench.disk.heal()
    with pytest.raises(BrokerError) as refused:
        bench.append()
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR, "a disk that failed once is not trusted again"
    with pytest.raises(BrokerError):
        bench.replica.check_epoch(-1)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, None), (5, None), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_the_clients_leader_epoch(epoch: int, code: ErrorCode | None) -> None:
    bench = ReplicaBench(leads=False)
    bench.replica.lead(5, (1,), 0)
    if code is None:
        bench.replica.check_epoch(epoch)
    else:
        with pytest.raises(BrokerError) as refused:
            bench.replica.check_epoch(epoch)
        assert refused.value.code == code


def test_elections_are_told_once_an_epoch_and_never_go_back() -> None:
    bench = ReplicaBench(leads=False)
    assert bench.replica.lead(1, (1,), 0)
    assert not bench.replica.lead(1, (1,), 1), "the same epoch: the ISR changed"
    bench.append(4)
    assert bench.replica.lead(2, (1,), 2)
    assert bench.replica.log.epochs.end_offset_for_epoch(1, bench.replica.log.log_end_offset) == (1, 4)
    with pytest.raises(InvariantViolated):
        bench.replica.lead(1, (1,), 3)


def test_watchers_see_appends_and_deleted_records() -> None:
    bench = ReplicaBench()
    watch = Watch()
    bench.replica.watchers[watch] = None
    bench.append()
    bench.append()
    assert watch.seen == [1, 2]
    assert bench.replica.delete_records_before(1) == 1
    assert bench.replica.delete_records_before(-1) == 2
    assert len(watch.seen) == 4
    with pytest.raises(BrokerError) as refused:
        bench.replica.delete_records_before(3)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_duplicate_moves_nothing() -> None:
    bench = ReplicaBench()
    batch = build_batch([NewRecord(None, b"v", WALL_MS)], producer_id=1, producer_epoch=0, base_sequence=0)
    first = bench.replica.append(bytearray(batch))
    watch = Watch()
    bench.replica.watchers[watch] = None
    again = bench.replica.append(bytearray(batch))
    assert (again.duplicate, again.base_offset) == (True, first.base_offset)
    assert not watch.seen


# -- several replicas


def test_the_high_watermark_is_what_every_in_sync_replica_holds() -> None:
    bench = ThreeReplicas()
    end = bench.append(3)
    outcomes = committed(bench, end)
    bench.replica.on_follower_fetch(2, -1, 3, 0)
    assert (bench.replica.high_watermark, outcomes) == (0, [])
    bench.replica.on_follower_fetch(3, -1, 3, 0)
    assert (bench.replica.high_watermark, outcomes) == (3, [None])


def test_below_min_isr_nothing_is_committed_until_the_rule_or_the_isr_allows_it() -> None:
    bench = ThreeReplicas((1,), min_insync=2)
    bench.append()
    bench.replica.on_follower_fetch(2, -1, 1, 0)
    assert bench.replica.high_watermark == 0
    bench.replica.lead(0, (1, 2), 1, replicas=(1, 2, 3))
    assert bench.replica.high_watermark == 1
    bench.replica.lead(0, (1,), 2, replicas=(1, 2, 3))
    bench.append()
    bench.replica.on_follower_fetch(2, -1, 2, 0)
    assert bench.replica.high_watermark == 1
    bench.replica.require(1)
    assert bench.replica.high_watermark == 2


def test_a_stranger_and_a_former_life_of_a_follower_are_refused() -> None:
    bench = ThreeReplicas()
    bench.replica.on_follower_fetch(2, 7, 0, 0)
    for broker_id, epoch in ((4, 1), (2, 6)):
        with pytest.raises(BrokerError) as caught:
            bench.replica.on_follower_fetch(broker_id, epoch, 0, 0)
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_older_state_than_the_controllers_answer_changes_nothing() -> None:
    bench = ThreeReplicas((1, 2))
    bench.replica.in_sync.on_metadata((1, 2, 3), 5)
    assert not bench.replica.lead(0, (1, 2), 4, replicas=(1, 2, 3))
    assert (bench.replica.isr, bench.replica.partition_epoch) == ((1, 2, 3), 5)


def batch(offset: int, epoch: int, value: bytes = b"v") -> bytes:
    return bytes(build_batch([NewRecord(None, value, WALL_MS)], base_offset=offset, leader_epoch=epoch))


def test_a_follower_appends_only_what_it_asked_its_present_leader_for() -> None:
    bench = ReplicaBench(leads=False)
    replica = bench.replica
    replica.follow(2, 1, (1, 2), 0)
    assert follower_log.on_fetched(replica, 1, 0, batch(0, 1), 5, 0)
    assert (replica.log.log_end_offset, replica.high_watermark) == (1, 1)
    assert not follower_log.on_fetched(replica, 1, 0, batch(0, 1), 5, 0), "a second answer to the same question"
    replica.follow(3, 2, (1, 3), 1)
    assert not follower_log.on_fetched(replica, 1, 1, batch(1, 1), 5, 0), "an answer of the leader before"
    assert replica.log.log_end_offset == 1


def transaction(offset: int) -> bytes:
    """One record and its marker."""
    record = build_batch(
        [NewRecord(None, b"v", WALL_MS)],
        base_offset=offset,
        leader_epoch=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=offset // 2,
        transactional=True,
    )
    marker = build_end_txn_marker(
        7, 0, commit=True, coordinator_epoch=0, timestamp=WALL_MS, base_offset=offset + 1, leader_epoch=1
    )
    return bytes(record + marker)


def test_transactions_of_the_past_take_no_memory_on_a_follower_that_nobody_reads() -> None:
    replica = ReplicaBench(leads=False).replica
    replica.follow(2, 1, (1, 2), 0)
    for offset in range(0, 200, 2):
        assert follower_log.on_fetched(replica, 1, offset, transaction(offset), offset + 1, 0)
    assert len(replica.log.producers.unreplicated) == 1, "but for the last one, whose marker is not replicated yet"
    assert replica.last_stable_offset == 198


def test_a_follower_cuts_what_its_leader_never_had_and_syncs_the_cut_before_it_fetches_on() -> None:
    bench = ReplicaBench(leads=False)
    replica = bench.replica
    replica.follow(2, 1, (1, 2), 0)
    follower_log.on_fetched(replica, 1, 0, batch(0, 1) + batch(1, 1) + batch(2, 1), 1, 0)
    replica.follow(3, 2, (1, 3), 1)
    assert replica.last_fetched_epoch == 1
    assert finished(follower_log.on_diverged(replica, 2, 1, 2))
    assert (replica.log.log_end_offset, replica.high_watermark) == (2, 1)
    fetches: list[int] = []
    replica.when_durable(2, lambda _: fetches.append(replica.log.log_end_offset))
    assert (bench.asked, fetches) == ([replica], [])
    bench.sync()
    assert fetches == [2]


def test_an_epoch_without_records_is_no_history() -> None:
    bench = ReplicaBench()
    bench.append()
    bench.replica.lead(4, (1,), 1)
    bench.replica.follow(2, 5, (2,), 2)
    assert bench.replica.last_fetched_epoch == 4
    finished(follower_log.on_diverged(bench.replica, 5, 0, 1))
    assert (bench.replica.last_fetched_epoch, bench.replica.log.log_end_offset) == (0, 1)


def test_a_follower_that_must_flush_acknowledges_after_the_sync() -> None:
    bench = ReplicaBench(leads=False, flush_messages=1)
    bench.replica.follow(2, 1, (1, 2), 0)
    follower_log.on_fetched(bench.replica, 1, 0, batch(0, 1), 0, 0)
    durable: list[bool] = []
    bench.replica.when_durable(1, lambda _: durable.append(True))
    assert not durable
    bench.sync()
    assert durable


def test_out_of_range_begins_anew_where_the_leader_begins() -> None:
    bench = ReplicaBench(leads=False)
    bench.replica.follow(2, 1, (1, 2), 0)
    follower_log.on_fetched(bench.replica, 1, 0, batch(0, 1), 1, 0)
    assert finished(follower_log.on_out_of_range(bench.replica, 1, 10, 20))
    log = bench.replica.log
    assert (log.log_start_offset, log.log_end_offset, bench.replica.high_watermark) == (10, 10, 10)
    assert follower_log.on_fetched(bench.replica, 1, 10, batch(10, 1), 20, 10)
    assert bench.replica.high_watermark == 11


def test_a_leader_whose_log_starts_within_a_batch_is_followed_from_the_whole_batch() -> None:
    bench = ReplicaBench(leads=False)
    bench.replica.follow(2, 1, (1, 2), 0)
    finished(follower_log.on_out_of_range(bench.replica, 1, 2, 4))
    whole = build_batch([NewRecord(None, b"v", WALL_MS)] * 4, base_offset=0, leader_epoch=1)
    assert follower_log.on_fetched(bench.replica, 1, 2, whole, 4, 2)
    log = bench.replica.log
    assert (log.log_start_offset, log.log_end_offset, bench.replica.high_watermark) == (2, 4, 4)


def test_a_verification_holds_within_one_leader_epoch() -> None:
    bench = ReplicaBench()

    def batch(epoch: int) -> bytes:
        return bytes(
            build_batch(
                [NewRecord(None, b"v", WALL_MS)],
                producer_id=7,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
        )

    guard = bench.replica.verification_guard(7, 0, 0)
    # Another leader in between may have ended what was verified here.
    bench.replica.follow(2, 1, (1, 2), 1)
    with pytest.raises(BrokerError) as away:
        bench.replica.verification_guard(7, 0, 0)
    assert away.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.replica.lead(2, (1,), 2)
    with pytest.raises(BrokerError) as refused:
        bench.replica.append(batch(0), guard=guard)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.replica.log.log_end_offset == 0
    bench.replica.append(batch(0), guard=bench.replica.verification_guard(7, 0, 0))
    assert bench.replica.verification_guard(7, 0, 1) is None  # ongoing here: nothing to verify


def test_too_few_in_sync() -> None:
    bench = ReplicaBench()
    bench.replica.require(2)
    with pytest.raises(BrokerError) as refused:
        bench.replica.check_in_sync()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    bench.replica.require(1)
    bench.replica.check_in_sync()


def sequenced(sequence: int) -> bytearray:
    return build_batch([NewRecord(None, b"v", WALL_MS)], producer_id=7, producer_epoch=0, base_sequence=sequence)


def refusal(bench: ReplicaBench, sequence: int) -> ErrorCode | None:
    try:
        bench.replica.check_leads()
        bench.replica.check_in_sync()
        bench.replica.append(sequenced(sequence))
    except BrokerError as error:
        return error.code
    return None


@pytest.mark.parametrize("reason", ["not the leader yet", "too few in sync", "the session is over"])
def test_a_gap_after_a_passing_refusal_does_not_tell_the_producer_to_begin_anew(reason: str) -> None:
    """Batches 1 and 2 come before this node can take them, 3 right after: the producer sends all of them again, in order."""
    bench = ThreeReplicas((1, 2))
    assert refusal(bench, 0) is None
    if reason == "not the leader yet":
        bench.replica.follow(2, 1, (1, 2), 1)
    elif reason == "too few in sync":
        bench.replica.require(3)
    else:
        bench.session = False
    refused = ErrorCode.NOT_ENOUGH_REPLICAS if reason == "too few in sync" else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [refusal(bench, sequence) for sequence in (1, 2)] == [refused, refused]
    bench.replica.require(1)
    bench.session = True
    bench.replica.lead(2, (1,), 2)
    bench.clock.time_ms = GAP_MS - 1
    assert refusal(bench, 3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [refusal(bench, sequence) for sequence in (1, 2, 3)] == [None, None, None]
    bench.clock.time_ms = GAP_MS
    assert refusal(bench, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_without_an_earlier_refusal_is_named_at_once() -> None:
    bench = ReplicaBench()
    assert refusal(bench, 0) is None
    bench.replica.lead(1, (1,), 1)
    assert refusal(bench, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
