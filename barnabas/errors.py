"""Kafka's error codes and the package's exceptions.
A peer's bytes raise only RemoteProtocolError, misuse by our code LocalProtocolError, rejected requests BrokerError.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import ClassVar

__all__ = [
    "MEANINGS",
    "RETRIABLE",
    "BarnabasError",
    "BrokerError",
    "DirectoryInUse",
    "ErrorCode",
    "InvariantViolated",
    "LargeMessage",
    "LocalProtocolError",
    "RemoteProtocolError",
    "TooManyElements",
    "is_passing",
]

# Temporary shortages of the process or the system, not failures of the disk.
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


class ErrorCode(IntEnum):
    """Error codes of Kafka 4.3's protocol (`org.apache.kafka.common.protocol.Errors`)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed when a client sends it again."""
        return self in RETRIABLE

    @property
    def meaning(self) -> str:
        return MEANINGS[self]


RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)


MEANINGS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed with an error that has no code",
    ErrorCode.NONE: "no error",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset lies before the log start or after the log end",
    ErrorCode.CORRUPT_MESSAGE: "the checksum, size or form of a batch is wrong",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "this broker knows no such topic or partition",
    ErrorCode.INVALID_FETCH_SIZE: "the fetch size is negative",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader at the moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this broker does not lead the partition, or holds no replica of it",
    ErrorCode.REQUEST_TIMED_OUT: "the request was not completed within its time",
    ErrorCode.BROKER_NOT_AVAILABLE: "there is no such broker",
    ErrorCode.REPLICA_NOT_AVAILABLE: "there is no such replica",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic allows",
    ErrorCode.STALE_CONTROLLER_EPOCH: "a newer controller has been elected",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata of a committed offset is too long",
    ErrorCode.NETWORK_EXCEPTION: "the connection broke before the answer",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still reading its log",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "there is no coordinator at the moment",
    ErrorCode.NOT_COORDINATOR: "another broker coordinates this group or transactional id",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic's name is not allowed, or the topic is internal",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batches are larger than a segment",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas; nothing was written",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written, but then fewer replicas were in sync than min.insync.replicas",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks is none of -1, 0 and 1",
    ErrorCode.ILLEGAL_GENERATION: "the request names another generation than the group's",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the member supports no protocol that all other members support",
    ErrorCode.INVALID_GROUP_ID: "the group id is empty or not allowed",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the session time-out lies outside the broker's bounds",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; join again",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "the offsets to commit are too large",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not allowed to do this with the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not allowed to do this with the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed to do this with the cluster",
    ErrorCode.INVALID_TIMESTAMP: "a timestamp lies outside what the topic allows",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "the broker does not offer this SASL mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "the request does not fit this stage of authentication",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support this version, or not with these fields",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic of this name exists",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is not allowed",
    ErrorCode.INVALID_REPLICATION_FACTOR: "not from 1 to the number of brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "the assignment of replicas is not consistent",
    ErrorCode.INVALID_CONFIG: "a configuration is unknown or its value not allowed",
    ErrorCode.NOT_CONTROLLER: "this node is not the active controller",
    ErrorCode.INVALID_REQUEST: "the request contradicts itself",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the log's record format cannot do this",
    ErrorCode.POLICY_VIOLATION: "a policy of the cluster forbids this",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the producer's sequence has a gap",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "these sequence numbers were written before",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer epoch of this producer is known",
    ErrorCode.INVALID_TXN_STATE: "the transaction's state does not allow this",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id belongs to another producer id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the transaction time-out is above transaction.max.timeout.ms",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the previous transaction of this id is still being completed",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer coordinator owns this transactional id",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not allowed to use the transactional id",
    ErrorCode.SECURITY_DISABLED: "the broker has no security to change",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "not tried, because another part of the request failed",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk failed",
    ErrorCode.LOG_DIR_NOT_FOUND: "the broker has no such log directory",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "the credentials are wrong",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the partition has no state of this producer",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "a reassignment of the partition is under way",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "delegation tokens are switched off",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "no such delegation token",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "the delegation token belongs to another principal",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "this connection may not request delegation tokens",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "not allowed to do this with the delegation token",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "this type of principal is not supported",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "the broker has no such fetch session",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "the fetch session's requests are out of order",
    ErrorCode.LISTENER_NOT_FOUND: "the leader has no listener with the requested name",
    ErrorCode.TOPIC_DELETION_DISABLED: "this cluster does not allow topics to be deleted",
    ErrorCode.FENCED_LEADER_EPOCH: "the leader epoch is older than the broker's",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the leader epoch is newer than the broker's",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "this version cannot carry the compression",
    ErrorCode.STALE_BROKER_EPOCH: "the broker has registered again since",
    ErrorCode.OFFSET_NOT_AVAILABLE: "the new leader's high watermark has not caught up yet",
    ErrorCode.MEMBER_ID_REQUIRED: "join again with the member id of the answer",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is not alive or not in sync",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has the largest number of members that is allowed",
    ErrorCode.FENCED_INSTANCE_ID: "another member uses this static instance id",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica that may become the leader is alive",
    ErrorCode.ELECTION_NOT_NEEDED: "the partition has the leader that an election would give it",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "no reassignment of the partition is under way",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "the group still reads the topic",
    ErrorCode.INVALID_RECORD: "a record breaks the topic's rules",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "an ongoing transaction has a pending commit of the offset",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "the quota is used up for now",
    ErrorCode.PRODUCER_FENCED: "a newer producer uses the transactional id",
    ErrorCode.RESOURCE_NOT_FOUND: "there is no such resource",
    ErrorCode.DUPLICATE_RESOURCE: "the request names a resource twice",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "the credential is too weak or malformed",
    ErrorCode.INCONSISTENT_VOTER_SET: "the node is not one of the voters",
    ErrorCode.INVALID_UPDATE_VERSION: "the feature cannot be set to this level",
    ErrorCode.FEATURE_UPDATE_FAILED: "the features could not be changed",
    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: "a forwarded principal cannot be read",
    ErrorCode.SNAPSHOT_NOT_FOUND: "there is no such snapshot",
    ErrorCode.POSITION_OUT_OF_RANGE: "the position lies outside the snapshot",
    ErrorCode.UNKNOWN_TOPIC_ID: "this broker knows no topic of this id",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "a live broker has this node id",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "no broker is registered with this node id",
    ErrorCode.INCONSISTENT_TOPIC_ID: "the log belongs to another topic of the same name",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the node belongs to another cluster",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "the fetch session mixes topic names and ids",
    ErrorCode.INELIGIBLE_REPLICA: "the replica may not be in sync now",
    ErrorCode.NEW_LEADER_ELECTED: "the change made another broker the leader",
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "the offset must be read from tiered storage",
    ErrorCode.FENCED_MEMBER_EPOCH: "the group has fenced this member epoch",
    ErrorCode.UNRELEASED_INSTANCE_ID: "a live member uses the static instance id",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the broker has no such assignor",
    ErrorCode.STALE_MEMBER_EPOCH: "the request has an old member epoch; a newer one is on its way to the member",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "the request was sent to a controller instead of a broker, or to a broker instead of a controller",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "this type of endpoint is not known",
    ErrorCode.UNKNOWN_CONTROLLER_ID: "there is no controller of this id",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "the telemetry subscription is not the present one",
    ErrorCode.TELEMETRY_TOO_LARGE: "the telemetry is larger than the broker accepts",
    ErrorCode.INVALID_REGISTRATION: "the controller rejected the registration",
    ErrorCode.TRANSACTION_ABORTABLE: "the transaction cannot continue; abort it and begin a new one",
    ErrorCode.INVALID_RECORD_STATE: "the record's state does not allow this acknowledgement",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "the broker has no such share session",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "the share session's requests are out of order",
    ErrorCode.FENCED_STATE_EPOCH: "a newer epoch of the share state is known",
    ErrorCode.INVALID_VOTER_KEY: "the voter's id or directory differs",
    ErrorCode.DUPLICATE_VOTER: "the node is a voter already",
    ErrorCode.VOTER_NOT_FOUND: "the node is not a voter",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the pattern is not a regular expression",
    ErrorCode.REBOOTSTRAP_REQUIRED: "connect again through the bootstrap servers",
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "the topology contradicts itself",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "the topology's epoch is not allowed",
    ErrorCode.STREAMS_TOPOLOGY_FENCED: "a newer topology is known",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "the broker has the largest number of share sessions that is allowed",
}


