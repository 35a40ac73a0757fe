"""Produce (key 0), versions 3 to 13: record batches into partitions.

Behaviour: each partition's one batch is checked and appended by its leader's log straight from the received frame. acks=1 answers
then (with flush.messages=1 once the leader has synced it); acks=-1 once the high watermark has passed it, REQUEST_TIMED_OUT per partition after `timeout_ms`; acks=0 never answers,
and closes the connection on an error, as Kafka does, so that the client learns of it. Duplicates of an idempotent producer are
answered with the offset of the original. Transactional batches of a partition that is not yet part of the transaction are
verified (≤ v11) or added (v12+) through the coordinator first: the only case that waits before its effect (KIP-890).

Version notes: v7 zstd; v8 record_errors and error_message; v10 leader hints (KIP-951); v11 knows TRANSACTION_ABORTABLE;
v12 adds partitions to the transaction implicitly; v13 topics by id. Versions 0 to 2 are advertised (KAFKA-18659) and closed.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.handlers.held import PendingWaiter
from barnabas.broker.handlers.leader_hints import add_produce_hints
from barnabas.broker.replica.machine import Replica, VerificationGuard
from barnabas.broker.router import Call, Pending, handles
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from barnabas.protocol.records import HEADER_SIZE, MAGIC
from barnabas.storage.validation import single_batch_size

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["produce", "refuse"]

ACKS_ALL: Final = -1
ZSTD: Final = 4
TRANSACTIONAL: Final = 0x10
COMPRESSION: Final = 0x07
LENGTH_OVERHEAD: Final = 12
ADMIN_CLIENT_ID: Final = "__admin_client"  # Kafka lets this client write to internal topics
RETRIABLE_FOR_OLD_CLIENTS: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,  # another partition of the request is not known to the coordinator yet
    }
)

# Refusals of an append that Kafka answers without the log start offset.
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

# Of a batch header: length, magic, attributes, producer id, producer epoch, base sequence.
_BATCH: Final = Struct(">8xi4xb4xh20xqhi4x")

_Key = tuple[str, int]


class _Batch:
    """One partition's part of a request."""

    __slots__ = ("answer", "base_sequence", "error", "guard", "producer_epoch", "producer_id", "records", "replica")

    def __init__(self, answer: PartitionProduceResponse, records: Buffer) -> None:
        self.answer = answer
        self.records = records
        self.replica: Replica | None = None
        self.error: BrokerError | None = None
        self.producer_id = -1  # ≥ 0 only where the batch is transactional
        self.producer_epoch = -1
        self.base_sequence = -1
        self.guard: VerificationGuard | None = None


class _AckWait:
    """acks=-1: an answer that waits until each partition's high watermark has passed its batch; acks=1: until the leader has
    synced it, where the topic asks for that (flush.messages)."""

    __slots__ = ("_open", "_timer", "call", "node", "pending", "response")

    def __init__(self, node: Node, call: Call[ProduceRequest], response: ProduceResponse, pending: Pending) -> None:
        self.node = node
        self.call = call
        self.response = response
        self.pending = pending
        self._open: dict[_Batch, None] = {}
        self._timer: Any = None

    def start(self, waiting: list[tuple[_Batch, int]], timeout_ms: int) -> None:
        self._open = dict.fromkeys(batch for batch, _ in waiting)
        self._timer = self.node.call_later(timeout_ms, self._on_timeout)
        self.pending.on_closed = self._timer.cancel
        to_all = self.call.request.acks == ACKS_ALL
        for batch, next_offset in waiting:
            if batch.replica is not None:
                when = batch.replica.when_committed if to_all else batch.replica.when_durable
                when(next_offset, partial(self._on_acknowledged, batch))

    def _on_acknowledged(self, batch: _Batch, error: BrokerError | None) -> None:
        if batch not in self._open:
            return
        del self._open[batch]
        to_all = self.call.request.acks == ACKS_ALL
        if error is None and to_all and batch.replica is not None and not _enough_in_sync(batch.replica):
            error = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if error is not None:
            batch.answer.error_code = error.code
        if not self._open:
            self._finish()

    def _on_timeout(self) -> None:
        for batch in self._open:
            batch.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._open.clear()
        self._finish()

    def _finish(self) -> None:
        self._timer.cancel()
        self.pending.on_closed = None
        add_produce_hints(self.node, self.call, self.response)
        self.pending.resolve(self.response)


