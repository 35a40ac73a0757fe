"""Following: a follower's state about its leader; applies fetch replies (KIP-595 divergence, KIP-630 FetchSnapshot, KIP-996)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.broker.quorum.core.messages import Fetch, FetchReply, LogPoint, SnapshotFetch, SnapshotReply
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.broker.quorum.core.voters import check_elected
from barnabas.errors import ErrorCode, InvariantViolated, RemoteProtocolError

SNAPSHOT_BYTES_MAX: Final = 1 << 30  # a snapshot is assembled in memory; Kafka's log makes one every 20 MB of records


class Installation:
    """A whole fetched snapshot that replaces the log."""

    __slots__ = ("begun", "data", "snapshot")

    def __init__(self, snapshot: SnapshotId, data: bytearray) -> None:
        self.snapshot = snapshot
        self.data = data
        self.begun = False  # the shell installs it


class Following:
    """One leader in one epoch. Nothing below the high watermark is truncated; only batches with a valid epoch are written."""

    __slots__ = ("_download", "_log", "_snapshot", "_voters", "deadline_ms", "suspect", "suspicion_at_ms")

    def __init__(self, raft_log: RaftLog, voters: Sequence[int], deadline_ms: int) -> None:
        self._log = raft_log
        self._voters = voters
        self._snapshot: SnapshotId | None = None  # the snapshot that is being fetched
        self._download = bytearray()
        self.suspect = True  # no fetch was answered since the beginning, or since one failed: a pre-vote may be granted
        self.deadline_ms = deadline_ms  # when the leader counts as dead
        # when a voter starts its pre-vote, after it lost its connection to the leader; else None
        self.suspicion_at_ms: int | None = None

    # --- liveness of the leader -----------------------------------------------------------------------------------

    def answered(self, deadline_ms: int) -> None:
        self.suspect = False
        self.suspicion_at_ms = None
        self.deadline_ms = deadline_ms

    def lost(self, suspicion_at_ms: int) -> None:
        """The leader's connection ended, or nothing listens at its address. The first loss counts."""
        self.suspect = True
        if self.suspicion_at_ms is None:
            self.suspicion_at_ms = suspicion_at_ms

    def suspect_later(self, suspicion_at_ms: int) -> None:
        """Another voter has begun an election: delays this voter's own if one was due."""
        if self.suspicion_at_ms is not None:
            self.suspicion_at_ms = max(self.suspicion_at_ms, suspicion_at_ms)

    def gone_at_ms(self) -> int:
        return self.deadline_ms if self.suspicion_at_ms is None else min(self.deadline_ms, self.suspicion_at_ms)

    # --- fetching -------------------------------------------------------------------------------------------------

    def next_request(
        self, epoch: int, replica_id: int, directory_id: bytes, high_watermark: int, max_wait_ms: int
    ) -> Fetch | SnapshotFetch:
        """The next request: for the snapshot that is being fetched, else for the log."""
        if self._snapshot is not None:
            position = len(self._download)
            return SnapshotFetch(epoch, replica_id, self._snapshot, position, directory_id=directory_id)
        return Fetch(epoch, replica_id, self._log.end, high_watermark, max_wait_ms, directory_id)

    def take(self, reply: FetchReply, high_watermark: int) -> int:
        """Truncates the log, begins a snapshot, or appends. Returns the high watermark.

        Raises:
            RemoteProtocolError, BrokerError: the records cannot follow this log; none was written.
            VotersDisagree: other voters than this node knows elected the leader, and the election is committed.
            InvariantViolated: this node and the leader have different committed records.
            OSError: the disk failed.
        """
        if reply.diverging is not None:
            self._cut(reply.diverging, high_watermark)
            return high_watermark
        if reply.snapshot is not None:
            if reply.snapshot.end_offset < high_watermark:
                raise RemoteProtocolError(
                    f"the leader sends {reply.snapshot}, but everything below {high_watermark} is committed here"
                )
            self._snapshot = reply.snapshot
            self._download = bytearray()
            return high_watermark
        if len(reply.records):
            check_elected(reply.records, reply.epoch, self._voters, reply.high_watermark)
            self._log.append_replicated(reply.records)
        else:
            self._log.recovered()  # this log is as long as the leader's was
        return max(high_watermark, min(reply.high_watermark, self._log.end_offset))

    def _cut(self, diverging: LogPoint, high_watermark: int) -> None:
        own = self._log.end_of_epoch(diverging.epoch)
        end_offset = min(own.end_offset, diverging.end_offset) if own.epoch == diverging.epoch else own.end_offset
        if end_offset < high_watermark:
            raise InvariantViolated(
                f"the leader's log diverges from this one at offset {end_offset}, below the high watermark {high_watermark}"
            )
        self._log.truncate_to(end_offset)

    def take_part(self, reply: SnapshotReply) -> Installation | None:
        """Returns the whole snapshot with its last part. Raises RemoteProtocolError for another part, which ends the fetch of the snapshot."""
        snapshot = self._snapshot
        if snapshot is None or reply.error is not ErrorCode.NONE:
            self._forget()  # SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE: a fetch of the log names the next snapshot
            return None
        wrong = (
            reply.snapshot != snapshot
            or reply.position != len(self._download)
            or not len(reply.data)
            or not len(self._download) + len(reply.data) <= reply.size_bytes <= SNAPSHOT_BYTES_MAX
        )
        if wrong:
            self._forget()
            raise RemoteProtocolError(
                f"part of {reply.snapshot} at {reply.position} of {reply.size_bytes} bytes is none of {snapshot}"
            )
        self._download += reply.data
        if len(self._download) < reply.size_bytes:
            return None
        whole = Installation(snapshot, self._download)
        self._forget()
        return whole

    def _forget(self) -> None:
        self._snapshot = None
        self._download = bytearray()
