"""The sender against a model of a partition leader: faults drawn from seeds, and each rule of order by itself.

The model keeps what Kafka's leader keeps for a producer: its epoch and the sequences of its last five batches.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.client.errors import (
    BrokerUnreachable,
    DeliveryTimedOut,
    KafkaError,
    RecordTooLarge,
    RequestTimedOut,
    TransactionFailed,
)
from barnabas.client.producer.batching import BATCH_OVERHEAD, Accumulator, record_size_max
from barnabas.client.producer.dispatch import Dispatch, SenderConfig
from barnabas.client.producer.sender import Sender
from barnabas.client.producer.transaction_state import TransactionPhase
from barnabas.client.producer.transactions import Transactions
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from barnabas.protocol.messages.transactions import EndTxnResponse, InitProducerIdResponse
from barnabas.protocol.records import NewRecord, build_batch, crc_ok, decode_records, encode_records, read_header
from barnabas.protocol.schema import decode, encode
from tests.support.rng import SeededRng

TP = TopicPartition("t", 0)


class Leader:
    """One partition as its leader has it."""

    def __init__(self, size_bytes_max: int = 1 << 20) -> None:
        self.insists_on_zero = False  # of a producer that it does not know, as under TV2 (KIP-890)
        self.values: list[bytes] = []
        self.size_bytes_max = size_bytes_max
        self.epochs: dict[int, int] = {}
        self.recent: dict[int, deque[tuple[int, int, int]]] = {}  # producer id → (first, last sequence, offset)

    def restart(self) -> None:
        """What its snapshot holds of a producer is the last batch."""
        for recent in self.recent.values():
            while len(recent) > 1:
                recent.popleft()

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        assert crc_ok(batch, 0, header)
        assert header.size_bytes == len(batch)
        if len(batch) > self.size_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        records = decode_records(batch)
        offset = len(self.values)
        producer_id = header.producer_id
        if producer_id >= 0:
            epoch = self.epochs.get(producer_id, -1)
            recent = self.recent.setdefault(producer_id, deque(maxlen=5))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if header.base_sequence != 0 and (epoch >= 0 or self.insists_on_zero):
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                recent.clear()
            else:
                for first, last, at in recent:
                    if (first, last) == (header.base_sequence, header.last_sequence):
                        return ErrorCode.NONE, at
                if recent and header.base_sequence != (recent[-1][1] + 1) & 0x7FFFFFFF:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.epochs[producer_id] = header.producer_epoch
            recent.append((header.base_sequence, header.last_sequence, offset))
        self.values += [r.value for r in records]
        return ErrorCode.NONE, offset


class SenderBench:
    """A sender, its leaders, and a wire of Produce requests that were sent and not answered yet."""

    def __init__(self, *, partitions: int = 1, size_bytes_max: int = 1 << 20, **config: object) -> None:
        self.now = 1_000
        self.accumulator = Accumulator(batch_size=400, linger_ms=0, delivery_timeout_ms=120_000)
        self.txn = Transactions(None, SeededRng())
        self.sender = Sender(
            SenderConfig(**config),  # type: ignore[arg-type]
            self.accumulator,
            self.txn,
            SeededRng(),
        )
        self.sender.adopt(7, 0)
        self.leaders = {TopicPartition("t", p): Leader(size_bytes_max) for p in range(partitions)}
        self.where = dict.fromkeys(self.leaders, 1)
        self.wire: deque[Dispatch] = deque()
        self.acked: dict[Any, int] = {}
        self.failed: dict[object, KafkaError] = {}
        self.packed: dict[object, Sequence[object]] = {}  # the handle of a batch encoded by the caller → its records

    def append(self, value: bytes, partition: int = 0) -> None:
        record = NewRecord(None, value, self.now)
        queue = self.accumulator.queue(TopicPartition("t", partition))
        self.accumulator.append(queue, record, record_size_max(None, value, ()), (partition, value), lambda: self.now)

    def append_packed(self, values: list[bytes], partition: int = 0) -> None:
        packed = encode_records([NewRecord(None, value, self.now) for value in values])
        handle = (partition, values[0])
        self.packed[handle] = [(partition, value) for value in values]
        queue = self.accumulator.queue(TopicPartition("t", partition))
        self.accumulator.append_packed(queue, packed, handle, self.now)

    def pump(self) -> None:
        self.sender.expire(self.now)
        self.wire += self.sender.drain(self.now, self.where, lambda _: True)
        self.collect()

    def collect(self) -> None:
        for batch, base_offset, _, error in self.sender.outcomes:
            handles: Sequence[object] = batch.handles
            if batch.packed is not None:
                (whole,) = batch.handles
                handles = self.packed[whole]
            for i, handle in enumerate(handles):
                assert handle not in self.acked, "a record has two outcomes"
                assert handle not in self.failed, "a record has two outcomes"
                if error is None:
                    self.acked[handle] = base_offset + i if base_offset >= 0 else -1
                else:
                    self.failed[handle] = error
        self.sender.outcomes.clear()

    def execute(self, dispatch: Dispatch, refusal: ErrorCode | None = None) -> ProduceResponse:
        """What the broker does with a request; as bytes there and back, as a broker would see it."""
        request = decode(type(dispatch.request), encode(dispatch.request, 12), 12)
        responses = []
        for topic in request.topic_data:
            results = []
            for data in topic.partition_data:
                assert data.records is not None
                if refusal is None:
                    code, offset = self.leaders[TopicPartition(topic.name, data.index)].append(bytes(data.records))
                else:
                    code, offset = refusal, -1
                results.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=responses)

    def answer(self, refusal: ErrorCode | None = None) -> None:
        """The oldest request is executed (or refused) and answered."""
        dispatch = self.wire.popleft()
        self.sender.on_answer(dispatch, self.execute(dispatch, refusal), self.now)
        self.collect()

    def break_connection(self, executed: int) -> None:
        """The connection is lost after the broker executed some of the requests on it, in their order."""
        for i, dispatch in enumerate(list(self.wire)):
            if i < executed:
                self.execute(dispatch)
            self.sender.on_failure(dispatch, BrokerUnreachable("lost"), self.now)
        self.wire.clear()
        self.collect()

    def settle(self) -> None:
        """No more faults: until nothing is left to send."""
        for _ in range(10_000):
            self.pump()
            if self.wire:
                self.answer()
            elif not self.accumulator.incomplete:
                return
            else:
                at = self.sender.wake_at()
                assert at is not None, "records wait and nothing would wake the sender"
                self.now = max(self.now + 1, at)
        raise AssertionError("does not settle")


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
    bench = SenderBench(idempotent=False)
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
    bench = SenderBench(idempotent=False, acks=0)
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


# -- in transactions ---------------------------------------------------------------------------------------------------


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


# -- the accumulator ---------------------------------------------------------------------------------------------------


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
