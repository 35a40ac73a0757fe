"""Needs: the parts of a node that handlers use; mypy checks that a node has them. A family uses ten at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a family is imported on its first request, and its parts with the node
    from barnabas.broker.api.access import Access
    from barnabas.broker.api.principal import Principal
    from barnabas.broker.api.router import Router
    from barnabas.broker.authorization.authorizer import Authorizer
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.controller.channel import ControllerChannel
    from barnabas.broker.controller.controller import QuorumController
    from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
    from barnabas.broker.coordinator.marker_writer import MarkerWriter
    from barnabas.broker.coordinator.transaction_coordinator import TransactionCoordinator
    from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
    from barnabas.broker.handlers.failover_purgatory import FailoverPurgatory
    from barnabas.broker.image.current_image import CurrentImage
    from barnabas.broker.membership.listing import BrokerListing
    from barnabas.broker.quorum.quorum import Quorum
    from barnabas.broker.replica.core.fetch_sessions import FetchSessions
    from barnabas.broker.replica.core.throttle import ReplicationThrottles
    from barnabas.broker.replica.log_dirs import LogDirectories
    from barnabas.broker.replica.replicas import Replicas
    from barnabas.broker.scheduling.reactor import Reactor
    from barnabas.broker.scheduling.slices import Slices
    from barnabas.broker.security.node_tls import NodeTls
    from barnabas.broker.telemetry.clients import ClientTelemetry


class ListenerServer(Protocol):
    """The server of the listeners for clients, or of the controller listener."""

    def access(self, principal: Principal, host: str) -> Access:
        """What a principal may do from a host."""
        ...

    def answer_bytes_max(self, wanted: int) -> int:
        """How many bytes of records one answer may carry, with regard to the answers that peers leave unread."""
        ...


class Needs(Protocol):
    """The parts, by the names that they have in a node."""

    config: BrokerConfig
    node_id: int
    cluster_id: str
    alone: bool  # no other node leads partitions
    reactor: Reactor
    slices: Slices
    tls: NodeTls | None
    authorizer: Authorizer | None
    controller: ControllerChannel
    controller_router: Router
    quorum: Quorum
    quorum_controller: QuorumController | None
    current_image: CurrentImage
    listing: BrokerListing
    awaited_leaders: FailoverPurgatory
    log_dirs: LogDirectories
    replicas: Replicas
    fetch_sessions: FetchSessions
    fetch_max_bytes: int
    throttles: ReplicationThrottles
    transactions: TransactionCoordinator
    marker_writer: MarkerWriter
    connection_fence: ConnectionFence
    groups: GroupCoordinator
    telemetry: ClientTelemetry | None

    @property
    def server(self) -> ListenerServer: ...

    @property
    def controller_server(self) -> ListenerServer: ...
