"""Huge requests that only the controller listener serves: brokers, replicas and Raft."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any, Final

from barnabas.protocol.messages import cluster, quorum
from barnabas.protocol.messages import envelope as forwarded
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.schema import encode, encode_versioned
from tests.support.processes.huge.request import CLOSED, ELEMENTS, HALF, BrokerObjects, Huge, id_of, names
from tests.support.processes.huge.topics import per_partition

__all__ = ["CONTROLLER"]

MANY: Final = ELEMENTS - 1


def alter_partition(world: BrokerObjects, count: int, brokers: int = 1) -> cluster.AlterPartitionRequest:
    isr = [cluster.BrokerState(broker_id=1 + n, broker_epoch=-1) for n in range(brokers)]
    parts = [
        cluster.AlterPartitionRequestPartition(partition_index=n, leader_epoch=0, new_isr_with_epochs=isr)
        for n in range(count)
    ]
    topics = [cluster.AlterPartitionRequestTopic(topic_id=world.wide_id, partitions=parts)]
    return cluster.AlterPartitionRequest(broker_id=1, broker_epoch=-1, topics=topics)


def assign_directories(world: BrokerObjects) -> cluster.AssignReplicasToDirsRequest:
    parts = [cluster.AssignReplicasToDirsRequestPartition(partition_index=n) for n in range(MANY - 1)]
    topics = [cluster.AssignReplicasToDirsRequestTopic(topic_id=world.wide_id, partitions=parts)]
    return cluster.AssignReplicasToDirsRequest(
        broker_id=1, directories=[cluster.AssignReplicasToDirsRequestDirectory(id=id_of(1), topics=topics)]
    )


def envelope(_world: BrokerObjects) -> forwarded.EnvelopeRequest:
    """A long request to delete topics that do not exist, by a client of another broker."""
    topics = names(ELEMENTS)
    header = RequestHeader(request_api_key=20, request_api_version=5, correlation_id=1, client_id="huge")
    principal = forwarded.DefaultPrincipalData(type="User", name="ANONYMOUS", token_authenticated=False)
    return forwarded.EnvelopeRequest(
        request_data=encode(header, 2) + encode(DeleteTopicsRequest(topic_names=topics, timeout_ms=1_000), 5),
        request_principal=encode_versioned(principal, 0),
        client_host_address=bytes([127, 0, 0, 1]),
    )


def register(**fields: Any) -> cluster.BrokerRegistrationRequest:
    return cluster.BrokerRegistrationRequest(broker_id=77, cluster_id="elsewhere", incarnation_id=id_of(7), **fields)


def listeners() -> list[cluster.RegistrationListener]:
    return [cluster.RegistrationListener(name=name, host="h", port=1) for name in names(ELEMENTS)]


def features() -> list[cluster.RegistrationFeature]:
    return [
        cluster.RegistrationFeature(name=name, min_supported_version=0, max_supported_version=1)
        for name in names(ELEMENTS)
    ]


def directories() -> list[bytes]:
    return [id_of(number) for number in range(ELEMENTS)]


def heartbeat(_world: BrokerObjects) -> cluster.BrokerHeartbeatRequest:
    return cluster.BrokerHeartbeatRequest(broker_id=77, broker_epoch=1, offline_log_dirs=directories())


def register_controller(_world: BrokerObjects) -> cluster.ControllerRegistrationRequest:
    return cluster.ControllerRegistrationRequest(controller_id=77, incarnation_id=id_of(8), listeners=listeners())


def raft(request: Any, topic: Any, part: Any, _world: BrokerObjects, **fields: str) -> Any:
    """A Raft request with many partitions."""
    return request(topics=per_partition(topic, part, MANY, **fields))


VOTE: Final = partial(raft, quorum.VoteRequest, quorum.VoteRequestTopic, quorum.VoteRequestPartition)
BEGIN_EPOCH: Final = partial(
    raft,
    quorum.BeginQuorumEpochRequest,
    quorum.BeginQuorumEpochRequestTopic,
    quorum.BeginQuorumEpochRequestPartition,
)
END_EPOCH: Final = partial(
    raft, quorum.EndQuorumEpochRequest, quorum.EndQuorumEpochRequestTopic, quorum.EndQuorumEpochRequestPartition
)
FETCH_SNAPSHOT: Final = partial(
    raft,
    quorum.FetchSnapshotRequest,
    quorum.FetchSnapshotRequestTopic,
    quorum.FetchSnapshotRequestPartition,
    name="name",
    partition="partition",
)


def row(name: str, version: int, codes: Set[int], request: Callable[[BrokerObjects], Any]) -> Huge:
    return Huge(name, version, codes, request, "controller")


CONTROLLER: Final = (
    row("AlterPartition: many partitions", 3, {11, 77}, lambda w: alter_partition(w, HALF)),
    row("AlterPartition: a large ISR", 3, {11, 77}, lambda w: alter_partition(w, 1, MANY - 1)),
    row("AssignReplicasToDirs: many partitions", 0, {11, 77}, assign_directories),
    row("Envelope: a long request inside", 0, {0}, envelope),
    row("BrokerRegistration: many listeners", 4, {104}, lambda w: register(listeners=listeners())),
    row("BrokerRegistration: many features", 4, {104}, lambda w: register(features=features())),
    row("BrokerRegistration: many directories", 4, {104}, lambda w: register(log_dirs=directories())),
    row("BrokerHeartbeat: many directories", 1, {11, 77, 102}, heartbeat),
    row("ControllerRegistration: many listeners", 0, {0, 3, 35, 42}, register_controller),
    row("Vote: many partitions", 2, {0, 42, 104, CLOSED}, VOTE),
    row("BeginQuorumEpoch: many partitions", 1, {0, 42, 104, CLOSED}, BEGIN_EPOCH),
    row("EndQuorumEpoch: many partitions", 1, {0, 42, 104, CLOSED}, END_EPOCH),
    row("FetchSnapshot: many partitions", 1, {0, 3, 42, 98, 104, CLOSED}, FETCH_SNAPSHOT),
)
