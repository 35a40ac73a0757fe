"""Arguments and results of the admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from barnabas.client.net.core.metadata import BrokerEndpoint
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType

_NO_TIMEOUT_MS = 2**31 - 1


class NewTopic(NamedTuple):
    """A topic to create; −1 means the broker's default. `replica_assignments` sets the replicas of each partition instead."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}
    replica_assignments: Mapping[int, Sequence[int]] = {}  # partition: node ids, the preferred leader first


class ClusterDescription(NamedTuple):
    """The cluster, as one broker knows it (KIP-700). Unpacks as `cluster_id, controller_id, brokers`."""

    cluster_id: str | None
    controller_id: int  # −1 unknown; with a metadata quorum a broker that passes requests on to the controller
    brokers: list[BrokerEndpoint]  # the live brokers


class ConfigSynonym(NamedTuple):
    """A fallback of a config, used if no earlier synonym is set. `source` as in ConfigEntry."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One config of a resource. `source` as in DescribeConfigs, by `CONFIG_SOURCES`; the value of a secret is None."""

    name: str
    value: str | None
    source: int
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()  # only if they were asked for; the first one has the present value
    documentation: str | None = None  # only if it was asked for


CONFIG_SOURCES: Final[dict[int, str]] = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}


class GroupListing(NamedTuple):
    """One group in the answer to ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    type: str = ""  # "classic" or "consumer"; "" from brokers before KIP-848


class GroupMemberDescription(NamedTuple):
    """One member of a described group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...] = ()


class GroupDescription(NamedTuple):
    """One group, from its coordinator."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str  # the assignor
    members: tuple[GroupMemberDescription, ...]
    type: str = "classic"  # or "consumer" (KIP-848)


class PartitionLag(NamedTuple):
    """Committed offset of a group in one partition; `end` is the last stable offset."""

    committed: int
    end: int

    @property
    def lag(self) -> int:
        """Upper bound of the number of unread records."""
        return max(self.end - self.committed, 0)


class PartitionReassignment(NamedTuple):
    """A reassignment in progress: all replicas, those being added, and those to be removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class QuorumReplicaDescription(NamedTuple):
    """One replica of the metadata log. Times are in ms since the Unix epoch, by the leader's clock."""

    node_id: int
    directory_id: bytes  # 16 zero bytes if unknown
    is_voter: bool
    log_end_offset: int  # −1 if unknown
    last_fetch_timestamp: int  # −1 if unknown
    last_caught_up_timestamp: int  # −1 if unknown
    endpoints: tuple[str, ...] = ()  # LISTENER://host:port; only of voters, from Kafka 3.9 on


class QuorumDescription(NamedTuple):
    """The metadata quorum, from its leader, the active controller. Log ends are −1 if unknown."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: dict[int, int]  # log end offset by node id
    observers: dict[int, int]
    replicas: tuple[QuorumReplicaDescription, ...] = ()  # voters, then observers


class ReplicaDescription(NamedTuple):
    """One replica in a log directory."""

    size_bytes: int
    offset_lag: int  # the distance of its end from the high watermark; of a future replica from the present one
    is_future: bool = False  # it will replace the replica in another directory of the broker


class LogDirDescription(NamedTuple):
    """One log directory of a broker. Volume sizes are in bytes, −1 unknown; `error` is not NONE if the directory has failed."""

    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: dict[TopicPartition, ReplicaDescription]
    is_cordoned: bool = False  # takes no new replicas


class BrokerDescription(NamedTuple):
    """One registered broker; `is_fenced` is None if unknown (before Kafka 4.0)."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool | None


class FeatureDescription(NamedTuple):
    """One feature: levels that the asked broker supports, and the finalized level, 0 if none."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


class ProducerDescription(NamedTuple):
    """One producer, from a partition's leader (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start_offset: int  # −1 without an open transaction
    coordinator_epoch: int  # of the last marker; −1 without


class ClientQuotas(NamedTuple):
    """Quotas of an entity (KIP-546). `entity`: (type, name) pairs in ascending order of the type; name None: the default."""

    entity: tuple[tuple[str, str | None], ...]
    quotas: Mapping[str, float]


class TransactionListing(NamedTuple):
    """One transactional id in the answer to ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """One transactional id. `start_time_ms` is in milliseconds since the Unix epoch, −1 without an open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_two_phase(self) -> bool:
        """Whether it has no timeout: another system decides its outcome (KIP-939)."""
        return self.timeout_ms == _NO_TIMEOUT_MS


ResourceType = Literal["topic", "broker", "broker-logger", "client-metrics", "group"]


class ConfigResource(NamedTuple):
    """A configurable resource. `name` of a broker is its node id, "" for the default of all brokers."""

    type: ResourceType
    name: str


QuotaEntityType: TypeAlias = Literal["user", "client-id", "ip"]


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL: a principal ("User:alice", "User:*") and host ("*": any), an operation, and resources of a pattern."""

    resource_type: AclResourceType
    resource_name: str  # "*" with a literal pattern: all resources; "kafka-cluster" of the type CLUSTER
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """A filter of ACLs; None and ANY match everything. MATCH finds all patterns that match the name of a resource."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str | None = None


ScramMechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token. Its representation hides the HMAC, which is its password.

    Attributes:
        token_id: the user name of a SCRAM login with the extension tokenauth=true.
        hmac: in base64 it is the password of that login.
        owner, requester, renewers: names of users.
        issued_ms, expiry_ms, max_ms: in ms since 1970.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expiry_ms: int
    max_ms: int
