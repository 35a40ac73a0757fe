"""Transactions: state machine of a transactional producer (KIP-98, KIP-360, KIP-447, KIP-588, KIP-890, KIP-939)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from barnabas.client.errors import (
    COORDINATOR_MOVED,
    BrokerUnreachable,
    IllegalState,
    KafkaError,
    ProducerFailed,
    ProducerFenced,
    TransactionFailed,
    UnsupportedByBroker,
    code_of,
    error_for,
)
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.producer.core.transaction_state import (
    ABORTABLE,
    ABORTABLE_OFFSETS,
    FENCED,
    VALID_PREVIOUS,
    OffsetsJob,
    Outgoing,
    Step,
    TransactionPhase,
)
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from barnabas.errors import ErrorCode, InvariantViolated
from barnabas.ports import Rng
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

_HIDDEN_LOSSES_MAX = 5  # Kafka closes the connection after an unknown version; a single loss can have other causes
_TIMEOUT_MS_MAX = 0x7FFFFFFF
_TWO_PHASE_VERSION = 6  # of InitProducerId; brokers support it without offering it in ApiVersions
_INIT_VERSION_MAX = 5
CONCURRENT_BACKOFF_MS = 20  # pause after CONCURRENT_TRANSACTIONS: the previous transaction is still completing


T = TypeVar("T")


class Transactions:
    """State machine of one producer, changed only through `_transition`.

    Args:
        transactional_id: None for an idempotent producer.
        rng: adds jitter to the backoff.
        timeout_ms: `transaction.timeout.ms`: the coordinator aborts a transaction that takes longer.
        retry_backoff_ms: shortest backoff.
        two_phase: transactions have no timeout.
        keep_prepared: takes over an earlier producer's open transaction, instead of aborting it.

    Attributes:
        prepared: the prepared transaction, until it is committed or aborted.
    """

    def __init__(
        self,
        transactional_id: str | None,
        rng: Rng,
        *,
        timeout_ms: int = 60_000,
        retry_backoff_ms: int = 20,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.two_phase = two_phase
        self.prepared: PreparedTransaction | None = None
        self.kept = False  # an earlier producer began the prepared transaction
        self._resumed = False
        self._keep_prepared = keep_prepared  # until the first InitProducerId is answered
        self._hidden_losses = 0  # connections lost after a request in a version that the broker does not offer
        self.state = TransactionPhase.UNINITIALIZED
        self.producer_id = -1
        self.producer_epoch = -1
        self.version = 1  # of the transaction protocol: 1, or 2 if the cluster has finalized transaction.version 2
        self.error: KafkaError | None = None  # why the state is ABORTABLE_ERROR or FATAL_ERROR
        self.lost_coordinator: tuple[str, str] | None = None  # (kind, key) that the shell must look up again
        self.started = False  # the coordinator (or a leader) may know of the open transaction
        self.needs_new_epoch = False  # sequences may not match the broker's: a new epoch must start after the abort
        self._to_add: dict[TopicPartition, None] = {}
        self._added: dict[TopicPartition, None] = {}
        self._jobs: list[OffsetsJob] = []
        self._outstanding: Outgoing | None = None
        self._not_before_ms = 0
        self._backoff = Backoff(retry_backoff_ms, rng)  # after requests without a response
        self._refusals = Backoff(retry_backoff_ms, rng)  # after responses with an error: the coordinator is reachable

    # -- from the producer's caller ---------------------------------------------------------------------------

    def initialize(self) -> None:
        """Requests a producer id; with a transactional id this fences older producers and aborts their transactions."""
        self._transition(TransactionPhase.INITIALIZING)

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Takes an identity from another process. This producer then never sends InitProducerId."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._resumed = True
        self._transition(TransactionPhase.INITIALIZING)
        self._transition(TransactionPhase.READY)

    def begin(self, version: int) -> None:
        self.check_usable()
        if self.state is not TransactionPhase.READY:
            raise IllegalState(
                f"cannot begin a transaction while {self.state.value}; one transaction at a time: commit or abort first"
            )
        self.version = version
        self._transition(TransactionPhase.IN_TRANSACTION)

    def check_usable(self) -> None:
        """Raises ProducerFailed or ProducerFenced (a new exception each time) in state FATAL_ERROR."""
        if self.state is TransactionPhase.FATAL_ERROR:
            cause = self.error
            if isinstance(cause, ProducerFenced):
                raise ProducerFenced(cause.message, code=cause.code) from cause
            raise ProducerFailed(f"the producer cannot continue; close it: {cause}") from cause

    def check_sendable(self) -> None:
        self.check_usable()
        if self.state is TransactionPhase.ABORTABLE_ERROR:
            raise TransactionFailed(f"the transaction must be aborted: {self.error}") from self.error
        if self.state in (TransactionPhase.PREPARING, TransactionPhase.PREPARED):
            raise IllegalState("the transaction is prepared, so nothing can be added to it; complete it first")
        if self.state is not TransactionPhase.IN_TRANSACTION:
            raise IllegalState(f"no transaction is open (the producer is {self.state.value}); begin one first")

    def add_partition(self, tp: TopicPartition) -> None:
        if tp in self._added or tp in self._to_add:
            return
        if self.version >= 2:
            self._added[tp] = None  # KIP-890: the leader adds it when the first batch arrives
            self.started = True
        else:
            self._to_add[tp] = None

    def may_send(self, tp: TopicPartition) -> bool:
        return tp in self._added

    def add_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> OffsetsJob:
        self.check_sendable()
        job = OffsetsJob(offsets, group)
        if not offsets:
            job.done = True
        else:
            self._jobs.append(job)
        return job

    def prepare(self) -> None:
        """No effect if the transaction is being prepared or is prepared."""
        self.check_usable()
        if self.state in (TransactionPhase.PREPARING, TransactionPhase.PREPARED):
            return
        self.check_sendable()
        self._transition(TransactionPhase.PREPARING)

    def commit(self) -> None:
        self.check_usable()
        if self.state is TransactionPhase.COMMITTING:
            return
        if self.state is not TransactionPhase.PREPARED:
            self.check_sendable()
        self._transition(TransactionPhase.COMMITTING)

    def abort(self) -> None:
        """No effect if it has started. Unsent offsets are dropped."""
        self.check_usable()
        if self.state is TransactionPhase.ABORTING:
            return
        if self.state not in VALID_PREVIOUS[TransactionPhase.ABORTING]:
            raise IllegalState(f"no transaction to abort: the producer is {self.state.value}")
        cause = self.error
        self._drop_jobs(cause or TransactionFailed("the transaction was aborted"))
        self._to_add.clear()
        self._transition(TransactionPhase.ABORTING)

    # -- from the sender ----------------------------------------------------------------------------

    def on_batch_failed(self, error: KafkaError) -> None:
        if self.transactional_id is None:
            return
        if error.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
            self.fail(error)
            return
        self.needs_new_epoch = True
        self._make_abortable(error)

    def fail(self, error: KafkaError) -> None:
        if self.state is not TransactionPhase.FATAL_ERROR:
            self.error = error
            self._transition(TransactionPhase.FATAL_ERROR)
            self._drop_jobs(error)

    # -- requests and responses ------------------------------------------------------------------------------------------

    def next_request(self, now_ms: int, *, drained: bool) -> Outgoing | None:
        """The request to send now. `drained`: every batch has its outcome (for an abort: none is in flight)."""
        if self._outstanding is not None or now_ms < self._not_before_ms:
            return None
        request = self._choose(drained)
        self._outstanding = request
        return request

    def wake_at(self) -> int | None:
        """When to call `next_request` again if nothing else happens, in monotonic ms."""
        if self._outstanding is None and self._not_before_ms:
            return self._not_before_ms
        return None

    def on_unsent(self, request: Outgoing) -> None:
        if self._outstanding is request:
            self._outstanding = None

    def on_failure(self, request: Outgoing, error: KafkaError, now_ms: int) -> None:
        self._outstanding = None
        if request.step in (Step.ADD_PARTITIONS, Step.ADD_OFFSETS):
            self.started = True  # it may have taken effect: an abort must reach the coordinator
        if self.state is TransactionPhase.FATAL_ERROR:
            return
        if request.version_min and isinstance(error, BrokerUnreachable):
            self._hidden_losses += 1
            if self._hidden_losses >= _HIDDEN_LOSSES_MAX:
                text = "the cluster closes connections at InitProducerId 6: two-phase commit needs brokers with KIP-939"
                self.fail(UnsupportedByBroker(text))
                return
        if error.retriable:
            if request.coordinator:
                self.lost_coordinator = (request.coordinator, request.key)
            self._not_before_ms = now_ms + self._backoff.pause_ms(now_ms)
        else:
            self.fail(error)

    def on_answer(self, request: Outgoing, response: object, now_ms: int) -> None:
        self._outstanding = None
        self._not_before_ms = 0
        if self.state is TransactionPhase.FATAL_ERROR:
            return
        if isinstance(response, InitProducerIdResponse):
            self._on_init(request, response, now_ms)
        elif isinstance(response, AddPartitionsToTxnResponse):
            self._on_add_partitions(request, response, now_ms)
        elif isinstance(response, AddOffsetsToTxnResponse):
            self._on_add_offsets(request, response, now_ms)
        elif isinstance(response, TxnOffsetCommitResponse):
            self._on_commit_offsets(request, response, now_ms)
        elif isinstance(response, EndTxnResponse):
            self._on_end(request, response, now_ms)
        else:
            raise InvariantViolated(f"{type(response).__name__} does not answer {request.step.value}")
        self._backoff.reset()
        if not self._not_before_ms:
            self._refusals.reset()

    def _choose(self, drained: bool) -> Outgoing | None:
        state = self.state
        if state is TransactionPhase.INITIALIZING:
            return self._init_producer_id()
        if state in (TransactionPhase.IN_TRANSACTION, TransactionPhase.PREPARING, TransactionPhase.COMMITTING):
            if self._to_add:
                return self._add_partitions(list(self._to_add))
            if self._jobs:
                return self._send_offsets(self._jobs[0])
        if state is TransactionPhase.PREPARING and drained:
            self.prepared = PreparedTransaction(self.producer_id, self.producer_epoch)
            self._transition(TransactionPhase.PREPARED)
            return None
        if state in (TransactionPhase.COMMITTING, TransactionPhase.ABORTING) and drained:
            if not self.started:  # no request was sent: the cluster has no transaction to end
                self._ended()
                return self._init_producer_id() if self.state is TransactionPhase.INITIALIZING else None
            return self._end_transaction(commit=state is TransactionPhase.COMMITTING)
        return None

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id or "",
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    def _init_producer_id(self) -> Outgoing:
        transactional = self.transactional_id is not None
        bump = transactional and self.producer_id >= 0
        hidden = _TWO_PHASE_VERSION if self.two_phase or self._keep_prepared else 0
        message = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            # An idempotent producer has no transactions to time out; Java sends the maximum.
            transaction_timeout_ms=self.timeout_ms if transactional else _TIMEOUT_MS_MAX,
            producer_id=self.producer_id if bump else -1,
            producer_epoch=self.producer_epoch if bump else -1,
            enable_2pc=self.two_phase,
            keep_prepared_txn=self._keep_prepared,
        )
        return Outgoing(
            Step.INIT_PRODUCER_ID,
            message,
            "transaction" if transactional else "",
            self.transactional_id or "",
            version_max=hidden or _INIT_VERSION_MAX,
            version_min=hidden,
        )

    def _add_partitions(self, partitions: list[TopicPartition]) -> Outgoing:
        """Needed by transaction protocol 1 before the first batch of a partition."""
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id or "",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in _by_topic((tp, tp.partition) for tp in partitions)
            ],
        )
        return self._to_coordinator(Step.ADD_PARTITIONS, message, 3, partitions=partitions)

    def _send_offsets(self, job: OffsetsJob) -> Outgoing:
        group = job.group
        if (
            self.version < 2 and not job.added
        ):  # with version 2 the group's coordinator adds the group to the transaction
            added = AddOffsetsToTxnRequest(**self._identity, group_id=group.group_id)
            return self._to_coordinator(Step.ADD_OFFSETS, added, 4, job=job)
        self.started = True
        message = TxnOffsetCommitRequest(
            **self._identity,
            group_id=group.group_id,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in _by_topic((tp, _commit_of(tp, at)) for tp, at in job.offsets.items())
            ],
        )
        version_max = 5 if self.version >= 2 else 4
        return Outgoing(Step.COMMIT_OFFSETS, message, "group", group.group_id, version_max, job=job)

    def _end_transaction(self, *, commit: bool) -> Outgoing:
        message = EndTxnRequest(**self._identity, committed=commit)
        return self._to_coordinator(Step.END, message, 5 if self.version >= 2 else 4)

    def _to_coordinator(self, step: Step, message: object, version_max: int, **more: Any) -> Outgoing:
        return Outgoing(step, message, "transaction", self.transactional_id or "", version_max, **more)

    def _on_init(self, request: Outgoing, response: InitProducerIdResponse, now_ms: int) -> None:
        code = code_of(response.error_code)
        if code is ErrorCode.NONE:
            self.producer_id = response.producer_id
            self.producer_epoch = response.producer_epoch
            self.needs_new_epoch = False
            self._keep_prepared = False
            if response.ongoing_txn_producer_id >= 0:
                self.prepared = PreparedTransaction(
                    response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
                )
                self.started = self.kept = True
                self._transition(TransactionPhase.PREPARED)
            else:
                self._transition(TransactionPhase.READY)
        elif code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED and self.two_phase:
            text = "InitProducerId was refused: is transaction.two.phase.commit.enable set on the brokers?"
            self.fail(error_for(code, text))
        elif not self._retried(request, code, now_ms):
            self.fail(error_for(code, "InitProducerId was refused"))

    def _on_add_partitions(self, request: Outgoing, response: AddPartitionsToTxnResponse, now_ms: int) -> None:
        if self.state is TransactionPhase.ABORTING:
            results = [one for topic in response.results_by_topic_v3_and_below for one in topic.results_by_partition]
            if any(one.partition_error_code == ErrorCode.NONE for one in results):
                self.started = True  # the abort must reach the coordinator
            return
        retry: ErrorCode | None = None
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                tp = TopicPartition(topic.name, result.partition_index)
                code = code_of(result.partition_error_code)
                if code is ErrorCode.NONE:
                    self._to_add.pop(tp, None)
                    self._added[tp] = None
                    self.started = True
                elif code is ErrorCode.OPERATION_NOT_ATTEMPTED:
                    continue  # another partition of the request was rejected; its error is the cause
                elif code in FENCED:
                    self.fail(error_for(code, "a newer producer uses this transactional id"))
                    return
                elif code.retriable or code in COORDINATOR_MOVED:
                    retry = code
                elif code in ABORTABLE or code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    self._make_abortable(error_for(code, topic=tp.topic, partition=tp.partition))
                    return
                else:
                    self.fail(error_for(code, "AddPartitionsToTxn was refused", topic=tp.topic, partition=tp.partition))
                    return
        if retry is not None:
            self._retried(request, retry, now_ms)

    def _on_add_offsets(self, request: Outgoing, response: AddOffsetsToTxnResponse, now_ms: int) -> None:
        code = code_of(response.error_code)
        job = request.job
        if job is None:
            raise InvariantViolated("AddOffsetsToTxn without offsets")
        if code is ErrorCode.NONE:
            job.added = True
            self.started = True
        elif code in FENCED:
            self.fail(error_for(code, "a newer producer uses this transactional id"))
        elif code in ABORTABLE or code in ABORTABLE_OFFSETS:
            self._make_abortable(
                error_for(code, f"offsets of group {job.group.group_id!r} cannot join the transaction")
            )
        elif not self._retried(request, code, now_ms):
            self.fail(error_for(code, "AddOffsetsToTxn was refused"))

    def _on_commit_offsets(self, request: Outgoing, response: TxnOffsetCommitResponse, now_ms: int) -> None:
        job = request.job
        if job is None:
            raise InvariantViolated("TxnOffsetCommit without offsets")
        retry: ErrorCode | None = None
        for topic in response.topics:
            for partition in topic.partitions:
                code = code_of(partition.error_code)
                if code is ErrorCode.NONE:
                    continue
                error = error_for(
                    code,
                    f"offsets of group {job.group.group_id!r} were refused",
                    topic=topic.name,
                    partition=partition.partition_index,
                )
                if code in FENCED:
                    self.fail(error)
                    return
                if code in ABORTABLE or code in ABORTABLE_OFFSETS:
                    self._make_abortable(error)
                    return
                if not (code.retriable or code in COORDINATOR_MOVED):
                    self.fail(error)
                    return
                retry = code
        if retry is not None:
            self._retried(request, retry, now_ms)
            return
        job.done = True
        if job in self._jobs:
            self._jobs.remove(job)

    def _on_end(self, request: Outgoing, response: EndTxnResponse, now_ms: int) -> None:
        code = code_of(response.error_code)
        if code is ErrorCode.NONE:
            if self.version >= 2 and response.producer_id >= 0:
                self.producer_id = response.producer_id
                self.producer_epoch = response.producer_epoch
                self.needs_new_epoch = False
            self._ended()
        elif (
            self.state is TransactionPhase.ABORTING
            and self.prepared is None
            and (code is ErrorCode.INVALID_TXN_STATE or (code in FENCED and self.version >= 2))
        ):
            # Kafka also answers so while the previous transaction completes and the coordinator does not know this one yet.
            # The owner of the present epoch can get the next one (KIP-360); a fenced producer is then rejected.
            self.needs_new_epoch = True
            self._ended()
        elif code in FENCED:
            self.fail(error_for(code, "a newer producer uses this transactional id, or the transaction timed out"))
        elif code in ABORTABLE and self.state is TransactionPhase.COMMITTING and self.prepared is None:
            self._make_abortable(error_for(code, "the transaction cannot be committed"))
        elif not self._retried(request, code, now_ms):
            self.fail(error_for(code, "EndTxn was refused"))

    def _retried(self, request: Outgoing, code: ErrorCode, now_ms: int) -> bool:
        """Whether the error is retriable; if so, schedules the retry."""
        if not (code.retriable or code in COORDINATOR_MOVED):
            return False
        if code in COORDINATOR_MOVED:
            self.lost_coordinator = (request.coordinator, request.key)
        if code is ErrorCode.CONCURRENT_TRANSACTIONS:  # not a failure, so the pause does not grow
            self._not_before_ms = now_ms + CONCURRENT_BACKOFF_MS
        else:
            self._not_before_ms = now_ms + self._refusals.pause_ms(now_ms)
        return True

    def _ended(self) -> None:
        self.started = False
        self.prepared = None
        self.kept = False
        self.error = None
        self._to_add.clear()
        self._added.clear()
        self._jobs.clear()
        if self.needs_new_epoch and self._resumed:
            self.fail(ProducerFenced("a newer producer uses this transactional id"))
        elif self.needs_new_epoch:
            self._transition(TransactionPhase.INITIALIZING)
        else:
            self._transition(TransactionPhase.READY)

    def _make_abortable(self, error: KafkaError) -> None:
        if self.state in VALID_PREVIOUS[TransactionPhase.ABORTABLE_ERROR]:
            self.error = error
            self._drop_jobs(error)
            self._to_add.clear()
            self._transition(TransactionPhase.ABORTABLE_ERROR)

    def _drop_jobs(self, error: KafkaError) -> None:
        for job in self._jobs:
            if not job.done:
                job.error = error
        self._jobs.clear()

    def _transition(self, state: TransactionPhase) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a producer cannot become {state.value} from {self.state.value}")
        self.state = state


def _by_topic(items: Iterable[tuple[TopicPartition, T]]) -> Iterable[tuple[str, list[T]]]:
    topics: dict[str, list[T]] = {}
    for tp, item in items:
        topics.setdefault(tp.topic, []).append(item)
    return topics.items()


def _commit_of(tp: TopicPartition, committed: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=tp.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )
