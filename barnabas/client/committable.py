"""Checks committed offsets before they are queued: an invalid one would stop the task that sends them."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.client.errors import IllegalState
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

INT64_MAX = (1 << 63) - 1


def committable(offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets with metadata. Raises IllegalState unless keys are partitions and values offsets from 0 on."""
    found = {}
    for key, at in offsets.items():
        partition = _partition(key)
        committed = OffsetAndMetadata(at) if isinstance(at, int) else at
        if not isinstance(committed, OffsetAndMetadata) or not isinstance(committed.offset, int):
            raise IllegalState(
                f"an offset must be an int or an OffsetAndMetadata, not {at!r}",
                topic=partition.topic,
                partition=partition.partition,
            )
        if not 0 <= committed.offset <= INT64_MAX:
            raise IllegalState(
                f"offset {committed.offset} must be from 0 to {INT64_MAX}",
                topic=partition.topic,
                partition=partition.partition,
            )
        found[partition] = committed
    return found


def group_of(metadata: ConsumerGroupMetadata | str) -> ConsumerGroupMetadata:
    """The group of committed offsets, from `Consumer.group_metadata()` or a group id. Raises IllegalState otherwise."""
    if isinstance(metadata, str):
        return ConsumerGroupMetadata(metadata)
    if not isinstance(metadata, ConsumerGroupMetadata):
        raise IllegalState(f"group_metadata must be consumer.group_metadata() or a group id, not {metadata!r}")
    return metadata


def searchable(timestamps: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
    """Raises IllegalState for a negative time: in Kafka these mean the earliest offset, the latest, and others."""
    for key, timestamp_ms in timestamps.items():
        partition = _partition(key)
        if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= INT64_MAX:
            raise IllegalState(
                f"timestamp {timestamp_ms!r} must be an int from 0 to {INT64_MAX}",
                topic=partition.topic,
                partition=partition.partition,
            )
    return timestamps


def _partition(key: object) -> TopicPartition:
    match key:
        case (str(topic), int(partition)):
            return TopicPartition(topic, partition)
    raise IllegalState(f"a partition must be a TopicPartition, not {key!r}")
