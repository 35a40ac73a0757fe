"""Verification channel: batching, retries, moved coordinators, late answers, questions that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.coordinator.transactions import verification
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch
from barnabas.broker.coordinator.transactions.verification import Question, VerificationChannel
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

Done = Callable[[AddPartitionsToTxnResponse | BrokerError], None]
Errors = dict[tuple[str, int], ErrorCode]

PATIENCE_MS, BACKOFF_MS = 100, 20
NONE, BUSY = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS


class Cluster:
    """Coordinators by transactional id, and requests that the test answers by hand."""

    def __init__(self) -> None:
        self.coordinators = {"x": 2, "y": 2, "z": 3}
        self.sent: list[tuple[int, AddPartitionsToTxnRequest, Done]] = []
        self.due: list[Callable[[], None]] = []
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.now_ms = 1_000
        self.outcomes: dict[str, Errors] = {}
        self.gone: set[str] = set()
        self.channel = VerificationChannel(self, lambda: PATIENCE_MS, lambda: BACKOFF_MS)

    def coordinator_of(self, transactional_id: str) -> int:
        return self.coordinators.get(transactional_id, -1)

    def ask(self, broker_id: int, request: AddPartitionsToTxnRequest, done: Done) -> None:
        self.sent.append((broker_id, request, done))

    def monotonic_ms(self) -> int:
        return self.now_ms

    def soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self.later.append((self.now_ms + delay_ms, callback))

    # -- what a test does

    def wake(self) -> None:
        while self.due:
            self.due.pop(0)()

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        ready = [callback for at_ms, callback in self.later if at_ms <= self.now_ms]
        self.later = [entry for entry in self.later if entry[0] > self.now_ms]
        for callback in ready:
            callback()
        self.wake()

    def question(self, name: str, *partitions: tuple[str, int], add: bool = True, called: str = "") -> None:
        called = called or name

        def done(errors: Errors) -> None:
            assert called not in self.outcomes, "answered twice"
            self.outcomes[called] = errors

        self.channel.ask(
            Question(
                name,
                ProducerIdAndEpoch(7, 3),
                partitions,
                add=add,
                done=done,
                is_gone=lambda: called in self.gone,
            )
        )

    def asked(self) -> list[tuple[int, list[tuple[str, bool, list[tuple[str, list[int]]]]]]]:
        return [
            (
                broker_id,
                [
                    (one.transactional_id, one.verify_only, [(topic.name, topic.partitions) for topic in one.topics])
                    for one in request.transactions
                ],
            )
            for broker_id, request, _ in self.sent
        ]

    def answer(self, number: int = 0, *, leave_out: str = "", **codes: ErrorCode) -> None:
        """Answers one request: NONE, or for transactional ids named another code."""
        _, request, done = self.sent.pop(number)
        done(
            AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(
                        transactional_id=one.transactional_id,
                        topic_results=[
                            AddPartitionsToTxnTopicResult(
                                name=topic.name,
                                results_by_partition=[
                                    AddPartitionsToTxnPartitionResult(
                                        partition_index=index,
                                        partition_error_code=codes.get(one.transactional_id, NONE),
                                    )
                                    for index in topic.partitions
                                ],
                            )
                            for topic in one.topics
                        ],
                    )
                    for one in request.transactions
                    if one.transactional_id != leave_out
                ]
            )
        )


def test_one_request_a_broker_and_wake_up() -> None:
    them = Cluster()
    them.question("x", ("a", 0), ("b", 1), ("a", 2))
    them.question("z", ("a", 0))
    them.question("y", ("a", 0), add=False)
    assert not them.sent
    them.wake()
    assert them.asked() == [
        (2, [("x", False, [("a", [0, 2]), ("b", [1])]), ("y", True, [("a", [0])])]),
        (3, [("z", False, [("a", [0])])]),
    ]
    (one, _) = them.sent[0][1].transactions
    assert (one.producer_id, one.producer_epoch) == (7, 3)
    them.answer(y=ErrorCode.TRANSACTION_ABORTABLE)
    assert them.outcomes == {
        "x": {("a", 0): NONE, ("b", 1): NONE, ("a", 2): NONE},
        "y": {("a", 0): ErrorCode.TRANSACTION_ABORTABLE},
    }
    assert len(them.channel) == 1
    them.answer()
    assert them.outcomes["z"] == {("a", 0): NONE}
    assert len(them.channel) == 0


def test_requests_are_pipelined_and_answered_in_any_order() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.wake()
    them.question("y", ("a", 0))
    them.wake()
    assert len(them.sent) == 2
    them.answer(1)
    assert list(them.outcomes) == ["y"]
    them.answer(0)
    assert list(them.outcomes) == ["y", "x"]


def test_a_transactional_id_is_in_a_request_once() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.question("x", ("__consumer_offsets", 4), called="x offsets")
    them.question("y", ("a", 0))
    them.wake()
    assert [[name for name, _, _ in transactions] for _, transactions in them.asked()] == [["x", "y"], ["x"]]
    them.answer(1, x=BUSY)
    them.answer(0)
    assert them.outcomes["x"] == {("a", 0): NONE}
    assert "x offsets" not in them.outcomes


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PARTITIONS_PER_REQUEST", 3)
    them = Cluster()
    them.question("x", ("a", 0), ("a", 1))
    them.question("y", ("a", 0), ("a", 1))
    them.question("x", ("b", 0), called="more")
    them.wake()
    assert [[name for name, _, _ in transactions] for _, transactions in them.asked()] == [["x"], ["y", "x"]]


def test_an_addition_that_meets_the_transaction_before_is_tried_again_for_a_while() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.wake()
    for _ in range(PATIENCE_MS // BACKOFF_MS):
        them.answer(x=BUSY)
        assert (them.sent, them.outcomes) == ([], {})
        them.pass_ms(BACKOFF_MS)
    them.answer(x=BUSY)
    assert them.outcomes == {"x": {("a", 0): BUSY}}


def test_a_verification_is_not_tried_again() -> None:
    them = Cluster()
    them.question("x", ("a", 0), add=False)
    them.wake()
    them.answer(x=BUSY)
    assert them.outcomes == {"x": {("a", 0): BUSY}}


def test_who_has_gone_is_not_asked_for() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.question("y", ("a", 0))
    them.gone.add("x")
    them.wake()
    assert them.asked() == [(2, [("y", False, [("a", [0])])])]
    them.answer(y=BUSY)
    them.gone.add("y")
    them.pass_ms(BACKOFF_MS)
    assert (them.sent, them.outcomes, len(them.channel)) == ([], {}, 0)


def test_refusals_reach_every_partition() -> None:
    them = Cluster()
    them.question("nowhere", ("a", 0))
    them.question("x", ("a", 0), ("b", 0))
    them.question("z", ("a", 0))
    them.wake()
    assert them.outcomes.pop("nowhere") == {("a", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    them.sent.pop(0)[2](BrokerError(ErrorCode.NETWORK_EXCEPTION))
    them.sent.pop(0)[2](AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert them.outcomes == {
        "x": dict.fromkeys((("a", 0), ("b", 0)), ErrorCode.NETWORK_EXCEPTION),
        "z": {("a", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED},
    }


def test_appends_do_not_know_producer_fenced() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.wake()
    them.answer(x=ErrorCode.PRODUCER_FENCED)
    assert them.outcomes == {"x": {("a", 0): ErrorCode.INVALID_PRODUCER_EPOCH}}


def test_an_answer_that_leaves_something_out_is_no_consent() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.wake()
    them.answer(leave_out="x")
    assert them.outcomes == {"x": {("a", 0): ErrorCode.NETWORK_EXCEPTION}}


def test_a_moved_coordinator_is_asked_anew_and_the_old_one_not_heard() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.question("y", ("a", 0))
    them.wake()
    them.coordinators["x"] = 3
    them.channel.on_leaders_moved()
    them.wake()
    assert them.asked()[1:] == [(3, [("x", False, [("a", [0])])])]
    them.answer(0, x=ErrorCode.NOT_COORDINATOR)
    assert list(them.outcomes) == ["y"]
    # Back at the first broker before the second has answered: what that one said before still does not count.
    them.coordinators["x"] = 2
    them.channel.on_leaders_moved()
    them.wake()
    them.answer(0, x=ErrorCode.INVALID_PRODUCER_EPOCH)
    them.answer(0)
    assert them.outcomes["x"] == {("a", 0): NONE}


def test_a_coordinator_without_leader_is_not_waited_for() -> None:
    them = Cluster()
    them.question("x", ("a", 0))
    them.wake()
    them.coordinators["x"] = -1
    them.channel.on_leaders_moved()
    them.wake()
    assert them.outcomes == {"x": {("a", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}}
    them.answer()
    assert len(them.outcomes) == 1
