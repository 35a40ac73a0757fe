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

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from barnabas.broker.api.call import Call, Pending, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission
from barnabas.broker.coordinator.transactions.holding import Waiter
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch, TransactionAnswer
from barnabas.broker.coordinator.transactions.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
)
from barnabas.broker.handlers import producers, transaction_listing, txn_offsets
from barnabas.broker.handlers.held import BrokerWaiter, PendingWaiter
from barnabas.broker.scheduling.slices import begun
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
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.protocol.schema import Message
from barnabas.storage.checkpoints import TopicPartition
from barnabas.work import Steps, Work, finished

if TYPE_CHECKING:
    from barnabas.broker.controller.channel import ControllerChannel
    from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
    from barnabas.broker.coordinator.marker_writer import MarkerWriter
    from barnabas.broker.coordinator.transaction_coordinator import TransactionCoordinator
    from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
    from barnabas.broker.image.current_image import CurrentImage
    from barnabas.broker.image.image import MetadataImage
    from barnabas.broker.scheduling.reactor import Reactor

PARTITIONS_A_YIELD = 8
_TopicResults: TypeAlias = "Steps[list[AddPartitionsToTxnTopicResult]]"
_FENCED_SINCE = {InitProducerIdRequest: 4, AddPartitionsToTxnRequest: 2, AddOffsetsToTxnRequest: 2, EndTxnRequest: 2}


class Needs(Protocol):
    """What these handlers work on."""

    reactor: Reactor
    transactions: TransactionCoordinator
    groups: GroupCoordinator
    current_image: CurrentImage
    controller: ControllerChannel
    connection_fence: ConnectionFence
    marker_writer: MarkerWriter


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


def add_partitions_to_txn(needs: Needs, call: Call[AddPartitionsToTxnRequest]) -> Work:
    """Adds partitions to one transaction (≤ v3), or adds to or verifies many for a broker."""
    request = call.request
    pending: Pending[AddPartitionsToTxnResponse] = Pending()
    if call.version < 4:
        check_permission(
            call.access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id
        )
        _check_in_time(
            needs,
            call,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        single = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        yield from _add_or_verify(
            needs,
            call,
            single,
            lambda results: pending.resolve(begun(_single_result(results))),
            PendingWaiter(pending),
        )
        return pending
    check_permission(call.access, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
    waiter = BrokerWaiter(pending)
    response = AddPartitionsToTxnResponse()
    decided: list[tuple[AddPartitionsToTxnResult, _TopicResults]] = []

    def done(result: AddPartitionsToTxnResult, results: _TopicResults) -> None:
        decided.append((result, results))
        if len(decided) == len(request.transactions):
            pending.resolve(begun(_all_results(response, decided)))

    for transaction in request.transactions:
        result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
        response.results_by_transaction.append(result)
        yield from _add_or_verify(needs, call, transaction, partial(done, result), waiter)
    if not request.transactions:
        pending.resolve(response)
    return pending


def _single_result(results: _TopicResults) -> Steps[AddPartitionsToTxnResponse]:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=(yield from results))


def _all_results(
    response: AddPartitionsToTxnResponse, decided: list[tuple[AddPartitionsToTxnResult, _TopicResults]]
) -> Steps[AddPartitionsToTxnResponse]:
    for result, results in decided:
        yield 1
        result.topic_results = yield from results
    return response


def _add_or_verify(
    needs: Needs,
    call: Call[AddPartitionsToTxnRequest],
    transaction: AddPartitionsToTxnTransaction,
    done: Callable[[_TopicResults], None],
    waiter: Waiter | None = None,
) -> Work:
    image = needs.current_image.image
    yield 1
    writable = None  # brokers add what their clients were allowed to write
    if call.version < 4:
        writable = AllowedNames(call.access, AclOperation.WRITE, AclResourceType.TOPIC)
    if not (yield from _all_known(image, transaction.topics, writable)):
        done(_results(transaction.topics, partial(_refusal_of_partition, image, writable)))
        return
    partitions = []
    for topic in transaction.topics:
        partitions += [(topic.name, partition) for partition in topic.partitions]
        yield 1 + len(topic.partitions) // PARTITIONS_A_YIELD
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)

    def refused(error: BrokerError) -> None:
        code = _code(call, error)
        done(_results(transaction.topics, lambda _key: code))

    def added(error: BrokerError | None) -> None:
        if error is None:
            done(_results(transaction.topics, lambda _key: ErrorCode.NONE))
        else:
            refused(error)

    if transaction.verify_only:
        try:
            errors = needs.transactions.verify_partitions(transaction.transactional_id, producer, partitions)
        except BrokerError as error:
            refused(error)
            return
        done(_results(transaction.topics, lambda key: errors[key]))
        return
    needs.transactions.add_partitions(
        transaction.transactional_id, producer, partitions, 2 if call.version >= 5 else 0, added, waiter
    )


def _is_writable(writable: AllowedNames | None, topic: str) -> bool:
    """Whether the request's client may write to a topic; no client may write to internal ones."""
    return writable is None or (topic not in INTERNAL_TOPICS and topic in writable)


def _refusal_of_partition(image: MetadataImage, writable: AllowedNames | None, key: TopicPartition) -> ErrorCode:
    """The code of a partition in a request that is refused because of one of its partitions."""
    if not _is_writable(writable, key[0]):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if image.partition(*key) is None else ErrorCode.OPERATION_NOT_ATTEMPTED


def _all_known(
    image: MetadataImage, topics: Iterable[AddPartitionsToTxnTopic], writable: AllowedNames | None
) -> Steps[bool]:
    """Returns whether all partitions exist, and the client may write to them."""
    for topic in topics:
        if not _is_writable(writable, topic.name):
            return False
        for number, partition in enumerate(topic.partitions):
            if image.partition(topic.name, partition) is None:
                return False
            if number % PARTITIONS_A_YIELD == 0:
                yield 1
    return True


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], code_of: Callable[[TopicPartition], ErrorCode]
) -> _TopicResults:
    """Returns the results of all partitions."""
    results = []
    for number, topic in enumerate(topics):
        if number % PARTITIONS_A_YIELD == PARTITIONS_A_YIELD - 1:
            yield 2
        answers: list[AddPartitionsToTxnPartitionResult] = []
        results.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=answers))
        for partition in topic.partitions:
            code = code_of((topic.name, partition))
            answers.append(AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=code))
            if len(answers) % PARTITIONS_A_YIELD == 0:
                yield 1
    return results


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
    return finished(_single_result(_results(call.request.v3_and_below_topics, lambda _key: code)))


def _refuse_markers(call: Call[WriteTxnMarkersRequest], error: BrokerError) -> WriteTxnMarkersResponse:
    code = _code(call, error)
    markers = []
    for marker in call.request.markers:
        topics = [
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=partition, error_code=code)
                    for partition in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
    return WriteTxnMarkersResponse(markers=markers)


HANDLERS: Final[Table] = {
    InitProducerIdRequest: (init_producer_id, _refuse_init),
    AddPartitionsToTxnRequest: (add_partitions_to_txn, _refuse_add_partitions),
    AddOffsetsToTxnRequest: (add_offsets_to_txn, _refuse_add_offsets),
    EndTxnRequest: (end_txn, _refuse_end),
    WriteTxnMarkersRequest: (write_txn_markers, _refuse_markers),
    **transaction_listing.HANDLERS,
    **producers.HANDLERS,
    **txn_offsets.HANDLERS,
}
