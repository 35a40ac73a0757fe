"""Checks and commits the offsets of one request: OffsetCommit and TxnOffsetCommit share these rules.

Follows Kafka: a partition that does not exist and metadata that is too long are refused alone; an error of the group refuses all
other partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.groups.record_codec import encode_record
from barnabas.broker.coordinator.groups.records import NO_EXPIRY, NO_TOPIC_ID, AnyRecord, CommittedOffset, OffsetRecord
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp
from barnabas.broker.image.image import TopicImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.groups import OffsetCommitRequestPartition
from barnabas.protocol.messages.shared import PartitionResult
from barnabas.protocol.messages.transactions import TxnOffsetCommitRequestPartition

if TYPE_CHECKING:
    from barnabas.broker.coordinator.group_coordinator import GroupCoordinator

ENCODED_BYTES_MAX = 16 * 1024 * 1024  # each record has the group id: a short request could take gigabytes

# Errors of the log or of the transaction coordinator, translated for clients that commit offsets.
COMMIT_CODES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # old clients retry this error
}


class OffsetChecks:
    """The offsets of one request that may be committed.

    Args:
        metadata_max: the largest length of a partition's metadata.
        now_ms: the time of the commit.
        expire_ms: when the offsets expire, if the request says so.
        unknown: the error of a partition that does not exist.
        keeps_topic_ids: whether records have the id of their topic.

    Attributes:
        accepted: the answers of partitions that exist. An error of the group refuses them.
        records: the records to write.
        encoded: their bytes.
    """

    __slots__ = (
        "_expire_ms",
        "_group_id",
        "_keeps_ids",
        "_metadata_max",
        "_now_ms",
        "_size_bytes",
        "_unknown",
        "accepted",
        "encoded",
        "records",
    )

    def __init__(
        self,
        group_id: str,
        metadata_max: int,
        now_ms: int,
        *,
        expire_ms: int = NO_EXPIRY,
        unknown: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        keeps_topic_ids: bool = False,
    ) -> None:
        self._group_id = group_id
        self._metadata_max = metadata_max
        self._now_ms = now_ms
        self._expire_ms = expire_ms
        self._unknown = unknown
        self._keeps_ids = keeps_topic_ids
        self.accepted: list[PartitionResult] = []
        self.records: list[OffsetRecord] = []
        self.encoded: list[tuple[bytes, bytes | None]] = []
        self._size_bytes = 0

    def check(
        self,
        topic: TopicImage | None,
        asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
        answer: PartitionResult,
    ) -> None:
        """Makes a record of one partition's offset, or sets the error of its answer. `topic` is None if it does not exist."""
        if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
            answer.error_code = self._unknown
            return
        self.accepted.append(answer)
        metadata = asked.committed_metadata or ""
        if len(metadata) > self._metadata_max:
            answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            return
        committed = CommittedOffset(
            asked.committed_offset,
            asked.committed_leader_epoch,
            metadata,
            self._now_ms,
            self._expire_ms,
            topic.topic_id if self._keeps_ids else NO_TOPIC_ID,
        )
        record = OffsetRecord(self._group_id, topic.name, asked.partition_index, committed)
        self.records.append(record)
        if self._size_bytes <= ENCODED_BYTES_MAX:
            key, value = encode_record(record)
            self.encoded.append((key, value))
            self._size_bytes += len(key) + len(value or b"")

    def commit(
        self, groups: GroupCoordinator, committer: Committer, producer: ProducerStamp | None, done: Callable[[], None]
    ) -> None:
        """Writes all records in one batch; calls back when they are committed, or refused by `refuse`."""

        def decide(shard: GroupShard, at: At) -> Decision[None, AnyRecord]:
            shard.group(committer.group_id).check_commit(committer, self.records, at)
            if self._size_bytes > ENCODED_BYTES_MAX:
                raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the offsets of the request exceed max.message.bytes")
            return Decision(None, self.records, producer, self.encoded)

        def written(outcome: BrokerError | None) -> None:
            if outcome is not None:
                self.refuse(outcome)
            done()

        groups.write(committer.group_id, decide, written)

    def refuse(self, error: BrokerError) -> None:
        """Sets the error of every accepted partition, translated for clients that commit offsets."""
        code = COMMIT_CODES.get(error.code, error.code)
        for answer in self.accepted:
            answer.error_code = code
