"""The bundled asyncio client: Producer, Consumer, Admin. No threads; only ports reach the world."""

from __future__ import annotations

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.consumer import Consumer
from barnabas.client.errors import KafkaError
from barnabas.client.exactly_once import CopyProgress, NewMessage, exactly_once
from barnabas.client.group import RebalanceListener
from barnabas.client.producer import Producer, Transaction
from barnabas.client.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PreparedTransaction,
    Record,
    RecordMetadata,
    TopicPartition,
)
from barnabas.protocol.records import EncodedRecords

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerGroupMetadata",
    "CopyProgress",
    "EncodedRecords",
    "KafkaError",
    "NewMessage",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PreparedTransaction",
    "Producer",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "TopicPartition",
    "Transaction",
    "exactly_once",
]
