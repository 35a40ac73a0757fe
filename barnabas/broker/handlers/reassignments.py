"""AlterPartitionReassignments (45, versions 0 to 1) and ListPartitionReassignments (46, 0): partitions on the move (KIP-455).

Behaviour: both are passed on to the controller. A move that was begun is answered at once and goes on by itself; who asked finds it in
the list until it is over.

Version notes: AlterPartitionReassignments v1 may forbid that the replication factor changes (KIP-860).
Deviation: replication throttles (leader and follower replication.throttled.*) slow nothing down here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.broker.handlers.admin import answered_later
from barnabas.broker.router import Call, Pending, handles
from barnabas.errors import BrokerError
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["reassign", "refuse"]

Request = AlterPartitionReassignmentsRequest | ListPartitionReassignmentsRequest


@handles(AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest)
def reassign(node: Node, call: Call[Request]) -> Pending:
    """Begins or cancels moves of partitions, or tells of them."""
    timeout_ms = call.request.timeout_ms
    return answered_later(call, lambda done: node.controller.request(call.request, done, timeout_ms=timeout_ms), refuse)


def refuse(call: Call[Any], error: BrokerError) -> Any:
    """The answer that carries one error for the whole request."""
    if isinstance(call.request, ListPartitionReassignmentsRequest):
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
