"""Offset look-ups at partition leaders, with retries: by timestamp (KIP-79) and of leader epochs (KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.client.errors import KafkaError, UnsupportedByBroker, code_of, error_for
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.deadline import Deadline
from barnabas.client.types import OffsetAndTimestamp, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


async def list_offsets(
    cluster: NetworkClient,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Offsets for timestamps (ms since the Unix epoch), LATEST, EARLIEST or MAX_TIMESTAMP; −1 without a record.

    Raises UnknownTopicOrPartition; RequestTimedOut if a leader did not answer within `timeout_ms`.
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
                problem = cluster.metadata.no_leader(tp)
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
            await deadline.missing(problem)
    return found


async def epoch_ends(
    cluster: NetworkClient, epochs: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
) -> dict[TopicPartition, int]:
    """Returns the end offset of each partition's leader epoch, or of the newest older epoch (KIP-320); −1 if unknown.

    If no record of that epoch was lost, it is not below the offset after its last known record. Raises KafkaError.
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


def _list_request(
    cluster: NetworkClient, partitions: Mapping[TopicPartition, int], read_committed: bool, timeout_ms: int
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
                # Retriable in Produce; here the damaged batch is on the broker's disk.
                if code is ErrorCode.CORRUPT_MESSAGE:
                    return KafkaError(str(problem), code=code, broker=node_id, topic=tp.topic, partition=tp.partition)
                if not problem.retriable:
                    return problem
    return problem
