"""Committed offsets of a group: reads and commits at its coordinator, with retries (KIP-447, KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.client.errors import KafkaError, error_for
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.deadline import ask_broker
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
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
    wanted = None if partitions is None else list(partitions)

    def group_of(response: OffsetFetchResponse) -> Any:
        return response.groups[0] if response.groups else response

    def failure_of(response: OffsetFetchResponse) -> KafkaError | None:
        answer = group_of(response)
        if answer.error_code:
            return error_for(answer.error_code, f"offsets of group {group.group_id!r} cannot be read")
        return _first_failure(answer.topics)

    response = await ask_broker(
        cluster,
        _fetch_request(group, wanted, as_member),
        failure_of,
        coordinator=("group", group.group_id),
        timeout_ms=timeout_ms,
        version_max=_VERSION_MAX,
    )
    return {
        TopicPartition(topic.name, p.partition_index): OffsetAndMetadata(
            p.committed_offset, p.metadata or "", p.committed_leader_epoch
        )
        for topic in group_of(response).topics
        for p in topic.partitions
        if p.committed_offset >= 0
    }


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
    await ask_broker(
        cluster,
        _commit_request(group, offsets),
        lambda response: _first_failure(response.topics, f"offsets of group {group.group_id!r}"),
        coordinator=("group", group.group_id),
        timeout_ms=timeout_ms,
        version_max=_VERSION_MAX,
    )


def _first_failure(topics: Iterable[Any], text: str | None = None) -> KafkaError | None:
    return next(
        (
            error_for(p.error_code, text, topic=topic.name, partition=p.partition_index)
            for topic in topics
            for p in topic.partitions
            if p.error_code
        ),
        None,
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
