"""Handles the transaction APIs: those of producers, those between brokers, and those of administration tools.

Versions: InitProducerId 0–6, AddPartitionsToTxn 0–5, AddOffsetsToTxn 0–4, EndTxn 0–5, WriteTxnMarkers 1–2. TxnOffsetCommit 0–5 is in
`txn_offsets`, DescribeTransactions and ListTransactions are in `transaction_listing`, DescribeProducers 0 in `producers`.

Behaviour: this module checks a request against the metadata image. The shard of the transactional id
(`coordinator/transaction_coordinator.py`) decides it, and the answer leaves when the decision is committed.
AddPartitionsToTxn adds all partitions or none: if one is unknown, the others answer OPERATION_NOT_ATTEMPTED. While
the previous transaction is being completed, AddPartitionsToTxn waits up to add.partitions.to.txn.retry.backoff.max.ms
(`coordinator/transactions/holding.py`); Kafka answers CONCURRENT_TRANSACTIONS at once.

A V1 request that arrives over an older connection than the newest one of its producer is late; its connection is closed
(`coordinator/transactions/connection_fence.py`).

Version notes: INVALID_PRODUCER_EPOCH replaces PRODUCER_FENCED below InitProducerId 4, AddPartitionsToTxn 2,
AddOffsetsToTxn 2 and EndTxn 2. InitProducerId 3 carries the present identity of a recovering producer (KIP-360).
InitProducerId 6 enables two-phase commit and can keep a prepared transaction (KIP-939); ApiVersions does not
advertise it, as in Kafka. AddPartitionsToTxn 4–5 come from brokers and carry many transactions; 5 serves clients of
TV2. EndTxn 5 is TV2: it answers the identity for the next transaction (KIP-890).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Computed, Pending, Rest, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission
from barnabas.broker.coordinator.transactions.holding import Waiter
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch, TransactionAnswer
from barnabas.broker.coordinator.transactions.state import NO_EPOCH, NO_PRODUCER_ID
from barnabas.broker.handlers import producers, transaction_listing, txn_offsets
from barnabas.broker.handlers.held import BrokerWaiter, PendingWaiter
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse_each
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.protocol.schema import Message
from barnabas.storage.checkpoints import TopicPartition
from barnabas.work import Steps, finished

if TYPE_CHECKING:
    from barnabas.broker.image.image import MetadataImage

ADDITIONS_AT_ONCE: Final = 64  # transactions of a request: 1 ms
_FENCED_SINCE = {InitProducerIdRequest: 4, AddPartitionsToTxnRequest: 2, AddOffsetsToTxnRequest: 2, EndTxnRequest: 2}


def _code(call: Call[Message], error: BrokerError) -> ErrorCode:
    """The error's code as this client's version knows it."""
    if error.code is ErrorCode.PRODUCER_FENCED and call.version < _FENCED_SINCE.get(type(call.request), 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


def _check_in_time(
    needs: Needs, call: Call[Message], transactional_id: str, producer_id: int, producer_epoch: int
) -> None:
    """Raises RemoteProtocolError for a V1 request over a connection that its producer has replaced."""
    needs.connection_fence.check(transactional_id, producer_id, producer_epoch, call.connection.number)


def init_producer_id(needs: Needs, call: Call[InitProducerIdRequest]) -> Pending[InitProducerIdResponse]:
    """Returns a producer id with its epoch. During an ongoing transaction: CONCURRENT_TRANSACTIONS until it is aborted, unless the request
    keeps it prepared: then the producer id and epoch that own it."""
    request = call.request
    _check_producer(call)
    expected: ProducerIdAndEpoch | None = None
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    pending: Pending[InitProducerIdResponse] = Pending()

    def done(outcome: TransactionAnswer | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            pending.resolve(_refuse_init(call, outcome))
        else:
            pending.resolve(
                InitProducerIdResponse(
                    producer_id=outcome.identity.producer_id,
                    producer_epoch=outcome.identity.producer_epoch,
                    ongoing_txn_producer_id=outcome.kept.producer_id,
                    ongoing_txn_producer_epoch=outcome.kept.producer_epoch,
                )
            )

    needs.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        expected,
        done,
        two_phase=request.enable_2pc,
        keep_prepared=request.keep_prepared_txn,
    )
    return pending


def _check_producer(call: Call[InitProducerIdRequest]) -> None:
    """Refuses a producer that may not use the transactional id, or write to any topic (KIP-679)."""
    access, transactional_id = call.access, call.request.transactional_id
    if transactional_id is not None:
        check_permission(access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id)
        if call.request.enable_2pc:
            check_permission(access, AclOperation.TWO_PHASE_COMMIT, AclResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not access.unrestricted and not (
        access.allows(AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, log=False)
        or access.allows_any(AclOperation.WRITE, AclResourceType.TOPIC)
    ):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def add_partitions_to_txn(needs: Needs, call: Call[AddPartitionsToTxnRequest]) -> Computed:
    """Adds partitions to one transaction (≤ v3), or adds to or verifies many for a broker."""
    request = call.request
    transactions = request.transactions
    if call.version < 4:
        single = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        check_permission(call.access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, single.transactional_id)
        _check_in_time(needs, call, single.transactional_id, single.producer_id, single.producer_epoch)
        transactions = [single]
    else:
        check_permission(call.access, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
    return Computed(call, partial(_check_partitions, needs, call, transactions, needs.current_image.image))


class _Addition(NamedTuple):
    """One transaction of a request, its results, and the partitions to add or verify; None: one of them is refused, so all are."""

    asked: AddPartitionsToTxnTransaction
    results: list[AddPartitionsToTxnTopicResult]
    partitions: list[TopicPartition] | None

    def refuse(self, code: ErrorCode) -> None:
        """Sets one code for all partitions."""
        for topic in self.results:
            for result in topic.results_by_partition:
                result.partition_error_code = code


def _check_partitions(
    needs: Needs,
    call: Call[AddPartitionsToTxnRequest],
    transactions: list[AddPartitionsToTxnTransaction],
    image: MetadataImage,
    access: Access,
) -> AddPartitionsToTxnResponse | Rest:
    # Brokers add what their clients were allowed to write.
    writable = AllowedNames(access, AclOperation.WRITE, AclResourceType.TOPIC) if call.version < 4 else None
    additions = [_checked(each, image, writable) for each in transactions]
    if call.version < 4:
        response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=additions[0].results)
    else:
        results = [
            AddPartitionsToTxnResult(transactional_id=each.asked.transactional_id, topic_results=each.results)
            for each in additions
        ]
        response = AddPartitionsToTxnResponse(results_by_transaction=results)
    known = [each for each in additions if each.partitions is not None]
    if not known:
        return response
    work = _add_or_verify(needs, call, known, response)
    return lambda: finished(work) if len(known) <= ADDITIONS_AT_ONCE else work


def _checked(
    transaction: AddPartitionsToTxnTransaction, image: MetadataImage, writable: AllowedNames | None
) -> _Addition:
    partitions: dict[TopicPartition, None] = {}
    results = _results(transaction.topics, ErrorCode.NONE)
    refused = False
    for topic in results:
        name, count = topic.name, image.partition_count(topic.name)
        # No client may write to internal topics.
        allowed = writable is None or (name not in INTERNAL_TOPICS and name in writable)
        for result in topic.results_by_partition:
            if not allowed:
                result.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= result.partition_index < count:
                result.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused = refused or bool(result.partition_error_code)
            partitions[name, result.partition_index] = None
    if not refused:
        return _Addition(transaction, results, list(partitions))
    for topic in results:
        for result in topic.results_by_partition:
            result.partition_error_code = result.partition_error_code or ErrorCode.OPERATION_NOT_ATTEMPTED
    return _Addition(transaction, results, None)


def _results(topics: list[AddPartitionsToTxnTopic], code: ErrorCode) -> list[AddPartitionsToTxnTopicResult]:
    """Returns results of all partitions with one code."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=code)
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


