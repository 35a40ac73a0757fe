"""Leadership: a leader's state about its replicas; computes the high watermark and fetch replies (KIP-595, KIP-836)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from barnabas.broker.quorum.core.messages import Fetch, FetchReply, LogPoint, SnapshotFetch, SnapshotReply
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.errors import ErrorCode
from barnabas.loggers import logger

log = logger("kafka.raft")

NO_DIRECTORY: Final = bytes(16)
# After a replica's last fetch, until another directory may replace it: a disk was replaced.
RIVAL_MS: Final = 2_000
OBSERVERS_MAX = 1_000  # far more than the brokers of a cluster; further observers are served but not remembered
OBSERVER_SESSION_MS = 300_000  # an observer is evicted after this silence, as in Kafka


class Progress:
    """Progress of one replica. Times are monotonic milliseconds; None: never."""

    def __init__(self, begin_at_ms: int | None = None) -> None:
        self.end_offset = -1  # the replica holds everything below durably; -1 before its first fetch
        self.last_fetch_ms: int | None = None
        self.caught_up_ms: int | None = None
        self.leader_end_offset = -1  # the leader's log end at the replica's last fetch
        self.begin_at_ms = begin_at_ms  # when BeginQuorumEpoch is due; None while one is unanswered
        self.directory_id = NO_DIRECTORY
        self.rival_id = NO_DIRECTORY  # directory of another process that fetches under the same id

    def is_of_another(self, directory_id: bytes, now_ms: int) -> bool:
        """Whether the directory is not this replica's, while the replica is alive."""
        return (
            NO_DIRECTORY not in (directory_id, self.directory_id)
            and directory_id != self.directory_id
            and self.last_fetch_ms is not None
            and now_ms - self.last_fetch_ms < RIVAL_MS
        )


