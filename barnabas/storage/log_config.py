"""Configuration of a partition log, the origin of an append and its result. Defaults are those of Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

INT64_MAX = 2**63 - 1


class AppendOrigin(Enum):
    """Origin of an append: it selects the checks."""

    CLIENT = "client"  # everything is checked
    COORDINATOR = "coordinator"  # a coordinator on this node: batches have no sequences, control batches are allowed
    REPLICATION = "replication"  # the leader has checked the batches; offsets and epochs are not changed
    RAFT = "raft"  # the metadata log's leader


def _least(stop: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Kafka's topic keys, with underscores for dots. If a name differs, a comment gives the key."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3_600_000  # -1: no limit
    retention_bytes: int = -1  # -1: no limit
    cleanup_policy: frozenset[str] = frozenset({"delete"})  # of "delete" and "compact"
    max_message_bytes: int = 1_048_588  # of a whole batch
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    message_timestamp_type: str = "CreateTime"  # or "LogAppendTime"
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"  # or uncompressed, gzip, snappy, lz4, zstd
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 24 * 3_600_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    min_insync_replicas: int = 1
    leader_replication_throttled_replicas: frozenset[str] = frozenset()  # "*", or partition:broker
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    producer_id_expiration_ms: int = 24 * 3_600_000  # producer.id.expiration.ms
    transaction_partition_verification_enable: bool = True
    randrange: Callable[[int], int] = field(default=_least, compare=False, repr=False)  # Rng.randrange, for the jitter
    # Not a Kafka key: whether a start may use a saved state. The metadata log is always checked completely.
    saves_state: bool = True
    record_validation: str = "full"  # record.validation (not a key of Kafka): "header" checks only the batch header

    @property
    def compression_level(self) -> int | None:
        """None if the codec has no levels."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    # Computed once, because each append reads them.
    compacted: bool = field(init=False, repr=False)  # the cleaner cleans this log, so every record needs a key
    # age at which a segment is closed: the active one is not cleaned (KIP-354)
    roll_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        compacted = "compact" in self.cleanup_policy
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if compacted else self.segment_ms
        object.__setattr__(self, "compacted", compacted)
        object.__setattr__(self, "roll_ms", roll_ms)

    def random_jitter_ms(self) -> int:
        """How much earlier a segment rolls: drawn per segment from [0, min(segment.jitter.ms, segment.ms))."""
        return self.randrange(min(self.segment_jitter_ms, self.roll_ms)) if self.segment_jitter_ms > 0 else 0

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


class AppendInfo(NamedTuple):
    """Result of an append. Offsets are inclusive."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1: CreateTime
    log_start_offset: int
    duplicate: bool  # nothing was written: the batch repeats an earlier one, which has these offsets
    max_timestamp: int
    size_bytes: int
    cost: int = 0  # of the check and the write, in half microseconds: the cost of `record_walk.walk`, 1 for each COST_UNIT_BYTES, and a new segment's
