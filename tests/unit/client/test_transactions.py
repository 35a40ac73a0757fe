"""The transaction machine: its table, the requests of a transaction under TV1 and TV2, and what every refusal leads to."""

from __future__ import annotations

import pytest

from barnabas.client.errors import (
    BrokerUnreachable,
    IllegalState,
    ProducerFailed,
    ProducerFenced,
    RecordTooLarge,
    TransactionFailed,
    UnsupportedByBroker,
)
from barnabas.client.producer.core.transaction_state import VALID_PREVIOUS, Outgoing, Step, TransactionPhase
from barnabas.client.producer.core.transactions import Transactions
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.shared import PartitionResult, TopicResult
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.support.rng import SeededRng
from tests.support.transitions import follows_the_table

TP = TopicPartition("t", 0)
GROUP = ConsumerGroupMetadata("g", 3, "member", "instance")
S = TransactionPhase


def ready(version: int = 2, *, begun: bool = True) -> Transactions:
    txn = Transactions("id", SeededRng())
    txn.initialize()
    ask(txn, InitProducerIdResponse(producer_id=9, producer_epoch=4))
    if begun:
        txn.begin(version)
    return txn


def ask(txn: Transactions, response: object | None = None, *, now: int = 0, drained: bool = True) -> Outgoing:
    """The next request, answered with `response` where one is given."""
    request = txn.next_request(now, drained=drained)
    assert request is not None
    if response is not None:
        txn.on_answer(request, response, now)
    return request


def added(code: ErrorCode = ErrorCode.NONE, tp: TopicPartition = TP) -> AddPartitionsToTxnResponse:
    result = AddPartitionsToTxnPartitionResult(partition_index=tp.partition, partition_error_code=code)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[AddPartitionsToTxnTopicResult(name=tp.topic, results_by_partition=[result])]
    )


def committed(code: ErrorCode = ErrorCode.NONE) -> TxnOffsetCommitResponse:
    partition = PartitionResult(partition_index=0, error_code=code)
    return TxnOffsetCommitResponse(topics=[TopicResult(name="t", partitions=[partition])])


def test_every_state_can_be_reached_and_only_fatal_cannot_be_left() -> None:
    assert set(VALID_PREVIOUS) == set(S)
    left = {previous for state, allowed in VALID_PREVIOUS.items() if state is not S.FATAL_ERROR for previous in allowed}
    assert left == set(S) - {S.FATAL_ERROR}
    assert all(allowed for state, allowed in VALID_PREVIOUS.items() if state is not S.UNINITIALIZED)


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("previous", list(S))
def test_transitions_follow_the_table(previous: TransactionPhase, state: TransactionPhase) -> None:
    follows_the_table(Transactions("id", SeededRng()), VALID_PREVIOUS, previous, state)


def test_an_idempotent_producer_only_asks_for_an_id() -> None:
    txn = Transactions(None, SeededRng())
    txn.initialize()
    request = ask(txn, InitProducerIdResponse(producer_id=5, producer_epoch=0))
    assert request.message == InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=2**31 - 1, producer_id=-1, producer_epoch=-1
    )
    assert request.coordinator == ""
    assert (txn.state, txn.producer_id) == (S.READY, 5)
    txn.on_batch_failed(RecordTooLarge("x"))
    assert txn.state is S.READY


def test_a_whole_transaction_under_tv1() -> None:
    txn = ready(1)
    txn.add_partition(TP)
    job = txn.add_offsets({TP: OffsetAndMetadata(7, "m", 2)}, GROUP)
    assert not txn.may_send(TP)
    assert ask(txn, added()).step is Step.ADD_PARTITIONS
    assert txn.may_send(TP)
    assert ask(txn, AddOffsetsToTxnResponse()).step is Step.ADD_OFFSETS
    request = ask(txn, committed())
    assert (request.coordinator, request.key, request.version_max) == ("group", "g", 4)
    message = request.message
    assert isinstance(message, TxnOffsetCommitRequest)
    assert (message.generation_id, message.member_id, message.group_instance_id) == (3, "member", "instance")
    assert job.done
    txn.commit()
    assert txn.next_request(0, drained=False) is None, "EndTxn waits for every batch"
    end = ask(txn, EndTxnResponse())
    assert (end.coordinator, end.key, end.version_max) == ("transaction", "id", 4)
    assert end.message == EndTxnRequest(transactional_id="id", producer_id=9, producer_epoch=4, committed=True)
    assert (txn.state, txn.producer_epoch) == (S.READY, 4)