class Leadership:
    """The leader's side of one epoch."""

    def __init__(self, node_id: int, epoch: int, voters: Sequence[int], raft_log: RaftLog, now_ms: int) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.epoch_start_offset = raft_log.end_offset  # of the LeaderChange record, which is written next
        self.began_ms = now_ms
        self._log = raft_log
        # progress of the other voters by id
        self.voters = {voter: Progress(now_ms) for voter in voters if voter != node_id}
        self.observers: dict[int, Progress] = {}  # progress of all other replicas that fetch

    @property
    def _others_needed(self) -> int:
        """Number of other voters that make a majority together with the leader."""
        return (len(self.voters) + 1) // 2

    # --- fetches --------------------------------------------------------------------------------------------------

    def on_fetch(self, request: Fetch, now_ms: int) -> None:
        """If the replica's log is a prefix of this one, it holds everything below its fetch offset."""
        if not self._goes_on_from(request.log):
            return
        progress = self.voters.get(request.replica_id) or self._observer(request.replica_id, now_ms)
        if progress.is_of_another(request.directory_id, now_ms):
            if request.directory_id != progress.rival_id:
                progress.rival_id = request.directory_id
                log.error(
                    "Two processes with directories of their own fetch the metadata log as one node, the later one does "
                    "not count; each node needs an id of its own: node_id=%d",
                    request.replica_id,
                )
            return
        offset, leader_end_offset = request.log.end_offset, self._log.end_offset
        if offset >= leader_end_offset:
            progress.caught_up_ms = now_ms
        elif progress.last_fetch_ms is not None and offset >= progress.leader_end_offset:
            progress.caught_up_ms = max(progress.caught_up_ms or 0, progress.last_fetch_ms)
        progress.end_offset = offset
        progress.leader_end_offset = leader_end_offset
        progress.last_fetch_ms = now_ms
        progress.directory_id = request.directory_id

    def reply(self, request: Fetch, high_watermark: int, max_bytes: int, *, waited: bool) -> FetchReply | None:
        """None if there is nothing new and the fetch may wait. Raises as `RaftLog.read_until`."""
        point, raft_log = request.log, self._log
        reply = FetchReply(ErrorCode.NONE, self.node_id, self.epoch, high_watermark, raft_log.start_offset)
        if not self._goes_on_from(point):
            if point.end_offset < raft_log.start_offset or (
                raft_log.start_offset and point.epoch < raft_log.first_epoch
            ):
                return replace(reply, snapshot=raft_log.latest_snapshot)
            return replace(reply, diverging=raft_log.end_of_epoch(point.epoch))
        if point.end_offset < raft_log.end_offset:
            return replace(reply, records=raft_log.read(point.end_offset, max_bytes))
        return reply if waited or request.high_watermark < high_watermark else None

    def _goes_on_from(self, point: LogPoint) -> bool:
        """Whether a log that ends at `point` is a prefix of this one, and this one still has the next record."""
        raft_log = self._log
        if point.end_offset < raft_log.start_offset:
            return False
        if point.end_offset == 0:
            return True
        if point.epoch < raft_log.first_epoch:
            return point.end_offset == raft_log.start_offset and raft_log.has_snapshot(
                SnapshotId(point.end_offset, point.epoch)
            )
        known = raft_log.end_of_epoch(point.epoch)
        return known.epoch == point.epoch and point.end_offset <= known.end_offset

    def snapshot_reply(self, request: SnapshotFetch, now_ms: int) -> SnapshotReply:
        """A part of a snapshot; as any fetch it proves that the replica is alive. Raises OSError."""
        progress = self.voters.get(request.replica_id) or self.observers.get(request.replica_id)
        if progress is not None:
            progress.last_fetch_ms = now_ms
        part = self._log.snapshot_part(request.snapshot, max(request.position, 0), max(request.max_bytes, 1))
        if part is None:
            return SnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, self.node_id, self.epoch, request.snapshot)
        size, data = part
        if not 0 <= request.position < size:
            return SnapshotReply(ErrorCode.POSITION_OUT_OF_RANGE, self.node_id, self.epoch, request.snapshot)
        return SnapshotReply(ErrorCode.NONE, self.node_id, self.epoch, request.snapshot, size, request.position, data)

    def _observer(self, replica_id: int, now_ms: int) -> Progress:
        known = self.observers.get(replica_id)
        if known is not None:
            return known
        for silent in [
            observer
            for observer, progress in self.observers.items()
            if now_ms - (progress.last_fetch_ms or 0) > OBSERVER_SESSION_MS
        ]:
            del self.observers[silent]
        progress = Progress()
        if replica_id >= 0 and len(self.observers) < OBSERVERS_MAX:
            self.observers[replica_id] = progress
        return progress

    # --- the majority ---------------------------------------------------------------------------------------------

    def committed_end_offset(self) -> int | None:
        """The high watermark from the voters' progress; None if nothing of this epoch is committed yet."""
        # Raft §5.4.2: a majority holds it durably (the leader up to its synced end), and only with a record of the own epoch.
        ends = sorted(
            [self._log.synced_end_offset, *(progress.end_offset for progress in self.voters.values())], reverse=True
        )
        end_offset = ends[self._others_needed]
        return end_offset if end_offset > self.epoch_start_offset else None

    def majority_until_ms(self, check_quorum_ms: int) -> int | None:
        """When the leader must resign unless a voter fetches; None if it is the only voter."""
        if not self.voters:
            return None
        heard = sorted((progress.last_fetch_ms or self.began_ms for progress in self.voters.values()), reverse=True)
        return heard[self._others_needed - 1] + check_quorum_ms

    def successors(self) -> tuple[int, ...]:
        """The other voters, longest log first."""
        return tuple(sorted(self.voters, key=lambda voter: (-self.voters[voter].end_offset, voter)))

    def take_begin_due(self, now_ms: int, silence_ms: int) -> list[int]:
        """Voters that do not fetch and need BeginQuorumEpoch now; not due again until `begin_again`."""
        due = []
        for voter, progress in self.voters.items():
            if progress.begin_at_ms is None or progress.begin_at_ms > now_ms:
                continue
            if progress.last_fetch_ms is not None and progress.last_fetch_ms + silence_ms > now_ms:
                progress.begin_at_ms = progress.last_fetch_ms + silence_ms
                continue
            progress.begin_at_ms = None
            due.append(voter)
        return due

    def begin_again(self, voter: int, at_ms: int) -> None:
        """The voter answered BeginQuorumEpoch or could not be reached: due again at `at_ms` unless it fetches."""
        self.voters[voter].begin_at_ms = at_ms

    def wake_at_ms(self, check_quorum_ms: int) -> int | None:
        times = [progress.begin_at_ms for progress in self.voters.values() if progress.begin_at_ms is not None]
        until_ms = self.majority_until_ms(check_quorum_ms)
        if until_ms is not None:
            times.append(until_ms)
        return min(times, default=None)
