"""Produce requests, built from batches. Pure (KIP-516: topic ids from version 13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.client.errors import KafkaError
from barnabas.client.net.core.metadata import NO_ID
from barnabas.client.producer.core.batching import ProducerBatch
from barnabas.client.types import TopicPartition
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.records import build_batch

_TOPIC_ID_VERSION = 13
_IMPLICIT_ADD_VERSION = 12
_ANSWER_TIMEOUT_MS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """Settings of the sender. `acks`: 0, 1 or −1 (all). Times in ms, sizes in bytes."""

    acks: int = -1
    compression: int = 0
    idempotent: bool = True
    max_request_size: int = 1_048_576
    max_in_flight: int = 5
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 20


@dataclass(slots=True)
class Dispatch:
    """A Produce request in flight. `timeout_ms` is the time limit of its response."""

    node_id: int
    batches: dict[TopicPartition, ProducerBatch]
    request: ProduceRequest
    version_max: int
    timeout_ms: int
    names: dict[bytes, str]  # topic id → name


class BatchResult(NamedTuple):
    """Base offset (−1 unknown) and log append time (−1 with CreateTime) of a batch, or an error."""

    batch: ProducerBatch
    base_offset: int
    log_append_time_ms: int
    error: KafkaError | None


def build_dispatch(
    node_id: int,
    batches: list[ProducerBatch],
    config: SenderConfig,
    topic_id_of: Callable[[str], bytes],
    now_ms: int,
    *,
    transactional_id: str | None,
    transaction_version: int,
) -> Dispatch:
    """The Produce request for batches with the same leader. `topic_id_of` returns all zeros for an unknown topic."""
    topics: dict[str, TopicProduceData] = {}
    names: dict[bytes, str] = {}
    version_max = _TOPIC_ID_VERSION
    deadline = now_ms + config.request_timeout_ms
    for batch in batches:
        topic = batch.tp.topic
        data = topics.get(topic)
        if data is None:
            topic_id = topic_id_of(topic)
            if topic_id == NO_ID:
                version_max = _TOPIC_ID_VERSION - 1
            names[topic_id] = topic
            data = topics[topic] = TopicProduceData(name=topic, topic_id=topic_id)
        if batch.encoded is None:
            batch.encoded = build_batch(
                batch.packed or batch.records,
                compression=config.compression,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=batch.transactional,
            )
        data.partition_data.append(PartitionProduceData(index=batch.tp.partition, records=batch.encoded))
        deadline = min(deadline, max(batch.deadline_ms, now_ms + _ANSWER_TIMEOUT_MS_MIN))
    if transactional_id is not None and transaction_version < 2:
        version_max = min(version_max, _IMPLICIT_ADD_VERSION - 1)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=config.acks,
        timeout_ms=config.request_timeout_ms,
        topic_data=list(topics.values()),
    )
    return Dispatch(node_id, {b.tp: b for b in batches}, request, version_max, deadline - now_ms, names)
