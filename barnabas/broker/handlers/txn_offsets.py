"""Handles offsets that a transaction commits: TxnOffsetCommit 0–5, of the family `transactions`.

Behaviour: this module looks up topics; the group's shard checks member and generation. The request is first verified
against the transaction, or (v5) added to it, unless the log knows that the transaction is open here. That waits
before the effect, so the later requests of the connection wait too (KIP-890). Below v5 a request over a connection
that its producer has replaced is late, and the connection is closed (`coordinator/transactions/connection_fence.py`).
The offsets are pending until the transaction's end marker.

Version notes: v2 leader epochs; v3 names the member (KIP-447); v4 TRANSACTION_ABORTABLE; v5 adds the group's partition
to the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.api.call import Call, Done, Pending, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.records import OffsetRecord
from barnabas.broker.coordinator.host.decision import ProducerStamp
from barnabas.broker.handlers.held import PendingWaiter
from barnabas.broker.handlers.offset_checks import OffsetChecks
from barnabas.broker.handlers.offset_parts import commit_in_parts
from barnabas.broker.scheduling.slices import WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
    from barnabas.broker.coordinator.transaction_coordinator import TransactionCoordinator
    from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
    from barnabas.broker.image.current_image import CurrentImage
    from barnabas.broker.replica.core.verification_guard import VerificationGuard
    from barnabas.broker.replica.replicas import Replicas
    from barnabas.broker.scheduling.reactor import Reactor
    from barnabas.broker.scheduling.slices import Slices

UNKNOWN_SEQUENCE = -1  # producers do not number offsets


class Needs(Protocol):
    """What these handlers work on."""

    reactor: Reactor
    config: BrokerConfig
    transactions: TransactionCoordinator
    groups: GroupCoordinator
    current_image: CurrentImage
    replicas: Replicas
    connection_fence: ConnectionFence
    slices: Slices


def txn_offset_commit(needs: Needs, call: Call[TxnOffsetCommitRequest]) -> Work:
    """Commits offsets with a transaction; they are pending until its marker."""
    request = call.request
    check_permission(call.access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id)
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    readable = AllowedNames(call.access, AclOperation.READ, AclResourceType.TOPIC)
    if call.version < 5:
        key = request.transactional_id, request.group_id
        needs.connection_fence.check(key, request.producer_id, request.producer_epoch, call.connection.number)
    offsets = OffsetChecks(
        request.group_id, needs.groups.settings.offset_metadata_bytes_max, needs.reactor.clock.now_ms()
    )
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        allowed = topic.name in readable
        known = needs.current_image.image.topic(topic.name)
        answers: list[TxnOffsetCommitResponsePartition] = []
        response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
        for partition in topic.partitions:
            yield 1
            answer = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            answers.append(answer)
            if allowed:
                offsets.check(known, partition, answer)
            else:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not offsets.accepted:
        return response
    pending: Pending[TxnOffsetCommitResponse] = Pending(blocks=True)

    def done(outcome: BrokerError | None) -> None:
        if outcome is not None:
            offsets.refuse(outcome)
        pending.resolve(response)

    try:
        _verify(needs, call, offsets.records, pending, done)
    except BrokerError as error:
        done(error)
    return pending


def _verify(
    needs: Needs,
    call: Call[TxnOffsetCommitRequest],
    records: list[OffsetRecord],
    pending: Pending[TxnOffsetCommitResponse],
    done: Done[None],
) -> None:
    """Asks the transaction coordinator, unless the log knows that the transaction is open here; then commits.

    Raises:
        BrokerError: the group's coordinator is not here or not loaded, or the log refuses the producer.
    """
    request = call.request
    partition, _ = needs.groups.host.shard_for(request.group_id)
    replica = needs.replicas.leader(GROUP_METADATA_TOPIC, partition)
    guard = replica.verification_guard(
        request.producer_id, request.producer_epoch, UNKNOWN_SEQUENCE, supports_epoch_bump=call.version >= 5
    )

    def verified(errors: dict[tuple[str, int], ErrorCode]) -> None:
        if pending.resolved:
            return  # the connection closed during the wait: no effect
        code = errors.get((GROUP_METADATA_TOPIC, partition), ErrorCode.NONE)
        if code:
            done(BrokerError(_verification_code(code, call.version)))
        else:
            _commit_in_transaction(needs, call, records, guard, pending, done)

    if guard is None or not needs.config.get_bool("transaction.partition.verification.enable"):
        guard = None
        verified({})
        return
    needs.transactions.verify_or_add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [(GROUP_METADATA_TOPIC, partition)],
        add=call.version >= 5,
        done=verified,
        waiter=PendingWaiter(pending),
    )


def _verification_code(code: ErrorCode, version: int) -> ErrorCode:
    """The code for this version: TRANSACTION_ABORTABLE exists from v4 on; before, another code means the same."""
    if code is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # every client retries this at the same coordinator
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < 4:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _commit_in_transaction(
    needs: Needs,
    call: Call[TxnOffsetCommitRequest],
    records: list[OffsetRecord],
    guard: VerificationGuard | None,
    pending: Pending[TxnOffsetCommitResponse],
    done: Done[None],
) -> None:
    """Writes the offsets; the later requests of the connection wait until all are written."""
    request = call.request
    committer = Committer(request.group_id, request.member_id, request.group_instance_id, request.generation_id, None)
    producer = ProducerStamp(request.producer_id, request.producer_epoch, guard)
    rest = advance(commit_in_parts(needs.groups, committer, records, producer, done))
    if isinstance(rest, WorkResult):
        pending.effected()
    else:
        pending.on_closed = needs.slices.start(rest, lambda _: pending.effected(), _failed(done)).cancel


def _failed(done: Done[None]) -> Callable[[BaseException], None]:
    def failed(error: BaseException) -> None:
        done(BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR))
        raise error

    return failed


def refuse_txn_offset_commit(call: Call[TxnOffsetCommitRequest], error: BrokerError) -> TxnOffsetCommitResponse:
    """The answer that carries one error for the whole request."""
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error.code)
                for p in topic.partitions
            ],
        )
        for topic in call.request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


HANDLERS: Final[Table] = {TxnOffsetCommitRequest: (txn_offset_commit, refuse_txn_offset_commit)}
