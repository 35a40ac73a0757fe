"""The sender against a model of a partition leader: faults drawn from seeds, and each rule of order by itself.

The model keeps what Kafka's leader keeps for a producer: its epoch and the sequences of its last five batches.
"""

from __future__ import annotations

import random

import pytest

from barnabas.client.errors import (
    DeliveryTimedOut,
    RecordTooLarge,
)
from barnabas.errors import ErrorCode
from barnabas.protocol.records import read_header
from tests.support.bench.sender import TP, SenderBench


@pytest.mark.parametrize("seed", range(60))
def test_through_any_faults_each_record_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    bench = SenderBench(partitions=3, size_bytes_max=rng.choice([300, 1 << 20]))
    sent = 0
    for _ in range(400):
        action = rng.random()
        if action < 0.1:
            count = rng.randint(1, 5)
            bench.append_packed([b"%06d" % i for i in range(sent, sent + count)], rng.randrange(3))
            sent += count
        elif action < 0.5:
            for _ in range(rng.randint(1, 12)):
                bench.append(b"%06d" % sent, rng.randrange(3))
                sent += 1
        elif action < 0.75 and bench.wire:
            bench.answer()
        elif action < 0.82 and bench.wire:
            bench.answer(rng.choice([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]))
        elif action < 0.9:
            bench.break_connection(rng.randint(0, len(bench.wire)))
            if rng.random() < 0.3:
                for leader in bench.leaders.values():
                    leader.restart()
        bench.now += rng.randint(0, 150)
        bench.pump()
        assert len(bench.wire) <= 5
    bench.settle()
    assert not bench.failed
    assert len(bench.acked) == sent
    for tp, leader in bench.leaders.items():
        expected = sorted(value for partition, value in bench.acked if partition == tp.partition)
        assert leader.values == expected
        for value in expected:
            offset = bench.acked[tp.partition, value]
            assert offset == -1 or leader.values[offset] == value
    assert bench.accumulator.bytes_held == 0


@pytest.mark.parametrize("seed", range(40))
def test_when_deliveries_time_out_nothing_is_doubled_or_reordered(seed: int) -> None:
    """A batch given up may be in the log or not; every other one is there once, in order."""
    rng = random.Random(seed)
    bench = SenderBench()
    bench.accumulator.delivery_timeout_ms = 400
    sent = 0
    for _ in range(300):
        action = rng.random()
        if action < 0.5:
            for _ in range(rng.randint(1, 12)):
                bench.append(b"%06d" % sent)
                sent += 1
        elif action < 0.7 and bench.wire:
            bench.answer()
        elif action < 0.9:
            bench.break_connection(rng.randint(0, len(bench.wire)))
        bench.now += rng.randint(0, 200)
        bench.pump()
    bench.settle()
    assert len(bench.acked) + len(bench.failed) == sent
    (leader,) = bench.leaders.values()
    assert leader.values == sorted(set(leader.values))
    assert {value for _, value in bench.acked} <= set(leader.values)
    assert all(isinstance(error, DeliveryTimedOut) for error in bench.failed.values())
    assert bench.failed, "the seed gave no time-out: nothing was tested"


def test_one_batch_until_a_leader_knows_the_producer() -> None:
    """A leader without state of a producer accepts any sequence: the second batch must not be written before the first."""
    bench = SenderBench()
    for i in range(100):
        bench.append(b"%06d" % i)
    bench.pump()
    assert len(bench.wire) == 1
    bench.answer(ErrorCode.NOT_ENOUGH_REPLICAS)
    bench.pump()
    assert not bench.wire
    bench.settle()
    assert bench.leaders[TP].values == [b"%06d" % i for i in range(100)]


def test_five_batches_in_flight_and_no_more() -> None:
    bench = SenderBench()
    bench.append(b"known")
    bench.settle()
    for i in range(200):
        bench.append(b"%06d" % i)
    bench.pump()
    assert len(bench.wire) == 5
    assert [read_header(b.encoded or b"").base_sequence for d in bench.wire for b in d.batches.values()] == [
        1, 10, 19, 28, 37,
    ]  # fmt: skip
    bench.answer()
    bench.pump()
    assert len(bench.wire) == 5


def test_without_idempotence_one_batch_a_partition_is_in_flight() -> None:
    bench = SenderBench(enable_idempotence=False)
    for i in range(100):
        bench.append(b"%06d" % i)
    bench.pump()
    assert len(bench.wire) == 1
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.settle()
    assert bench.leaders[TP].values == [b"%06d" % i for i in range(100)]


def test_after_a_refusal_only_the_oldest_leaves_until_all_are_in() -> None:
    bench = SenderBench()
    bench.append(b"000000")
    bench.settle()
    bench.acked.clear()
    for i in range(1, 25):
        bench.append(b"%06d" % i)
    bench.pump()
    first = bench.wire[0]
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    while bench.wire:
        bench.answer()  # the others: OUT_OF_ORDER_SEQUENCE_NUMBER, for the first is missing
    assert not bench.acked
    assert bench.sender.metadata_wanted
    bench.pump()
    assert not bench.wire, "the pause of the first is not over"
    bench.now += 30
    bench.pump()
    (again,) = bench.wire
    assert again.batches == first.batches
    bench.settle()
    assert bench.leaders[TP].values == [b"%06d" % i for i in range(25)]


def test_a_pause_is_for_the_leader_that_refused() -> None:
    bench = SenderBench()
    bench.append(b"0")
    bench.pump()
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.pump()
    assert not bench.wire
    bench.where[TP] = 2
    bench.pump()
    assert [dispatch.node_id for dispatch in bench.wire] == [2]
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.pump()
    assert not bench.wire, "the new one has refused too"
    bench.settle()
    assert bench.leaders[TP].values == [b"0"]


