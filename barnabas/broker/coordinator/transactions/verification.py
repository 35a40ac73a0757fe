"""Verification channel: asks coordinators on other brokers to verify or add partitions of transactions (KIP-890).
Error codes for clients are those of Kafka's AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from barnabas.broker.api.call import Done
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.storage.checkpoints import TopicPartition

PARTITIONS_PER_REQUEST = 1_000  # the coordinator decides a request in one turn of its loop

Errors = dict[TopicPartition, ErrorCode]


class VerificationGateway(Protocol):
    """Finds transaction coordinators and sends requests to them."""

    def coordinator_of(self, transactional_id: str) -> int:
        """-1 without a coordinator."""
        ...

    def ask(
        self,
        broker_id: int,
        request: AddPartitionsToTxnRequest,
        done: Done[AddPartitionsToTxnResponse],
    ) -> None:
        """Sends to another broker; calls `done` once, after this method has returned."""
        ...

    def monotonic_ms(self) -> int: ...

    def soon(self, callback: Callable[[], None]) -> None: ...

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None: ...


class Question:
    """Partitions to verify, with `add` to add. `done` gets a code for each; INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""

    __slots__ = ("add", "deadline_ms", "done", "is_gone", "partitions", "producer", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
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
        self.deadline_ms = 0  # monotonic; after it CONCURRENT_TRANSACTIONS is not retried

    def refuse(self, code: ErrorCode) -> None:
        """Answers the same code for every partition."""
        self.done(dict.fromkeys(self.partitions, code))


class _Batch:
    """The questions of one request."""

    __slots__ = ("broker_id", "names", "questions", "size")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.questions: list[Question] = []
        self.names: set[str] = set()
        self.size = 0

    def has_room_for(self, question: Question) -> bool:
        return not self.questions or (
            self.size + len(question.partitions) <= PARTITIONS_PER_REQUEST
            and question.transactional_id not in self.names
        )

    def put(self, question: Question) -> None:
        self.questions.append(question)
        self.names.add(question.transactional_id)
        self.size += len(question.partitions)


class VerificationChannel:
    """The questions of a node, pipelined: an addition waits for a replicated append, which must not delay other transactions.

    The coordinator holds an addition while the previous transaction is being completed (`holding.py`); after that this channel retries it
    for `retry_ms()`, with pauses of `backoff_ms()`. Invariants: `done` is called once for each question, never within `ask`; a question is
    in one request at a time; a request has a transactional id at most once; a question is not sent after its connection closed; a partition
    missing in an answer is not verified.
    """

    def __init__(
        self, gateway: VerificationGateway, retry_ms: Callable[[], int], backoff_ms: Callable[[], int]
    ) -> None:
        self._gateway = gateway
        self._retry_ms = retry_ms
        self._backoff_ms = backoff_ms
        self._due: list[Question] = []
        self._flush_due = False
        self._asked: dict[Question, _Batch] = {}  # in flight

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, question: Question) -> None:
        """Sends a question at the end of the turn of the loop."""
        question.deadline_ms = self._gateway.monotonic_ms() + self._retry_ms()
        self._put(question)

    def on_leaders_moved(self) -> None:
        """Sends questions again whose coordinator moved to another broker; ignores answers of the former one."""
        for question, batch in list(self._asked.items()):
            if self._gateway.coordinator_of(question.transactional_id) != batch.broker_id:
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
        by_broker: dict[int, list[_Batch]] = {}
        for question in due:
            if question.is_gone():
                continue
            broker_id = self._gateway.coordinator_of(question.transactional_id)
            if broker_id < 0:
                question.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                continue
            batches = by_broker.setdefault(broker_id, [])
            batch = next((batch for batch in batches if batch.has_room_for(question)), None)
            if batch is None:
                batch = _Batch(broker_id)
                batches.append(batch)
            batch.put(question)
        for batches in by_broker.values():
            for batch in batches:
                self._send(batch)

    def _send(self, batch: _Batch) -> None:
        self._asked.update(dict.fromkeys(batch.questions, batch))
        request = AddPartitionsToTxnRequest(transactions=[_transaction(question) for question in batch.questions])
        self._gateway.ask(batch.broker_id, request, partial(self._on_answer, batch))

    def _on_answer(self, batch: _Batch, answer: AddPartitionsToTxnResponse | BrokerError) -> None:
        codes: dict[str, dict[TopicPartition, ErrorCode]] = {}
        code_of_all: ErrorCode | None = None
        if isinstance(answer, BrokerError):
            code_of_all = answer.code
        elif answer.error_code:
            code_of_all = ErrorCode(answer.error_code)
        else:
            codes = {
                result.transactional_id: {
                    (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
                    for topic in result.topic_results
                    for one in topic.results_by_partition
                }
                for result in answer.results_by_transaction
            }
        for question in batch.questions:
            if self._asked.get(question) is not batch:
                continue  # has been sent to another broker
            del self._asked[question]
            if code_of_all is not None:
                question.refuse(code_of_all)
            else:
                self._answer_or_retry(question, codes.get(question.transactional_id, {}))

    def _answer_or_retry(self, question: Question, codes: dict[TopicPartition, ErrorCode]) -> None:
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
