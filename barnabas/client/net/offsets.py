"""Offset look-ups at partition leaders, with retries: by timestamp (KIP-79) and of leader epochs (KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barnabas.client.errors import KafkaError, UnsupportedByBroker, error_for
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.deadline import ask_broker, ask_leaders
from barnabas.client.types import OffsetAndTimestamp, TopicPartition
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
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

    def request(partitions: Mapping[TopicPartition, int], left_ms: int) -> ListOffsetsRequest:
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
            timeout_ms=left_ms,
        )

    found = await ask_leaders(cluster, timestamps, request, timeout_ms=timeout_ms)
    return {tp: OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch) for tp, p in found.items()}


async def epoch_ends(
    cluster: NetworkClient, epochs: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
) -> dict[TopicPartition, int]:
    """Returns the end offset of each partition's leader epoch, or of the newest older epoch (KIP-320); −1 if unknown.

    If no record of that epoch was lost, it is not below the offset after its last known record. Raises KafkaError.
    """
    cluster.add_topics(tp.topic for tp in epochs)
    found: dict[TopicPartition, int] = {}
    for tp, epoch in epochs.items():

        def request(_left_ms: int, tp: TopicPartition = tp, epoch: int = epoch) -> OffsetForLeaderEpochRequest:
            asked = OffsetForLeaderPartition(
                partition=tp.partition,
                current_leader_epoch=cluster.metadata.leader_epochs.get(tp, -1),
                leader_epoch=epoch,
            )
            return OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[OffsetForLeaderTopic(topic=tp.topic, partitions=[asked])]
            )

        def failure_of(response: Any, tp: TopicPartition = tp) -> KafkaError | None:
            code = response.topics[0].partitions[0].error_code
            return error_for(code, topic=tp.topic, partition=tp.partition) if code else None

        try:
            response = await ask_broker(cluster, request, failure_of, leader=tp, timeout_ms=timeout_ms)
            found[tp] = response.topics[0].partitions[0].end_offset
        except UnsupportedByBroker:
            found[tp] = -1
    return found
