"""Handles Produce (key 0), versions 3 to 13: appends record batches to partitions.

Behaviour: the leader's log checks and appends each partition's one batch straight from the received frame. acks=1 is answered then (with
flush.messages=1 once the leader has synced it); acks=-1 once the high watermark has passed it, or with REQUEST_TIMED_OUT per
partition after `timeout_ms`; acks=0 is never answered, and an error closes the connection, as in Kafka. Duplicates of an idempotent
producer are answered with the offset of the original. If a partition is not yet part of the transaction, the coordinator verifies (≤ v11)
or adds it (v12+) before the append (KIP-890). A batch that takes long to inspect is inspected in a thread before its append, and a request
with many batches is processed in several turns of the loop. Both wait before their effect, so they block their connection. One answer lists at most
RECORD_ERRORS_MAX refused records; Kafka lists all.

Version notes: v7 zstd; v8 record_errors and error_message; v10 leader hints (KIP-951); v11 TRANSACTION_ABORTABLE;
v12 adds partitions to the transaction implicitly; v13 topics by id. Versions 0 to 2 are advertised (KAFKA-18659) but close the connection.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.api.call import Call, Pending, Table
from barnabas.broker.authorization.permissions import AllowedNames
from barnabas.broker.handlers.held import PendingWaiter
from barnabas.broker.handlers.leader_hints import add_produce_hints
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.produce_acks import ACKS_ALL, AckWait, PartitionBatch
from barnabas.broker.handlers.produce_transactions import guarded, verification_error
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.scheduling.slices import FREE_COST
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import RECORD_ERRORS_MAX
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.batch_layout import (
    ATTRIBUTE_TRANSACTIONAL,
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    struct_of,
)
from barnabas.protocol.compression import Compression
from barnabas.protocol.connection import LARGE_FRAME_BYTES
from barnabas.protocol.internal_topics import INTERNAL_TOPICS
from barnabas.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from barnabas.storage.inspection import Inspection, RecordValidationError
from barnabas.storage.log_config import AppendInfo
from barnabas.storage.replay import note_refused
from barnabas.storage.validation import WALK_COST_MAX, LongBatch, single_batch_size
from barnabas.work import Work

log = logger("kafka.request.logger")

BATCHES_PER_TURN: Final = 128  # appended in one turn: 3 to 5 ms
OPENED_PER_TURN: Final = 8  # appended in one turn while new partitions have no folders: 4 ms
ADMIN_CLIENT_ID: Final = "__admin_client"  # Kafka lets this client write to internal topics
# Errors of an append that Kafka answers without the log start offset.
WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)

_BATCH: Final = struct_of("batch_length", "magic", "attributes", "producer_id", "producer_epoch", "base_sequence")

_Key = tuple[str, int]


def produce(needs: Needs, call: Call[ProduceRequest]) -> ProduceResponse | Pending[ProduceResponse] | Work | None:
    """Appends the batches of a request; see the module's docstring."""
    request = call.request
    if not -1 <= request.acks <= 1:
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS)
    topics = request.topic_data
    work = _Produce(needs, call)
    at_once = OPENED_PER_TURN if needs.replicas.opening else BATCHES_PER_TURN
    if (len(topics) > 1 or (topics and len(topics[0].partition_data) > at_once)) and sum(
        len(topic.partition_data) for topic in topics
    ) + len(topics) > at_once:
        return _prepare_in_slices(work, topics)
    for topic in topics:
        name, answers = work.topic(topic)
        for data in topic.partition_data:
            answers.append(work.partition(name, data))
    return work.begin() if work.transactional else work.run()


def _prepare_in_slices(work: _Produce, topics: list[TopicProduceData]) -> Work:
    """Prepares a request in slices."""
    for topic in topics:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = _kept(data.records)
    for topic in topics:
        yield 1
        name, answers = work.topic(topic)
        for data in topic.partition_data:
            answers.append(work.partition(name, data))
            yield 1 + work.replicas.take_opened_units()
    return work.begin()


