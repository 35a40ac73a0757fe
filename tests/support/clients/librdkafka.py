"""Helpers for clients of librdkafka: typed fields of messages, and the last lines of a client's debug log.

A message may hold an error instead of a record, so confluent-kafka declares each field as optional.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Message


DEBUG_LINES = 120  # kept of each client


class Debugged(logging.Handler):
    """Keeps the last lines of a client's debug log, which `str()` joins. `logger` is for the client's constructor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=DEBUG_LINES)
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.created:.3f} {record.getMessage()}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


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
