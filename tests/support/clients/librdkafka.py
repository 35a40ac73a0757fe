"""Fields of messages that librdkafka delivers, with the types that they have in a record.

A message may hold an error instead of a record, so confluent-kafka declares each field as optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Message


def value_of(message: Message[Any, Any]) -> bytes:
    """The value of a record that has one."""
    value = message.value()
    assert value is not None, "the message has no value"
    return value


def place_of(message: Message[Any, Any]) -> tuple[str, int, int]:
    """Topic, partition and offset of a record."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "the message has no topic"
    assert partition is not None, "the message has no partition"
    assert offset is not None, "the message has no offset"
    return topic, partition, offset
