"""The core of the producer's sender: when a batch leaves, and what a request has."""

from __future__ import annotations

from barnabas.client.errors import (
    RequestTimedOut,
    TransactionFailed,
)
from barnabas.client.producer.core.batching import BATCH_OVERHEAD, record_size_max
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.client.producer.core.transactions import Transactions
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import ProduceResponse
from barnabas.protocol.messages.transactions import EndTxnResponse, InitProducerIdResponse
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, read_header
from tests.support.bench.sender import TP, SenderBench
from tests.support.rng import SeededRng


def test_linger_waits_for_company_a_full_batch_and_a_flush_do_not() -> None:
    bench = SenderBench()
    bench.append(b"known")
    bench.settle()
    bench.accumulator.linger_ms = 50
    bench.append(b"lonely")
    bench.pump()
    assert not bench.wire
    assert bench.sender.wake_at() == 1_050
    bench.now = 1_050
    bench.pump()
    assert len(bench.wire) == 1
    bench.append(b"flushed")
    bench.sender.flushing = 1
    bench.pump()
    assert len(bench.wire) == 2
    bench.sender.flushing = 0
    for i in range(10):
        bench.append(b"%06d" % i)  # nine fill a batch, so that one leaves and the tenth lingers
    bench.pump()
    assert len(bench.wire) == 3


def test_no_leader_no_request_but_fresh_metadata_is_wanted() -> None:
    bench = SenderBench()
    bench.where.clear()
    bench.append(b"x")
    bench.pump()
    assert not bench.wire
    assert bench.sender.metadata_wanted
    bench.where[TP] = 2
    bench.pump()
    assert bench.wire[0].node_id == 2


def test_requests_stay_below_the_size_limit_and_no_partition_starves() -> None:
    bench = SenderBench(partitions=10, max_request_size=1_000)
    for i in range(10):
        for k in range(8):
            bench.append(b"%06d" % k, i)
    bench.pump()
    for dispatch in bench.wire:
        assert sum(b.size_bytes for b in dispatch.batches.values()) <= 1_000
    bench.settle()
    assert all(len(leader.values) == 8 for leader in bench.leaders.values())


def test_an_unanswered_partition_is_sent_again() -> None:
    bench = SenderBench()
    bench.append(b"x")
    bench.pump()
    bench.execute(bench.wire[0])
    bench.sender.on_answer(bench.wire.popleft(), ProduceResponse(), bench.now)
    bench.settle()
    assert bench.leaders[TP].values == [b"x"]
    assert bench.acked == {(0, b"x"): 0}


def test_without_acks_the_outcome_has_no_offset() -> None:
    bench = SenderBench(enable_idempotence=False, acks=0)
    bench.append(b"x")
    bench.pump()
    bench.sender.on_answer(bench.wire.popleft(), None, bench.now)
    bench.collect()
    assert bench.acked == {(0, b"x"): -1}


def test_a_timeout_tells_whether_it_may_have_been_written() -> None:
    bench = SenderBench()
    bench.accumulator.delivery_timeout_ms = 500
    bench.where.clear()
    bench.append(b"never sent")
    bench.now += 500
    bench.pump()
    assert "it was not written" in str(bench.failed[0, b"never sent"])
    bench.where[TP] = 1
    bench.append(b"sent")
    bench.pump()
    bench.sender.on_failure(bench.wire.popleft(), RequestTimedOut("no answer"), bench.now)
    bench.now += 500
    bench.pump()
    assert "may or may not have been written" in str(bench.failed[0, b"sent"])


def transactional_world(version: int) -> SenderBench:
    bench = SenderBench()
    bench.leaders[TP].insists_on_zero = version == 2
    bench.accumulator.transactional = True
    txn = bench.sender.transactions = Transactions("id", SeededRng())
    txn.initialize()
    request = txn.next_request(0, drained=True)
    assert request is not None
    txn.on_answer(request, InitProducerIdResponse(producer_id=7, producer_epoch=0), 0)
    txn.begin(version)
    return bench


def test_under_tv1_nothing_leaves_before_the_partition_was_added() -> None:
    bench = transactional_world(1)
    txn = bench.sender.transactions
    txn.add_partition(TP)
    bench.append(b"x")
    bench.pump()
    assert not bench.wire
    txn._added[TP] = None
    bench.pump()
    assert bench.wire[0].version_max == 11
    batch = next(iter(bench.wire[0].batches.values()))
    assert read_header(batch.encoded or b"").is_transactional


def test_under_tv2_the_produce_request_adds_it() -> None:
    bench = transactional_world(2)
    bench.sender.transactions.add_partition(TP)
    bench.append(b"x")
    bench.pump()
    assert bench.wire[0].version_max == 12  # 13 where the topic's id is known
    assert bench.wire[0].request.transactional_id == "id"


def test_a_failed_batch_makes_the_transaction_abortable_and_an_abort_drops_the_rest() -> None:
    bench = transactional_world(2)
    txn = bench.sender.transactions
    txn.add_partition(TP)
    for i in range(100):
        bench.append(b"%06d" % i)
    bench.pump()
    bench.answer(ErrorCode.INVALID_RECORD)
    assert txn.state is TransactionPhase.ABORTABLE_ERROR
    assert txn.error is not None
    assert txn.error.code is ErrorCode.INVALID_RECORD
    txn.abort()
    while bench.wire:
        bench.sender.abandon(TransactionFailed("aborted"))
        bench.answer()
    bench.sender.abandon(TransactionFailed("aborted"))
    bench.collect()
    assert len(bench.failed) == 100
    assert not bench.accumulator.incomplete
    request = txn.next_request(0, drained=True)
    assert request is not None
    txn.on_answer(request, EndTxnResponse(producer_id=7, producer_epoch=1), 0)
    assert (txn.state, txn.producer_epoch, txn.needs_new_epoch) == (TransactionPhase.READY, 1, False)
    bench.sender.adopt(txn.producer_id, txn.producer_epoch)
    txn.begin(2)
    txn.add_partition(TP)
    bench.append(b"next")
    bench.settle()
    assert bench.leaders[TP].values == [b"next"]


def test_a_concurrent_transaction_is_waited_for_shortly() -> None:
    bench = transactional_world(2)
    bench.sender.transactions.add_partition(TP)
    bench.append(b"x")
    bench.pump()
    bench.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    bench.pump()
    assert bench.sender.wake_at() == bench.now + 20
    assert bench.sender.transactions.state is TransactionPhase.IN_TRANSACTION


def test_a_size_is_an_upper_bound() -> None:
    headers = [("name", b"value" * 40), ("näme", None)]
    for key, value in ((None, None), (b"k" * 300, b"v" * 20_000), (b"", b"")):
        record = NewRecord(key, value, 2**60, headers)
        encoded = build_batch([NewRecord(None, None, 0), record])
        assert len(encoded) - BATCH_OVERHEAD - 10 <= record_size_max(key, value, headers)


def test_a_flush_waits_for_what_was_there_and_not_for_more() -> None:
    bench = SenderBench()
    bench.append(b"one")
    serial = bench.accumulator.last_serial
    bench.pump()
    bench.append(b"two")
    assert not bench.accumulator.all_done_up_to(serial)
    bench.answer()
    assert bench.accumulator.all_done_up_to(serial)
    assert bench.accumulator.incomplete
