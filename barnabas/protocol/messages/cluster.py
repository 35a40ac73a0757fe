"""Messages between brokers and the active controller (KIP-841, KIP-858, KIP-903, KIP-919, KIP-966)."""

from __future__ import annotations

from barnabas.protocol.messages.shared import PartitionIndex, PartitionResult
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int8, Int16, Int32, Int64, String, UInt16, Uuid

# -- AlterPartition ----------------------------------------------------------------------------------------------------


class BrokerState(Struct):
    """A member of the requested ISR, with the broker epoch that the leader saw."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)  # −1: not checked


class AlterPartitionRequestPartition(Struct):
    """The ISR that the leader of a partition requests."""

    partition_index: int = field(Int32)
    leader_epoch: int = field(Int32)
    new_isr: list[int] = field(Array(Int32), until=2)
    new_isr_with_epochs: list[BrokerState] = field(Array(BrokerState), since=3)
    leader_recovery_state: int = field(Int8)  # 0 recovered, 1 recovering after an unclean election
    partition_epoch: int = field(Int32)  # the epoch on which the change is based (compare and set)


class AlterPartitionRequestTopic(Struct):
    """The partitions of one topic."""

    topic_id: bytes = field(Uuid)
    partitions: list[AlterPartitionRequestPartition] = field(Array(AlterPartitionRequestPartition))


class AlterPartitionRequest(Message, api_key=56, versions=(2, 3), flexible_since=0):
    """A leader requests another ISR."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)
    topics: list[AlterPartitionRequestTopic] = field(Array(AlterPartitionRequestTopic))


class AlterPartitionResponsePartition(Struct):
    """The present state of the partition."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    leader_id: int = field(Int32)
    leader_epoch: int = field(Int32)
    isr: list[int] = field(Array(Int32))
    leader_recovery_state: int = field(Int8)
    partition_epoch: int = field(Int32)


class AlterPartitionResponseTopic(Struct):
    """The partitions of one topic."""

    topic_id: bytes = field(Uuid)
    partitions: list[AlterPartitionResponsePartition] = field(Array(AlterPartitionResponsePartition))


class AlterPartitionResponse(Message, api_key=56, versions=(2, 3), flexible_since=0):
    """The changed partitions."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    topics: list[AlterPartitionResponseTopic] = field(Array(AlterPartitionResponseTopic))


# -- registration and heartbeats ------------------------------------------------------------------------------------------


class RegistrationListener(Struct):
    """Address of a node."""

    name: str = field(String)
    host: str = field(String)
    port: int = field(UInt16)
    security_protocol: int = field(Int16)  # 0 PLAINTEXT


class RegistrationFeature(Struct):
    """A feature that a node supports, with its levels, inclusive."""

    name: str = field(String)
    min_supported_version: int = field(Int16)
    max_supported_version: int = field(Int16)


class BrokerRegistrationRequest(Message, api_key=62, versions=(0, 4), flexible_since=0):
    """Registers a broker at its start."""

    broker_id: int = field(Int32)
    cluster_id: str = field(String)
    incarnation_id: bytes = field(Uuid)  # of this process
    listeners: list[RegistrationListener] = field(Array(RegistrationListener))
    # Before version 4 without those from level 0.
    features: list[RegistrationFeature] = field(Array(RegistrationFeature))
    rack: str | None = field(String, nullable_since=0)
    is_migrating_zk_broker: bool = field(Bool, since=1)  # never: ZooKeeper is gone
    log_dirs: list[bytes] = field(Array(Uuid), since=2)  # those that can be used
    previous_broker_epoch: int = field(Int64, since=3, default=-1)  # before a clean stop; −1: it was none


class BrokerRegistrationResponse(Message, api_key=62, versions=(0, 4), flexible_since=0):
    """The broker epoch of this registration."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    broker_epoch: int = field(Int64, default=-1)


class BrokerHeartbeatRequest(Message, api_key=63, versions=(0, 2), flexible_since=0):
    """A heartbeat of a broker, with the state that it requests."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)
    current_metadata_offset: int = field(Int64)  # of the last record replayed
    want_fence: bool = field(Bool)
    want_shut_down: bool = field(Bool)
    offline_log_dirs: list[bytes] = field(Array(Uuid), since=1, tag=0)  # those that failed
    # no new replicas there; null before the logs are loaded
    cordoned_log_dirs: list[bytes] | None = field(Array(Uuid), since=2, nullable_since=2, default=None, tag=1)


class BrokerHeartbeatResponse(Message, api_key=63, versions=(0, 2), flexible_since=0):
    """The controller's view of the broker."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    is_caught_up: bool = field(Bool)
    is_fenced: bool = field(Bool, default=True)
    should_shut_down: bool = field(Bool)  # it leads no partition any more


class UnregisterBrokerRequest(Message, api_key=64, versions=(0, 0), flexible_since=0):
    """Removes a broker that will not return."""

    broker_id: int = field(Int32)


class UnregisterBrokerResponse(Message, api_key=64, versions=(0, 0), flexible_since=0):
    """The result of a removal."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class ControllerRegistrationRequest(Message, api_key=70, versions=(0, 0), flexible_since=0):
    """Registers a controller with its addresses and features."""

    controller_id: int = field(Int32)
    incarnation_id: bytes = field(Uuid)  # of this process
    zk_migration_ready: bool = field(Bool)  # never: ZooKeeper is gone
    listeners: list[RegistrationListener] = field(Array(RegistrationListener))
    features: list[RegistrationFeature] = field(Array(RegistrationFeature))


class ControllerRegistrationResponse(Message, api_key=70, versions=(0, 0), flexible_since=0):
    """The result of a registration."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


# -- AllocateProducerIds -----------------------------------------------------------------------------------------------


class AllocateProducerIdsRequest(Message, api_key=67, versions=(0, 0), flexible_since=0):
    """Requests a block of producer ids for a broker."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions=(0, 0), flexible_since=0):
    """A block of producer ids: `producer_id_len` of them from `producer_id_start` on."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    producer_id_start: int = field(Int64)
    producer_id_len: int = field(Int32)


# -- AssignReplicasToDirs ----------------------------------------------------------------------------------------------


class AssignReplicasToDirsRequestTopic(Struct):
    """The partitions of one topic."""

    topic_id: bytes = field(Uuid)
    partitions: list[PartitionIndex] = field(Array(PartitionIndex))


class AssignReplicasToDirsRequestDirectory(Struct):
    """Replicas of one directory."""

    id: bytes = field(Uuid)
    topics: list[AssignReplicasToDirsRequestTopic] = field(Array(AssignReplicasToDirsRequestTopic))


class AssignReplicasToDirsRequest(Message, api_key=73, versions=(0, 0), flexible_since=0):
    """Reports the directories of a broker's replicas."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)
    directories: list[AssignReplicasToDirsRequestDirectory] = field(Array(AssignReplicasToDirsRequestDirectory))


class AssignReplicasToDirsResponseTopic(Struct):
    """The partitions of one topic."""

    topic_id: bytes = field(Uuid)
    partitions: list[PartitionResult] = field(Array(PartitionResult))


class AssignReplicasToDirsResponseDirectory(Struct):
    """The results for one directory."""

    id: bytes = field(Uuid)
    topics: list[AssignReplicasToDirsResponseTopic] = field(Array(AssignReplicasToDirsResponseTopic))


class AssignReplicasToDirsResponse(Message, api_key=73, versions=(0, 0), flexible_since=0):
    """The results for all replicas."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    directories: list[AssignReplicasToDirsResponseDirectory] = field(Array(AssignReplicasToDirsResponseDirectory))