def _add_or_verify(
    needs: Needs,
    call: Call[AddPartitionsToTxnRequest],
    additions: list[_Addition],
    response: AddPartitionsToTxnResponse,
) -> Steps[Pending[AddPartitionsToTxnResponse]]:
    """Decides each transaction alone, as Kafka does: others may be decided in between."""
    pending: Pending[AddPartitionsToTxnResponse] = Pending()
    waiter = PendingWaiter(pending) if call.version < 4 else BrokerWaiter(pending)
    undecided = len(additions)

    def done(addition: _Addition, error: BrokerError | None) -> None:
        nonlocal undecided
        if error is not None:
            addition.refuse(_code(call, error))
        undecided -= 1
        if not undecided:
            pending.resolve(response)

    for addition in additions:
        if addition.asked.verify_only:
            done(addition, _verify(needs, addition))
        else:
            asked = addition.asked
            producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
            needs.transactions.add_partitions(
                asked.transactional_id,
                producer,
                addition.partitions or [],
                2 if call.version >= 5 else 0,
                partial(done, addition),
                waiter,
            )
        yield 1
    return pending


def _verify(needs: Needs, addition: _Addition) -> BrokerError | None:
    """Sets the code of each partition, or returns the error of all."""
    asked = addition.asked
    producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
    try:
        codes = needs.transactions.verify_partitions(asked.transactional_id, producer, addition.partitions or [])
    except BrokerError as error:
        return error
    for topic in addition.results:
        for result in topic.results_by_partition:
            result.partition_error_code = codes[topic.name, result.partition_index]
    return None