def refuse(call: Call[ProduceRequest], error: BrokerError) -> ProduceResponse:
    """The same error for every partition."""
    responses = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                PartitionProduceResponse(
                    index=data.index, error_code=error.code, base_offset=-1, error_message=error.message
                )
                for data in topic.partition_data
            ],
        )
        for topic in call.request.topic_data
    ]
    return ProduceResponse(responses=responses)


def _look(batch: PartitionBatch, records: Buffer, version: int) -> bool:
    """Reads the header of the partition's one batch (magic 2). Returns whether the batch is transactional."""
    size = len(records)
    try:
        if size < HEADER_SIZE:
            single_batch_size(records)
        length, magic, attributes, producer_id, producer_epoch, base_sequence = _BATCH.unpack_from(records)
        if length != size - LENGTH_OVERHEAD or magic != MAGIC:
            single_batch_size(records)
    except BrokerError as error:
        batch.error = error.with_traceback(None)  # its frames hold the batch: a cycle
        return False
    if attributes & COMPRESSION_MASK:
        if version < 7 and attributes & COMPRESSION_MASK == Compression.ZSTD:
            batch.error = BrokerError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce requests before version 7 are not allowed to use zstd"
            )
            return False
        batch.compressed = True
    if not attributes & ATTRIBUTE_TRANSACTIONAL:
        return False
    batch.producer_id = producer_id
    batch.producer_epoch = producer_epoch
    batch.base_sequence = base_sequence
    return True


