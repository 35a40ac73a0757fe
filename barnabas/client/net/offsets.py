"""Look-ups of offsets in partition logs: the first, the last, by timestamp, and the end of a leader epoch.

Each function asks the partition leaders through a `NetworkClient`, follows changes of leadership, and retries retriable errors until
its time-out. Used by the consumer, the admin client and the pipeline.
Follows KIP-79 (offsets by time) and KIP-320 (leader epochs).
"""

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
    """Returns the offset of each partition for a timestamp (ms since the Unix epoch), or for LATEST, EARLIEST, MAX_TIMESTAMP.

    Offset −1 means that there is no such record.

    Raises:
        UnknownTopicOrPartition: the cluster does not have the partition.
        RequestTimedOut: its leader did not answer within `timeout_ms`.
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
    """Returns for each partition the end offset of the given leader epoch, or of the newest older epoch in its log (KIP-320).

    If the log has lost no record of that epoch, the result is not below the offset after its last known record. −1 means that
    the leader does not know.

    Raises:
        KafkaError: a partition is unknown, or its leader did not answer within `timeout_ms`.
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
    """Moves the answered partitions from `left` to `found`; returns the error of a refused one, if any."""
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
                # Retriable in an answer to Produce. Here the damaged batch is on the broker's disk, so a retry does not help.
                if code is ErrorCode.CORRUPT_MESSAGE:
                    return KafkaError(str(problem), code=code, broker=node_id, topic=tp.topic, partition=tp.partition)
                if not problem.retriable:
                    return problem
    return problem
