"""Finds the partitions of a Fetch request: those it names, or those of its session.

Used by the Fetch handler alone. An unknown partition costs little memory: a request may name 100,000 of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.api.call import Call
from barnabas.broker.authorization.permissions import AllowedNames
from barnabas.broker.replica.core.fetch_sessions import (
    CONSUMER,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    PartitionKey,
    WantedPartition,
)
from barnabas.errors import ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
    SnapshotId,
)
from barnabas.protocol.messages.shared import LeaderIdAndEpoch

if TYPE_CHECKING:
    from barnabas.broker.replica.core.fetch_sessions import FetchSessions
    from barnabas.broker.replica.replicas import Replicas

FIRST_BY_ID: Final = 13
FIRST_WITH_REPLICA_STATE: Final = 15
UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

WantedPartitions = dict[PartitionKey, WantedPartition]
Absent = dict[
    PartitionKey, ErrorCode
]  # unknown partitions, and those that the client may not read, each with one of UNSENT

UNSENT: Final = (*UNKNOWN, ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # answered without a look at a replica

_NO_EPOCH: Final = EpochEndOffset()
_NO_LEADER: Final = LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = SnapshotId()
_NO_TRANSACTIONS: Final[list[AbortedTransaction]] = []


class ReadableTopics:
    """The topics that the client of one request may read; a follower may read all of them, or none.

    Attributes:
        all: every topic may be read.
        standing: `Access.standing` of the client.
    """

    __slots__ = ("_names", "_replicas", "all", "standing")

    def __init__(self, call: Call[FetchRequest], replicas: Replicas) -> None:
        access = call.access
        self.all = access.unrestricted
        self.standing = access.standing
        self._names: AllowedNames | None = None
        self._replicas = replicas
        if not self.all and replica_of(call)[0] >= 0:
            self.all = access.allows(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
        elif not self.all:
            self._names = AllowedNames(access, AclOperation.READ, AclResourceType.TOPIC)

    def __contains__(self, topic: str | bytes) -> bool:
        """Whether a topic, by name or id, may be read. A consumer is told that an id is unknown."""
        if self.all or self._names is None:
            return self.all
        name = topic if isinstance(topic, str) else self._replicas.topic_name(topic)
        return name is None or name in self._names


def known_partitions(
    replicas: Replicas,
    call: Call[FetchRequest],
    topic: FetchTopic,
    partitions: list[FetchPartition],
    absent: Absent,
    readable: ReadableTopics,
) -> list[FetchPartition]:
    """Returns the partitions that this node knows and the client may read; records the others as absent."""
    named: str | bytes = topic.topic if call.version < FIRST_BY_ID else topic.topic_id
    name = named if isinstance(named, str) else replicas.topic_name(named)
    known: list[FetchPartition] = []
    if named not in readable:
        absent.update(((named, one.partition), ErrorCode.TOPIC_AUTHORIZATION_FAILED) for one in partitions)
        return known
    for one in partitions:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        if name is not None:
            found = replicas.get(name, one.partition) is not None
            code = ErrorCode.NONE if found else replicas.absence(name, one.partition)
        if code in UNKNOWN:
            absent[named, one.partition] = code
        else:
            known.append(one)
    return known


def unknown_partition(partition: int, code: ErrorCode) -> PartitionData:
    """The answer for an unknown partition. All such answers share the objects in it: never change them."""
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        diverging_epoch=_NO_EPOCH,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=_NO_TRANSACTIONS,
        records=b"",
    )


def replica_of(call: Call[FetchRequest]) -> tuple[int, int]:
    """Broker id and epoch of the requesting follower; CONSUMER and -1 for a consumer."""
    if call.version < FIRST_WITH_REPLICA_STATE:
        return call.request.replica_id, -1
    return call.request.replica_state.replica_id, call.request.replica_state.replica_epoch


def name_partitions(
    call: Call[FetchRequest], topic: FetchTopic, partitions: list[FetchPartition], named: WantedPartitions
) -> None:
    """Records partitions that the request names."""
    name: str | bytes = topic.topic_id if call.version >= FIRST_BY_ID else topic.topic
    for one in partitions:
        key = name, one.partition
        named[key] = WantedPartition(
            key,
            topic.topic,
            topic.topic_id,
            one.partition,
            one.fetch_offset,
            one.partition_max_bytes,
            one.current_leader_epoch,
            one.last_fetched_epoch,
            one.log_start_offset,
        )


def fetched_partitions(
    sessions: FetchSessions, call: Call[FetchRequest], named: WantedPartitions
) -> tuple[WantedPartitions, FetchSession | None]:
    """The partitions of this request, and its session if it has one.

    Raises:
        BrokerError: as `FetchSessions.resume`.
    """
    request = call.request
    by_id = call.version >= FIRST_BY_ID
    if request.session_epoch <= INITIAL_EPOCH:
        if request.session_id != NO_SESSION:
            sessions.close(request.session_id)
        if request.session_epoch <= FINAL_EPOCH:
            return named, None
        follower_id, _ = replica_of(call)
        return named, sessions.create(by_id, named, max(follower_id, CONSUMER))
    forgotten = [
        (topic.topic_id if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    session = sessions.resume(request.session_id, request.session_epoch, by_id, named.items(), forgotten)
    return (named, None) if session is None else (session.wanted, session)
