"""RaftLog: the metadata log on disk, `__cluster_metadata-0` with its snapshots, in Raft's terms (KIP-595, KIP-630)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core.messages import LogPoint
from barnabas.broker.quorum.core.snapshots import (
    SnapshotId,
    check_snapshot,
    decode_snapshot,
    list_snapshots,
    snapshot_name,
    snapshot_timestamp_ms,
)
from barnabas.broker.quorum.core.voters import VoterSet
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.ports import Buffer, Clock, Disk, File
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC_ID
from barnabas.protocol.messages.internal import LeaderChangeMessage, Voter
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import (
    CONTROL_LEADER_CHANGE,
    EncodedRecords,
    build_batch,
    build_control_batch,
    crc_ok,
    decode_records,
    encode_records,
    iter_batches,
    read_control,
)
from barnabas.protocol.schema import encode
from barnabas.storage.log_config import INT64_MAX, AppendOrigin, LogConfig
from barnabas.storage.opening import DamagedLog, LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.recovery import DELETED_SUFFIX
from barnabas.storage.segment import LogSlice

log = logger("kafka.raft")

BATCH_BYTES_MAX: Final = 64 * 1024 * 1024  # far more than one decision may write
ASIDE: Final = ".part"  # suffix of a snapshot's name while it is written, as in Kafka
LOST_RECORDS: Final = "lost-records"  # name of a file beside the log
READ_BYTES: Final = 1024 * 1024  # read at once when the whole log is checked


def log_config_of(config: BrokerConfig) -> LogConfig:
    """From `metadata.log.segment.*`."""
    return LogConfig(
        segment_bytes=config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        retention_ms=-1,  # segments are deleted with snapshots, not by age
        retention_bytes=-1,
        max_message_bytes=BATCH_BYTES_MAX,
        flush_messages=INT64_MAX,
        file_delete_delay_ms=0,
        saves_state=False,
    )


class RaftLog:
    """The metadata log of one node. Methods that read or write files raise OSError if the disk failed.

    A snapshot represents everything below its end offset; the log may begin there or below. `synced_end_offset` ≤ `end_offset`. A
    truncation is durable before anything is written after it: a power cut could leave old batches behind new ones.
    """

    def __init__(self, disk: Disk, config: BrokerConfig, clock: Clock, *, clean: bool, alone: bool = False) -> None:
        """Opens the folder, or creates it.

        After a crash a damaged log is truncated before the damage. After a `clean` stop, which needs fewer checks, this is done, and
        recorded, only if other voters (not `alone`) hold the rest, which is then fetched again. Raises InvariantViolated if they do not, or
        if the log begins above offset 0 without a whole snapshot up to there.
        """
        self.disk = disk
        self.generation = 0  # number of truncations: a sync begun before the last one is void
        self.cut = False  # truncated or replaced, and not synced since: sync before the next write
        self._clock = clock
        self._alone = alone
        try:
            self._open(config, clean)
        except (DamagedLog, RemoteProtocolError, BrokerError) as error:
            if alone or not clean:
                raise InvariantViolated(
                    f"{CLUSTER_METADATA_FOLDER} is damaged, restore it from a copy: {error}"
                ) from error
            log.warning(
                "Metadata log is damaged despite a clean stop: folder=%s error=%s", CLUSTER_METADATA_FOLDER, error
            )
            self._note_loss()
            self._open(config, False)
        # the log may lack acknowledged, so committed, records; true until `recovered`, across restarts
        self.lost_records = disk.exists(f"{CLUSTER_METADATA_FOLDER}/{LOST_RECORDS}")
        if self._log.truncated_bytes:
            log.warning(
                "Metadata log was truncated where it was incomplete or damaged: folder=%s bytes=%d offset=%d",
                CLUSTER_METADATA_FOLDER,
                self._log.truncated_bytes,
                self._log.log_end_offset,
            )

    def _open(self, config: BrokerConfig, clean: bool) -> None:
        self._log = PartitionLog.open(
            self.disk,
            CLUSTER_METADATA_FOLDER,
            log_config_of(config),
            # It has the keys of users, and settings in plain text.
            LogOpening(now_ms=self._clock.now_ms(), topic_id=CLUSTER_METADATA_TOPIC_ID, clean=clean, private=True),
        )
        self._log.store_topic_id()
        self.voter_set = VoterSet()
        self.appended_bytes = 0
        self.latest_snapshot: SnapshotId | None = None
        self.snapshot_bytes = 0
        self._dropped: list[str] = []
        try:
            self._open_snapshots()
            self._read_voters()
        except BaseException:
            self._log.abandon()
            raise

    def _open_snapshots(self) -> None:
        for name in self.disk.listdir(CLUSTER_METADATA_FOLDER):
            if name.endswith(ASIDE):  # an interrupted write
                self.disk.remove(f"{CLUSTER_METADATA_FOLDER}/{name}")
        partition_log = self._log
        for snapshot in reversed(list_snapshots(self.disk, CLUSTER_METADATA_FOLDER)):
            voter_set = VoterSet()
            try:
                data = self._read_snapshot(snapshot)
                check_snapshot(data, voter_set.take)
            except RemoteProtocolError as error:
                log.warning("Snapshot of the metadata is ignored: snapshot=%s error=%s", snapshot_name(snapshot), error)
                continue
            self.latest_snapshot = snapshot
            self.snapshot_bytes = len(data)
            self.voter_set = voter_set
            break
        found = self.latest_snapshot
        start = partition_log.log_start_offset
        if start > (found.end_offset if found else 0):
            raise InvariantViolated(
                f"{CLUSTER_METADATA_FOLDER} begins at offset {start}, and no snapshot reaches so far: "
                f"restore its .checkpoint files"
            )
        if found is None:
            return
        if start == found.end_offset:
            if start == partition_log.log_end_offset:
                # A crash may have kept the epochs of the log that the snapshot replaced. The snapshot names the epoch of its end.
                partition_log.epochs.clear()
            return
        # The snapshot was written but the log not yet replaced: the log ends before the snapshot, or diverges from it.
        epoch = partition_log.epochs.epoch_for_offset(found.end_offset - 1)
        if found.end_offset > partition_log.log_end_offset or (epoch >= 0 and epoch != found.epoch):
            self._start_at(found.end_offset)

    def _read_voters(self) -> None:
        """Raises RemoteProtocolError or BrokerError if a batch above the snapshot is damaged."""
        offset = self.latest_snapshot.end_offset if self.latest_snapshot else 0
        while offset < self.end_offset:
            batches = self._log.read(offset, READ_BYTES, end_offset=self.end_offset).records
            self.appended_bytes += len(batches)
            next_offset = offset
            for position, header in iter_batches(batches):
                if not crc_ok(batches, position, header):
                    raise RemoteProtocolError(f"the checksum of the batch at offset {header.base_offset} is wrong")
                next_offset = header.next_offset
                if header.is_control:
                    for record in decode_records(batches, position, header):
                        self.voter_set.take(read_control(record).type, record.value or b"")
            if next_offset == offset:
                raise RemoteProtocolError(f"no batch at offset {offset}")
            offset = next_offset

    def recovered(self) -> None:
        """The log holds everything that the quorum's leader holds."""
        if self.lost_records:
            self.sync_now()
            self.disk.remove(f"{CLUSTER_METADATA_FOLDER}/{LOST_RECORDS}")
            self.lost_records = False

    # --- positions ------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.log_end_offset

    @property
    def synced_end_offset(self) -> int:
        """Everything below is durable."""
        return self._log.recovery_point

    @property
    def synced(self) -> bool:
        """Whether the log is durable, also its last truncation."""
        return not self.cut and self._log.recovery_point >= self._log.log_end_offset

    @property
    def size_bytes(self) -> int:
        """Size of the segments."""
        return self._log.size_bytes

    @property
    def end(self) -> LogPoint:
        """The end of the log with the epoch of its last record; (0, 0) if it never had one."""
        return LogPoint(self._last_epoch(), self._log.log_end_offset)

    def _last_epoch(self) -> int:
        epoch = self._log.epochs.latest_epoch
        if epoch >= 0:
            return epoch
        return self.latest_snapshot.epoch if self.latest_snapshot else 0

    @property
    def first_epoch(self) -> int:
        """The oldest epoch of its records; the snapshot's epoch without records."""
        entries = self._log.epochs.entries
        return entries[0][0] if entries else self._last_epoch()

    def end_of_epoch(self, epoch: int) -> LogPoint:
        """The largest epoch up to `epoch` in this log, and its end offset."""
        if epoch >= self._last_epoch():
            return self.end
        found = LogPoint(*self._log.epochs.end_offset_for_epoch(epoch, self._log.log_end_offset))
        if found.epoch < 0:  # no record above the snapshot
            return self.end
        return found

    # --- changes --------------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes] | EncodedRecords, epoch: int) -> int:
        """Writes one batch as the leader of `epoch`; returns the last offset."""
        now_ms = self._clock.now_ms()
        if not isinstance(values, EncodedRecords):
            values = encode_records([NewRecord(None, value, now_ms) for value in values])
        return self._append(build_batch(values), epoch, now_ms)

    def append_leader_change(self, epoch: int, leader_id: int, voters: Sequence[int], granting: Sequence[int]) -> None:
        """Begins an epoch."""
        change = LeaderChangeMessage(
            leader_id=leader_id,
            voters=[Voter(voter_id=voter) for voter in voters],
            granting_voters=[Voter(voter_id=voter) for voter in granting],
        )
        now_ms = self._clock.now_ms()
        # Version 0, whatever kraft.version is: Kafka 4.3 writes no other, and its tool reads no other.
        batch = build_control_batch([(CONTROL_LEADER_CHANGE, encode(change, 0))], timestamp=now_ms)
        self._append(batch, epoch, now_ms)

    def _append(self, batch: bytearray, epoch: int, now_ms: int) -> int:
        self._end_cut()
        self._log.append_as_leader(batch, leader_epoch=epoch, now_ms=now_ms, origin=AppendOrigin.RAFT)
        self.appended_bytes += len(batch)
        return self._log.log_end_offset - 1

    def append_replicated(self, batches: Buffer) -> None:
        """Writes a leader's batches. Raises BrokerError if they do not start at the log's end."""
        self._end_cut()
        self.appended_bytes += self._log.append_as_follower(batches, now_ms=self._clock.now_ms()).size_bytes

    def truncate_to(self, offset: int) -> None:
        """The caller syncs before it writes; else the next append syncs first."""
        if offset < self._log.log_end_offset:
            self.generation += 1
            self.cut = True
            self._log.truncate_to(offset)

    def _end_cut(self) -> None:
        if self.cut:
            self.sync_now()

    def _start_at(self, offset: int) -> None:
        self.generation += 1
        self.cut = True
        self._log.truncate_fully_and_start_at(offset)
        self.appended_bytes = 0

    def read(self, offset: int, max_bytes: int) -> Buffer:
        """Whole batches from `offset`; at least one, if there is one. Raises as `read_until`."""
        return self._read(offset, max_bytes, self._log.log_end_offset).records

    def read_until(self, offset: int, max_bytes: int, end_offset: int) -> tuple[Buffer, int]:
        """Whole batches from `offset` that begin below `end_offset`, and the offset after them.

        Raises:
            InvariantViolated: the log is damaged there; the next start fetches it again from the other voters.
            BrokerError: CORRUPT_MESSAGE: the log is damaged there, and no other voter has it.
        """
        found = self._read(offset, max_bytes, end_offset)
        if found.next_offset <= offset:
            raise InvariantViolated(f"{CLUSTER_METADATA_FOLDER} cannot be read at offset {offset}")
        return found.records, found.next_offset

    def _read(self, offset: int, max_bytes: int, end_offset: int) -> LogSlice:
        try:
            return self._log.read(offset, max_bytes, end_offset=end_offset)
        except BrokerError as error:
            if self._alone or error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            self._note_loss()
            raise InvariantViolated(f"{CLUSTER_METADATA_FOLDER} cannot be read at offset {offset}: {error}") from error

    def _note_loss(self) -> None:
        """Records, until `recovered`, that the log may lack acknowledged records."""
        self.disk.replace(f"{CLUSTER_METADATA_FOLDER}/{LOST_RECORDS}", b"")

    # --- durability -----------------------------------------------------------------------------------------------

    def unsynced_files(self) -> list[File]:
        """The files that a sync must cover; call `mark_synced` after it."""
        return self._log.unsynced_files()

    def mark_synced(self, end_offset: int) -> None:
        """`unsynced_files` are synced up to `end_offset`, and the log was not truncated since."""
        self.cut = False
        self._log.mark_synced(end_offset)

    def sync_now(self) -> None:
        """Blocks."""
        end_offset = self._log.log_end_offset
        self.disk.sync_now(self._log.unsynced_files())
        self.mark_synced(end_offset)

    def close(self) -> None:
        """Syncs and closes."""
        self._log.close()

    def abandon(self) -> None:
        """Closes the files without writing."""
        self._log.abandon()

    # --- snapshots ------------------------------------------------------------------------------------------------

    def _read_snapshot(self, snapshot: SnapshotId) -> bytes:
        return self.disk.read(self.snapshot_path(snapshot))

    @staticmethod
    def snapshot_path(snapshot: SnapshotId) -> str:
        return f"{CLUSTER_METADATA_FOLDER}/{snapshot_name(snapshot)}"

    def snapshot_values(self) -> Iterable[bytes]:
        """Encoded records of the newest snapshot; empty without one. Reading them raises RemoteProtocolError if it is damaged."""
        return () if self.latest_snapshot is None else decode_snapshot(self._read_snapshot(self.latest_snapshot))

    def has_snapshot(self, snapshot: SnapshotId) -> bool:
        """Whether exactly this snapshot exists."""
        return snapshot == self.latest_snapshot or self.disk.exists(self.snapshot_path(snapshot))

    def snapshot_part(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        """Size of a snapshot and its bytes from `position`; None if it does not exist."""
        path = self.snapshot_path(snapshot)
        if not self.disk.exists(path):
            return None
        file = self.disk.open(path)
        try:
            return file.size(), file.pread(max_bytes, position)
        finally:
            file.close()

    def note_snapshot(self, snapshot: SnapshotId, size_bytes: int) -> None:
        """A snapshot of `size_bytes` is durable under its name. No effect if a newer one has been stored by then."""
        if self.latest_snapshot is None or snapshot > self.latest_snapshot:
            self.latest_snapshot = snapshot
            self.snapshot_bytes = size_bytes
            self.appended_bytes = 0

    def store_snapshot(self, snapshot: SnapshotId, data: Buffer) -> None:
        """Writes a snapshot durably. Blocks."""
        self.disk.replace(self.snapshot_path(snapshot), data)
        if self.latest_snapshot is None or snapshot > self.latest_snapshot:
            self.latest_snapshot = snapshot
            self.snapshot_bytes = len(data)
        self.appended_bytes = 0

    def start_at_snapshot(self, snapshot: SnapshotId, voter_set: VoterSet) -> None:
        """Replaces the log by a leader's snapshot, which is durable under its name. The caller syncs before it writes.

        If a crash keeps a part of the old log, the next start finds the snapshot and begins the log there.
        """
        self.voter_set = voter_set
        self._start_at(snapshot.end_offset)
        for each in list_snapshots(self.disk, CLUSTER_METADATA_FOLDER):
            if each < snapshot:  # the log that followed it is gone
                self._drop_snapshot(each)

    def _drop_snapshot(self, snapshot: SnapshotId) -> None:
        path = self.snapshot_path(snapshot)
        self.disk.rename(path, path + DELETED_SUFFIX)
        self._dropped.append(path + DELETED_SUFFIX)

    def take_deleted(self) -> list[str]:
        """Files of dropped segments and snapshots, for the caller to remove; a start removes remaining ones."""
        dropped, self._dropped = self._dropped, []
        return dropped + self._log.take_deleted(None)

    def apply_retention(self, limit_bytes: int, high_watermark: int, limit_ms: int = -1) -> None:
        """Drops snapshots above the limit or older than `limit_ms` (-1: no limit), never the newest, with the log below their successors."""
        now_ms = self._clock.now_ms()
        snapshots = list_snapshots(self.disk, CLUSTER_METADATA_FOLDER)
        sizes = [self.disk.size(self.snapshot_path(snapshot)) for snapshot in snapshots]
        total = self._log.size_bytes + sum(sizes)
        for snapshot, size, successor in zip(snapshots, sizes, snapshots[1:], strict=False):
            if total <= limit_bytes and (limit_ms < 0 or now_ms - self._said_at_ms(snapshot) <= limit_ms):
                return
            total -= size + self._log.size_bytes
            self._drop_snapshot(snapshot)
            self._log.delete_records_before(successor.end_offset)
            self._log.apply_retention(now_ms, high_watermark)
            total += self._log.size_bytes

    def _said_at_ms(self, snapshot: SnapshotId) -> int:
        try:
            return snapshot_timestamp_ms(self.disk.read(self.snapshot_path(snapshot)))
        except RemoteProtocolError:  # damaged: drop it
            return 0
