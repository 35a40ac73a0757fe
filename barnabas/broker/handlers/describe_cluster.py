"""Handles DescribeCluster (60), versions 0 to 2, of the family `metadata`.

Behaviour: on the listeners of clients it lists brokers, on the controller listener the controllers (KIP-919), where it needs ALTER of the
cluster, as in Kafka. `listing.py` decides which brokers are listed.

Version notes: v1 endpoint types, v2 fenced brokers.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.metadata import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

BROKERS: Final = 1  # endpoint types
CONTROLLERS: Final = 2
_ENDPOINT_NAMES: Final = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}
NOT_ASKED: Final = -(2**31)  # authorized operations that the client did not ask for


def cluster_operations(access: Access) -> int:
    """The operations on the cluster that a client is told; 0 if it may not describe the cluster."""
    if access.unrestricted or access.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER):
        return access.operations(AclResourceType.CLUSTER)
    return 0


def named_controller(needs: Needs, alive: Container[int]) -> int:
    """A broker for requests to the controller. Any broker forwards them; a broker that is the controller saves a hop."""
    leader_id = needs.quorum.leader_id
    return leader_id if leader_id in alive else needs.config.node_id


def describe_cluster(needs: Needs, call: Call[DescribeClusterRequest]) -> DescribeClusterResponse:
    """Lists the brokers of the cluster."""
    request = call.request
    _check_endpoint_type(call, BROKERS)
    brokers = (
        needs.listing.registered(call.listener) if request.include_fenced_brokers else needs.listing.live(call.listener)
    )
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=needs.cluster_id,
        controller_id=named_controller(needs, {broker.broker_id for broker, _ in needs.listing.live(call.listener)}),
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=address.host,
                port=address.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker, address in brokers
        ],
        cluster_authorized_operations=(
            cluster_operations(call.access) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def describe_controllers(needs: Needs, call: Call[DescribeClusterRequest]) -> DescribeClusterResponse:
    """Lists the registered controllers with their controller endpoints, and names the leader."""
    check_permission(call.access, AclOperation.ALTER, AclResourceType.CLUSTER)
    _check_endpoint_type(call, CONTROLLERS)
    listener = needs.config.controller_listener
    name = "CONTROLLER" if listener is None else listener.name
    return DescribeClusterResponse(
        endpoint_type=CONTROLLERS,
        cluster_id=needs.cluster_id,
        controller_id=needs.quorum.leader_id,
        brokers=[
            DescribeClusterBroker(broker_id=controller.controller_id, host=point.host, port=point.port)
            for controller in needs.current_image.image.controllers.values()
            for point in controller.end_points
            if point.name == name
        ],
        cluster_authorized_operations=(
            cluster_operations(call.access) if call.request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _check_endpoint_type(call: Call[DescribeClusterRequest], here: int) -> None:
    """Refuses a request that is meant for the other endpoint type (KIP-919)."""
    wanted = call.request.endpoint_type
    if wanted not in _ENDPOINT_NAMES:
        raise BrokerError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {wanted}")
    if wanted != here:
        raise BrokerError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if call.version >= 1 else ErrorCode.INVALID_REQUEST,
            f"The request was sent to an endpoint of type {_ENDPOINT_NAMES[here]}, but we wanted an endpoint of type "
            f"{_ENDPOINT_NAMES[wanted]}",
        )


HANDLERS: Final[Table] = {DescribeClusterRequest: (describe_cluster, refuse)}
CONTROLLER_HANDLERS: Final[Table] = {DescribeClusterRequest: (describe_controllers, refuse)}
