"""Offsets: those of the log (earliest, latest, by time) and those a group has committed.

Functions over a Cluster that send the requests, follow leaders and coordinators, and retry what is retriable until their
time is over. Used by consumer and admin.
Follows KIP-79 (ListOffsets by time), KIP-320 (leader epochs), KIP-447 (stable offsets).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, UnsupportedByBroker, code_of, error_for
from barnabas.client.net.cluster import Cluster, Purpose
from barnabas.client.net.deadline import Deadline
from barnabas.client.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "commit_offsets", "committed_offsets", "epoch_ends", "list_offsets"]

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
_NAMES_VERSION_MAX = 9  # OffsetCommit and OffsetFetch go by topic id from version 10


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the offset at a timestamp (ms), or at LATEST, EARLIEST, MAX_TIMESTAMP. Offset −1: no such record.

    Raises:
        KafkaError: a partition that is unknown or whose leader cannot be asked in time.
    """
    deadline = Deadline(cluster, timeout_ms)
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    left = dict(timestamps)
    cluster.add_topics(tp.topic for tp in timestamps)
    while left:
        problem: KafkaError | None = None
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in left.items():
            leader = cluster.metadata.leaders.get(tp)
            if leader is None:
                problem = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=tp.topic, partition=tp.partition)
            else:
                by_node.setdefault(leader, {})[tp] = timestamp
        for node_id, partitions in by_node.items():
            try:
                response = await cluster.request(
                    _list_request(cluster, partitions, read_committed, deadline.left_ms),
                    node_id=node_id,
                    timeout_ms=deadline.left_ms,
                )
            except KafkaError as error:
                problem = error
                continue
            problem = _take_listed(response, node_id, left, found) or problem
        if problem is not None:
            cluster.want_update()
            await deadline.pause(problem)
    return found


async def epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
) -> dict[TopicPartition, int]:
    """Where a leader epoch ends in each partition's log: the end of the newest epoch there that is not newer (KIP-320).

    A log that has lost nothing of what it had under that epoch does not end there before. −1 where the leader cannot tell.

    Raises:
        KafkaError: a partition that is unknown or whose leader cannot be asked in time.
    """
    deadline = Deadline(cluster, timeout_ms)
    found: dict[TopicPartition, int] = {}
    cluster.add_topics(tp.topic for tp in epochs)
    for tp, epoch in epochs.items():
        while tp not in found:
            leader = cluster.metadata.leaders.get(tp)
            problem = error_for(ErrorCode.LEADER_NOT_AVAILABLE, topic=tp.topic, partition=tp.partition)
            if leader is not None:
                asked = OffsetForLeaderPartition(
                    partition=tp.partition,
                    current_leader_epoch=cluster.metadata.leader_epochs.get(tp, -1),
                    leader_epoch=epoch,
                )
                request = OffsetForLeaderEpochRequest(
                    replica_id=-1, topics=[OffsetForLeaderTopic(topic=tp.topic, partitions=[asked])]
                )
                try:
                    response = await cluster.request(request, node_id=leader, timeout_ms=deadline.left_ms)
                    answer = response.topics[0].partitions[0]
                    if answer.error_code == ErrorCode.NONE:
                        found[tp] = answer.end_offset
                        break
                    problem = error_for(answer.error_code, broker=leader, topic=tp.topic, partition=tp.partition)
                except UnsupportedByBroker:
                    found[tp] = -1
                    break
                except KafkaError as error:
                    problem = error
            cluster.want_update()
            await deadline.pause(problem)
    return found


