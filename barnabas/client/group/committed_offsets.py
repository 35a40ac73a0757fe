"""Committed offsets of a group: reads and commits at its coordinator, with retries (KIP-447, KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, code_of, error_for
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.deadline import Deadline
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from barnabas.protocol.messages.shared import TopicPartitionIndexes

_VERSION_MAX = 9  # from version 10 on OffsetCommit and OffsetFetch use topic ids


async def committed_offsets(
    cluster: NetworkClient,
    group: ConsumerGroupMetadata,
    partitions: Iterable[TopicPartition] | None,
    *,
    as_member: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the committed offsets of a group (None: all partitions). Partitions without one are absent.

    Waits while an open transaction may commit one of the offsets (KIP-447). `as_member` sends member id and epoch: the
    coordinator rejects a stale epoch (KIP-848). Raises KafkaError.
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
    cluster: NetworkClient,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    timeout_ms: int | None = None,
) -> None:
    """Commits offsets as the member that `group` names.

    Raises:
        CommitFailed: the member is no longer in the group, or the group is rebalancing.
        KafkaError: the coordinator rejected, or did not answer within `timeout_ms`: the commit may have taken effect.
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


async def _ask_coordinator(cluster: NetworkClient, group_id: str, request: Any, timeout_ms: int) -> Any:
    node_id = await cluster.find_coordinator("group", group_id, timeout_ms=timeout_ms)
    return await cluster.request(
        request,
        node_id=node_id,
        purpose=Purpose.COORDINATOR,
        timeout_ms=timeout_ms,
        version_max=_VERSION_MAX,
    )


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
        else [TopicPartitionIndexes(name=t, partition_indexes=p) for t, p in indexes.items()],
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
