"""Deadline: what a call says when its time has passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client.errors import RequestTimedOut, UnknownTopicOrPartition, error_for
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.net.deadline import MISSING_MS, Deadline
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Clock:
    """A clock that a test moves."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


async def test_the_last_refusal_is_told_if_the_last_attempt_had_no_answer() -> None:
    clock = Clock()
    cluster: Any = SimpleNamespace(
        clock=clock, rng=SimpleNamespace(random=lambda: 0.0), retry_backoff_ms=1, request_timeout_ms=100
    )
    deadline = Deadline(cluster, None)
    await deadline.pause(error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic"))
    clock.now_ms = 100
    with pytest.raises(RequestTimedOut, match="no such topic") as raised:
        await deadline.pause(RequestTimedOut("no answer in time"))
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_without_a_refusal_the_last_error_is_told() -> None:
    clock = Clock()
    cluster: Any = SimpleNamespace(
        clock=clock, rng=SimpleNamespace(random=lambda: 0.0), retry_backoff_ms=1, request_timeout_ms=100
    )
    clock.now_ms = 0
    deadline = Deadline(cluster, 50)
    clock.now_ms = 50
    with pytest.raises(RequestTimedOut, match="no answer in time"):
        await deadline.pause(RequestTimedOut("no answer in time"))


async def test_a_missing_topic_ends_the_call_after_two_seconds_without_it() -> None:
    clock = Clock()
    cluster: Any = SimpleNamespace(
        clock=clock, rng=SimpleNamespace(random=lambda: 0.0), retry_backoff_ms=1, request_timeout_ms=30_000
    )
    deadline = Deadline(cluster, None)
    missing = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="orders", partition=7)
    await deadline.missing(missing)
    clock.now_ms = MISSING_MS - 1
    await deadline.missing(missing)
    await deadline.missing(error_for(ErrorCode.LEADER_NOT_AVAILABLE))  # the topic is there now
    clock.now_ms = MISSING_MS
    await deadline.missing(missing)
    clock.now_ms = 2 * MISSING_MS
    with pytest.raises(UnknownTopicOrPartition, match=r"topic 'orders', partition 7"):
        await deadline.missing(missing)


def test_the_metadata_tell_why_a_partition_has_no_leader() -> None:
    metadata = ClusterMetadata()
    assert metadata.no_leader(TopicPartition("orders", 0)).code is ErrorCode.LEADER_NOT_AVAILABLE  # not asked yet
    orders = MetadataResponseTopic(
        name="orders", partitions=[MetadataResponsePartition(partition_index=p, leader_id=-1) for p in (0, 1)]
    )
    gone = MetadataResponseTopic(name="gone", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    metadata.update(MetadataResponse(topics=[orders, gone]), 0, whole=False)
    assert metadata.no_leader(TopicPartition("orders", 1)).code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "the topic has partitions 0 to 1 (topic 'orders', partition 7)" in str(
        metadata.no_leader(TopicPartition("orders", 7))
    )
    assert isinstance(metadata.no_leader(TopicPartition("gone", 0)), UnknownTopicOrPartition)
