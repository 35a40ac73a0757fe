"""Checks committed offsets before they are queued: an invalid one would stop the task that sends them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import SupportsIndex

from barnabas.client.errors import IllegalState
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

INT64_MAX = (1 << 63) - 1


def committable(offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets with metadata. Raises IllegalState unless keys are partitions and values offsets from 0 on."""
    found = {}
    for key, at in offsets.items():
        partition = checked_partition(key)
        committed = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
        try:
            committed = committed._replace(offset=operator.index(committed.offset))
        except TypeError:
            raise IllegalState(
                f"an offset must be an int or an OffsetAndMetadata, not {at!r}",
                topic=partition.topic,
                partition=partition.partition,
            ) from None
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
        partition = checked_partition(key)
        if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= INT64_MAX:
            raise IllegalState(
                f"timestamp {timestamp_ms!r} must be an int from 0 to {INT64_MAX}",
                topic=partition.topic,
                partition=partition.partition,
            )
    return timestamps


def checked_partition(key: object) -> TopicPartition:
    """The partition that a pair of topic and number names; the number may be of another library (NumPy)."""
    match key:
        case (str(topic), SupportsIndex() as partition):
            return TopicPartition(topic, operator.index(partition))
    raise IllegalState(f"a partition must be a TopicPartition, not {key!r}")
