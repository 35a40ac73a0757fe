"""Handles AlterPartitionReassignments (45, versions 0 to 1) and ListPartitionReassignments (46, 0) (KIP-455).

Behaviour: both are forwarded to the controller. A reassignment is answered when it has begun, and continues in the background; it is
listed until it is complete. Replication throttles (`replica/core/throttle.py`) apply to it.

AlterPartitionReassignments with a `timeout_ms` of 0 or less is answered REQUEST_TIMED_OUT and begins nothing.
ListPartitionReassignments ignores its `timeout_ms`.

Version notes: AlterPartitionReassignments v1 may forbid changes of the replication factor (KIP-860).
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.api.call import Answer, Call, Pending, Table
from barnabas.broker.handlers.admin import answered_in_time, forwarded
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from barnabas.protocol.schema import Message


def reassign(needs: Needs, call: Call[AlterPartitionReassignmentsRequest]) -> Answer:
    """Begins or cancels reassignments of partitions."""
    timeout_ms = call.request.timeout_ms
    return answered_in_time(
        call,
        lambda done: needs.controller.request(call.request, done, timeout_ms=timeout_ms, access=call.access),
        refuse_each,
    )


def list_partition_reassignments(needs: Needs, call: Call[ListPartitionReassignmentsRequest]) -> Pending[Message]:
    """Lists the reassignments in progress."""
    return forwarded(needs.controller, call, refuse)


HANDLERS: Final[Table] = {
    AlterPartitionReassignmentsRequest: (reassign, refuse_each),
    ListPartitionReassignmentsRequest: (list_partition_reassignments, refuse),
}