def test_a_whole_transaction_under_tv2() -> None:
    txn = ready(2)
    txn.add_partition(TP)
    assert txn.may_send(TP), "KIP-890: the leader adds it when the batch comes"
    txn.add_offsets({TP: OffsetAndMetadata(7)}, GROUP)
    request = ask(txn, committed())
    assert (request.step, request.version_max) == (Step.COMMIT_OFFSETS, 5)
    txn.commit()
    assert ask(txn, EndTxnResponse(producer_id=9, producer_epoch=5)).version_max == 5
    assert (txn.state, txn.producer_id, txn.producer_epoch) == (S.READY, 9, 5)
    txn.begin(2)
    assert not txn.may_send(TP)
    txn.add_partition(TP)
    txn.abort()
    end = ask(txn, EndTxnResponse(producer_id=10, producer_epoch=0))
    assert end.message == EndTxnRequest(transactional_id="id", producer_id=9, producer_epoch=5, committed=False)
    assert (txn.producer_id, txn.producer_epoch) == (10, 0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commits", [True, False])
def test_what_never_reached_the_cluster_needs_no_end(version: int, commits: bool) -> None:
    txn = ready(version)
    (txn.commit if commits else txn.abort)()
    assert txn.next_request(0, drained=True) is None
    assert txn.state is S.READY


def test_one_request_at_a_time() -> None:
    txn = ready(1)
    txn.add_partition(TP)
    request = ask(txn)
    txn.add_partition(TopicPartition("t", 1))
    assert txn.next_request(0, drained=True) is None
    txn.on_answer(request, added(), 0)
    assert ask(txn).partitions == [TopicPartition("t", 1)]


def test_an_abort_during_an_add_waits_for_its_answer_and_is_told_to_the_coordinator() -> None:
    txn = ready(1)
    txn.add_partition(TP)
    request = ask(txn)
    txn.abort()
    assert txn.next_request(0, drained=True) is None
    txn.on_answer(request, added(), 0)
    assert ask(txn).step is Step.END


def test_an_add_without_answer_may_have_taken_effect() -> None:
    txn = ready(1)
    txn.add_partition(TP)
    txn.on_failure(ask(txn), BrokerUnreachable("lost"), 0)
    txn.abort()
    assert ask(txn, now=1_000).step is Step.END


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_up(code: ErrorCode) -> None:
    txn = ready()
    txn.add_partition(TP)
    txn.commit()
    ask(txn, EndTxnResponse(error_code=code))
    assert txn.lost_coordinator == ("transaction", "id")
    assert txn.next_request(10, drained=True) is None
    assert 16 <= (txn.wake_at() or 0) <= 24
    assert ask(txn, EndTxnResponse(producer_id=9, producer_epoch=5), now=100).step is Step.END
    assert txn.state is S.READY


def test_a_refusal_after_a_long_outage_is_answered_to_soon() -> None:
    """The coordinator can be reached again; where it has moved to is known in a moment."""
    txn = ready()
    txn.add_partition(TP)
    txn.commit()
    for now in range(0, 4_000, 1_000):
        txn.on_failure(ask(txn, now=now), BrokerUnreachable("lost"), now)
    assert (txn.wake_at() or 0) - 3_000 > 500
    ask(txn, EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR), now=4_000)
    assert 16 <= (txn.wake_at() or 0) - 4_000 <= 24