def test_pauses_grow_while_a_leader_goes_on_refusing() -> None:
    bench = SenderBench()
    bench.append(b"0")
    sent = []
    while bench.now < 21_000:
        bench.pump()
        assert len(bench.wire) == 1
        sent.append(bench.now)
        bench.answer(ErrorCode.NOT_ENOUGH_REPLICAS)
        bench.pump()
        assert not bench.wire
        bench.now = bench.sender.wake_at() or 0
    assert sent[1] - sent[0] < 30
    assert 700 < sent[-1] - sent[-2] < 1_300


def test_a_record_too_large_leaves_no_gap() -> None:
    bench = SenderBench(size_bytes_max=350)
    bench.append(b"before")
    bench.append(b"x" * 390)
    bench.append(b"after")
    bench.settle()
    assert bench.leaders[TP].values == [b"before", b"after"]
    (error,) = bench.failed.values()
    assert isinstance(error, RecordTooLarge)
    assert (error.topic, error.partition, error.broker) == ("t", 0, 1)
    assert bench.sender.epoch == 1, "what followed the refused one went on under a new epoch"


def test_a_batch_too_large_is_halved_until_it_fits() -> None:
    bench = SenderBench(size_bytes_max=90)
    for i in range(8):
        bench.append(b"%06d" % i)
    bench.settle()
    assert bench.leaders[TP].values == [b"%06d" % i for i in range(8)]
    assert bench.acked == {(0, b"%06d" % i): i for i in range(8)}
    assert bench.sender.epoch == 0


def test_a_broker_that_lost_the_producers_state_gets_a_new_epoch() -> None:
    bench = SenderBench()
    bench.append(b"one")
    bench.settle()
    bench.append(b"two")
    bench.pump()
    bench.answer(ErrorCode.UNKNOWN_PRODUCER_ID)
    bench.settle()
    assert bench.leaders[TP].values == [b"one", b"two"]
    assert bench.sender.epoch == 1


@pytest.mark.parametrize("executed", range(6))
def test_a_restarted_leader_remembers_the_last_batch_and_that_is_enough(executed: int) -> None:
    """Five batches on their way, some written, no answer, and a leader that then knows the last of them only."""
    bench = SenderBench()
    bench.append(b"known")
    bench.settle()
    for i in range(45):
        bench.append(b"%06d" % i)
    bench.pump()
    assert len(bench.wire) == 5
    bench.break_connection(executed)
    bench.leaders[TP].restart()
    bench.settle()
    assert bench.leaders[TP].values == [b"known"] + [b"%06d" % i for i in range(45)]
    assert bench.sender.epoch == 0, "nothing was lost, so no new epoch"
    unknown = [value for (_, value), offset in bench.acked.items() if offset == -1]
    assert len(unknown) == 9 * max(0, executed - 1)


@pytest.mark.parametrize("refusal", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
@pytest.mark.parametrize("executed", range(6))
def test_a_leader_that_resigns_may_have_written_what_it_refuses(executed: int, refusal: ErrorCode) -> None:
    """acks=all waits for replicas; its leader then loses its place, and the next one may have the batches all the same."""
    bench = SenderBench()
    bench.append(b"known")
    bench.settle()
    for i in range(45):
        bench.append(b"%06d" % i)
    bench.pump()
    for number, dispatch in enumerate(list(bench.wire)):
        if number < executed:
            bench.execute(dispatch)
    while bench.wire:
        bench.answer(refusal)
    bench.leaders[TP].restart()
    bench.settle()
    assert bench.leaders[TP].values == [b"known"] + [b"%06d" % i for i in range(45)]
    assert bench.sender.epoch == 0, "nothing was lost, so no new epoch"


def test_a_leader_that_lost_the_tail_of_its_log_gets_it_again() -> None:
    bench = SenderBench()
    bench.append(b"known")
    bench.settle()
    for i in range(45):
        bench.append(b"%06d" % i)
    bench.pump()
    for _ in range(2):
        bench.answer()
    bench.break_connection(0)
    leader = bench.leaders[TP]
    del leader.values[1:]  # an unclean leader: what was acknowledged is gone
    leader.recent[7].clear()
    leader.recent[7].append((0, 0, 0))
    bench.settle()
    assert leader.values == [b"known"] + [b"%06d" % i for i in range(18, 45)]
    assert bench.sender.epoch == 1


def test_epochs_run_out_into_a_new_producer_id() -> None:
    bench = SenderBench()
    bench.sender.adopt(7, 32_766)
    bench.append(b"one")
    bench.pump()
    bench.answer(ErrorCode.UNKNOWN_PRODUCER_ID)
    assert bench.sender.needs_producer_id
    bench.pump()
    assert not bench.wire
    bench.sender.adopt(8, 0)
    bench.settle()
    assert bench.leaders[TP].values == [b"one"]
    assert bench.leaders[TP].epochs == {8: 0}


def test_sequences_wrap_around() -> None:
    bench = SenderBench()
    bench.append(b"x")
    bench.settle()
    queue = bench.accumulator.queue(TP)
    queue.next_sequence = 2**31 - 3
    bench.leaders[TP].recent[7].append((2**31 - 4, 2**31 - 4, 0))
    for i in range(20):
        bench.append(b"%06d" % i)
    bench.settle()
    assert len(bench.acked) == 21
    assert queue.next_sequence == 17
