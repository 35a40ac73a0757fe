"""Cluster metadata of a client: brokers, topics with ids, leaders with epochs.
A leader epoch never decreases for the same topic id (KIP-320): a stale broker cannot replace newer information.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from barnabas.client.errors import KafkaError, code_of, error_for
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

NO_ID = bytes(16)


class BrokerEndpoint(NamedTuple):
    """A live broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """One partition. `leader` is −1 without one."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(NamedTuple):
    """One topic. `partitions` are in order; `available` are those with a leader. `error` is NONE if the topic exists."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    available: tuple[int, ...]
    error: ErrorCode


class ClusterMetadata:
    """Cluster metadata of a client, refreshed after `max_age_ms`."""

    def __init__(self, max_age_ms: int = 300_000) -> None:
        self.max_age_ms = max_age_ms
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerEndpoint] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.leaders: dict[TopicPartition, int] = {}  # partitions without a leader are absent
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.names: dict[bytes, str] = {}  # topic id → name
        self.updated_ms = -1  # monotonic ms of the last response, −1 before the first

    def update(self, response: MetadataResponse, now_ms: int, *, whole: bool) -> None:
        """Applies a response. `whole`: it is about every topic, so absent ones no longer exist."""
        self.updated_ms = now_ms
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.brokers = {b.node_id: BrokerEndpoint(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        named = set()
        for topic in response.topics:
            if topic.name is not None:
                named.add(topic.name)
                self._take(topic.name, topic)
        if whole:
            for name in [name for name in self.topics if name not in named]:
                self._forget(name)
                del self.topics[name]

    def no_leader(self, tp: TopicPartition) -> KafkaError:
        info = self.topics.get(tp.topic)
        if info is None or (info.error is ErrorCode.NONE and tp.partition < len(info.partitions)):
            return error_for(ErrorCode.LEADER_NOT_AVAILABLE, topic=tp.topic, partition=tp.partition)
        if info.error is ErrorCode.NONE:
            text = f"the topic has partitions 0 to {len(info.partitions) - 1}"
            return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text, topic=tp.topic, partition=tp.partition)
        return error_for(info.error, topic=tp.topic, partition=tp.partition)

    def hint(self, tp: TopicPartition, leader: int, leader_epoch: int) -> bool:
        """Applies a leader from an error response if its epoch is newer (KIP-951); returns whether it was."""
        if leader < 0 or leader_epoch <= self.leader_epochs.get(tp, -1):
            return False
        self.leaders[tp] = leader
        self.leader_epochs[tp] = leader_epoch
        return True

    def hint_endpoints(self, endpoints: Iterable[Any]) -> None:
        for each in endpoints:
            self.brokers.setdefault(each.node_id, BrokerEndpoint(each.node_id, each.host, each.port, each.rack))

    def partition_count(self, topic: str) -> int:
        """0 for an unknown topic."""
        info = self.topics.get(topic)
        return len(info.partitions) if info is not None else 0

    def topic_id(self, topic: str) -> bytes:
        """All zeros for an unknown topic."""
        info = self.topics.get(topic)
        return info.topic_id if info is not None else NO_ID

    def _take(self, name: str, topic: MetadataResponseTopic) -> None:
        error = code_of(topic.error_code)
        known = self.topics.get(name)
        if error is not ErrorCode.NONE:
            if known is not None and error.retriable and error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return  # the broker is still catching up: keep the known state
            self._forget(name)
            self.topics[name] = TopicInfo(name, NO_ID, topic.is_internal, (), (), error)
            return
        if known is not None and known.topic_id != topic.topic_id and known.topic_id != NO_ID:
            self._forget(name)
        partitions = []
        for p in sorted(topic.partitions, key=lambda p: p.partition_index):
            tp = TopicPartition(name, p.partition_index)
            leader, epoch = p.leader_id, p.leader_epoch
            if 0 <= epoch < self.leader_epochs.get(tp, -1):
                leader, epoch = self.leaders.get(tp, -1), self.leader_epochs[tp]
            self.leader_epochs[tp] = epoch
            if leader >= 0:
                self.leaders[tp] = leader
            else:
                self.leaders.pop(tp, None)
            partitions.append(
                PartitionInfo(p.partition_index, leader, epoch, tuple(p.replica_nodes), tuple(p.isr_nodes))
            )
        available = tuple(p.partition for p in partitions if p.leader >= 0)
        self.topics[name] = TopicInfo(name, topic.topic_id, topic.is_internal, tuple(partitions), available, error)
        if topic.topic_id != NO_ID:
            self.names[topic.topic_id] = name

    def _forget(self, name: str) -> None:
        known = self.topics.get(name)
        if known is None:
            return
        self.names.pop(known.topic_id, None)
        for p in known.partitions:
            tp = TopicPartition(name, p.partition)
            self.leaders.pop(tp, None)
            self.leader_epochs.pop(tp, None)
