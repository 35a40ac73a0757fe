"""Handles DescribeTransactions 0 and ListTransactions 0–2, of the family `transactions`, for administrators.

Behaviour: committed states of transactions that this node coordinates. A client sees only transactional ids that it may describe, and in
a transaction only topics that it may describe.

Version notes: ListTransactions 1 filters by age, 2 by a pattern (`broker/patterns.py`: RE2's syntax without \\p{…}, \\b and the flag m).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Computed, Table
from barnabas.broker.authorization.permissions import AllowedNames
from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.broker.patterns import Pattern, compile_pattern
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsTransactionState,
)
from barnabas.work import Steps, Work

PARTITIONS_PER_UNIT: Final = 32  # of a transaction
PATTERN_CHARACTERS_PER_ELEMENT: Final = 2  # of a transactional id that is compared with a pattern
_STATES: Final = {state.label: state for state in TransactionState}


def describe_transactions(needs: Needs, call: Call[DescribeTransactionsRequest]) -> Work:
    """Describes committed transaction states by transactional id."""
    states = []
    described = AllowedNames(call.access, AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID)
    for transactional_id in dict.fromkeys(call.request.transactional_ids):
        yield 1
        try:
            if transactional_id not in described:
                raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            metadata = needs.transactions.describe(transactional_id)
            states.append((yield from _described(metadata, call.access)))
        except BrokerError as error:
            states.append(
                DescribeTransactionsTransactionState(error_code=error.code, transactional_id=transactional_id)
            )
    return DescribeTransactionsResponse(transaction_states=states)


def _described(metadata: TransactionMetadata, access: Access) -> Steps[DescribeTransactionsTransactionState]:
    """Describes one transaction as of now; its topics and partitions in ascending order."""
    state = DescribeTransactionsTransactionState(
        transactional_id=metadata.transactional_id,
        transaction_state=metadata.state.label,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.started_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
    )
    shown = AllowedNames(access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
    partitions: dict[str, list[int]] = {}
    for number, (topic, partition) in enumerate(metadata.partitions, 1):
        partitions.setdefault(topic, []).append(partition)
        if number % PARTITIONS_PER_UNIT == 0:
            yield 1
    for topic in sorted(partitions):
        yield 1
        if topic in shown:
            state.topics.append(TopicPartitions(topic=topic, partitions=sorted(partitions[topic])))
    return state


def list_transactions(needs: Needs, call: Call[ListTransactionsRequest]) -> Computed:
    """Lists the transactional ids that this node coordinates, filtered."""
    transactions = needs.transactions.all_transactions()
    text = call.request.transactional_id_pattern
    pattern = compile_pattern(text) if text else None
    elements = len(transactions)
    if pattern is not None:
        elements += sum(len(each.transactional_id) for each in transactions) // PATTERN_CHARACTERS_PER_ELEMENT
    now_ms = needs.reactor.clock.now_ms()
    return Computed(call, partial(_listed, call.request, transactions, pattern, now_ms), elements)


def _listed(
    request: ListTransactionsRequest,
    transactions: list[TransactionMetadata],
    pattern: Pattern | None,
    now_ms: int,
    access: Access,
) -> ListTransactionsResponse:
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producer_ids = set(request.producer_id_filters)
    described = AllowedNames(access, AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID)

    def wanted(metadata: TransactionMetadata) -> bool:
        return (
            (not producer_ids or metadata.producer_id in producer_ids)
            and (not request.state_filters or metadata.state in states)
            and (request.duration_filter < 0 or now_ms - metadata.started_ms > request.duration_filter)
            and (pattern is None or pattern.fullmatch(metadata.transactional_id))
            and metadata.transactional_id in described
        )

    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
        transaction_states=[
            ListTransactionsTransactionState(
                transactional_id=metadata.transactional_id,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.label,
            )
            for metadata in transactions
            if wanted(metadata)
        ],
    )


HANDLERS: Final[Table] = {
    DescribeTransactionsRequest: (describe_transactions, refuse_each),
    ListTransactionsRequest: (list_transactions, refuse),
}
