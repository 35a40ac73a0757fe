"""Traffic: written and read records of a node's topics. A node without metrics has no Traffic."""

from __future__ import annotations

from typing import Final

from barnabas.errors import ErrorCode
from barnabas.ports import Buffer
from barnabas.storage.inspection import Inspection
from barnabas.storage.log_config import AppendInfo

TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
EXPECTED_OF_PRODUCE: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR}
)
EXPECTED_OF_FETCH: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class TopicTraffic:
    """The counts of one topic, or of all. A batch that a producer repeats counts once."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0  # records appended as leader, by clients and coordinators
        self.bytes_in = 0  # of their batches
        self.bytes_out = 0  # of records sent to consumers
        self.bytes_rejected = 0  # of batches that were too large
        self.produce_requests = 0  # partitions of the topic in answered requests
        self.failed_produce_requests = 0  # with an error that Kafka does not expect
        self.fetch_requests = 0
        self.failed_fetch_requests = 0
        self.replication_bytes_in = 0  # fetched from leaders
        self.replication_bytes_out = 0  # sent to followers

    def on_append(self, info: AppendInfo) -> None:
        base_offset, last_offset, _, _, duplicate, _, size_bytes, _ = info
        self.produce_requests += 1
        if not duplicate:
            self.bytes_in += size_bytes
            self.messages_in += last_offset - base_offset + 1

    def on_refusal(self, code: ErrorCode, records: Buffer | Inspection) -> None:
        """Counts a refused batch as failed only if Kafka does not expect the error (`ReplicaManager.appendToLocalLog`)."""
        self.produce_requests += 1
        if code in TOO_LARGE:
            self.bytes_rejected += len(records.batch if isinstance(records, Inspection) else records)
        elif code not in EXPECTED_OF_PRODUCE:
            self.failed_produce_requests += 1

    def on_read(self, code: int) -> None:
        """Counts a partition of a Fetch as failed only if Kafka does not expect the error (`ReplicaManager.readFromLog`)."""
        self.fetch_requests += 1
        if code and code not in EXPECTED_OF_FETCH:
            self.failed_fetch_requests += 1

    def values(self) -> tuple[int, ...]:
        """In the order of their description."""
        return (
            self.messages_in,
            self.bytes_in,
            self.bytes_out,
            self.bytes_rejected,
            self.produce_requests,
            self.failed_produce_requests,
            self.fetch_requests,
            self.failed_fetch_requests,
            self.replication_bytes_in,
            self.replication_bytes_out,
        )

    def add(self, other: TopicTraffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The counts of a node; the sums keep those of deleted topics."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}  # by name, from the first replica on this node to the deletion
        self._gone = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicTraffic()
        return found

    def forget(self, topic: str) -> None:
        found = self.topics.pop(topic, None)
        if found is not None:
            self._gone.add(found)

    def gone(self) -> tuple[int, ...]:
        """Sums of all deleted topics, in the order of `TopicTraffic.values`."""
        return self._gone.values()
