"""Messages between members of the quorum: inputs and outputs of `RaftMachine` (KIP-595, KIP-630, KIP-853, KIP-996).
Every reply carries the replying node's epoch and known leader. Offsets are exclusive ends unless they are called `last`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.errors import ErrorCode
from barnabas.ports import Buffer


class LogPoint(NamedTuple):
    """End of a log. Ordered as Raft compares logs: the higher epoch wins, then the longer log."""

    epoch: int  # of the last record below `end_offset`
    end_offset: int


class Failure(Enum):
    """Why a request got no reply."""

    REFUSED = "refused"  # nothing listens at the address
    LOST = "lost"  # the connection ended first
    SILENT = "silent"  # unreachable, or no reply in time


@dataclass(frozen=True, slots=True, eq=False)
class Vote:
    """Request for a vote in `epoch`, or, with `pre_vote`, whether the voter would grant one (KIP-996)."""

    epoch: int
    candidate_id: int
    log: LogPoint
    pre_vote: bool
    directory_id: bytes = bytes(16)  # of the candidate; zeros if unknown


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to Vote."""

    error: ErrorCode
    leader_id: int
    epoch: int
    granted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class BeginEpoch:
    """A new leader announces itself."""

    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True, eq=False)
class EndEpoch:
    """A leader resigns. `successors`: voters in the order in which they should start an election."""

    epoch: int
    leader_id: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EpochReply:
    """Answer to BeginEpoch and EndEpoch."""

    error: ErrorCode
    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """Requests the records after the replica's log, and acknowledges everything before as durable."""

    epoch: int
    replica_id: int
    log: LogPoint
    high_watermark: int  # of the replica; the leader answers at once when its own is higher (KIP-1166)
    max_wait_ms: int
    directory_id: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Records, or the point where the logs diverge, or the snapshot to fetch instead."""

    error: ErrorCode
    leader_id: int
    epoch: int
    high_watermark: int = -1
    log_start_offset: int = -1
    records: Buffer = b""
    diverging: LogPoint | None = None
    snapshot: SnapshotId | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotFetch:
    """Requests bytes of a snapshot from `position`."""

    epoch: int
    replica_id: int
    snapshot: SnapshotId
    position: int
    max_bytes: int = 2**31 - 1
    directory_id: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """Answer to SnapshotFetch."""

    error: ErrorCode
    leader_id: int
    epoch: int
    snapshot: SnapshotId = field(default_factory=lambda: SnapshotId(-1, -1))
    size_bytes: int = 0  # of the whole snapshot
    position: int = 0
    data: Buffer = b""


RaftRequest = Vote | BeginEpoch | EndEpoch | Fetch | SnapshotFetch
RaftResponse = VoteReply | EpochReply | FetchReply | SnapshotReply


class OutboundRequest(NamedTuple):
    """A request to send; its reply or failure is returned with the same request object."""

    to: int
    request: RaftRequest
    timeout_ms: int
