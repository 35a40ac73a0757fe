"""Arguments and results of the client. Names as in aiokafka and Kafka's Java client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple

UNKNOWN_OFFSET = -1  # the offset of a record that was sent with acks=0, or that the broker had already

BytesLike = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, bytes | None]]
HeadersToSend = Mapping[str, BytesLike | str | None] | Sequence[tuple[str, BytesLike | str | None]]

Acks = Literal["all", "-1", "0", "1", -1, 0, 1]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
AutoOffsetReset = Literal["latest", "earliest", "none"]
TransactionVersion = Literal[1, 2]
GroupProtocol = Literal["classic", "consumer", "auto"]
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # defaults of type variables (PEP 696): at run time only from Python 3.13 on

    KeyT = TypeVar("KeyT", covariant=True, default=bytes | None)
    ValueT = TypeVar("ValueT", covariant=True, default=bytes | None)
    ReadKeyT = TypeVar("ReadKeyT", default=bytes)  # of a consumer: results of its deserializers
    ReadValueT = TypeVar("ReadValueT", default=bytes)
    SentKeyT = TypeVar("SentKeyT", default=BytesLike)  # of a producer: arguments of its serializers
    SentValueT = TypeVar("SentValueT", default=BytesLike)
else:
    from typing import TypeVar

    KeyT = TypeVar("KeyT", covariant=True)
    ValueT = TypeVar("ValueT", covariant=True)
    ReadKeyT, ReadValueT = TypeVar("ReadKeyT"), TypeVar("ReadValueT")
    SentKeyT, SentValueT = TypeVar("SentKeyT"), TypeVar("SentValueT")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple, Generic[KeyT, ValueT]):
    """A consumed record: `Record[KeyT, ValueT]`, with the types of its key and its value.

    A `Consumer[K, V]` returns `Record[K | None, V | None]`: null keys and values stay None with a deserializer.
    `timestamp` is in milliseconds since the Unix epoch, set by the producer (`timestamp_type` 0, CreateTime) or by the
    broker (1, LogAppendTime).
    """

    offset: int  # the first five fields are those of protocol.records.Record: its decoder creates this class directly
    timestamp: int
    key: KeyT
    value: ValueT
    headers: Headers
    topic: str
    partition: int
    timestamp_type: int
    leader_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)


class RawRecord(NamedTuple):
    """A record of the log, also a control record: the fields of `Record`, then those of its batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    topic: str
    partition: int
    timestamp_type: int
    leader_epoch: int
    producer_id: int  # −1 without one
    producer_epoch: int
    transactional: bool
    control: bool  # key and value are those of a control record, such as the marker that ends a transaction

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)


class ValueRun(NamedTuple):
    """Values of consecutive records of a batch, without keys and timestamps: several times as fast as records."""

    offset: int  # of the first value; those that follow have the next offsets
    values: list[bytes]
    topic: str
    partition: int

    def part(self, start: int, end: int | None) -> ValueRun:
        """The values from offset `start` on, and before offset `end`."""
        first = max(start, self.offset)
        values = self.values[first - self.offset : None if end is None else max(end - self.offset, 0)]
        return self._replace(offset=first, values=values)


class RecordMetadata(NamedTuple):
    """Position of a written record. `offset` is −1 with acks=0, and after a retry that found it at an unknown offset."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, any text, and the leader epoch of the last record read (−1 unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a timestamp: its offset, its own timestamp (ms) and leader epoch (−1 unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class PreparedTransaction(NamedTuple):
    """The identity of a prepared transaction (KIP-939). Store `str()` of it at the other participant; `parse` reads it back."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """Reads the text of `str()` or of the Java client. Raises ValueError."""
        producer_id, separator, epoch = text.partition(":")
        if not (separator and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"{text!r} is not a prepared transaction: expected PRODUCER_ID:EPOCH")
        return cls(int(producer_id), int(epoch))


class ConsumerGroupMetadata(NamedTuple):
    """The member that commits offsets for a group (KIP-447). The defaults are no member, and are never fenced."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
