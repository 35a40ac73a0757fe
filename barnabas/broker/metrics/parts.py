"""Observed: the parts of a node that its metrics and its health read. `Node` has all of them."""

from __future__ import annotations

from typing import Protocol

from barnabas.broker.api.router import Router
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
from barnabas.broker.coordinator.transaction_coordinator import TransactionCoordinator
from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
from barnabas.broker.front.server import Server
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.membership.lifecycle import Lifecycle
from barnabas.broker.peers.peers import Peers
from barnabas.broker.quorum.quorum import Quorum
from barnabas.broker.replica.alter_partition import IsrChanges
from barnabas.broker.replica.log_dirs import LogDirectories
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.broker.telemetry.clients import ClientTelemetry


class Observed(Protocol):
    """Collectors take the parts that they read, not the node."""

    config: BrokerConfig
    reactor: Reactor
    slices: Slices
    node_id: int
    current_image: CurrentImage
    log_dirs: LogDirectories
    isr_changes: IsrChanges
    peers: Peers
    quorum: Quorum
    quorum_controller: QuorumController | None
    lifecycle: Lifecycle
    replicas: Replicas
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    connection_fence: ConnectionFence
    telemetry: ClientTelemetry | None
    router: Router
    server: Server
    controller_router: Router
    controller_server: Server