@handles(ProduceRequest)
def produce(node: Node, call: Call[ProduceRequest]) -> ProduceResponse | Pending | None:
    """Appends the batches of a request; see the module's docstring."""
    request = call.request
    if not -1 <= request.acks <= 1:
        return refuse(call, BrokerError(ErrorCode.INVALID_REQUIRED_ACKS))
    response, batches, transactional = _prepare(node, call)
    if transactional:
        if request.transactional_id is None:
            return refuse(call, BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        unverified = _guard(transactional, call.version >= 12)
        if unverified:
            if node.config.get_bool("transaction.partition.verification.enable"):
                return _append_verified(node, call, response, batches, unverified)
            for batch in unverified:
                batch.guard = None
    return _append(node, call, response, batches, None)


def refuse(call: Call[ProduceRequest], error: BrokerError) -> ProduceResponse | None:
    """The same error for every partition; nothing, and a closed connection, for acks=0."""
    if call.request.acks == 0:
        call.connection.close(f"Produce with acks=0 failed: {error}")
        return None
    return ProduceResponse(
        responses=[
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
    )


def _prepare(node: Node, call: Call[ProduceRequest]) -> tuple[ProduceResponse, list[_Batch], list[_Batch]]:
    """Finds each partition and looks at each batch's header; nothing is appended yet."""
    version = call.version
    replicas = node.replicas
    batches: list[_Batch] = []
    transactional: list[_Batch] = []
    responses = []
    for topic in call.request.topic_data:
        name: str | None = topic.name
        if version >= 13:
            name = replicas.topic_name(topic.topic_id)
        answers = []
        for data in topic.partition_data:
            answer = PartitionProduceResponse(index=data.index, base_offset=-1)
            answers.append(answer)
            records = data.records
            batch = _Batch(answer, b"" if records is None else records)
            batches.append(batch)
            replica = None if name is None else replicas.obtain(name, data.index)
            if replica is None:
                batch.error = BrokerError(_unknown(node, name, data.index, version))
                continue
            if replicas.is_internal(replica.topic) and call.client_id != ADMIN_CLIENT_ID:
                batch.error = BrokerError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {replica.topic}"
                )
                continue
            batch.replica = replica
            if _look(batch, version):
                transactional.append(batch)
        responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
    return ProduceResponse(responses=responses), batches, transactional


def _look(batch: _Batch, version: int) -> bool:
    """Reads what this handler needs of the batch's header: one whole batch of magic 2 a partition. Returns whether it is transactional."""
    records = batch.records
    size = len(records)
    if size < HEADER_SIZE or _BATCH.unpack_from(records)[:2] != (size - LENGTH_OVERHEAD, MAGIC):
        try:
            single_batch_size(records)
        except BrokerError as error:
            batch.error = error
            return False
    _, _, attributes, producer_id, producer_epoch, base_sequence = _BATCH.unpack_from(records)
    if version < 7 and attributes & COMPRESSION == ZSTD:
        batch.error = BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce requests before version 7 are not allowed to use zstd"
        )
        return False
    if not attributes & TRANSACTIONAL:
        return False
    batch.producer_id = producer_id
    batch.producer_epoch = producer_epoch
    batch.base_sequence = base_sequence
    return True


def _guard(transactional: list[_Batch], epoch_bump: bool) -> list[_Batch]:
    """The batches whose partition is not known to be part of the transaction; each gets its guard (KIP-890).

    Raises:
        BrokerError: INVALID_PRODUCER_ID_MAPPING for batches of different producers.
    """
    first = transactional[0]
    unverified = []
    for batch in transactional:
        if batch.producer_id != first.producer_id or batch.producer_epoch != first.producer_epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        if batch.replica is not None and batch.replica.is_leader:
            batch.guard = batch.replica.verification_guard(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, supports_epoch_bump=epoch_bump
            )
            if batch.guard is not None:
                unverified.append(batch)
    return unverified


