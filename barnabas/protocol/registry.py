"""RPC table: keys, served and advertised versions, header versions, permissions, message classes (imported on first use).
ApiVersions, routing, authorization and the coverage document are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Final, NamedTuple, cast

from barnabas.errors import LocalProtocolError
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.schema import Message

PRODUCE_KEY = 0
API_VERSIONS_KEY = 18
ENVELOPE_KEY = 58

BROKER = frozenset({"broker"})
CONTROLLER = frozenset({"controller"})
BOTH = BROKER | CONTROLLER


@dataclass(frozen=True)
class Api:
    """One RPC.

    Attributes:
        name: its name in Kafka, without Request or Response.
        family: module of `protocol.messages` and of `broker.handlers`.
        versions: served versions, inclusive.
        advertised: versions in ApiVersions, inclusive. They differ if clients misinterpret the true range, or if the
            highest version is not stable in Kafka yet.
        flexible_since: first flexible version or None.
        listeners: "broker" for clients and brokers, "controller" for controllers and their clients, or both.
    """

    key: int
    name: str
    family: str
    versions: tuple[int, int]
    flexible_since: int | None
    advertised: tuple[int, int] = field(default=(-1, -1))
    listeners: frozenset[str] = BROKER

    def __post_init__(self) -> None:
        if self.advertised == (-1, -1):
            object.__setattr__(self, "advertised", self.versions)

    @property
    def stable(self) -> bool:
        return self.advertised[1] >= self.versions[1]

    @cached_property
    def request(self) -> type[Message]:
        return self._load("Request")

    @cached_property
    def response(self) -> type[Message]:
        return self._load("Response")

    def _load(self, suffix: str) -> type[Message]:
        family = import_module(f"barnabas.protocol.messages.{self.family}")
        return cast("type[Message]", getattr(family, self.name + suffix))

    @property
    def permissions(self) -> tuple[Permission, ...]:
        return PERMISSIONS[self.key]

    @property
    def cluster_operation(self) -> AclOperation | None:
        """The operation on the cluster that every request needs, or None."""
        return next((each.operation for each in self.permissions if each.whole), None)

    def serves(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since


API: dict[int, Api] = {
    api.key: api
    for api in (
        # librdkafka before 2.11.1 stops compressing unless it sees Produce 0 (KAFKA-18659)
        Api(0, "Produce", "produce", (3, 13), 9, advertised=(0, 13)),
        Api(1, "Fetch", "fetch", (4, 18), 12, listeners=BOTH),
        Api(2, "ListOffsets", "offsets", (1, 11), 6),
        Api(3, "Metadata", "metadata", (0, 13), 9),
        Api(8, "OffsetCommit", "groups", (2, 10), 8),
        Api(9, "OffsetFetch", "groups", (1, 10), 6),
        Api(10, "FindCoordinator", "groups", (0, 6), 3),
        Api(11, "JoinGroup", "groups", (0, 9), 6),
        Api(12, "Heartbeat", "groups", (0, 4), 4),
        Api(13, "LeaveGroup", "groups", (0, 5), 4),
        Api(14, "SyncGroup", "groups", (0, 5), 4),
        Api(15, "DescribeGroups", "groups", (0, 6), 5),
        Api(16, "ListGroups", "groups", (0, 5), 3),
        Api(17, "SaslHandshake", "authentication", (0, 1), None, listeners=BOTH),
        Api(18, "ApiVersions", "metadata", (0, 4), 3, listeners=BOTH),
        Api(19, "CreateTopics", "admin", (2, 7), 5, listeners=BOTH),
        Api(20, "DeleteTopics", "admin", (1, 6), 4, listeners=BOTH),
        Api(21, "DeleteRecords", "admin", (0, 2), 2),
        # version 6 (KIP-939) is unstable in Kafka 4.3: served on request, not advertised
        Api(22, "InitProducerId", "transactions", (0, 6), 2, advertised=(0, 5)),
        Api(23, "OffsetForLeaderEpoch", "offsets", (2, 4), 4),
        Api(24, "AddPartitionsToTxn", "transactions", (0, 5), 3),
        Api(25, "AddOffsetsToTxn", "transactions", (0, 4), 3),
        Api(26, "EndTxn", "transactions", (0, 5), 3),
        Api(27, "WriteTxnMarkers", "transactions", (1, 2), 1),
        Api(28, "TxnOffsetCommit", "transactions", (0, 5), 3),
        Api(29, "DescribeAcls", "acls", (1, 3), 2, listeners=BOTH),
        Api(30, "CreateAcls", "acls", (1, 3), 2, listeners=BOTH),
        Api(31, "DeleteAcls", "acls", (1, 3), 2, listeners=BOTH),
        Api(32, "DescribeConfigs", "admin", (1, 4), 4, listeners=BOTH),
        Api(33, "AlterConfigs", "admin", (0, 2), 2, listeners=BOTH),
        Api(35, "DescribeLogDirs", "admin", (1, 5), 2),
        Api(36, "SaslAuthenticate", "authentication", (0, 2), 2, listeners=BOTH),
        Api(37, "CreatePartitions", "admin", (0, 3), 2, listeners=BOTH),
        Api(38, "CreateDelegationToken", "delegation_tokens", (1, 3), 2, listeners=BOTH),
        Api(39, "RenewDelegationToken", "delegation_tokens", (1, 2), 2, listeners=BOTH),
        Api(40, "ExpireDelegationToken", "delegation_tokens", (1, 2), 2, listeners=BOTH),
        Api(41, "DescribeDelegationToken", "delegation_tokens", (1, 3), 2),
        Api(42, "DeleteGroups", "groups", (0, 2), 2),
        Api(43, "ElectLeaders", "admin", (0, 2), 2, listeners=BOTH),
        Api(44, "IncrementalAlterConfigs", "admin", (0, 1), 1, listeners=BOTH),
        Api(45, "AlterPartitionReassignments", "reassignments", (0, 1), 0, listeners=BOTH),
        Api(46, "ListPartitionReassignments", "reassignments", (0, 0), 0, listeners=BOTH),
        Api(47, "OffsetDelete", "groups", (0, 0), None),
        Api(48, "DescribeClientQuotas", "quotas", (0, 1), 1),
        Api(49, "AlterClientQuotas", "quotas", (0, 1), 1, listeners=BOTH),
        Api(50, "DescribeUserScramCredentials", "scram_users", (0, 0), 0),
        Api(51, "AlterUserScramCredentials", "scram_users", (0, 0), 0, listeners=BOTH),
        Api(52, "Vote", "quorum", (0, 2), 0, listeners=CONTROLLER),
        Api(53, "BeginQuorumEpoch", "quorum", (0, 1), 1, listeners=CONTROLLER),
        Api(54, "EndQuorumEpoch", "quorum", (0, 1), 1, listeners=CONTROLLER),
        Api(55, "DescribeQuorum", "quorum", (0, 2), 0, listeners=BOTH),
        Api(56, "AlterPartition", "cluster", (2, 3), 0, listeners=CONTROLLER),
        Api(57, "UpdateFeatures", "admin", (0, 2), 0, listeners=BOTH),
        Api(58, "Envelope", "envelope", (0, 0), 0, listeners=CONTROLLER),
        Api(59, "FetchSnapshot", "quorum", (0, 1), 0, listeners=CONTROLLER),
        Api(60, "DescribeCluster", "metadata", (0, 2), 0, listeners=BOTH),
        Api(61, "DescribeProducers", "transactions", (0, 0), 0),
        Api(62, "BrokerRegistration", "cluster", (0, 4), 0, listeners=CONTROLLER),
        Api(63, "BrokerHeartbeat", "cluster", (0, 2), 0, listeners=CONTROLLER),
        Api(64, "UnregisterBroker", "cluster", (0, 0), 0, listeners=BOTH),
        Api(65, "DescribeTransactions", "transactions", (0, 0), 0),
        Api(66, "ListTransactions", "transactions", (0, 2), 0),
        Api(67, "AllocateProducerIds", "cluster", (0, 0), 0, listeners=CONTROLLER),
        Api(68, "ConsumerGroupHeartbeat", "consumer_groups", (0, 1), 0),
        Api(69, "ConsumerGroupDescribe", "consumer_groups", (0, 1), 0),
        Api(70, "ControllerRegistration", "cluster", (0, 0), 0, listeners=CONTROLLER),
        Api(71, "GetTelemetrySubscriptions", "telemetry", (0, 0), 0),
        Api(72, "PushTelemetry", "telemetry", (0, 0), 0),
        Api(73, "AssignReplicasToDirs", "cluster", (0, 0), 0, listeners=CONTROLLER),
        Api(74, "ListConfigResources", "admin", (0, 1), 0),
        Api(75, "DescribeTopicPartitions", "metadata", (0, 0), 0),
    )
}


class Permission(NamedTuple):
    """One permission that an API needs.

    Attributes:
        remark: when it is needed, and what a client without it gets.
        whole: every request needs it, and is rejected as a whole without it.
    """

    operation: AclOperation
    resource: AclResourceType
    remark: str = ""
    whole: bool = False


_O = AclOperation
_TOPIC, _GROUP, _CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
_TRANSACTION, _TOKEN, _USER = (
    AclResourceType.TRANSACTIONAL_ID,
    AclResourceType.DELEGATION_TOKEN,
    AclResourceType.USER,
)


def _whole(operation: AclOperation, remark: str = "") -> tuple[Permission, ...]:
    return (Permission(operation, _CLUSTER, remark, whole=True),)


def _group(operation: AclOperation) -> Permission:
    return Permission(operation, _GROUP)


_CONFIGS: Final = "of topics"
_OWN_TRANSACTION: Final = Permission(_O.WRITE, _TRANSACTION)
_NODES: Final = "from nodes"

# What a client needs for each API, as in Kafka 4.3.
PERMISSIONS: Final[Mapping[int, tuple[Permission, ...]]] = {
    0: (
        Permission(_O.WRITE, _TOPIC),
        Permission(_O.WRITE, _TRANSACTION, "transactional records"),
    ),
    1: (
        Permission(_O.READ, _TOPIC, "from consumers"),
        Permission(_O.CLUSTER_ACTION, _CLUSTER, "from followers, and on the controller listener"),
    ),
    2: (Permission(_O.DESCRIBE, _TOPIC),),
    3: (
        Permission(_O.DESCRIBE, _TOPIC, "others are hidden from the list of all topics"),
        Permission(_O.CREATE, _CLUSTER, "automatic creation: on the cluster or the topic"),
        Permission(_O.CREATE, _TOPIC, "automatic creation: on the cluster or the topic"),
        Permission(_O.DESCRIBE, _CLUSTER, "authorized operations of the cluster; else none are named"),
    ),
    8: (_group(_O.READ), Permission(_O.READ, _TOPIC)),
    9: (_group(_O.DESCRIBE), Permission(_O.DESCRIBE, _TOPIC, "others are hidden from the list of all offsets")),
    10: (
        Permission(_O.DESCRIBE, _GROUP, "coordinators of groups"),
        Permission(_O.DESCRIBE, _TRANSACTION, "coordinators of transactional ids"),
    ),
    11: (_group(_O.READ),),
    12: (_group(_O.READ),),
    13: (_group(_O.READ),),
    14: (_group(_O.READ),),
    15: (_group(_O.DESCRIBE),),
    16: (
        Permission(_O.DESCRIBE, _CLUSTER, "lists every group"),
        Permission(_O.DESCRIBE, _GROUP, "other groups are hidden"),
    ),
    17: (),  # SaslHandshake
    18: (),  # ApiVersions
    19: (
        Permission(_O.CREATE, _CLUSTER, "any topic"),
        Permission(_O.CREATE, _TOPIC, "without CREATE of the cluster"),
        Permission(_O.DESCRIBE_CONFIGS, _TOPIC, "the settings in the answer; else they are hidden"),
    ),
    20: (
        Permission(_O.DELETE, _TOPIC),
        Permission(_O.DESCRIBE, _TOPIC, "else an answer to a topic id does not name the topic"),
    ),
    21: (Permission(_O.DELETE, _TOPIC),),
    22: (
        Permission(_O.WRITE, _TRANSACTION, "with a transactional id"),
        Permission(_O.TWO_PHASE_COMMIT, _TRANSACTION, "with two-phase commit (KIP-939)"),
        Permission(_O.IDEMPOTENT_WRITE, _CLUSTER, "without a transactional id: or WRITE of any topic"),
    ),
    23: (
        Permission(_O.CLUSTER_ACTION, _CLUSTER, "every topic"),
        Permission(_O.DESCRIBE, _TOPIC, "without CLUSTER_ACTION"),
    ),
    24: (
        Permission(_O.WRITE, _TRANSACTION, "from clients (up to version 3)"),
        Permission(_O.WRITE, _TOPIC, "from clients (up to version 3)"),
        Permission(_O.CLUSTER_ACTION, _CLUSTER, "from brokers (version 4 and above)"),
    ),
    25: (_OWN_TRANSACTION, _group(_O.READ)),
    26: (_OWN_TRANSACTION,),
    27: (
        Permission(_O.ALTER, _CLUSTER, "or CLUSTER_ACTION"),
        Permission(_O.CLUSTER_ACTION, _CLUSTER, "or ALTER"),
    ),
    28: (_OWN_TRANSACTION, _group(_O.READ), Permission(_O.READ, _TOPIC)),
    29: _whole(_O.DESCRIBE),
    30: _whole(_O.ALTER),
    31: _whole(_O.ALTER),
    32: (
        Permission(_O.DESCRIBE_CONFIGS, _CLUSTER, "of brokers, loggers and client metrics"),
        Permission(_O.DESCRIBE_CONFIGS, _TOPIC, _CONFIGS),
        Permission(_O.DESCRIBE_CONFIGS, _GROUP, "of groups"),
    ),
    33: (
        Permission(_O.ALTER_CONFIGS, _CLUSTER, "of brokers, loggers and client metrics"),
        Permission(_O.ALTER_CONFIGS, _TOPIC, _CONFIGS),
        Permission(_O.ALTER_CONFIGS, _GROUP, "of groups"),
    ),
    35: (Permission(_O.DESCRIBE, _CLUSTER, "else the list is empty"),),
    36: (),  # SaslAuthenticate
    37: (Permission(_O.ALTER, _TOPIC),),
    38: (Permission(_O.CREATE_TOKENS, _USER, "for another owner"),),
    39: (),  # RenewDelegationToken: owner and renewers
    40: (),  # ExpireDelegationToken: owner and renewers
    41: (
        Permission(_O.DESCRIBE, _TOKEN, "other tokens are hidden"),
        Permission(_O.DESCRIBE_TOKENS, _USER, "tokens of another owner"),
    ),
    42: (_group(_O.DELETE),),
    43: _whole(_O.ALTER),
    44: (
        Permission(_O.ALTER_CONFIGS, _CLUSTER, "of brokers, loggers and client metrics"),
        Permission(_O.ALTER_CONFIGS, _TOPIC, _CONFIGS),
        Permission(_O.ALTER_CONFIGS, _GROUP, "of groups"),
    ),
    45: _whole(_O.ALTER),
    46: _whole(_O.DESCRIBE),
    47: (_group(_O.DELETE), Permission(_O.READ, _TOPIC)),
    48: _whole(_O.DESCRIBE_CONFIGS),
    49: _whole(_O.ALTER_CONFIGS),
    50: _whole(_O.DESCRIBE),
    51: _whole(_O.ALTER),
    52: _whole(_O.CLUSTER_ACTION, _NODES),
    53: _whole(_O.CLUSTER_ACTION, _NODES),
    54: _whole(_O.CLUSTER_ACTION, _NODES),
    55: _whole(_O.DESCRIBE, "on the controller listener also CLUSTER_ACTION"),
    56: _whole(_O.CLUSTER_ACTION, _NODES),
    57: _whole(_O.ALTER),
    58: _whole(_O.CLUSTER_ACTION, "from brokers; the request inside needs the permissions of its own API"),
    59: _whole(_O.CLUSTER_ACTION, _NODES),
    60: (
        Permission(_O.DESCRIBE, _CLUSTER, "authorized operations; else none are named"),
        Permission(_O.ALTER, _CLUSTER, "on the controller listener"),
    ),
    61: (Permission(_O.READ, _TOPIC),),
    62: _whole(_O.CLUSTER_ACTION, _NODES),
    63: _whole(_O.CLUSTER_ACTION, _NODES),
    64: _whole(_O.ALTER),
    65: (
        Permission(_O.DESCRIBE, _TRANSACTION),
        Permission(_O.DESCRIBE, _TOPIC, "other topics are hidden"),
    ),
    66: (Permission(_O.DESCRIBE, _TRANSACTION, "others are hidden"),),
    67: _whole(_O.CLUSTER_ACTION, _NODES),
    68: (_group(_O.READ), Permission(_O.DESCRIBE, _TOPIC, "subscribed topics; those of a pattern are hidden")),
    69: (_group(_O.DESCRIBE), Permission(_O.DESCRIBE, _TOPIC, "assigned topics; else the group is refused")),
    70: _whole(_O.CLUSTER_ACTION, _NODES),
    71: (),  # GetTelemetrySubscriptions
    72: (),  # PushTelemetry
    73: _whole(_O.CLUSTER_ACTION, _NODES),
    74: _whole(_O.DESCRIBE_CONFIGS),
    75: (Permission(_O.DESCRIBE, _TOPIC, "others are hidden from the list of all topics"),),
}


# Requests without lasting effect: not worth serving once the client has left.
READS = frozenset(
    key
    for key, api in API.items()
    if "Describe" in api.name
    or api.name.startswith("List")
    or api.name in {"Fetch", "FindCoordinator", "Metadata", "OffsetFetch", "OffsetForLeaderEpoch"}
)


def api_of(api_key: int) -> Api:
    """Raises LocalProtocolError for an unknown key. Look up the key of a peer with `API.get`."""
    api = API.get(api_key)
    if api is None:
        raise LocalProtocolError(f"no RPC has the key {api_key}")
    return api


def request_header_version(api_key: int, version: int) -> int:
    """2 for flexible versions, else 1; also of versions that are not served, as in ApiVersions."""
    return 2 if api_of(api_key).is_flexible(version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """1 for flexible versions, else 0. ApiVersions always has 0: the client knows no versions yet (KIP-511)."""
    return 1 if api_key != API_VERSIONS_KEY and api_of(api_key).is_flexible(version) else 0
