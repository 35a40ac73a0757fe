"""Requests about consumer groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.client.admin.requests import AdminRequests
from barnabas.client.admin.types import GroupDescription, GroupListing, GroupMemberDescription, PartitionLag
from barnabas.client.errors import KafkaError, error_for
from barnabas.client.group.committed_offsets import commit_offsets, committed_offsets
from barnabas.client.group.core.classic_member import assigned_partitions
from barnabas.client.net.offsets import LATEST, list_offsets
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
)
from barnabas.protocol.messages.shared import PartitionIndex


class GroupAdmin(AdminRequests):
    """Requests about consumer groups and their committed offsets."""

    async def list_groups(self) -> list[GroupListing]:
        """Returns all groups of the cluster, of both protocols (KIP-222)."""
        await self._connected()
        found = []
        for node_id in sorted(self._cluster.metadata.brokers):
            response = await self._retried(ListGroupsRequest(), node_id=node_id)
            found += [GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]
        return found

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Returns state and members of a group, of either protocol (KIP-222, KIP-848).

        A missing group is "Dead", or raises UnknownGroup, as the broker answers.
        """
        try:
            found = await self._describe_classic(group_id)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return await self._describe_consumer(group_id) or _raise(error)
        if found.state == "Dead":
            return await self._describe_consumer(group_id) or found
        return found

    async def _describe_classic(self, group_id: str) -> GroupDescription:
        request = DescribeGroupsRequest(groups=[group_id])
        g = (await self._coordinated("group", group_id, request, lambda r: r.groups[0])).groups[0]
        members = tuple(
            GroupMemberDescription(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                _assigned(m.member_assignment) if g.protocol_type == "consumer" else (),
            )
            for m in g.members
        )
        return GroupDescription(g.group_id, g.group_state, g.protocol_type, g.protocol_data, members, "classic")

    async def _describe_consumer(self, group_id: str) -> GroupDescription | None:
        """None if the group does not exist in the consumer protocol (KIP-848), or the broker does not support it."""
        request = ConsumerGroupDescribeRequest(group_ids=[group_id])
        try:
            g = (await self._coordinated("group", group_id, request, lambda r: r.groups[0])).groups[0]
        except KafkaError:
            return None
        members = tuple(
            GroupMemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                tuple(TopicPartition(t.topic_name, p) for t in m.assignment.topic_partitions for p in t.partitions),
            )
            for m in g.members
        )
        return GroupDescription(g.group_id, g.group_state, "consumer", g.assignor_name, members, "consumer")

    async def find_group_coordinator(self, group_id: str) -> int:
        """Returns the node id of the present coordinator of a group."""
        await self._connected()
        return await self._cluster.find_coordinator("group", group_id)

    async def delete_group(self, group_id: str) -> None:
        """Deletes an empty group with its offsets (KIP-229). Raises KafkaError (NON_EMPTY_GROUP) if it has members."""
        await self._coordinated("group", group_id, DeleteGroupsRequest(groups_names=[group_id]), lambda r: r.results[0])

    async def remove_group_members(
        self, group_id: str, *, member_ids: Iterable[str] = (), instance_ids: Iterable[str] = ()
    ) -> None:
        """Removes members, static ones by `group_instance_id` (KIP-345). Raises KafkaError (UNKNOWN_MEMBER_ID)."""
        members = [MemberIdentity(member_id=each) for each in member_ids]
        members += [MemberIdentity(member_id="", group_instance_id=each) for each in instance_ids]
        request = LeaveGroupRequest(group_id=group_id, members=members)
        response = await self._coordinated("group", group_id, request)
        for member in response.members:
            if member.error_code:
                who = member.group_instance_id or member.member_id
                raise error_for(member.error_code, f"{who!r} is not a member of group {group_id!r}")

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all committed offsets of a group; none if the group does not exist."""
        await self._connected()
        return await committed_offsets(self._cluster, ConsumerGroupMetadata(group_id), None)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, timeout_ms: int | None = None
    ) -> None:
        """Commits offsets for a group without members (KIP-396). Raises CommitFailed if it has members."""
        await self._connected()
        chosen = {
            TopicPartition(*tp): OffsetAndMetadata(at) if isinstance(at, int) else at for tp, at in offsets.items()
        }
        await commit_offsets(self._cluster, ConsumerGroupMetadata(group_id), chosen, timeout_ms=timeout_ms)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Deletes committed offsets (KIP-496). Raises KafkaError (GROUP_SUBSCRIBED_TO_TOPIC) for subscribed topics."""
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, OffsetDeleteRequestTopic(name=tp.topic)).partitions.append(
                PartitionIndex(partition_index=tp.partition)
            )
        request = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
        response = await self._coordinated("group", group_id, request)
        for topic in response.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise error_for(p.error_code, topic=topic.name, partition=p.partition_index)

    async def group_lag(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        """Returns the committed offset and the last stable offset of each partition with a committed offset."""
        committed = await self.list_group_offsets(group_id)
        ends = await list_offsets(self._cluster, dict.fromkeys(committed, LATEST), read_committed=True)
        return {tp: PartitionLag(at.offset, ends[tp].offset) for tp, at in sorted(committed.items())}


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    try:
        return assigned_partitions(data)
    except RemoteProtocolError:
        return ()


def _raise(error: KafkaError) -> Any:
    raise error