class _Produce:
    """One request: finds its partitions, then appends their batches in order, with interruptions so that other work can run.

    An interrupted request blocks its connection, like a request that waits before its effect.
    """

    __slots__ = (
        "at",
        "batches",
        "call",
        "failed",
        "listed",
        "needs",
        "pending",
        "replicas",
        "responses",
        "transactional",
        "waiting",
        "writable",
    )

    def __init__(self, needs: Needs, call: Call[ProduceRequest]) -> None:
        self.needs = needs
        self.call = call
        self.replicas = needs.replicas
        self.responses: list[TopicProduceResponse] = []
        self.batches: list[PartitionBatch] = []
        self.transactional: list[PartitionBatch] = []
        self.pending: Pending[ProduceResponse] | None = None  # where the request has waited already
        self.at = 0  # index of the next batch to append
        self.waiting: list[tuple[PartitionBatch, int]] = []
        self.failed = False
        self.listed = 0  # record errors in the answer
        access = call.access
        self.writable = None if access.unrestricted else AllowedNames(access, AclOperation.WRITE, AclResourceType.TOPIC)

    # -- before the first append

    def topic(self, topic: TopicProduceData) -> tuple[str | None, list[PartitionProduceResponse]]:
        """Returns the name of a topic, and the list for the answers of its partitions."""
        answers: list[PartitionProduceResponse] = []
        self.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
        return topic.name if self.call.version < 13 else self.replicas.topic_name(topic.topic_id), answers

    def partition(self, name: str | None, data: PartitionProduceData) -> PartitionProduceResponse:
        """Finds a partition and reads the header of its batch."""
        version = self.call.version
        replicas = self.replicas
        answer = PartitionProduceResponse(index=data.index, base_offset=-1)
        if self.writable is not None and name is not None and name not in self.writable:
            self._forbid(name, answer, data)
            return answer
        replica = None if name is None else replicas.obtain(name, data.index)
        if replica is None:  # only its answer is kept: a request may name 100,000 of them
            answer.error_code = _unknown(self.needs, name, data.index, version)
            self.failed = True
            return answer
        records: Buffer = b"" if data.records is None else data.records
        batch = PartitionBatch(answer, records)
        self.batches.append(batch)
        if replica.topic in INTERNAL_TOPICS and self.call.client_id != ADMIN_CLIENT_ID:
            batch.error = BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {replica.topic}"
            )
        else:
            batch.replica = replica
            if _look(batch, records, version):
                self.transactional.append(batch)
        return answer

    def _forbid(self, name: str, answer: PartitionProduceResponse, data: PartitionProduceData) -> None:
        """Refuses a partition whose topic the client may not write to; its batch shows whether the request is transactional."""
        records: Buffer = b"" if data.records is None else data.records
        replica = self.replicas.get(name, data.index)
        if replica is not None:
            note_refused(replica.log.producers, records)  # aiokafka continues with the next sequence after a grant
        batch = PartitionBatch(answer, b"")
        if _look(batch, records, self.call.version):
            self.transactional.append(batch)
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        self.failed = True

    def _may_use_transaction(self) -> bool:
        access, transactional_id = self.call.access, self.call.request.transactional_id
        return transactional_id is not None and (
            access.unrestricted or access.allows(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id)
        )

    def begin(self) -> ProduceResponse | Pending[ProduceResponse] | Work | None:
        """Verifies the transaction if there is one, then appends."""
        if not self.transactional:
            return self.run()
        if not self._may_use_transaction():
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        unverified = guarded(self.transactional, self.call.version >= 12)
        if unverified:
            if self.needs.config.get_bool("transaction.partition.verification.enable"):
                return self._verify(unverified)
            for batch in unverified:
                batch.guard = None
        return self.run()

    def _verify(self, unverified: list[PartitionBatch]) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Asks the coordinator about the partitions, then appends: at once, or as a request that blocks its connection."""
        call = self.call
        by_key: dict[_Key, list[PartitionBatch]] = {}  # a request may name a partition twice
        for batch in unverified:
            if batch.replica is not None:
                by_key.setdefault((batch.replica.topic, batch.replica.partition), []).append(batch)
        outcome: list[
            ProduceResponse | Pending[ProduceResponse] | None
        ] = []  # what `proceed` returned, where the coordinator answered within the call

        def proceed(errors: dict[_Key, ErrorCode]) -> None:
            for key, refused in by_key.items():
                code = errors.get(key, ErrorCode.NONE)
                if code:
                    for batch in refused:
                        batch.error = verification_error(code, call.version)
            pending = self.pending
            if pending is None:
                outcome.append(self.run())
            elif not pending.resolved:
                answer = self.run()
                if not isinstance(answer, Pending):
                    pending.resolve(answer)

        waiter = PendingWaiter()
        self.needs.transactions.verify_or_add(
            call.request.transactional_id or "",
            unverified[0].producer_id,
            unverified[0].producer_epoch,
            list(by_key),
            add=call.version >= 12,
            done=proceed,
            waiter=waiter,
        )
        if outcome:
            answered: ProduceResponse | Pending[ProduceResponse] | None = outcome[0]
            return answered
        waiter.attach(self._hold())
        return self.pending

    # -- appends

    def run(self) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Appends the batches not refused yet. Returns the answer, or a Pending for it."""
        acks = self.call.request.acks
        slices = self.needs.slices
        batches = self.batches
        first = self.at
        for at in range(first, len(batches)):
            if slices.turn_is_over or at - first == BATCHES_PER_TURN:
                self.at = at
                return self._pause()
            batch = batches[at]
            replica = batch.replica
            error = batch.error
            if error is None and replica is not None:
                try:
                    if acks == ACKS_ALL and replica.is_leader:
                        replica.check_in_sync()
                    info = replica.append(batch.records, guard=batch.guard)
                except LongBatch:
                    self.at = at
                    return self._inspect(batch, replica)
                except BrokerError as refused:
                    error = refused.with_traceback(None)  # its frames hold this variable: a cycle
                    if refused.code not in WITHOUT_LOG_START:
                        batch.answer.log_start_offset = replica.log.log_start_offset
                else:
                    self._note(batch, replica, info, acks)
            if error is not None:
                self._refuse(batch.answer, error)
                self.needs.replicas.on_refused(replica, error.code, batch.records)
        self.at = len(batches)
        return self._end(acks)

    def _note(self, batch: PartitionBatch, replica: Replica, info: AppendInfo, acks: int) -> None:
        answer = batch.answer
        answer.base_offset = info.base_offset
        # Kafka answers a duplicate with the time of the original, set by the producer or by the broker.
        answer.log_append_time_ms = info.max_timestamp if info.duplicate else info.log_append_time_ms
        answer.log_start_offset = info.log_start_offset
        next_offset = info.last_offset + 1
        if info.cost > FREE_COST or batch.compressed:
            self.needs.slices.count_batch(info.cost, compressed=batch.compressed)
        if replica.high_watermark < next_offset if acks == ACKS_ALL else not replica.durability.covers(next_offset):
            self.waiting.append((batch, next_offset))

    def _refuse(self, answer: PartitionProduceResponse, error: BrokerError) -> None:
        self.failed = True
        answer.error_code = error.code
        answer.error_message = error.message
        if isinstance(error, RecordValidationError):
            listed = error.record_errors[: RECORD_ERRORS_MAX - self.listed]
            self.listed += len(listed)
            answer.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in listed
            ]

    def _end(self, acks: int) -> ProduceResponse | Pending[ProduceResponse] | None:
        if acks == 0:
            if self.failed:
                self.call.connection.close("Produce with acks=0 failed: " + _first_error(self.responses))
            return None
        response = ProduceResponse(responses=self.responses)
        if not self.waiting:
            if self.failed:
                add_produce_hints(self.needs, self.call, response)
            return response
        pending = self.pending or Pending()
        AckWait(self.needs, self.call, response, pending).start(self.waiting, self.call.request.timeout_ms)
        pending.effected()
        return pending

    # -- interruptions

    def _pause(self) -> Pending[ProduceResponse]:
        """Continues in a later turn of the loop, in turn with other long work."""
        pending = self._hold()
        turn = self.needs.slices.start(_nothing(), lambda _: self._go_on(), lambda _: None)
        pending.on_closed = turn.cancel
        return pending

    def _inspect(self, batch: PartitionBatch, replica: Replica) -> Pending[ProduceResponse]:
        """Continues after the inspection of the long batch, in a thread."""
        self.needs.slices.count_batch(WALK_COST_MAX, compressed=batch.compressed)  # to detect that it is long
        pending = self._hold()
        records = batch.records
        if isinstance(records, Inspection):
            raise InvariantViolated("an inspected batch is too long to append")
        batch.records = inspection = Inspection(records, replica.log.config, self.needs.reactor.clock.now_ms())

        def failed(error: BaseException) -> None:
            log.error("Inspection of a batch failed", exc_info=error)  # a bug of ours
            inspection.error = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._go_on()

        slices = self.needs.slices
        work = replica.inspect(inspection)
        pending.on_closed = slices.start(work, lambda _: self._go_on(), failed, line=slices.inspections).cancel
        return pending

    def _hold(self) -> Pending[ProduceResponse]:
        if self.pending is None:
            for batch in self.batches[self.at :]:
                if not isinstance(batch.records, Inspection):
                    batch.records = _kept(batch.records)
            self.pending = Pending(blocks=True)
        return self.pending

    def _go_on(self) -> None:
        pending = self.pending
        if pending is not None and not pending.resolved:
            pending.on_closed = None
            answer: ProduceResponse | Pending[ProduceResponse] | Work | None
            try:
                answer = self.run()
            except InvariantViolated:
                raise
            except Exception:  # a bug of ours: the connection must not stay blocked
                log.exception("Produce request failed: host=%s", self.call.client_host)
                self.call.connection.close("internal error")
                return
            if not isinstance(answer, Pending):
                pending.resolve(answer)


def _kept(records: Buffer) -> Buffer:
    """A batch for use after the call: a copy if its buffer has other requests, too. A large frame has a buffer of its own."""
    if isinstance(records, memoryview):
        buffer = records.obj
        if isinstance(buffer, bytearray) and len(buffer) <= LARGE_FRAME_BYTES:
            return bytearray(records)
    return records


def _nothing() -> Work:
    """Work that only waits for a turn."""
    yield from ()


def _first_error(responses: list[TopicProduceResponse]) -> str:
    answers = (answer for topic in responses for answer in topic.partition_responses)
    return next(ErrorCode(answer.error_code).name for answer in answers if answer.error_code)


def _unknown(needs: Needs, name: str | None, index: int, version: int) -> ErrorCode:
    """The error code of a partition without a replica on this node."""
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return needs.replicas.absence(name, index)


HANDLERS: Final[Table] = {ProduceRequest: (produce, refuse)}