class BarnabasError(Exception):
    """Root of the package's deliberate errors."""


class RemoteProtocolError(BarnabasError):
    """A peer's bytes break the protocol. The connection is closed with one log line."""


class LargeMessage(RemoteProtocolError):
    """A request with too many elements for one turn of the loop: decode it again, in slices."""


class TooManyElements(RemoteProtocolError):
    """A request with too many elements. The response is an error."""


class LocalProtocolError(BarnabasError):
    """A call that the state of a core forbids: a bug in our code."""


class InvariantViolated(BarnabasError):
    """A violated invariant. The node stops."""


class DirectoryInUse(BarnabasError):
    """A live process holds the lock of the data directory."""


class BrokerError(BarnabasError):
    """A rejection with a protocol error code; only the router translates it into a response.

    Attributes:
        code: the error code of the response.
        message: text of the response or None. At most MESSAGE_LENGTH_MAX characters are kept: a message often quotes
            what the peer sent, and a string on the wire has at most 32,767 bytes.
    """

    MESSAGE_LENGTH_MAX: ClassVar[int] = 2_000

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        if message is not None and len(message) > self.MESSAGE_LENGTH_MAX:
            message = message[: self.MESSAGE_LENGTH_MAX - 1] + "…"
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message


def is_passing(error: OSError) -> bool:
    """Whether the call may succeed soon: too many open files, no memory, interrupted."""
    return error.errno in _PASSING
