"""QuorumMember: role, epoch, leader and vote of one member of the metadata quorum, and the changes of its role.

It writes `quorum-state` before a change counts.

Invariants: an epoch has one leader; the epoch never goes back. State of a role ends with it, except that a prospective
candidate keeps its leader.
Follows KIP-595.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barnabas.broker.quorum.election import Election
from barnabas.broker.quorum.epoch_state import EpochState
from barnabas.broker.quorum.following import Following, Installation
from barnabas.broker.quorum.leadership import Leadership
from barnabas.broker.quorum.log_once import LogOnce
from barnabas.broker.quorum.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    Fetch,
    OutboundRequest,
    RaftRequest,
    SnapshotFetch,
    Vote,
)
from barnabas.broker.quorum.quorum_state import NO_NODE, QuorumState
from barnabas.broker.quorum.raft_log import RaftLog
from barnabas.broker.quorum.roles import Role, Timing
from barnabas.errors import ErrorCode


class QuorumMember:
    """The state that all roles of a member share.

    Attributes:
        epoch_state: role, epoch, leader and vote.
        high_watermark: everything below is committed.
        installation: the snapshot that is being installed; None if there is none.
    """

    def __init__(
        self,
        node_id: int,
        voters: Sequence[int],
        raft_log: RaftLog,
        state: QuorumState,
        *,
        store: Callable[[QuorumState], None],
        random: Callable[[], float],
        timing: Timing,
        log_once: LogOnce,
        directory_id: bytes = bytes(16),
    ) -> None:
        """Continues from the state on disk; sends nothing before `start`.

        Args:
            voters: ids of all voters; this node is an observer if it is not among them.
            state: content of quorum-state.
            store: writes quorum-state durably.
            random: floats in [0, 1).
        """
        self.node_id = node_id
        self.voters = tuple(sorted(voters))
        self.log = raft_log
        self.timing = timing
        self.epoch_state = EpochState(node_id, self.voters, state, store)
        self.high_watermark = max(
            raft_log.start_offset, raft_log.latest_snapshot.end_offset if raft_log.latest_snapshot else 0
        )
        self.installation: Installation | None = None
        self._directory_id = directory_id
        self._random = random
        self._outgoing: list[OutboundRequest] = []
        self._election: Election | None = None  # while PROSPECTIVE or CANDIDATE
        self._leadership: Leadership | None = None  # while LEADER
        self._following: Following | None = None  # while FOLLOWER; a PROSPECTIVE that was a follower keeps it
        self._fetching: Fetch | SnapshotFetch | None = None  # the unanswered fetch
        self._fetch_at_ms = 0
        self._discovery = 0  # index of the next voter that an unattached node asks
        self._alarm_ms: int | None = None  # the end of UNATTACHED (of a voter) and of RESIGNED
        self._elections_lost = 0  # consecutive lost elections
        self._log_once = log_once
        self._end_epoch_to: dict[int, None] = {}  # voters that have not answered EndQuorumEpoch

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """The present role."""
        return self.epoch_state.role

    @property
    def epoch(self) -> int:
        """The highest known epoch."""
        return self.epoch_state.epoch

    @property
    def leader_id(self) -> int:
        """The leader of `epoch`, NO_NODE if unknown."""
        return self.epoch_state.leader_id

    @property
    def is_voter(self) -> bool:
        """Whether this node may vote: not while its log may lack records that it acknowledged."""
        return self.node_id in self.voters and not self.log.lost_records

    @property
    def is_leader(self) -> bool:
        """Whether this node leads `epoch`."""
        return self.role is Role.LEADER

    @property
    def epoch_committed(self) -> bool:
        """Whether this node leads and its LeaderChange is committed, and with it everything before."""
        leadership = self._leadership
        return leadership is not None and self.high_watermark > leadership.epoch_start_offset

    @property
    def leadership(self) -> Leadership | None:
        """Progress of the replicas, while it leads."""
        return self._leadership

    @property
    def wants_sync(self) -> bool:
        """Whether the log needs a sync: a leader counts its own synced end, a follower acknowledges it; both write only behind a durable
        truncation."""
        return not self.log.synced

    @property
    def ended_quietly(self) -> bool:
        """After `resign`: whether all reachable voters have answered, or another leader is known."""
        return self.role is not Role.RESIGNED or not self._end_epoch_to

    def take_outgoing(self) -> list[OutboundRequest]:
        """Requests to send, in order."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    # --- roles ----------------------------------------------------------------------------------------------------

    def _become(self, role: Role, epoch: int, leader_id: int, voted_id: int) -> None:
        self.epoch_state.become(role, epoch, leader_id, voted_id)
        self._fetching = self._alarm_ms = self._election = self._leadership = None
        if role is not Role.PROSPECTIVE:
            self._following = None

    def _unattached(self, epoch: int, now_ms: int, voted_id: int | None = None) -> None:
        if voted_id is None:
            voted_id = self.epoch_state.voted_id if epoch == self.epoch else NO_NODE
        self._become(Role.UNATTACHED, epoch, NO_NODE, voted_id)
        self._fetch_at_ms = now_ms + self.timing.retry_backoff_ms
        if self.is_voter:
            election_ms = self.timing.election_timeout_ms
            self._alarm_ms = now_ms + election_ms + self._spread(election_ms)

    def _follow(self, leader_id: int, epoch: int, now_ms: int) -> Following:
        self._become(Role.FOLLOWER, epoch, leader_id, self.epoch_state.voted_id if epoch == self.epoch else NO_NODE)
        self._elections_lost = 0
        self._fetch_at_ms = now_ms
        self._following = following = Following(self.log, self.voters, self._fetch_deadline(now_ms))
        return following

    def _fetch_deadline(self, now_ms: int) -> int:
        return now_ms + self.timing.fetch_timeout_ms + self._spread(self.timing.suspicion_max_ms)

    def _suspicion(self, now_ms: int) -> int:
        timing = self.timing
        return now_ms + timing.suspicion_min_ms + self._spread(timing.suspicion_max_ms - timing.suspicion_min_ms)

    def _spread(self, most_ms: int) -> int:
        return int(self._random() * most_ms)

    def resign(self, now_ms: int) -> None:
        """Gives up leadership and names successors to the other voters. No effect if this node does not lead. Raises OSError."""
        leadership = self._leadership
        if leadership is None:
            return
        successors = leadership.successors()
        self._become(Role.RESIGNED, self.epoch, self.node_id, self.epoch_state.voted_id)
        election_ms = self.timing.election_timeout_ms
        self._alarm_ms = now_ms + election_ms + self._spread(election_ms)
        self._end_epoch_to = dict.fromkeys(successors)
        for voter in successors:
            self._send(voter, EndEpoch(self.epoch, self.node_id, successors))

    def _learn(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Processes the epoch and leader that a message names."""
        if epoch < self.epoch or (epoch == self.epoch and leader_id in (NO_NODE, self.leader_id)):
            return
        if leader_id != NO_NODE and leader_id not in self.voters:
            self._log_once.unknown_voter(leader_id, self.voters)
        elif epoch == self.epoch and self.leader_id != NO_NODE:
            self._log_once.error(
                "A message names another leader of the metadata quorum: epoch=%d leader=%d named=%d",
                epoch,
                self.leader_id,
                leader_id,
            )
        elif leader_id in (NO_NODE, self.node_id):
            if epoch > self.epoch:
                self._log_once.duplicate_node(leader_id, epoch)
                self._unattached(epoch, now_ms)
        else:
            self._follow(leader_id, epoch, now_ms)

    # --- epochs ---------------------------------------------------------------------------------------------------

    def on_begin_epoch(self, request: BeginEpoch, now_ms: int) -> EpochReply:
        """A new leader announces itself. Raises OSError."""
        error = self._check_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._learn(request.leader_id, request.epoch, now_ms)
            if self._following is not None and self.role is Role.FOLLOWER and self._fetching is None:
                self._fetch_at_ms = min(self._fetch_at_ms, now_ms)  # the leader is back: fetch without a pause
        return EpochReply(error, self.leader_id, self.epoch)

    def on_end_epoch(self, request: EndEpoch, now_ms: int) -> EpochReply:
        """The leader resigns. Raises OSError."""
        error = self._check_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._learn(request.leader_id, request.epoch, now_ms)
            following = self._following
            if following is not None and self.role is Role.FOLLOWER and self.node_id in request.successors:
                following.suspect = True
                turn = request.successors.index(self.node_id)
                wait_ms = turn * self.timing.suspicion_min_ms + (
                    self._spread(self.timing.suspicion_min_ms) if turn else 0
                )
                following.suspicion_at_ms = now_ms + wait_ms
        return EpochReply(error, self.leader_id, self.epoch)

    def _check_leader(self, leader_id: int, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_id not in self.voters:
            self._log_once.unknown_voter(leader_id, self.voters)
            return ErrorCode.INCONSISTENT_VOTER_SET
        if leader_id == self.node_id or (epoch == self.epoch and self.leader_id not in (NO_NODE, leader_id)):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    # --- requests -----------------------------------------------------------------------------------------------------

    def _send(self, to: int, request: RaftRequest) -> None:
        timing = self.timing
        timeout_ms = timing.election_timeout_ms if isinstance(request, Vote) else timing.request_timeout_ms
        self._outgoing.append(OutboundRequest(to, request, timeout_ms))
