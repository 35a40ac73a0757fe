"""The metadata log of a quorum with one voter: `__cluster_metadata-0`, its snapshots, and `quorum-state`.

Driven by: the controller (`append`, `when_committed`, `take_snapshot`) and start-up (`load`, `begin_epoch`).
Emits: offsets of appended records, commits in order, the loaded image.

A sole voter leads from its start, in an epoch of its own that begins with a LeaderChange record. A record is committed once it
is synced; syncs are grouped: whatever was appended while one ran goes with the next. Raft with several voters puts its
machine in this place: the controller sees nothing but `leader_epoch`, `append` and `when_committed`.

Invariants: quorum-state names the epoch durably before a record of it is written; high_watermark ≤ log_end_offset, and never
goes back; a batch is appended whole or not at all. A failed sync is not retried: `on_failure` stops the node.
Follows KIP-595 (log), KIP-630 (snapshots).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from barnabas.broker.config import BrokerConfig
from barnabas.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from barnabas.broker.metadata.records import MetadataRecord, decode_record, encode_record
from barnabas.broker.metadata.replay import ImageBuilder
from barnabas.broker.metadata.snapshot import snapshot_records
from barnabas.broker.quorum.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from barnabas.broker.quorum.snapshots import (
    SnapshotId,
    encode_snapshot,
    list_snapshots,
    read_snapshot,
    snapshot_name,
)
from barnabas.broker.quorum.voters import VoterSet
from barnabas.errors import InvariantViolated, RemoteProtocolError
from barnabas.ports import Buffer, Clock, Disk
from barnabas.protocol.messages.internal import LeaderChangeMessage, Voter
from barnabas.protocol.records import (
    CONTROL_LEADER_CHANGE,
    NewRecord,
    build_batch,
    build_control_batch,
    decode_records,
    iter_batches,
    read_control,
)
from barnabas.protocol.schema import encode
from barnabas.storage.log_config import INT64_MAX, LogConfig, Origin
from barnabas.storage.partition_log import PartitionLog

__all__ = ["METADATA_DIRECTORY", "METADATA_TOPIC_ID", "MetadataLog"]

log = logging.getLogger(__name__)

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024  # far above what one decision may write
LOAD_BYTES: Final = 1024 * 1024  # read and replayed at once


def _log_config(config: BrokerConfig) -> LogConfig:
    return LogConfig(
        segment_bytes=config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        retention_ms=-1,  # segments go when snapshots do, not by their age
        retention_bytes=-1,
        max_message_bytes=BATCH_BYTES_MAX,
        flush_messages=INT64_MAX,
        file_delete_delay_ms=0,
    )


class MetadataLog:
    """See the module.

    Args:
        start: starts a task of the node (`Scope.start`).
        on_failure: the disk failed: the node must stop acknowledging and end.
        clean: whether the last stop was clean, so that the files need no check.

    Attributes:
        leader_epoch: the epoch this node leads in; 0 before `begin_epoch`.
        high_watermark: everything below is committed (exclusive).
    """

    def __init__(
        self,
        disk: Disk,
        config: BrokerConfig,
        clock: Clock,
        *,
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_failure: Callable[[Exception], None],
        clean: bool,
    ) -> None:
        self.config = config
        self.clock = clock
        self.disk = disk
        self.leader_epoch = 0
        self.high_watermark = 0
        self._start = start
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # ascending by offset
        self._syncing = False
        self._closed = False
        now_ms = clock.now_ms()
        self.partition_log = PartitionLog.open(
            disk, METADATA_DIRECTORY, _log_config(config), now_ms=now_ms, topic_id=METADATA_TOPIC_ID, clean=clean
        )
        self.state = read_quorum_state(disk, METADATA_DIRECTORY)
        self.voter_set = VoterSet()
        self._snapshot_at_bytes = 0  # appended since the last snapshot
        self._snapshot_at_ms = now_ms

    @property
    def log_end_offset(self) -> int:
        """The next offset to be written (exclusive)."""
        return self.partition_log.log_end_offset

    # --- start-up -----------------------------------------------------------------------------------------------

    def load(self) -> ImageBuilder:
        """Replays the newest whole snapshot and the log after it. Returns the builder, so that an open transaction is seen.

        Raises:
            InvariantViolated: the log begins above offset 0 and no snapshot reaches to where it begins, or its records
                contradict one another.
            InvariantViolated: a record is malformed.
            NotTheSoleVoter: the quorum has other voters, or is of a version not known here.
        """
        builder, offset = self._load_snapshot()
        partition_log = self.partition_log
        if offset > partition_log.log_end_offset:
            partition_log.truncate_fully_and_start_at(offset)  # the log lost more than the snapshot holds
        if offset < partition_log.log_start_offset:
            raise InvariantViolated(
                f"{METADATA_DIRECTORY} begins at offset {partition_log.log_start_offset}, and no snapshot reaches so far: "
                f"restore its .checkpoint files"
            )
        while offset < partition_log.log_end_offset:
            found = partition_log.read(offset, LOAD_BYTES, end_offset=partition_log.log_end_offset)
            self._snapshot_at_bytes += len(found.records)
            try:
                offset = self._replay(builder, found.records, offset)
            except RemoteProtocolError as error:
                raise InvariantViolated(f"{METADATA_DIRECTORY} is damaged behind offset {offset}: {error}") from error
        self.voter_set.check_sole(self.config.node_id, self.state, self.config.voters)
        return builder

    def _load_snapshot(self) -> tuple[ImageBuilder, int]:
        for snapshot in reversed(list_snapshots(self.disk, METADATA_DIRECTORY)):
            builder = ImageBuilder(EMPTY_IMAGE)
            voter_set = VoterSet()
            try:
                values = read_snapshot(self.disk, METADATA_DIRECTORY, snapshot, voter_set.take)
            except RemoteProtocolError as error:
                log.warning("passing over %s: %s", snapshot_name(snapshot), error)
                continue
            self.voter_set = voter_set
            for value in values:
                builder.replay(decode_record(value))
            builder.advance(snapshot.end_offset - 1, snapshot.epoch, self.clock.now_ms())
            return builder, snapshot.end_offset
        return ImageBuilder(EMPTY_IMAGE), 0

    def _replay(self, builder: ImageBuilder, batches: Buffer, offset: int) -> int:
        next_offset = offset
        for position, header in iter_batches(batches):
            next_offset = header.next_offset
            if header.last_offset < offset:
                continue
            for record in decode_records(batches, position, header):
                if record.offset < offset or record.value is None:
                    continue
                if header.is_control:
                    self.voter_set.take(read_control(record).type, record.value)
                else:
                    builder.replay(decode_record(record.value))
            builder.advance(header.last_offset, header.leader_epoch, header.max_timestamp)
        if next_offset == offset:
            raise InvariantViolated(f"{METADATA_DIRECTORY} cannot be read at offset {offset}")
        return next_offset

    def begin_epoch(self) -> None:
        """Leads from here on, in a new epoch: quorum-state, then a LeaderChange record, synced. Blocks; start-up only.

        Raises:
            OSError: the disk failed.
        """
        node_id = self.config.node_id
        self.leader_epoch = max(self.state.leader_epoch, self.partition_log.epochs.latest_epoch) + 1
        version = 1 if self.voter_set.kraft_version else 0
        voters_in_file = () if version else (node_id,)
        self.state = QuorumState(self.leader_epoch, leader_id=node_id, voters=voters_in_file, version=version)
        write_quorum_state(self.disk, METADATA_DIRECTORY, self.state)
        # Version 0, whatever kraft.version is: Kafka 4.3 writes no other, and its tool reads no other.
        voters = [Voter(voter_id=node_id)]
        change = encode(LeaderChangeMessage(leader_id=node_id, voters=voters, granting_voters=voters), 0)
        now_ms = self.clock.now_ms()
        self._append(build_control_batch([(CONTROL_LEADER_CHANGE, change)], timestamp=now_ms), now_ms)
        self.sync_now()

    # --- appending and committing -------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Writes one batch; its records are committed when `when_committed` of the log end says so. Returns the last offset.

        Raises:
            OSError: the disk failed.
        """
        now_ms = self.clock.now_ms()
        batch = build_batch([NewRecord(None, encode_record(record), now_ms) for record in records])
        self._append(batch, now_ms)
        return self.partition_log.log_end_offset - 1

    def _append(self, batch: bytearray, now_ms: int) -> None:
        self.partition_log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=Origin.RAFT)
        self._snapshot_at_bytes += len(batch)

    def when_committed(self, next_offset: int, done: Callable[[], None]) -> None:
        """Calls `done` once everything below `next_offset` is committed; at once where it is. In the order of the calls."""
        if next_offset <= self.high_watermark:
            done()
            return
        self._waiting.append((next_offset, done))
        if not self._syncing:
            self._syncing = True
            self._start(self._sync())

    async def _sync(self) -> None:
        try:
            while self._waiting and not self._closed:
                end_offset = self.partition_log.log_end_offset
                await self.disk.sync(self.partition_log.unsynced_files())
                if not self._closed:
                    self._commit(end_offset)
        except OSError as error:
            log.error("cannot sync %s: %s", METADATA_DIRECTORY, error)
            self._on_failure(error)
        finally:
            self._syncing = False

    def sync_now(self) -> None:
        """Syncs and commits everything, blocking: start-up and clean stop. Raises OSError."""
        end_offset = self.partition_log.log_end_offset
        self.disk.sync_now(self.partition_log.unsynced_files())
        self._commit(end_offset)

    def _commit(self, end_offset: int) -> None:
        self.partition_log.mark_synced(end_offset)
        self.high_watermark = max(self.high_watermark, end_offset)
        while self._waiting and self._waiting[0][0] <= self.high_watermark:
            self._waiting.popleft()[1]()

    # --- snapshots ------------------------------------------------------------------------------------------------

    def snapshot_due(self) -> bool:
        """Whether enough was appended, or enough time went by, since the last snapshot."""
        if self._snapshot_at_bytes >= self.config.get_int("metadata.log.max.record.bytes.between.snapshots"):
            return True
        interval_ms = self.config.get_int("metadata.log.max.snapshot.interval.ms")
        return 0 < interval_ms <= self.clock.now_ms() - self._snapshot_at_ms and self._snapshot_at_bytes > 0

    def take_snapshot(self, image: MetadataImage) -> SnapshotId:
        """Writes a snapshot of a committed image, durably, then drops what metadata.max.retention.bytes no longer allows.

        Raises:
            OSError: the disk failed.
        """
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        now_ms = self.clock.now_ms()
        values = (encode_record(record) for record in snapshot_records(image))
        data = encode_snapshot(
            values,
            epoch=image.epoch,
            last_timestamp_ms=image.timestamp_ms,
            now_ms=now_ms,
            control=self.voter_set.control_records(),
        )
        self.disk.replace(f"{METADATA_DIRECTORY}/{snapshot_name(snapshot)}", data)
        self._snapshot_at_bytes = 0
        self._snapshot_at_ms = now_ms
        self._apply_retention(now_ms)
        return snapshot

    def _apply_retention(self, now_ms: int) -> None:
        limit = self.config.get_int("metadata.max.retention.bytes")
        snapshots = list_snapshots(self.disk, METADATA_DIRECTORY)
        paths = [f"{METADATA_DIRECTORY}/{snapshot_name(snapshot)}" for snapshot in snapshots]
        total = self.partition_log.size_bytes + sum(self.disk.size(path) for path in paths)
        for path, successor in zip(paths, snapshots[1:], strict=False):
            if total <= limit:
                return
            total -= self.disk.size(path) + self.partition_log.size_bytes
            self.disk.remove(path)
            self.partition_log.delete_records_before(successor.end_offset)
            self.partition_log.apply_retention(now_ms, self.high_watermark)
            total += self.partition_log.size_bytes

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Clean stop: everything written is synced, the log closed. Waiting calls are dropped."""
        if self._closed:
            return
        self.sync_now()
        self._closed = True
        self._waiting.clear()
        self.partition_log.close()
