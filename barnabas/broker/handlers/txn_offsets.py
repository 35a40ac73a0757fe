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

from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Computed, Pending, Rest, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.host.decision import ProducerStamp
from barnabas.broker.handlers.held import PendingWaiter
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.offset_checks import OffsetChecks
from barnabas.broker.handlers.refusals import refuse_each
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.protocol.messages.shared import PartitionResult, TopicResult
from barnabas.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from barnabas.broker.image.image import MetadataImage

UNKNOWN_SEQUENCE = -1  # producers do not number offsets


def txn_offset_commit(needs: Needs, call: Call[TxnOffsetCommitRequest]) -> Computed:
    """Commits offsets with a transaction; they are pending until its marker."""
    request = call.request
    check_permission(call.access, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id)
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    if call.version < 5:
        key = request.transactional_id, request.group_id
        needs.connection_fence.check(key, request.producer_id, request.producer_epoch, call.connection.number)
    offsets = OffsetChecks(
        request.group_id, needs.groups.settings.offset_metadata_bytes_max, needs.reactor.clock.now_ms()
    )
    return Computed(call, partial(_check_offsets, needs, call, needs.current_image.image, offsets))


def _check_offsets(
    needs: Needs, call: Call[TxnOffsetCommitRequest], image: MetadataImage, offsets: OffsetChecks, access: Access
) -> TxnOffsetCommitResponse | Rest:
    readable = AllowedNames(access, AclOperation.READ, AclResourceType.TOPIC)
    response = TxnOffsetCommitResponse()
    for topic in call.request.topics:
        allowed = topic.name in readable
        known = image.topic(topic.name)
        answers: list[PartitionResult] = []
        response.topics.append(TopicResult(name=topic.name, partitions=answers))
        for partition in topic.partitions:
            answer = PartitionResult(partition_index=partition.partition_index)
            answers.append(answer)
            if allowed:
                offsets.check(known, partition, answer)
            else:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return partial(_verify, needs, call, offsets, response) if offsets.accepted else response


def _verify(
    needs: Needs, call: Call[TxnOffsetCommitRequest], offsets: OffsetChecks, response: TxnOffsetCommitResponse
) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
    """Asks the transaction coordinator, unless the log knows that the transaction is open here; then commits."""
    request = call.request
    try:
        partition, _ = needs.groups.host.shard_for(request.group_id)
        replica = needs.replicas.leader(GROUP_METADATA_TOPIC, partition)
        guard = replica.verification_guard(
            request.producer_id, request.producer_epoch, UNKNOWN_SEQUENCE, supports_epoch_bump=call.version >= 5
        )
    except BrokerError as error:
        offsets.refuse(error)
        return response
    pending: Pending[TxnOffsetCommitResponse] = Pending(blocks=True)

    def verified(errors: dict[tuple[str, int], ErrorCode]) -> None:
        if pending.resolved:
            return  # the connection closed during the wait: no effect
        code = errors.get((GROUP_METADATA_TOPIC, partition), ErrorCode.NONE)
        if code:
            offsets.refuse(BrokerError(_verification_code(code, call.version)))
            pending.resolve(response)
            return
        committer = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, None
        )
        producer = ProducerStamp(request.producer_id, request.producer_epoch, guard)
        offsets.commit(needs.groups, committer, producer, lambda: pending.resolve(response))
        pending.effected()

    if guard is None or not needs.config.get_bool("transaction.partition.verification.enable"):
        guard = None
        verified({})
        return pending
    needs.transactions.verify_or_add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [(GROUP_METADATA_TOPIC, partition)],
        add=call.version >= 5,
        done=verified,
        waiter=PendingWaiter(pending),
    )
    return pending


def _verification_code(code: ErrorCode, version: int) -> ErrorCode:
    """The code for this version: TRANSACTION_ABORTABLE exists from v4 on; before, another code means the same."""
    if code is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # every client retries this at the same coordinator
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < 4:
        return ErrorCode.INVALID_TXN_STATE
    return code


HANDLERS: Final[Table] = {TxnOffsetCommitRequest: (txn_offset_commit, refuse_each)}