def add_offsets_to_txn(needs: Needs, call: Call[AddOffsetsToTxnRequest]) -> Pending[AddOffsetsToTxnResponse]:
    """Adds the group's partition of `__consumer_offsets` to the transaction; creates that topic if it is missing."""
    request = call.request
    check_permission(call.access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id)
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    _check_in_time(needs, call, request.transactional_id, request.producer_id, request.producer_epoch)
    if needs.current_image.image.topic(GROUP_METADATA_TOPIC) is not None:
        pending: Pending[AddOffsetsToTxnResponse] = Pending()
        _add_group(needs, call, pending, PendingWaiter(pending))
        return pending
    pending = Pending(blocks=True)

    def made(error: BrokerError | None) -> None:
        if pending.resolved:
            return  # the connection closed during the wait: no effect
        if error is not None:  # too few brokers yet, or no controller: the client may retry both
            pending.resolve(_refuse_add_offsets(call, BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))))
            return
        _add_group(needs, call, pending)
        pending.effected()

    needs.controller.ensure_topic(GROUP_METADATA_TOPIC, made)
    return pending


def _add_group(
    needs: Needs,
    call: Call[AddOffsetsToTxnRequest],
    pending: Pending[AddOffsetsToTxnResponse],
    waiter: Waiter | None = None,
) -> None:
    request = call.request

    def done(error: BrokerError | None) -> None:
        pending.resolve(AddOffsetsToTxnResponse() if error is None else _refuse_add_offsets(call, error))

    needs.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [(GROUP_METADATA_TOPIC, needs.groups.host.partition_of(request.group_id))],
        0,
        done,
        waiter,
    )


def end_txn(needs: Needs, call: Call[EndTxnRequest]) -> Pending[EndTxnResponse]:
    """Commits or aborts; answers when the decision is committed, before the markers are written."""
    request = call.request
    check_permission(call.access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id)
    if call.version < 5:
        _check_in_time(needs, call, request.transactional_id, request.producer_id, request.producer_epoch)
    pending: Pending[EndTxnResponse] = Pending()

    def done(outcome: ProducerIdAndEpoch | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            pending.resolve(_refuse_end(call, outcome))
        else:
            pending.resolve(EndTxnResponse(producer_id=outcome.producer_id, producer_epoch=outcome.producer_epoch))

    needs.transactions.end_transaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        transaction_version=2 if call.version >= 5 else 0,
        done=done,
    )
    return pending


def write_txn_markers(needs: Needs, call: Call[WriteTxnMarkersRequest]) -> Pending[WriteTxnMarkersResponse]:
    """Writes markers to partitions led here, for a coordinator or an administrator who ends a hanging transaction."""
    access = call.access
    if not access.unrestricted and not access.allows(AclOperation.ALTER, AclResourceType.CLUSTER, log=False):
        check_permission(access, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
    pending: Pending[WriteTxnMarkersResponse] = Pending()
    needs.marker_writer.write(call.request, pending.resolve)
    return pending


def _refuse_init(call: Call[InitProducerIdRequest], error: BrokerError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=_code(call, error), producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def _refuse_end(call: Call[EndTxnRequest], error: BrokerError) -> EndTxnResponse:
    return EndTxnResponse(error_code=_code(call, error))


def _refuse_add_offsets(call: Call[AddOffsetsToTxnRequest], error: BrokerError) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=_code(call, error))


def _refuse_add_partitions(call: Call[AddPartitionsToTxnRequest], error: BrokerError) -> AddPartitionsToTxnResponse:
    code = _code(call, error)
    if call.version >= 4:
        return AddPartitionsToTxnResponse(error_code=code)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(call.request.v3_and_below_topics, code))


HANDLERS: Final[Table] = {
    InitProducerIdRequest: (init_producer_id, _refuse_init),
    AddPartitionsToTxnRequest: (add_partitions_to_txn, _refuse_add_partitions),
    AddOffsetsToTxnRequest: (add_offsets_to_txn, _refuse_add_offsets),
    EndTxnRequest: (end_txn, _refuse_end),
    WriteTxnMarkersRequest: (write_txn_markers, refuse_each),
    **transaction_listing.HANDLERS,
    **producers.HANDLERS,
    **txn_offsets.HANDLERS,
}
