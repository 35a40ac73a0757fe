"""Verification channel: asks the coordinators on other brokers about partitions that transactions are about to write to (KIP-890).

Driven by: `ask` for Produce and TxnOffsetCommit, answers of brokers, moved leaders of `__transaction_state`, a retry timer.
Emits: one AddPartitionsToTxn request a coordinator's broker and wake-up, and one call of `done` a question.

The rules are the coordinator's (`shard.py`); here is only how one reaches it. Requests are pipelined: a durable
addition takes a replicated append, and other transactions must not wait for it. A coordinator that cannot add yet, because the
transaction before is being completed, holds the request for a while (`holding.py`); after that it is asked again from here.

Invariants: `done` is called once a question, never within `ask`; a question is in one request at a time, and a transactional id
at most once in a request; who has gone is not asked for again; an answer that leaves a partition out is no consent.
Follows KIP-890; the codes that clients are told are those of Kafka's AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from barnabas.broker.coordinator.transactions.shard import ProducerIdentity
from barnabas.broker.coordinator.transactions.state import TopicPartition
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

__all__ = ["Question", "VerificationChannel", "VerificationGateway"]

PARTITIONS_PER_REQUEST = 10_000  # well below what a decoder takes (DECODED_ELEMENTS_MAX), about 1 MB

Errors = dict[TopicPartition, ErrorCode]


class VerificationGateway(Protocol):
    """Finds transaction coordinators and sends requests to them."""

    def coordinator_of(self, transactional_id: str) -> int:
        """Broker id of the leader of its state partition, -1 without a leader."""
        ...

    def ask(
        self,
        broker_id: int,
        request: AddPartitionsToTxnRequest,
        done: Callable[[AddPartitionsToTxnResponse | BrokerError], None],
    ) -> None:
        """Sends to another broker; calls `done` once, after it has returned."""
        ...

    def monotonic_ms(self) -> int: ...

    def soon(self, callback: Callable[[], None]) -> None: ...

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None: ...


class Question:
    """Partitions of one transaction: are they in it (verify), or shall they be (add)?

    Args:
        done: gets a code for each partition; INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED, which appends do not know.
        is_gone: whether nobody waits for the answer any more.
    """

    __slots__ = ("add", "deadline_ms", "done", "is_gone", "partitions", "producer", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
        done: Callable[[Errors], None],
        is_gone: Callable[[], bool],
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.add = add
        self.done = done
        self.is_gone = is_gone
        self.deadline_ms = 0  # monotonic; until then CONCURRENT_TRANSACTIONS is tried again

    def refuse(self, code: ErrorCode) -> None:
        """The same answer for every partition."""
        self.done(dict.fromkeys(self.partitions, code))


class _Wave:
    """One request on its way."""

    __slots__ = ("broker_id", "names", "questions", "size")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.questions: list[Question] = []
        self.names: set[str] = set()
        self.size = 0

    def takes(self, question: Question) -> bool:
        return not self.questions or (
            self.size + len(question.partitions) <= PARTITIONS_PER_REQUEST
            and question.transactional_id not in self.names
        )

    def put(self, question: Question) -> None:
        self.questions.append(question)
        self.names.add(question.transactional_id)
        self.size += len(question.partitions)


class VerificationChannel:
    """The questions of this node that are on their way.

    Args:
        patience_ms: () → how long an addition is tried again that meets CONCURRENT_TRANSACTIONS.
        backoff_ms: () → the pause before it is.
    """

    def __init__(
        self, gateway: VerificationGateway, patience_ms: Callable[[], int], backoff_ms: Callable[[], int]
    ) -> None:
        self._gateway = gateway
        self._patience_ms = patience_ms
        self._backoff_ms = backoff_ms
        self._due: list[Question] = []
        self._flush_due = False
        self._asked: dict[Question, _Wave] = {}  # in flight

    def __len__(self) -> int:
        """Questions that were asked and not answered."""
        return len(self._asked)

    def ask(self, question: Question) -> None:
        """Asks at the end of the wake-up."""
        question.deadline_ms = self._gateway.monotonic_ms() + self._patience_ms()
        self._put(question)

    def on_leaders_moved(self) -> None:
        """Coordinators may be elsewhere now: what a former one was asked is asked again. Its late answer counts no more."""
        for question, wave in list(self._asked.items()):
            if self._gateway.coordinator_of(question.transactional_id) != wave.broker_id:
                del self._asked[question]
                self._put(question)

    def _put(self, question: Question) -> None:
        self._due.append(question)
        if not self._flush_due:
            self._flush_due = True
            self._gateway.soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        due, self._due = self._due, []
        by_broker: dict[int, list[_Wave]] = {}
        for question in due:
            if question.is_gone():
                continue
            broker_id = self._gateway.coordinator_of(question.transactional_id)
            if broker_id < 0:
                question.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                continue
            waves = by_broker.setdefault(broker_id, [])
            wave = next((wave for wave in waves if wave.takes(question)), None)
            if wave is None:
                wave = _Wave(broker_id)
                waves.append(wave)
            wave.put(question)
        for waves in by_broker.values():
            for wave in waves:
                self._send(wave)

    def _send(self, wave: _Wave) -> None:
        self._asked.update(dict.fromkeys(wave.questions, wave))
        request = AddPartitionsToTxnRequest(transactions=[_transaction(question) for question in wave.questions])
        self._gateway.ask(wave.broker_id, request, partial(self._on_answer, wave))

    def _on_answer(self, wave: _Wave, answer: AddPartitionsToTxnResponse | BrokerError) -> None:
        codes: dict[str, dict[TopicPartition, ErrorCode]] = {}
        for_all: ErrorCode | None = None
        if isinstance(answer, BrokerError):
            for_all = answer.code
        elif answer.error_code:
            for_all = ErrorCode(answer.error_code)
        else:
            codes = {
                result.transactional_id: {
                    (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
                    for topic in result.topic_results
                    for one in topic.results_by_partition
                }
                for result in answer.results_by_transaction
            }
        for question in wave.questions:
            if self._asked.get(question) is not wave:
                continue  # asked elsewhere meanwhile
            del self._asked[question]
            if for_all is not None:
                question.refuse(for_all)
            else:
                self._settle(question, codes.get(question.transactional_id, {}))

    def _settle(self, question: Question, codes: dict[TopicPartition, ErrorCode]) -> None:
        errors = {key: codes.get(key, ErrorCode.NETWORK_EXCEPTION) for key in question.partitions}
        if question.add and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values():
            backoff_ms = self._backoff_ms()
            if self._gateway.monotonic_ms() + backoff_ms <= question.deadline_ms:
                self._gateway.retry_later(backoff_ms, lambda: self._put(question))
                return
        for key, code in errors.items():
            if code is ErrorCode.PRODUCER_FENCED:
                errors[key] = ErrorCode.INVALID_PRODUCER_EPOCH
        question.done(errors)


def _transaction(question: Question) -> AddPartitionsToTxnTransaction:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, partition in question.partitions:
        if topic not in topics:
            topics[topic] = AddPartitionsToTxnTopic(name=topic)
        topics[topic].partitions.append(partition)
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.producer_epoch,
        verify_only=not question.add,
        topics=list(topics.values()),
    )
