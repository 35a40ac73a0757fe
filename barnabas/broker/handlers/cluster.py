"""What the controller listener serves besides the quorum's own: everything that the active controller decides.

On the listener of clients: UnregisterBroker 64 0, passed on to the controller.

CreateTopics 19, DeleteTopics 20, AlterConfigs 33, CreatePartitions 37, ElectLeaders 43, IncrementalAlterConfigs 44,
AlterPartitionReassignments 45, ListPartitionReassignments 46, AlterPartition 56, UpdateFeatures 57, BrokerRegistration 62, BrokerHeartbeat 63, UnregisterBroker 64, AllocateProducerIds 67,
ControllerRegistration 70, AssignReplicasToDirs 73; all versions. DescribeConfigs 32 1 to 4 as on the listener of clients (KIP-919).

Behaviour: one handler for all: the request goes to `metadata/controller.QuorumController`, the answer leaves once it is committed and
published. A controller that is not active answers NOT_CONTROLLER. The connection goes with the request: the end of the one that
heartbeats come over is the first sign of a dead broker.

Deviation: requests of clients that brokers pass on come as they are, not in an Envelope (58): there are no principals to carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.broker.handlers import admin
from barnabas.broker.metadata.requests import DECISIONS
from barnabas.broker.router import Call, Pending, handles
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol import registry
from barnabas.protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResponse
from barnabas.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["decide", "describe_configs", "refuse", "unregister_broker"]


@handles(*DECISIONS, BrokerRegistrationRequest, BrokerHeartbeatRequest, listener="controller")
def decide(node: Node, call: Call[Any]) -> Pending:
    """Asks this node's controller."""
    controller = node.quorum_controller
    if controller is None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {node.node_id} is no controller")
    pending = Pending()

    def done(answer: Any) -> None:
        pending.resolve(refuse(call, answer) if isinstance(answer, BrokerError) else answer)

    controller.handle(call.request, done, source=call.connection)
    return pending


@handles(DescribeConfigsRequest, listener="controller")
def describe_configs(node: Node, call: Call[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    """This node's configuration, and what the metadata log says of topics and brokers."""
    return admin.describe_configs(node, call)


@handles(UnregisterBrokerRequest)
def unregister_broker(node: Node, call: Call[UnregisterBrokerRequest]) -> Pending:
    """Removes a broker that will not come back, for an administrator."""
    return admin.answered_later(call, lambda done: node.controller.request(call.request, done), refuse)


def refuse(call: Call[Any], error: BrokerError) -> Any:
    """The answer that carries one error for everything that was asked."""
    refusal: Any = registry.API[call.api_key].response()
    if not hasattr(refusal, "error_code"):
        return admin.refuse(call, error)
    refusal.error_code = error.code
    if hasattr(refusal, "error_message"):
        refusal.error_message = error.message
    return refusal
