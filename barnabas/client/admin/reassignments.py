"""Partition reassignment requests: start, cancel, list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from barnabas.client.admin.requests import AdminRequests
from barnabas.client.admin.types import PartitionReassignment
from barnabas.client.errors import error_for
from barnabas.client.types import TopicPartition
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)


class ReassignmentAdmin(AdminRequests):
    """Requests about partition reassignments (KIP-455)."""

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> None:
        """Starts to move partitions to other brokers (KIP-455); `list_partition_reassignments` lists those in progress.

        Args:
            targets: the new replicas of each partition, the preferred leader first; None cancels a reassignment.

        Raises:
            KafkaError: the first error, with topic and partition; the other reassignments were started.
        """
        topics: dict[str, ReassignableTopic] = {}
        for tp, brokers in targets.items():
            partition = ReassignablePartition(
                partition_index=tp.partition, replicas=None if brokers is None else list(brokers)
            )
            topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic)).partitions.append(partition)
        response = await self._retried(
            lambda left_ms: AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=left_ms),
            timeout_ms=timeout_ms,
        )
        for topic in response.responses:
            for p in topic.partitions:
                if p.error_code:
                    raise error_for(p.error_code, p.error_message, topic=topic.name, partition=p.partition_index)

    async def list_partition_reassignments(
        self, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the reassignments in progress (KIP-455)."""
        response = await self._retried(
            lambda left_ms: ListPartitionReassignmentsRequest(topics=None, timeout_ms=left_ms),
            timeout_ms=timeout_ms,
        )
        return {
            TopicPartition(topic.name, p.partition_index): PartitionReassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in response.topics
            for p in topic.partitions
        }
