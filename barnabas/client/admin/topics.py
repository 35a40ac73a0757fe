"""Requests about topics and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import get_args

from barnabas.client.admin.requests import AdminRequests
from barnabas.client.admin.types import NewTopic
from barnabas.client.errors import IllegalState, KafkaError, error_for
from barnabas.client.net.core.metadata import TopicInfo
from barnabas.client.net.deadline import Deadline
from barnabas.client.net.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from barnabas.client.types import IsolationLevel, OffsetAndTimestamp, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)

_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class TopicAdmin(AdminRequests):
    """Requests about topics and records."""

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        refused: MutableMapping[str, KafkaError] | None = None,
    ) -> dict[str, tuple[int, int]]:
        """Creates topics (KIP-4).

        Args:
            refused: gets the errors by topic, instead of raising the first.

        Returns:
            Partitions and replication factor of each created topic; −1 if unknown (before KIP-525).

        Raises:
            TopicAlreadyExists, InvalidTopic, KafkaError: the first error; the other topics were created.
        """
        left = {t.name: t for t in topics}
        created: dict[str, tuple[int, int]] = {}

        def request(budget_ms: int) -> CreateTopicsRequest:
            return CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=t.name,
                        num_partitions=t.num_partitions,
                        replication_factor=t.replication_factor,
                        assignments=[
                            CreatableReplicaAssignment(partition_index=p, broker_ids=list(nodes))
                            for p, nodes in t.replica_assignments.items()
                        ],
                        configs=[CreatableTopicConfig(name=k, value=v) for k, v in t.configs.items()],
                    )
                    for t in left.values()
                ],
                timeout_ms=budget_ms,
                validate_only=validate_only,
            )

        def results(response: CreateTopicsResponse) -> list[CreatableTopicResult]:
            for each in response.topics:
                if not each.error_code:
                    created[each.name] = (each.num_partitions, each.replication_factor)
            return response.topics

        await self._each(request, results, left, timeout_ms, refused=refused)
        return created

    async def delete_topics(
        self,
        topics: Iterable[str],
        *,
        timeout_ms: int | None = None,
        refused: MutableMapping[str, KafkaError] | None = None,
    ) -> None:
        """Deletes topics with their records (KIP-4).

        Args:
            refused: gets the errors by topic, instead of raising the first.

        Raises:
            UnknownTopicOrPartition, KafkaError: the first error; the other topics were deleted.
        """
        left = dict.fromkeys(topics)

        def request(budget_ms: int) -> DeleteTopicsRequest:
            return DeleteTopicsRequest(
                topics=[DeleteTopicState(name=t) for t in left], topic_names=list(left), timeout_ms=budget_ms
            )

        await self._each(
            request,
            lambda r: r.responses,
            left,
            timeout_ms,
            final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
            refused=refused,
        )

    async def create_partitions(self, counts: Mapping[str, int], *, timeout_ms: int | None = None) -> None:
        """Increases the number of partitions to the given totals (KIP-195). Raises KafkaError for a lower total."""
        left = dict(counts)

        def request(budget_ms: int) -> CreatePartitionsRequest:
            return CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=t, count=n, assignments=None) for t, n in left.items()],
                timeout_ms=budget_ms,
            )

        await self._each(request, lambda r: r.results, left, timeout_ms)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Returns the names of all topics, sorted."""
        response = await self._metadata(None)
        return sorted(t.name for t in response.topics if t.name and (include_internal or not t.is_internal))

    async def describe_topics(
        self, topics: Iterable[str], *, refused: MutableMapping[str, KafkaError] | None = None
    ) -> dict[str, TopicInfo]:
        """Returns ids, partitions and leaders of topics.

        Args:
            refused: gets the errors by topic, instead of raising the first.

        Raises:
            UnknownTopicOrPartition, KafkaError: the first error.
        """
        wanted = list(dict.fromkeys(topics))
        if not wanted:
            return {}
        response = await self._metadata(wanted)
        errors = {t.name or "": error_for(t.error_code, topic=t.name) for t in response.topics if t.error_code}
        if errors and refused is None:
            raise next(iter(errors.values()))
        (refused if refused is not None else {}).update(errors)
        self._cluster.metadata.update(response, self._cluster.clock.monotonic_ms(), whole=False)
        return {name: self._cluster.metadata.topics[name] for name in wanted if name not in errors}

    # -- records and offsets -------------------------------------------------------------------------------------------

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, int | str],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Returns the offset of one position in each partition (KIP-396).

        Args:
            partitions: "earliest", "latest", "max_timestamp", or a timestamp in ms since the Unix epoch (the first
                record from it on).

        Returns:
            Offset −1 without such a record.

        Raises:
            IllegalState: a position is none of these.
            UnknownTopicOrPartition: the cluster has no such topic or partition.
        """
        unknown = [at for at in partitions.values() if isinstance(at, str) and at not in _TIMES]
        if unknown:
            raise IllegalState(
                f"Admin.list_offsets: {unknown[0]!r} is neither a timestamp nor one of {', '.join(_TIMES)}"
            )
        if isolation_level not in get_args(IsolationLevel):
            raise IllegalState(
                f"Admin.list_offsets: isolation_level={isolation_level!r} is not one of {get_args(IsolationLevel)}"
            )
        await self._connected()
        wanted = {TopicPartition(*tp): _TIMES[t] if isinstance(t, str) else t for tp, t in partitions.items()}
        return await list_offsets(
            self._cluster, wanted, read_committed=isolation_level == "read_committed", timeout_ms=timeout_ms
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below an offset (KIP-107). Returns the new first offset of each partition.

        Args:
            before: the first offset to keep in each partition; −1: the high watermark.

        Raises:
            KafkaError: an offset is above the high watermark (OFFSET_OUT_OF_RANGE), or the topic is only compacted.
        """
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        left = {TopicPartition(*tp): offset for tp, offset in before.items()}
        done: dict[TopicPartition, int] = {}
        self._cluster.add_topics(tp.topic for tp in left)
        while left:
            problem: KafkaError | None = None
            by_node: dict[int, dict[str, DeleteRecordsTopic]] = {}
            for tp, offset in left.items():
                leader = self._cluster.metadata.leaders.get(tp)
                if leader is None:
                    problem = self._cluster.metadata.no_leader(tp)
                    continue
                topics = by_node.setdefault(leader, {})
                topics.setdefault(tp.topic, DeleteRecordsTopic(name=tp.topic)).partitions.append(
                    DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
                )
            for node_id, topics in by_node.items():
                try:
                    response = await self._cluster.request(
                        DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=deadline.left_ms),
                        node_id=node_id,
                        timeout_ms=deadline.left_ms,
                    )
                except KafkaError as error:
                    problem = error
                    continue
                for topic in response.topics:
                    for p in topic.partitions:
                        tp = TopicPartition(topic.name, p.partition_index)
                        if p.error_code:
                            problem = error_for(p.error_code, broker=node_id, topic=tp.topic, partition=tp.partition)
                        elif left.pop(tp, None) is not None:
                            done[tp] = p.low_watermark
            if problem is not None:
                self._cluster.want_update()
                await deadline.missing(problem)
        return done
