"""AlterPartitionReassignments (45, versions 0 to 1) and ListPartitionReassignments (46, 0): partitions on the move (KIP-455).

Behaviour: both are passed on to the controller. A move is answered when it has begun, and continues in the background; it is in the list until
it is complete. Replication throttles (`replica/throttle.py`) apply to it.

AlterPartitionReassignments with a `timeout_ms` of 0 or less is answered REQUEST_TIMED_OUT and begins nothing.
ListPartitionReassignments ignores its `timeout_ms`.

Version notes: AlterPartitionReassignments v1 may forbid that the replication factor changes (KIP-860).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.broker.call import Call, Pending
from barnabas.broker.handlers.admin import answered_in_time, answered_later
from barnabas.broker.router import handles
from barnabas.errors import BrokerError
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["list_reassignments", "reassign", "refuse"]


@handles(AlterPartitionReassignmentsRequest)
def reassign(node: Node, call: Call[AlterPartitionReassignmentsRequest]) -> Any:
    """Begins or cancels moves of partitions."""
    timeout_ms = call.request.timeout_ms
    return answered_in_time(
        call, lambda done: node.controller.request(call.request, done, timeout_ms=timeout_ms), refuse
    )


@handles(ListPartitionReassignmentsRequest)
def list_reassignments(
    node: Node, call: Call[ListPartitionReassignmentsRequest]
) -> Pending[ListPartitionReassignmentsResponse]:
    """Lists the moves of partitions that go on."""
    return answered_later(call, lambda done: node.controller.request(call.request, done), refuse)


def refuse(call: Call[Any], error: BrokerError) -> Any:
    """The answer that carries one error for the whole request, and for each partition that it names."""
    if isinstance(call.request, ListPartitionReassignmentsRequest):
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_code=error.code, error_message=error.message
                )
                for partition in topic.partitions
            ],
        )
        for topic in call.request.topics
    ]
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message, responses=responses)
