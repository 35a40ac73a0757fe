"""The values that callers of the client give and get. Names as in aiokafka and Kafka's own client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "UNKNOWN_OFFSET",
    "ConsumerGroupMetadata",
    "Headers",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PreparedTransaction",
    "Record",
    "RecordMetadata",
    "TopicPartition",
]

UNKNOWN_OFFSET = -1  # the offset of a record that the broker had already, or that was sent with acks=0

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """A record that a consumer received.

    `timestamp` is milliseconds since the Unix epoch: the producer's (`timestamp_type` 0, CreateTime) or the broker's
    (1, LogAppendTime). `key` and `value` are bytes or None, or what the consumer's deserializers made of them.
    """

    offset: int  # the first five fields are those of protocol.records.Record: its decoder makes this class directly
    timestamp: int
    key: Any
    value: Any
    headers: Headers
    topic: str
    partition: int
    timestamp_type: int
    leader_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is −1 with acks=0, and where a retry found it written already at an offset unknown."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, a free text, and the leader epoch of the last record read (−1 unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a timestamp: its offset, its own timestamp (ms) and leader epoch (−1 unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class PreparedTransaction(NamedTuple):
    """What a prepared transaction is recognised by (KIP-939): `str()` of it is for the other participant's log, `parse` reads it."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """The transaction whose `str()` this is, here or in the Java client.

        Raises:
            ValueError: it is none.
        """
        producer_id, separator, epoch = text.partition(":")
        if not (separator and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"{text!r} is no prepared transaction: expected PRODUCER_ID:EPOCH")
        return cls(int(producer_id), int(epoch))


class ConsumerGroupMetadata(NamedTuple):
    """Who commits in a group's name (KIP-447). The defaults are a committer that is no member: nothing is fenced then."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
