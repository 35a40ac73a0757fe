"""`ask_broker` and `ask_leaders`: retries, the broker they ask, and the error when the time limit has passed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client.errors import BrokerUnreachable, KafkaError, RequestTimedOut, UnknownTopicOrPartition, error_for
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.net.deadline import MISSING_MS, Deadline, ask_broker, ask_leaders
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


class Brokers:
    """A cluster whose brokers give the next of these outcomes, in this order: an error to raise, or an answer."""

    def __init__(self, *outcomes: Any) -> None:
        self.clock, self.rng = Clock(), SimpleNamespace(random=lambda: 0.0)
        self.retry_backoff_ms, self.request_timeout_ms = 1, 100
        self.metadata = ClusterMetadata()
        self.outcomes = list(outcomes)
        self.asked: list[Any] = []
        self.updates = self.forgotten = 0

    async def find_coordinator(self, kind: str, key: str, *, timeout_ms: int) -> int:
        return self.forgotten

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten += 1

    def want_update(self) -> None:
        self.updates += 1

    def add_topics(self, topics: Any) -> None:
        assert list(topics) == ["orders", "orders"]

    async def request(self, request: Any, *, node_id: int, **_: Any) -> Any:
        self.asked.append((node_id, request))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def listed(*results: tuple[int, ErrorCode]) -> Any:
    partitions = [SimpleNamespace(partition_index=p, error_code=code) for p, code in results]
    return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=partitions)])


async def test_a_coordinator_is_looked_up_again_if_it_moved_or_does_not_answer() -> None:
    cluster: Any = Brokers(BrokerUnreachable("gone"), "moved", "loading", "done")
    failures = {
        "moved": error_for(ErrorCode.NOT_COORDINATOR),
        "loading": error_for(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    }
    assert await ask_broker(cluster, "request", failures.get, coordinator=("group", "g")) == "done"
    assert cluster.asked == [(0, "request"), (1, "request"), (2, "request"), (2, "request")]


async def test_each_leader_is_asked_for_its_partitions_until_all_have_a_result() -> None:
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    refused = listed((1, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    unasked = (5, ErrorCode.NONE)
    cluster: Any = Brokers(listed((0, ErrorCode.NONE), unasked), refused, listed((1, ErrorCode.NONE)))
    cluster.metadata.leaders = {zero: 1, one: 2}
    found = await ask_leaders(cluster, {zero: 7, one: 8}, lambda partitions, _left_ms: partitions)
    assert {tp: result.partition_index for tp, result in found.items()} == {zero: 0, one: 1}
    assert cluster.asked == [(1, {zero: 7}), (2, {one: 8}), (2, {one: 8})]
    assert cluster.updates == 1


async def test_a_final_error_of_one_partition_counts_before_a_passing_one_of_another() -> None:
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    damaged_on_disk = (0, ErrorCode.CORRUPT_MESSAGE)
    cluster: Any = Brokers(listed(damaged_on_disk, (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    cluster.metadata.leaders = {zero: 1, one: 1}
    with pytest.raises(KafkaError) as raised:
        await ask_leaders(cluster, {zero: 7, one: 8}, lambda partitions, _left_ms: partitions)
    assert (raised.value.code, raised.value.partition) == (ErrorCode.CORRUPT_MESSAGE, 0)
