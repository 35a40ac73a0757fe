"""The bundled asyncio client: Producer, Consumer, Admin. No threads; only ports reach the world."""

from __future__ import annotations

from barnabas.client.errors import KafkaError
from barnabas.client.producer import Producer
from barnabas.client.types import OffsetAndMetadata, Record, RecordMetadata, TopicPartition

__all__ = ["KafkaError", "OffsetAndMetadata", "Producer", "Record", "RecordMetadata", "TopicPartition"]