async def committed_offsets(
    cluster: Cluster,
    group: ConsumerGroupMetadata,
    partitions: Iterable[TopicPartition] | None,
    *,
    as_member: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a group has committed, for the partitions that have something; None asks for all of the group's.

    Waits while a transaction is about to commit an offset asked for (KIP-447).

    Args:
        as_member: asks in the name of the member that `group` names, which is refused where that is not its present epoch
            (KIP-848).
    """
    deadline = Deadline(cluster, timeout_ms)
    wanted = None if partitions is None else list(partitions)
    while True:
        try:
            response: OffsetFetchResponse = await _ask_coordinator(
                cluster, group.group_id, _fetch_request(group, wanted, as_member), deadline.left_ms
            )
        except KafkaError as error:
            cluster.forget_coordinator("group", group.group_id)
            await deadline.pause(error)
            continue
        answer: Any = response.groups[0] if response.groups else response
        problem: KafkaError | None = None
        code = code_of(answer.error_code)
        if code is not ErrorCode.NONE:
            problem = error_for(code, f"offsets of group {group.group_id!r} cannot be read")
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                code = code_of(p.error_code)
                if code is not ErrorCode.NONE:
                    problem = error_for(code, topic=topic.name, partition=p.partition_index)
                elif p.committed_offset >= 0:
                    found[TopicPartition(topic.name, p.partition_index)] = OffsetAndMetadata(
                        p.committed_offset, p.metadata or "", p.committed_leader_epoch
                    )
        if problem is None:
            return found
        if problem.code in COORDINATOR_MOVED:
            cluster.forget_coordinator("group", group.group_id)
        await deadline.pause(problem)


async def commit_offsets(
    cluster: Cluster,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    timeout_ms: int | None = None,
) -> None:
    """Commits offsets in a group's name.

    Raises:
        CommitFailed: the member that `group` names is no longer one, or a rebalance is under way.
        KafkaError: the coordinator refused, or could not be asked in time; the commit may have taken effect then.
    """
    if not offsets:
        return
    deadline = Deadline(cluster, timeout_ms)
    while True:
        try:
            response: OffsetCommitResponse = await _ask_coordinator(
                cluster, group.group_id, _commit_request(group, offsets), deadline.left_ms
            )
        except KafkaError as error:
            cluster.forget_coordinator("group", group.group_id)
            await deadline.pause(error)
            continue
        problem: KafkaError | None = None
        for topic in response.topics:
            for p in topic.partitions:
                code = code_of(p.error_code)
                if code is not ErrorCode.NONE:
                    problem = error_for(
                        code, f"offsets of group {group.group_id!r}", topic=topic.name, partition=p.partition_index
                    )
        if problem is None:
            return
        if problem.code in COORDINATOR_MOVED:
            cluster.forget_coordinator("group", group.group_id)
        await deadline.pause(problem)


async def _ask_coordinator(cluster: Cluster, group_id: str, request: Any, timeout_ms: int) -> Any:
    node_id = await cluster.find_coordinator("group", group_id, timeout_ms=timeout_ms)
    return await cluster.request(
        request,
        node_id=node_id,
        purpose=Purpose.COORDINATOR,
        timeout_ms=timeout_ms,
        version_max=_NAMES_VERSION_MAX,
    )


def _list_request(
    cluster: Cluster, partitions: Mapping[TopicPartition, int], read_committed: bool, timeout_ms: int
) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for tp, timestamp in partitions.items():
        topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic)).partitions.append(
            ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=cluster.metadata.leader_epochs.get(tp, -1),
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if read_committed else 0,
        topics=list(topics.values()),
        timeout_ms=timeout_ms,
    )


def _take_listed(
    response: ListOffsetsResponse,
    node_id: int,
    left: dict[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp],
) -> KafkaError | None:
    """Moves what was found from `left` to `found`; returns a problem, if there is one."""
    problem: KafkaError | None = None
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            code = code_of(p.error_code)
            if code is ErrorCode.NONE:
                if left.pop(tp, None) is not None:
                    found[tp] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
            else:
                problem = error_for(code, broker=node_id, topic=tp.topic, partition=tp.partition)
                # Retriable where a batch was sent. Here the damaged batch lies on the broker's disk.
                if code is ErrorCode.CORRUPT_MESSAGE:
                    return KafkaError(str(problem), code=code, broker=node_id, topic=tp.topic, partition=tp.partition)
                if not problem.retriable:
                    return problem
    return problem


def _fetch_request(
    group: ConsumerGroupMetadata, wanted: list[TopicPartition] | None, as_member: bool
) -> OffsetFetchRequest:
    indexes: dict[str, list[int]] = {}
    for tp in wanted or ():
        indexes.setdefault(tp.topic, []).append(tp.partition)
    return OffsetFetchRequest(
        group_id=group.group_id,
        topics=None
        if wanted is None
        else [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in indexes.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id if as_member else None,
                member_epoch=group.generation_id if as_member else -1,
                topics=None
                if wanted is None
                else [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in indexes.items()],
            )
        ],
        require_stable=True,
    )


def _commit_request(
    group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, committed in offsets.items():
        topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic)).partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=list(topics.values()),
    )