def _append_verified(
    node: Node, call: Call[ProduceRequest], response: ProduceResponse, batches: list[_Batch], unverified: list[_Batch]
) -> ProduceResponse | Pending | None:
    """Asks the coordinator about the partitions, then appends: at once, or as a request that blocks its connection."""
    request = call.request
    adds = call.version >= 12
    by_key: dict[_Key, list[_Batch]] = {}  # a request may name a partition twice
    for batch in unverified:
        if batch.replica is not None:
            by_key.setdefault((batch.replica.topic, batch.replica.partition), []).append(batch)
    outcome: list[Any] = []  # what `proceed` returned, where the coordinator answered within the call
    pending: Pending | None = None

    def proceed(errors: dict[_Key, ErrorCode]) -> None:
        for key, refused in by_key.items():
            code = errors.get(key, ErrorCode.NONE)
            if code:
                for batch in refused:
                    batch.error = _verification_error(code, call.version)
        if pending is None:
            outcome.append(_append(node, call, response, batches, None))
        elif not pending.resolved:
            try:
                answer = _append(node, call, response, batches, pending)
            except BrokerError as error:
                answer = refuse(call, error)
            if answer is not pending:
                pending.resolve(answer)
            else:
                pending.effected()

    waiter = PendingWaiter()
    node.transactions.verify_or_add(
        request.transactional_id or "",
        unverified[0].producer_id,
        unverified[0].producer_epoch,
        list(by_key),
        add=adds,
        done=proceed,
        waiter=waiter,
    )
    if outcome:
        answered: ProduceResponse | Pending | None = outcome[0]
        return answered
    # The received frame is valid only during this call.
    for batch in batches:
        batch.records = bytearray(batch.records)
    pending = Pending(blocks=True)
    waiter.attach(pending)
    return pending


def _verification_error(code: ErrorCode, version: int) -> BrokerError:
    """The coordinator's refusal as a producer understands it: older clients retry only what they know from Produce."""
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < 11:
        return BrokerError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code in RETRIABLE_FOR_OLD_CLIENTS or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < 12):
        return BrokerError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
        )
    return BrokerError(code)


def _append(
    node: Node, call: Call[ProduceRequest], response: ProduceResponse, batches: list[_Batch], pending: Pending | None
) -> ProduceResponse | Pending | None:
    """Appends what is not refused yet; `pending` where the request has waited already."""
    acks = call.request.acks
    waiting: list[tuple[_Batch, int]] = []
    failed = False
    for batch in batches:
        answer = batch.answer
        replica = batch.replica
        error = batch.error
        if error is None and replica is not None:
            try:
                if acks == ACKS_ALL and replica.is_leader:
                    replica.check_in_sync()
                info = replica.append(batch.records, guard=batch.guard)
            except BrokerError as refused:
                error = refused
                if refused.code not in WITHOUT_LOG_START:
                    answer.log_start_offset = replica.log.log_start_offset
            else:
                answer.base_offset = info.base_offset
                # Kafka answers a duplicate with the time of the original, whoever set it.
                answer.log_append_time_ms = info.max_timestamp if info.duplicate else info.log_append_time_ms
                answer.log_start_offset = info.log_start_offset
                next_offset = info.last_offset + 1
                if (
                    replica.high_watermark < next_offset
                    if acks == ACKS_ALL
                    else not replica.durability.covers(next_offset)
                ):
                    waiting.append((batch, next_offset))
        if error is not None:
            failed = True
            answer.error_code = error.code
            answer.error_message = error.message
            record_errors = getattr(error, "record_errors", None)
            if record_errors:
                answer.record_errors = [
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                    for index, message in record_errors
                ]
    if acks == 0:
        if failed:
            call.connection.close("Produce with acks=0 failed: " + _first_error(batches))
        return None
    if not waiting:
        if failed:
            add_produce_hints(node, call, response)
        return response
    if pending is None:
        pending = Pending()
    _AckWait(node, call, response, pending).start(waiting, call.request.timeout_ms)
    return pending


def _first_error(batches: list[_Batch]) -> str:
    return next(ErrorCode(batch.answer.error_code).name for batch in batches if batch.answer.error_code)


def _enough_in_sync(replica: Replica) -> bool:
    return len(replica.isr) >= replica.min_insync_replicas


def _unknown(node: Node, name: str | None, index: int, version: int) -> ErrorCode:
    """Why this node has no replica of a partition."""
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return node.replicas.absence(name, index)