def test_a_concurrent_transaction_is_waited_for_shortly() -> None:
    txn = ready(1)
    txn.add_partition(TP)
    ask(txn, added(ErrorCode.CONCURRENT_TRANSACTIONS))
    assert txn.wake_at() == 20
    assert txn.lost_coordinator is None
    ask(txn, added(), now=20)
    assert txn.may_send(TP)


def test_a_coordinator_that_goes_on_loading_is_asked_less_and_less_often() -> None:
    txn = ready()
    txn.add_partition(TP)
    txn.commit()
    now, asked = 0, []
    while now < 20_000:
        asked.append(now)
        ask(txn, EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), now=now)
        now = txn.wake_at() or 0
    assert asked[1] < 30
    assert 700 < asked[-1] - asked[-2] < 1_300


def test_a_lost_connection_repeats_the_request() -> None:
    txn = ready()
    txn.add_partition(TP)
    txn.commit()
    first = ask(txn)
    txn.on_failure(first, BrokerUnreachable("lost"), 0)
    assert txn.state is S.COMMITTING
    assert ask(txn, now=100).message == first.message


def test_an_abort_that_is_called_fenced_asks_for_the_next_epoch_which_tells_who_is() -> None:
    """Kafka calls the present epoch fenced while the transaction before is being completed."""
    txn = ready()
    txn.add_partition(TP)
    txn.abort()
    ask(txn, EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))
    request = ask(txn, InitProducerIdResponse(producer_id=9, producer_epoch=5)).message
    assert isinstance(request, InitProducerIdRequest)
    assert (request.producer_id, request.producer_epoch) == (9, 4)
    assert (txn.state, txn.producer_epoch) == (S.READY, 5)
    txn.begin(2)
    txn.add_partition(TP)
    txn.abort()
    ask(txn, EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))
    ask(txn, InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED))
    with pytest.raises(ProducerFenced):
        txn.check_usable()


def test_an_abort_of_what_was_not_added_ends_nothing() -> None:
    """V1: the coordinator was still completing the transaction before."""
    txn = ready(1)
    txn.add_partition(TP)
    adding = ask(txn)
    txn.abort()
    txn.on_answer(adding, added(ErrorCode.CONCURRENT_TRANSACTIONS), 0)
    assert txn.next_request(0, drained=True) is None
    assert txn.state is S.READY


def test_a_failure_that_stays_is_fatal() -> None:
    txn = ready()
    txn.add_partition(TP)
    txn.commit()
    txn.on_failure(ask(txn), UnsupportedByBroker("too old"), 0)
    with pytest.raises(ProducerFailed):
        txn.check_usable()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("step", list(Step))
def test_fenced_is_fatal_at_every_step(step: Step, code: ErrorCode) -> None:
    txn = Transactions("id", SeededRng())
    txn.initialize()
    if step is Step.INIT_PRODUCER_ID:
        ask(txn, InitProducerIdResponse(error_code=code))
    else:
        ask(txn, InitProducerIdResponse(producer_id=9))
        txn.begin(2 if step is Step.COMMIT_OFFSETS else 1)
        if step is Step.ADD_PARTITIONS:
            txn.add_partition(TP)
            ask(txn, added(code))
        elif step is Step.ADD_OFFSETS:
            job = txn.add_offsets({TP: OffsetAndMetadata(1)}, GROUP)
            ask(txn, AddOffsetsToTxnResponse(error_code=code))
            assert isinstance(job.error, ProducerFenced)
        elif step is Step.COMMIT_OFFSETS:
            txn.add_offsets({TP: OffsetAndMetadata(1)}, GROUP)
            ask(txn, committed(code))
        else:
            txn.started = True
            txn.commit()
            ask(txn, EndTxnResponse(error_code=code))
    assert txn.state is S.FATAL_ERROR
    for use in (txn.check_usable, txn.check_sendable, txn.commit, txn.abort, lambda: txn.begin(1)):
        with pytest.raises(ProducerFenced):
            use()
    assert txn.next_request(10_000, drained=True) is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
