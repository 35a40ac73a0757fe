"""Marker channel and producer ids: grouping, retries for ever, moved leaders, deleted topics, superseded coordinators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.coordinator.transactions import markers
from barnabas.broker.coordinator.transactions.markers import MarkerChannel
from barnabas.broker.coordinator.transactions.producer_ids import ProducerIds
from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import PRODUCER_ID_BLOCK_SIZE
from barnabas.protocol.messages.shared import PartitionResult, TopicResult
from barnabas.protocol.messages.transactions import (
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Done = Callable[[WriteTxnMarkersResponse | BrokerError], None]


class Cluster:
    """Leaders by partition, and requests that the test answers by hand."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[str, int], int] = {}
        self.sent: list[tuple[int, WriteTxnMarkersRequest, Done]] = []
        self.due: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.written: list[str] = []
        self.channel = MarkerChannel(self, lambda partition, prepared: self.written.append(prepared.transactional_id))

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.leaders.get((topic, partition))

    def send(self, broker_id: int, request: WriteTxnMarkersRequest, done: Done) -> None:
        self.sent.append((broker_id, request, done))

    def soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        assert delay_ms > 0
        self.later.append(callback)

    def wake(self) -> None:
        while self.due:
            self.due.pop(0)()

    def pass_time(self) -> None:
        later, self.later = self.later, []
        for callback in later:
            callback()
        self.wake()

    def prepare(self, name: str, producer_id: int, *partitions: tuple[str, int], commit: bool = True) -> None:
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        prepared = TransactionMetadata(
            name,
            producer_id,
            producer_epoch=4,
            state=state,
            partitions=frozenset(partitions),
            client_transaction_version=2,
        )
        self.channel.add(3, 9, prepared)

    def answer(self, number: int = 0, **codes: ErrorCode) -> None:
        """Answers one request: NONE, or for topics named another code."""
        _, request, done = self.sent.pop(number)
        done(
            WriteTxnMarkersResponse(
                markers=[
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=[
                            TopicResult(
                                name=topic.name,
                                partitions=[
                                    PartitionResult(
                                        partition_index=index, error_code=codes.get(topic.name, ErrorCode.NONE)
                                    )
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in marker.topics
                        ],
                    )
                    for marker in request.markers
                ]
            )
        )

    def asked(self) -> list[tuple[int, list[tuple[int, str, list[int]]]]]:
        return [
            (
                broker_id,
                [(m.producer_id, topic.name, topic.partition_indexes) for m in request.markers for topic in m.topics],
            )
            for broker_id, request, _ in self.sent
        ]


def cluster() -> Cluster:
    made = Cluster()
    made.leaders = {("a", 0): 1, ("a", 1): 1, ("b", 0): 2, ("c", 0): -1}
    return made


def test_one_request_a_broker_and_wake_up() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 1), ("a", 0), ("b", 0))
    them.prepare("y", 11, ("a", 0), commit=False)
    them.wake()
    assert them.asked() == [(1, [(10, "a", [0, 1]), (11, "a", [0])]), (2, [(10, "b", [0])])]
    first, second = them.sent[0][1].markers
    assert (first.transaction_result, first.producer_epoch, first.coordinator_epoch, first.transaction_version) == (
        True,
        4,
        9,
        2,
    )
    assert second.transaction_result is False
    them.answer()
    assert them.written == ["y"]
    them.answer()
    assert them.written == ["y", "x"]
    assert len(them.channel) == 0


def test_a_transaction_without_partitions_is_written_at_once() -> None:
    them = cluster()
    them.prepare("x", 10)
    assert them.written == []  # not within the settling of its record
    them.wake()
    assert them.written == ["x"]
    assert them.sent == []


def test_only_what_failed_is_asked_again_and_the_leader_is_followed() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 0), ("b", 0), ("c", 0))
    them.wake()
    them.answer()
    them.answer(b=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(50):  # for as long as it takes
        them.pass_time()
        assert them.asked() == [(2, [(10, "b", [0])])]
        them.answer(b=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    them.leaders |= {("b", 0): 3, ("c", 0): 3}
    them.pass_time()
    ((broker_id, markers),) = them.asked()
    assert (broker_id, sorted(markers)) == (3, [(10, "b", [0]), (10, "c", [0])])
    assert them.written == []
    while them.sent:
        them.answer()
    assert them.written == ["x"]


def test_a_broker_that_cannot_be_reached_is_asked_again() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 0))
    them.wake()
    them.sent.pop()[2](BrokerError(ErrorCode.BROKER_NOT_AVAILABLE))
    them.pass_time()
    # An answer that leaves a partition out says nothing about it.
    them.sent.pop()[2](WriteTxnMarkersResponse())
    them.pass_time()
    them.answer()
    assert them.written == ["x"]


def test_a_partition_that_moves_meanwhile_is_asked_for_at_its_new_leader_at_once() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 0), ("a", 1), ("c", 0))
    them.wake()
    assert them.asked() == [(1, [(10, "a", [0, 1])])]
    them.leaders |= {("a", 1): 2, ("c", 0): 3}
    them.channel.on_leaders_moved()
    them.wake()
    assert sorted(them.asked()) == [(1, [(10, "a", [0, 1])]), (2, [(10, "a", [1])]), (3, [(10, "c", [0])])]
    # Broker 1 never led all of it to an end: what it says of the moved partition counts no more.
    them.answer(0)
    assert them.written == []
    them.answer(0)
    assert them.written == []
    them.answer(0)
    assert (them.written, len(them.channel)) == (["x"], 0)
    them.pass_time()
    assert (them.written, them.sent) == (["x"], [])


