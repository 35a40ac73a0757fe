"""Handles the controller listener's requests that the active controller decides.

On the broker listener: UnregisterBroker 64 0, forwarded to the controller.

CreateTopics 19, DeleteTopics 20, AlterConfigs 33, CreatePartitions 37, ElectLeaders 43, IncrementalAlterConfigs 44,
AlterPartitionReassignments 45, ListPartitionReassignments 46, AlterClientQuotas 49, CreateAcls 30, DeleteAcls 31, AlterUserScramCredentials 51, AlterPartition 56, UpdateFeatures 57, BrokerRegistration 62, BrokerHeartbeat 63, UnregisterBroker 64, AllocateProducerIds 67,
ControllerRegistration 70, AssignReplicasToDirs 73; all versions. DescribeConfigs 32 1 to 4 as on the listener of clients (KIP-919), DescribeAcls 29, too.

Behaviour: one handler serves all. The request goes to `metadata/controller.QuorumController`; the answer is sent once the change is
committed and published. A controller that is not active answers NOT_CONTROLLER. Requests that change topics begin nothing if their
timeout_ms is 0 or less, as on the broker listener. The controller receives the connection with the request: the end of a heartbeat
connection is the first sign of a dead broker.

Requests of clients that brokers forward come in an Envelope (`envelope.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from barnabas.broker.api.call import Answer, Call, Computed, Pending, Refuse, Table
from barnabas.broker.controller.core.requests import DECISIONS, OF_CLIENTS
from barnabas.broker.handlers import (
    acls,
    admin,
    configs,
    delegation_tokens,
    quotas,
    reassignments,
    refusals,
    scram_users,
)
from barnabas.broker.handlers.envelope import ForwardedOrigin
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.quotas.mutations import MutatingClient
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol import registry
from barnabas.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from barnabas.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
)
from barnabas.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)
from barnabas.protocol.messages.reassignments import AlterPartitionReassignmentsRequest
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest
from barnabas.protocol.schema import Message


def decide(needs: Needs, call: Call[Any]) -> Answer:
    """Asks this node's controller."""
    controller = needs.quorum_controller
    if controller is None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {needs.node_id} is no controller")
    refuse_overdue = _REFUSALS_IN_TIME.get(type(call.request))
    if refuse_overdue is not None and call.request.timeout_ms <= 0:
        return Computed(call, lambda _access: refuse_overdue(call, BrokerError(ErrorCode.REQUEST_TIMED_OUT)))
    pending: Pending[Message] = Pending()

    def done(answer: Message | BrokerError) -> None:
        pending.resolve(
            Computed(call, lambda _access: refuse(call, answer)) if isinstance(answer, BrokerError) else answer
        )

    controller.handle(call.request, done, source=call.connection, access=call.access, client=_forwarded_client(call))
    return pending


def _forwarded_client(call: Call[Message]) -> MutatingClient | None:
    """The client of a request that a broker forwards; None: a node's own request, or one that came without an envelope."""
    return admin.mutating_client(call) if isinstance(call.connection, ForwardedOrigin) else None


def unregister_broker(needs: Needs, call: Call[UnregisterBrokerRequest]) -> Pending[Message]:
    """Removes a broker that will not return, for an administrator."""
    return admin.forwarded(needs.controller, call, refuse)


def refuse(call: Call[Message], error: BrokerError) -> Message:
    """The answer that carries one error for the whole request; for its elements, if it has no field for that."""
    if hasattr(registry.API[call.api_key].response, "error_code"):
        return refusals.refuse(call, error)
    kind = type(call.request)
    table = next(each for each in _TABLES if kind in each)
    return table[kind][1](call, error)


def decide_acls(needs: Needs, call: Call[CreateAclsRequest] | Call[DeleteAclsRequest]) -> Computed:
    """Asks this node's controller to change ACLs, for a client that may."""
    return acls.checked(needs, call, partial(decide, needs, call))


def decide_scram_users(needs: Needs, call: Call[AlterUserScramCredentialsRequest]) -> Answer:
    """Asks this node's controller to change credentials of users, for a client that may."""
    scram_users.check_alteration(call)
    return decide(needs, call)


def decide_tokens(needs: Needs, call: Call[delegation_tokens.TokenChange]) -> Answer:
    """Asks this node's controller to change delegation tokens, for a client that may."""
    delegation_tokens.check_change(needs.config, call)
    return decide(needs, call)


_TABLES: Final = (quotas.HANDLERS, acls.HANDLERS, scram_users.HANDLERS, admin.HANDLERS)  # with refusals for each item
HANDLERS: Final[Table] = {UnregisterBrokerRequest: (unregister_broker, refuse)}
CONTROLLER_HANDLERS: Final[Table] = {
    **dict.fromkeys((*DECISIONS, BrokerRegistrationRequest, BrokerHeartbeatRequest), (decide, refuse)),
    DescribeConfigsRequest: configs.HANDLERS[DescribeConfigsRequest],
    DescribeAclsRequest: acls.HANDLERS[DescribeAclsRequest],
    CreateAclsRequest: (decide_acls, refuse),
    DeleteAclsRequest: (decide_acls, refuse),
    AlterUserScramCredentialsRequest: (decide_scram_users, refuse),
    **dict.fromkeys(OF_CLIENTS, (decide_tokens, delegation_tokens.refuse_token_request)),
}

# Requests that begin nothing after their timeout_ms, each with the answer that refuses everything they name.
_REFUSALS_IN_TIME: Final[dict[type, Refuse]] = {
    CreateTopicsRequest: admin.HANDLERS[CreateTopicsRequest][1],
    DeleteTopicsRequest: admin.HANDLERS[DeleteTopicsRequest][1],
    CreatePartitionsRequest: admin.HANDLERS[CreatePartitionsRequest][1],
    ElectLeadersRequest: admin.HANDLERS[ElectLeadersRequest][1],
    AlterPartitionReassignmentsRequest: reassignments.HANDLERS[AlterPartitionReassignmentsRequest][1],
}
