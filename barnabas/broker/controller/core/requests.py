"""Requests to the controller: decisions by request class, and refusals. `liveness.py` handles heartbeats and registrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.controller.core.acls import create_acls, delete_acls
from barnabas.broker.controller.core.configs import alter_configs, incremental_alter_configs
from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.controller.core.delegation_tokens import create_token, expire_token, renew_token
from barnabas.broker.controller.core.directories import assign_replicas
from barnabas.broker.controller.core.features import update_features
from barnabas.broker.controller.core.isr import alter_partition, elect_leaders
from barnabas.broker.controller.core.quotas import alter_client_quotas
from barnabas.broker.controller.core.reassignments import alter_reassignments, list_partition_reassignments
from barnabas.broker.controller.core.registration import check_broker_epoch, register_controller, unregister_broker
from barnabas.broker.controller.core.scram_users import alter_scram_users
from barnabas.broker.controller.core.topics import create_partitions, create_topics, delete_topics, states_of_names
from barnabas.broker.image.records import ProducerIdsRecord
from barnabas.errors import ErrorCode
from barnabas.limits import PRODUCER_ID_BLOCK_SIZE
from barnabas.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest
from barnabas.protocol.messages.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    ControllerRegistrationRequest,
    UnregisterBrokerRequest,
)
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest
from barnabas.work import Work

RequestDecision = Callable[[ClusterView, Any], MetadataDecision[object]]


def allocate_producer_ids(
    view: ClusterView, request: AllocateProducerIdsRequest
) -> MetadataDecision[AllocateProducerIdsResponse]:
    """Allocates the next block. Raises BrokerError(STALE_BROKER_EPOCH)."""
    check_broker_epoch(view.image, request.broker_id, request.broker_epoch)
    first = view.image.next_producer_id
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    answer = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE)
    return MetadataDecision(answer, [record])


@LongDecision[DeleteTopicsRequest, DeleteTopicsResponse]
def _delete(view: ClusterView, request: DeleteTopicsRequest) -> Work:
    """Versions below 6 have only topic names."""
    states = request.topics or (yield from states_of_names(request))
    decision = yield from delete_topics.in_slices(view, states)
    return decision


# Answered once the asked node has the change in its own image.
ADMINISTRATION: Final[Mapping[type, RequestDecision]] = {
    CreateTopicsRequest: create_topics,
    DeleteTopicsRequest: _delete,
    CreatePartitionsRequest: create_partitions,
    IncrementalAlterConfigsRequest: incremental_alter_configs,
    AlterConfigsRequest: alter_configs,
    ElectLeadersRequest: elect_leaders,
    UpdateFeaturesRequest: update_features,
    UnregisterBrokerRequest: unregister_broker,
    AlterPartitionReassignmentsRequest: alter_reassignments,
    ListPartitionReassignmentsRequest: list_partition_reassignments,
    AlterClientQuotasRequest: alter_client_quotas,
    CreateAclsRequest: create_acls,
    DeleteAclsRequest: delete_acls,
    AlterUserScramCredentialsRequest: alter_scram_users,
    CreateDelegationTokenRequest: create_token,
    RenewDelegationTokenRequest: renew_token,
    ExpireDelegationTokenRequest: expire_token,
}
# A node forwards these in an envelope, for their client.
OF_CLIENTS: Final[frozenset[type]] = frozenset(
    {CreateDelegationTokenRequest, RenewDelegationTokenRequest, ExpireDelegationTokenRequest}
)

DECISIONS: Final[Mapping[type, RequestDecision]] = {
    **ADMINISTRATION,
    AlterPartitionRequest: alter_partition,
    AllocateProducerIdsRequest: allocate_producer_ids,
    AssignReplicasToDirsRequest: assign_replicas,
    ControllerRegistrationRequest: lambda view, request: register_controller(request),
}

# fields with errors, in responses without a top-level error
_ITEMS: Final = ("topics", "responses", "results", "entries", "filter_results")


def refused_as_a_whole(response: object) -> ErrorCode:
    """The error of the whole response, or NONE. Of single topics or resources only NOT_CONTROLLER counts."""
    code = getattr(response, "error_code", None)
    if code is not None:
        return ErrorCode(code)
    for name in _ITEMS:
        items = getattr(response, name, ())
        if items and all(item.error_code == ErrorCode.NOT_CONTROLLER for item in items):
            return ErrorCode.NOT_CONTROLLER
    return ErrorCode.NONE