def test_a_late_refusal_of_a_former_leader_changes_nothing() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 0))
    them.wake()
    them.leaders["a", 0] = 2
    them.channel.on_leaders_moved()
    them.wake()
    them.answer(0, a=ErrorCode.INVALID_PRODUCER_EPOCH)
    them.answer(0)
    assert (them.written, len(them.channel)) == (["x"], 0)


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "PARTITIONS_PER_REQUEST", 3)
    them = cluster()
    for number in range(4):
        them.prepare(f"x{number}", number, ("a", 0), ("a", 1))
    them.prepare("y", 9, ("a", 0))
    them.wake()
    assert [sum(len(indexes) for _, _, indexes in asked) for _, asked in them.asked()] == [2, 2, 2, 3]
    while them.sent:
        them.answer()
    assert len(them.channel) == 0


def test_a_deleted_topic_needs_no_marker() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 0), ("gone", 0))
    them.prepare("y", 11, ("gone", 5))
    them.wake()
    assert them.written == ["y"]
    them.leaders.clear()  # a is deleted while its marker is on the way
    them.answer(a=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert them.written == ["y"]
    them.pass_time()
    assert them.written == ["y", "x"]


def test_a_newer_coordinator_takes_over() -> None:
    for code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        them = cluster()
        them.prepare("x", 10, ("a", 0), ("b", 0))
        them.wake()
        them.answer(a=code)
        them.answer(b=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        them.pass_time()
        assert (them.written, len(them.channel), them.sent) == ([], 0, [])


def test_a_resigned_partition_delivers_no_more() -> None:
    them = cluster()
    them.prepare("x", 10, ("a", 0), ("c", 0))
    them.wake()
    them.channel.drop(2)
    assert len(them.channel) == 1
    them.channel.drop(3)
    them.answer()
    them.pass_time()
    assert (them.written, len(them.channel), them.sent) == ([], 0, [])
    them.prepare("x", 10, ("a", 0))  # elected again
    them.wake()
    them.answer()
    assert them.written == ["x"]


class Controller:
    def __init__(self) -> None:
        self.asked: list[Callable[[int | BrokerError], None]] = []
        self.ids = ProducerIds(self.asked.append)


def test_ids_come_from_blocks_and_never_twice() -> None:
    controller = Controller()
    ids = controller.ids
    taken: list[int] = []

    def take(error: BrokerError | None) -> None:
        assert error is None
        taken.append(ids.take())

    for _ in range(PRODUCER_ID_BLOCK_SIZE + 2):
        ids.when_available(take)
    assert len(controller.asked) == 1
    controller.asked.pop()(5000)
    assert len(taken) == PRODUCER_ID_BLOCK_SIZE
    assert len(controller.asked) == 1
    controller.asked.pop()(9000)
    assert taken == [*range(5000, 5000 + PRODUCER_ID_BLOCK_SIZE), 9000, 9001]
    ids.when_available(take)
    assert taken[-1] == 9002
    assert controller.asked == []


def test_ids_that_are_too_low_are_given_out_only_if_the_controller_refuses_a_block() -> None:
    controller = Controller()
    ids = controller.ids
    taken: list[int] = []

    def take(error: BrokerError | None) -> None:
        assert error is None
        taken.append(ids.take())

    ids.when_available(take)
    controller.asked.pop()(5000)
    ids.when_available(take, lowest=5000)
    ids.when_available(take, lowest=7000)
    controller.asked.pop()(BrokerError(ErrorCode.REQUEST_TIMED_OUT))
    assert taken == [5000, 5001, 5002]
    ids.when_available(take, lowest=7000)
    assert taken == [5000, 5001, 5002]
    controller.asked.pop()(9000)
    ids.when_available(take, lowest=7000)
    assert taken == [5000, 5001, 5002, 9000, 9001]


def test_the_next_block_is_there_before_the_present_one_is_used_up() -> None:
    controller = Controller()
    ids = controller.ids
    ids.when_available(lambda _error: None)
    controller.asked.pop()(5000)
    taken = []
    while not controller.asked:
        taken.append(ids.take())
    assert PRODUCER_ID_BLOCK_SIZE * 8 // 10 < len(taken) < PRODUCER_ID_BLOCK_SIZE
    controller.asked.pop()(BrokerError(ErrorCode.NOT_CONTROLLER))  # nobody waits; the next one who takes asks again
    taken.append(ids.take())
    controller.asked.pop()(9000)
    while len(taken) < PRODUCER_ID_BLOCK_SIZE + 1:
        seen: list[BrokerError | None] = []
        ids.when_available(seen.append)
        assert seen == [None]
        taken.append(ids.take())
    assert taken == [*range(5000, 5000 + PRODUCER_ID_BLOCK_SIZE), 9000]
    assert controller.asked == []


def test_an_id_that_was_not_taken_is_left() -> None:
    controller = Controller()
    seen: list[BrokerError | None] = []
    controller.ids.when_available(seen.append)
    controller.asked.pop()(0)
    controller.ids.when_available(lambda error: seen.append(error))
    assert seen == [None, None]
    assert controller.ids.take() == 0


def test_a_refused_block_refuses_who_waits_and_the_next_one_asks_again() -> None:
    controller = Controller()
    seen: list[BrokerError | None] = []
    controller.ids.when_available(seen.append)
    controller.asked.pop()(BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED))
    assert [error.code for error in seen if error] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    controller.ids.when_available(seen.append)
    controller.asked.pop()(0)
    assert seen[-1] is None
