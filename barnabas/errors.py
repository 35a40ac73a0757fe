"""Kafka's error codes and the package's exceptions.
A peer's bytes raise only RemoteProtocolError, misuse by our code LocalProtocolError, rejected requests BrokerError.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import ClassVar, Final

__all__ = [
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
RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """Error codes of Kafka 4.3's protocol (`org.apache.kafka.common.protocol.Errors`).

    Attributes:
        meaning: what the code says, without the end of a sentence.
        retriable: whether the same request may succeed when a client sends it again.
    """

    _value_: int
    meaning: str
    retriable: bool

    def __new__(cls, number: int, meaning: str = "", retriable: bool = False) -> ErrorCode:  # ErrorCode(3) looks one up
        made = int.__new__(cls, number)
        made._value_ = number
        made.meaning = meaning
        made.retriable = retriable
        return made

    UNKNOWN_SERVER_ERROR = -1, "the broker failed with an error that has no code"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset lies before the log start or after the log end"
    CORRUPT_MESSAGE = 2, "the checksum, size or form of a batch is wrong", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "this broker knows no such topic or partition", RETRIABLE
    INVALID_FETCH_SIZE = 4, "the fetch size is negative"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "this broker does not lead the partition, or holds no replica of it", RETRIABLE
    REQUEST_TIMED_OUT = 7, "the request was not completed within its time", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "there is no such broker"
    REPLICA_NOT_AVAILABLE = 9, "there is no such replica", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "a batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, "a newer controller has been elected"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of a committed offset is too long"
    NETWORK_EXCEPTION = 13, "the connection broke before the answer", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still reading its log", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator at the moment", RETRIABLE
    NOT_COORDINATOR = 16, "another broker coordinates this group or transactional id", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is not allowed, or the topic is internal"
    RECORD_LIST_TOO_LARGE = 18, "the batches are larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, "fewer replicas are in sync than min.insync.replicas; nothing was written", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "written, but then fewer replicas were in sync than min.insync.replicas",
        RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks is none of -1, 0 and 1"
    ILLEGAL_GENERATION = 22, "the request names another generation than the group's"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member supports no protocol that all other members support"
    INVALID_GROUP_ID = 24, "the group id is empty or not allowed"
    UNKNOWN_MEMBER_ID = 25, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, "the session time-out lies outside the broker's bounds"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing; join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offsets to commit are too large"
    TOPIC_AUTHORIZATION_FAILED = 29, "not allowed to do this with the topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not allowed to do this with the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not allowed to do this with the cluster"
    INVALID_TIMESTAMP = 32, "a timestamp lies outside what the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "the request does not fit this stage of authentication"
    UNSUPPORTED_VERSION = 35, "the broker does not support this version, or not with these fields"
    TOPIC_ALREADY_EXISTS = 36, "a topic of this name exists"
    INVALID_PARTITIONS = 37, "the number of partitions is not allowed"
    INVALID_REPLICATION_FACTOR = 38, "not from 1 to the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, "the assignment of replicas is not consistent"
    INVALID_CONFIG = 40, "a configuration is unknown or its value not allowed"
    NOT_CONTROLLER = 41, "this node is not the active controller", RETRIABLE
    INVALID_REQUEST = 42, "the request contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the log's record format cannot do this"
    POLICY_VIOLATION = 44, "a policy of the cluster forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the producer's sequence has a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, "these sequence numbers were written before"
    INVALID_PRODUCER_EPOCH = 47, "a newer epoch of this producer is known"
    INVALID_TXN_STATE = 48, "the transaction's state does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, "the transactional id belongs to another producer id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction time-out is above transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, "the previous transaction of this id is still being completed", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "a newer coordinator owns this transactional id"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not allowed to use the transactional id"
    SECURITY_DISABLED = 54, "the broker has no security to change"
    OPERATION_NOT_ATTEMPTED = 55, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the disk failed", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials are wrong"
    UNKNOWN_PRODUCER_ID = 59, "the partition has no state of this producer"
    REASSIGNMENT_IN_PROGRESS = 60, "a reassignment of the partition is under way"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "this connection may not request delegation tokens"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "not allowed to do this with the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "this type of principal is not supported"
    NON_EMPTY_GROUP = 68, "the group has members"
    GROUP_ID_NOT_FOUND = 69, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the broker has no such fetch session", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session's requests are out of order", RETRIABLE
    LISTENER_NOT_FOUND = 72, "the leader has no listener with the requested name", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "this cluster does not allow topics to be deleted"
    FENCED_LEADER_EPOCH = 74, "the leader epoch is older than the broker's", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch is newer than the broker's", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "this version cannot carry the compression"
    STALE_BROKER_EPOCH = 77, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, "the new leader's high watermark has not caught up yet", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "join again with the member id of the answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not alive or not in sync", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "the group has the largest number of members that is allowed"
    FENCED_INSTANCE_ID = 82, "another member uses this static instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica that may become the leader is alive", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "the partition has the leader that an election would give it", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "no reassignment of the partition is under way"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group still reads the topic"
    INVALID_RECORD = 87, "a record breaks the topic's rules"
    UNSTABLE_OFFSET_COMMIT = 88, "an ongoing transaction has a pending commit of the offset", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "the quota is used up for now", RETRIABLE
    PRODUCER_FENCED = 90, "a newer producer uses the transactional id"
    RESOURCE_NOT_FOUND = 91, "there is no such resource"
    DUPLICATE_RESOURCE = 92, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential is too weak or malformed"
    INCONSISTENT_VOTER_SET = 94, "the node is not one of the voters"
    INVALID_UPDATE_VERSION = 95, "the feature cannot be set to this level"
    FEATURE_UPDATE_FAILED = 96, "the features could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "a forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, "this broker knows no topic of this id", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "a live broker has this node id"
    BROKER_ID_NOT_REGISTERED = 102, "no broker is registered with this node id"
    INCONSISTENT_TOPIC_ID = 103, "the log belongs to another topic of the same name", RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "the node belongs to another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "the fetch session mixes topic names and ids", RETRIABLE
    INELIGIBLE_REPLICA = 107, "the replica may not be in sync now"
    NEW_LEADER_ELECTED = 108, "the change made another broker the leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset must be read from tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the group has fenced this member epoch"
    UNRELEASED_INSTANCE_ID = 111, "a live member uses the static instance id"
    UNSUPPORTED_ASSIGNOR = 112, "the broker has no such assignor"
    STALE_MEMBER_EPOCH = 113, "the request has an old member epoch; a newer one is on its way to the member"
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        "the request was sent to a controller instead of a broker, or to a broker instead of a controller",
    )
    UNSUPPORTED_ENDPOINT_TYPE = 115, "this type of endpoint is not known"
    UNKNOWN_CONTROLLER_ID = 116, "there is no controller of this id"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription is not the present one"
    TELEMETRY_TOO_LARGE = 118, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, "the controller rejected the registration"
    TRANSACTION_ABORTABLE = 120, "the transaction cannot continue; abort it and begin a new one"
    INVALID_RECORD_STATE = 121, "the record's state does not allow this acknowledgement"
    SHARE_SESSION_NOT_FOUND = 122, "the broker has no such share session", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session's requests are out of order", RETRIABLE
    FENCED_STATE_EPOCH = 124, "a newer epoch of the share state is known"
    INVALID_VOTER_KEY = 125, "the voter's id or directory differs"
    DUPLICATE_VOTER = 126, "the node is a voter already"
    VOTER_NOT_FOUND = 127, "the node is not a voter"
    INVALID_REGULAR_EXPRESSION = 128, "the pattern is not a regular expression"
    REBOOTSTRAP_REQUIRED = 129, "connect again through the bootstrap servers"
    STREAMS_INVALID_TOPOLOGY = 130, "the topology contradicts itself"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the topology's epoch is not allowed"
    STREAMS_TOPOLOGY_FENCED = 132, "a newer topology is known"
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker has the largest number of share sessions that is allowed", RETRIABLE


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