def test_offsets_that_the_group_refuses_make_the_transaction_abortable(code: ErrorCode) -> None:
    txn = ready()
    job = txn.add_offsets({TP: OffsetAndMetadata(1)}, GROUP)
    ask(txn, committed(code))
    assert job.error is not None
    assert job.error.code is code
    assert txn.state is S.ABORTABLE_ERROR
    for use in (txn.commit, txn.check_sendable):
        with pytest.raises(TransactionFailed) as refused:
            use()
        assert refused.value.__cause__ is job.error
    txn.abort()
    ask(txn, EndTxnResponse(producer_id=9, producer_epoch=5))
    assert (txn.state, txn.error) == (S.READY, None)


def test_offsets_wait_for_a_group_that_is_loading() -> None:
    txn = ready()
    job = txn.add_offsets({TP: OffsetAndMetadata(1)}, GROUP)
    ask(txn, committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert not job.done
    assert txn.lost_coordinator is None
    ask(txn, committed(ErrorCode.NOT_COORDINATOR), now=100)
    assert txn.lost_coordinator == ("group", "g")
    ask(txn, committed(), now=200)
    assert job.done


def test_no_offsets_are_done_at_once() -> None:
    txn = ready()
    assert txn.add_offsets({}, GROUP).done
    assert txn.next_request(0, drained=True) is None


def test_an_abort_drops_offsets_that_were_not_sent() -> None:
    txn = ready(1)
    job = txn.add_offsets({TP: OffsetAndMetadata(1)}, GROUP)
    txn.abort()
    assert job.error is not None
    assert txn.next_request(0, drained=True) is None
    assert txn.state is S.READY


def test_under_tv1_a_failed_batch_asks_for_a_new_epoch_after_the_abort() -> None:
    """KIP-360: sequences are in doubt, and without TV2 nobody else would raise the epoch."""
    txn = ready(1)
    txn.add_partition(TP)
    ask(txn, added())
    txn.on_batch_failed(RecordTooLarge("x", code=ErrorCode.MESSAGE_TOO_LARGE))
    txn.abort()
    ask(txn, EndTxnResponse())
    assert txn.state is S.INITIALIZING
    request = ask(txn, InitProducerIdResponse(producer_id=9, producer_epoch=5))
    assert request.message == InitProducerIdRequest(
        transactional_id="id", transaction_timeout_ms=60_000, producer_id=9, producer_epoch=4
    )
    assert (txn.state, txn.producer_epoch) == (S.READY, 5)


def test_a_commit_that_turns_out_impossible_is_aborted() -> None:
    txn = ready()
    txn.add_partition(TP)
    txn.commit()
    txn.on_batch_failed(RecordTooLarge("x"))
    assert txn.state is S.ABORTABLE_ERROR
    txn.abort()
    assert ask(txn).message.committed is False  # type: ignore[attr-defined]


def test_misuse_changes_nothing() -> None:
    txn = ready(begun=False)
    for use in (txn.commit, txn.abort, txn.check_sendable):
        with pytest.raises(IllegalState):
            use()
    txn.begin(2)
    with pytest.raises(IllegalState):
        txn.begin(2)
    txn.commit()
    txn.commit()  # asked again while it is under way: the same commit
    assert txn.state is S.COMMITTING
    with pytest.raises(IllegalState):
        txn.abort()


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_resumed_producer_never_asks_for_another_epoch(fails_first: bool) -> None:
    """By InitProducerId it would abort what a later owner of the id has begun."""
    txn = Transactions("id", SeededRng())
    txn.resume(9, 4)
    assert (txn.state, txn.producer_id, txn.producer_epoch) == (S.READY, 9, 4)
    txn.begin(2)
    txn.add_partition(TP)
    if fails_first:
        txn.on_batch_failed(ProducerFenced("x", code=ErrorCode.INVALID_PRODUCER_EPOCH))
    txn.abort()
    request = ask(txn, EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED))
    assert request.message == EndTxnRequest(transactional_id="id", producer_id=9, producer_epoch=4, committed=False)
    assert txn.next_request(0, drained=True) is None
    with pytest.raises(ProducerFenced):
        txn.check_usable()
