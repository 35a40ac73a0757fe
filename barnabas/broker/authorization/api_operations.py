"""API permissions: API key → operations on types of resources, as in Kafka 4.3, also for APIs that are not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.protocol.acls import AclOperation, AclResourceType


class ApiPermission(NamedTuple):
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


def _whole(operation: AclOperation, remark: str = "") -> tuple[ApiPermission, ...]:
    return (ApiPermission(operation, _CLUSTER, remark, whole=True),)


def _group(operation: AclOperation) -> ApiPermission:
    return ApiPermission(operation, _GROUP)


_CONFIGS: Final = "of topics"
_OWN_TRANSACTION: Final = ApiPermission(_O.WRITE, _TRANSACTION)
_NODES: Final = "from nodes"

API_PERMISSIONS: Final[Mapping[int, tuple[ApiPermission, ...]]] = {
    0: (
        ApiPermission(_O.WRITE, _TOPIC),
        ApiPermission(_O.WRITE, _TRANSACTION, "transactional records"),
    ),
    1: (
        ApiPermission(_O.READ, _TOPIC, "from consumers"),
        ApiPermission(_O.CLUSTER_ACTION, _CLUSTER, "from followers, and on the controller listener"),
    ),
    2: (ApiPermission(_O.DESCRIBE, _TOPIC),),
    3: (
        ApiPermission(_O.DESCRIBE, _TOPIC, "others are hidden from the list of all topics"),
        ApiPermission(_O.CREATE, _CLUSTER, "automatic creation: on the cluster or the topic"),
        ApiPermission(_O.CREATE, _TOPIC, "automatic creation: on the cluster or the topic"),
        ApiPermission(_O.DESCRIBE, _CLUSTER, "authorized operations of the cluster; else none are named"),
    ),
    8: (_group(_O.READ), ApiPermission(_O.READ, _TOPIC)),
    9: (_group(_O.DESCRIBE), ApiPermission(_O.DESCRIBE, _TOPIC, "others are hidden from the list of all offsets")),
    10: (
        ApiPermission(_O.DESCRIBE, _GROUP, "coordinators of groups"),
        ApiPermission(_O.DESCRIBE, _TRANSACTION, "coordinators of transactional ids"),
    ),
    11: (_group(_O.READ),),
    12: (_group(_O.READ),),
    13: (_group(_O.READ),),
    14: (_group(_O.READ),),
    15: (_group(_O.DESCRIBE),),
    16: (
        ApiPermission(_O.DESCRIBE, _CLUSTER, "lists every group"),
        ApiPermission(_O.DESCRIBE, _GROUP, "other groups are hidden"),
    ),
    17: (),  # SaslHandshake
    18: (),  # ApiVersions
    19: (
        ApiPermission(_O.CREATE, _CLUSTER, "any topic"),
        ApiPermission(_O.CREATE, _TOPIC, "without CREATE of the cluster"),
        ApiPermission(_O.DESCRIBE_CONFIGS, _TOPIC, "the settings in the answer; else they are hidden"),
    ),
    20: (
        ApiPermission(_O.DELETE, _TOPIC),
        ApiPermission(_O.DESCRIBE, _TOPIC, "else an answer to a topic id does not name the topic"),
    ),
    21: (ApiPermission(_O.DELETE, _TOPIC),),
    22: (
        ApiPermission(_O.WRITE, _TRANSACTION, "with a transactional id"),
        ApiPermission(_O.TWO_PHASE_COMMIT, _TRANSACTION, "with two-phase commit (KIP-939)"),
        ApiPermission(_O.IDEMPOTENT_WRITE, _CLUSTER, "without a transactional id: or WRITE of any topic"),
    ),
    23: (
        ApiPermission(_O.CLUSTER_ACTION, _CLUSTER, "every topic"),
        ApiPermission(_O.DESCRIBE, _TOPIC, "without CLUSTER_ACTION"),
    ),
    24: (
        ApiPermission(_O.WRITE, _TRANSACTION, "from clients (up to version 3)"),
        ApiPermission(_O.WRITE, _TOPIC, "from clients (up to version 3)"),
        ApiPermission(_O.CLUSTER_ACTION, _CLUSTER, "from brokers (version 4 and above)"),
    ),
    25: (_OWN_TRANSACTION, _group(_O.READ)),
    26: (_OWN_TRANSACTION,),
    27: (
        ApiPermission(_O.ALTER, _CLUSTER, "or CLUSTER_ACTION"),
        ApiPermission(_O.CLUSTER_ACTION, _CLUSTER, "or ALTER"),
    ),
    28: (_OWN_TRANSACTION, _group(_O.READ), ApiPermission(_O.READ, _TOPIC)),
    29: _whole(_O.DESCRIBE),
    30: _whole(_O.ALTER),
    31: _whole(_O.ALTER),
    32: (
        ApiPermission(_O.DESCRIBE_CONFIGS, _CLUSTER, "of brokers, loggers and client metrics"),
        ApiPermission(_O.DESCRIBE_CONFIGS, _TOPIC, _CONFIGS),
        ApiPermission(_O.DESCRIBE_CONFIGS, _GROUP, "of groups"),
    ),
    33: (
        ApiPermission(_O.ALTER_CONFIGS, _CLUSTER, "of brokers, loggers and client metrics"),
        ApiPermission(_O.ALTER_CONFIGS, _TOPIC, _CONFIGS),
        ApiPermission(_O.ALTER_CONFIGS, _GROUP, "of groups"),
    ),
    34: _whole(_O.ALTER),  # AlterReplicaLogDirs
    35: (ApiPermission(_O.DESCRIBE, _CLUSTER, "else the list is empty"),),
    36: (),  # SaslAuthenticate
    37: (ApiPermission(_O.ALTER, _TOPIC),),
    38: (ApiPermission(_O.CREATE_TOKENS, _USER, "for another owner"),),
    39: (),  # RenewDelegationToken: owner and renewers
    40: (),  # ExpireDelegationToken: owner and renewers
    41: (
        ApiPermission(_O.DESCRIBE, _TOKEN, "other tokens are hidden"),
        ApiPermission(_O.DESCRIBE_TOKENS, _USER, "tokens of another owner"),
    ),
    42: (_group(_O.DELETE),),
    43: _whole(_O.ALTER),
    44: (
        ApiPermission(_O.ALTER_CONFIGS, _CLUSTER, "of brokers, loggers and client metrics"),
        ApiPermission(_O.ALTER_CONFIGS, _TOPIC, _CONFIGS),
        ApiPermission(_O.ALTER_CONFIGS, _GROUP, "of groups"),
    ),
    45: _whole(_O.ALTER),
    46: _whole(_O.DESCRIBE),
    47: (_group(_O.DELETE), ApiPermission(_O.READ, _TOPIC)),
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
        ApiPermission(_O.DESCRIBE, _CLUSTER, "authorized operations; else none are named"),
        ApiPermission(_O.ALTER, _CLUSTER, "on the controller listener"),
    ),
    61: (ApiPermission(_O.READ, _TOPIC),),
    62: _whole(_O.CLUSTER_ACTION, _NODES),
    63: _whole(_O.CLUSTER_ACTION, _NODES),
    64: _whole(_O.ALTER),
    65: (
        ApiPermission(_O.DESCRIBE, _TRANSACTION),
        ApiPermission(_O.DESCRIBE, _TOPIC, "other topics are hidden"),
    ),
    66: (ApiPermission(_O.DESCRIBE, _TRANSACTION, "others are hidden"),),
    67: _whole(_O.CLUSTER_ACTION, _NODES),
    68: (_group(_O.READ), ApiPermission(_O.DESCRIBE, _TOPIC, "subscribed topics; those of a pattern are hidden")),
    69: (_group(_O.DESCRIBE), ApiPermission(_O.DESCRIBE, _TOPIC, "assigned topics; else the group is refused")),
    70: _whole(_O.CLUSTER_ACTION, _NODES),
    71: (),  # GetTelemetrySubscriptions
    72: (),  # PushTelemetry
    73: _whole(_O.CLUSTER_ACTION, _NODES),
    74: _whole(_O.DESCRIBE_CONFIGS),
    75: (ApiPermission(_O.DESCRIBE, _TOPIC, "others are hidden from the list of all topics"),),
    80: _whole(_O.ALTER),  # AddRaftVoter
    81: _whole(_O.ALTER),  # RemoveRaftVoter
    82: _whole(_O.CLUSTER_ACTION, _NODES),  # UpdateRaftVoter
}


def cluster_operation(api_key: int) -> AclOperation | None:
    """The operation on the cluster that every request of an API needs, or None. Raises KeyError for an unknown API."""
    return next((each.operation for each in API_PERMISSIONS[api_key] if each.whole), None)
