"""RaftMachine: one member of the metadata quorum, by KRaft's rules. The core; `quorum.py` is its shell.

It writes `quorum-state` and the log through `store` and `RaftLog` before it returns: everything that an answer promises
is durable.

The machine has three layers, and each calls only those below it: elections, timers and dispatch of replies (this module), the log's
way from the leader to the others (`replication`), role and epoch (`member`).

Invariants: an epoch has one leader, and one vote of this node; epoch and high watermark never go back; nothing below the high
watermark is ever truncated; a follower fetches from its log's end only once all before it is synced.
Follows KIP-595, KIP-630, KIP-996. Ours: a lost connection to the leader starts a pre-vote after 50 to 200 ms, and a follower
grants a pre-vote as soon as its own fetch failed; both affect only pre-votes; real votes follow KRaft.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.quorum.election import Election
from barnabas.broker.quorum.leadership import Leadership
from barnabas.broker.quorum.messages import (
    EndEpoch,
    EpochReply,
    Failure,
    Fetch,
    FetchReply,
    RaftRequest,
    RaftResponse,
    SnapshotFetch,
    SnapshotReply,
    Vote,
    VoteReply,
)
from barnabas.broker.quorum.quorum_state import NO_NODE
from barnabas.broker.quorum.replication import Replication
from barnabas.broker.quorum.roles import Role
from barnabas.errors import ErrorCode
from barnabas.loggers import logger

log = logger("kafka.raft")

START_SPREAD_MS: Final = 50  # the first pre-votes after a start, so that voters started together do not tie


class RaftMachine(Replication):
    """One member of the metadata quorum. The module docstring describes it."""

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Starts: the sole voter leads at once; others follow the last known leader, or look for one. Raises OSError."""
        state = self.epoch_state.stored
        self._discovery = int(self._random() * len(self.voters))
        if self.log.end.epoch > self.epoch:
            self._unattached(self.log.end.epoch, now_ms)  # quorum-state was removed, or restored from an older copy
        elif self.voters == (self.node_id,):
            pass  # it leads at once, in the next epoch
        elif state.leader_id == self.node_id:
            # Records of this epoch that were never synced may be lost, and their offsets must not be used twice in it.
            # So the epoch is over; this node does not vote in it either.
            self._unattached(self.epoch + 1, now_ms)
        elif state.leader_id in self.voters:
            self._follow(state.leader_id, self.epoch, now_ms)
        if self.voters == (self.node_id,):
            self._prospect(now_ms)
        elif self.role is Role.UNATTACHED and self.is_voter:
            # A pre-vote is harmless: no need to wait an election timeout for a leader that may be gone.
            self._alarm_ms = now_ms + self._spread(START_SPREAD_MS)

    # --- time -----------------------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Performs the due actions. Early and repeated calls are harmless. Raises OSError."""
        if self.role is Role.LEADER:
            self._lead_on(now_ms)
        elif self._election is not None:
            self._elect_on(self._election, now_ms)
        elif self._alarm_ms is not None and now_ms >= self._alarm_ms:
            if self.role is Role.RESIGNED:
                self._unattached(self.epoch + 1, now_ms)
            else:
                self._prospect(now_ms)
        elif self._following is not None and now_ms >= self._following.gone_at_ms():
            if self.is_voter:
                self._prospect(now_ms)
            else:
                self._unattached(self.epoch, now_ms)
        self._fetch_on(now_ms)

    def wake_at_ms(self) -> int | None:
        """When `on_timer` is due; None if only a message can change the state."""
        if self._leadership is not None:
            return self._leadership.wake_at_ms(self.timing.check_quorum_ms)
        if self._election is not None:
            return self._election.wake_at_ms()
        times = [self._alarm_ms]
        if self._following is not None:
            times.append(self._following.gone_at_ms())
        if self._may_fetch:
            times.append(self._fetch_at_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    # --- elections ------------------------------------------------------------------------------------------------

    def _prospect(self, now_ms: int) -> None:
        """Starts a pre-vote. Keeps the former leader, to continue with it if the pre-vote fails."""
        self._become(Role.PROSPECTIVE, self.epoch, self.leader_id, self.epoch_state.voted_id)
        self._begin_election(now_ms)

    def _campaign(self, now_ms: int) -> None:
        self._become(Role.CANDIDATE, self.epoch + 1, NO_NODE, self.node_id)
        self._begin_election(now_ms)

    def _begin_election(self, now_ms: int) -> None:
        election_ms = self.timing.election_timeout_ms
        self._election = Election(self.node_id, self.voters, now_ms, now_ms + election_ms + self._spread(election_ms))
        self._elect_on(self._election, now_ms)

    def _lead(self, election: Election, now_ms: int) -> None:
        granting = election.granting_voters
        self._become(Role.LEADER, self.epoch, self.node_id, self.epoch_state.voted_id)
        self._elections_lost = 0
        self.installation = None  # a leader's log lacks nothing that is committed
        self._leadership = Leadership(self.node_id, self.epoch, self.voters, self.log, now_ms)
        log.info(
            "Node leads the metadata quorum: node_id=%d epoch=%d elected_by=%s", self.node_id, self.epoch, granting
        )
        self.log.append_leader_change(self.epoch, self.node_id, self.voters, granting)
        self._lead_on(now_ms)

    def _elect_on(self, election: Election, now_ms: int) -> None:
        if election.won:
            if self.role is Role.CANDIDATE:
                self._lead(election, now_ms)
            else:
                self._campaign(now_ms)
        elif election.retry_at_ms is not None:
            if now_ms >= election.retry_at_ms:
                self._prospect(now_ms)
        elif election.lost(now_ms) or now_ms >= election.deadline_ms:
            self._lose(election, now_ms)
        else:
            pre_vote = self.role is Role.PROSPECTIVE
            epoch = self.epoch
            for voter in election.take_due(now_ms):
                self._send(voter, Vote(epoch, self.node_id, self.log.end, pre_vote))

    def _lose(self, election: Election, now_ms: int) -> None:
        if self.role is Role.PROSPECTIVE and self._following is not None:
            following = self._follow(self.leader_id, self.epoch, now_ms)  # the leader may still be alive
            following.lost(self._suspicion(now_ms) + self._spread(self.timing.election_backoff_max_ms))
            return
        self._elections_lost += 1
        most_ms = min(
            self.timing.election_backoff_max_ms, self.timing.suspicion_min_ms << min(self._elections_lost, 20)
        )
        election.retry_at_ms = now_ms + 1 + self._spread(most_ms)

    def on_vote(self, request: Vote, now_ms: int) -> VoteReply:
        """Answers a candidate's request for a vote. Raises OSError."""
        candidate = request.candidate_id
        if candidate not in self.voters or candidate == self.node_id:
            self._log_once.unknown_voter(candidate, self.voters)
            return self._vote_reply(ErrorCode.INCONSISTENT_VOTER_SET)
        last_epoch_max = request.epoch if request.pre_vote else request.epoch - 1
        if not 0 <= request.log.epoch <= last_epoch_max or request.log.end_offset < 0:
            return self._vote_reply(ErrorCode.INVALID_REQUEST)
        if request.epoch < self.epoch:
            return self._vote_reply(ErrorCode.FENCED_LEADER_EPOCH)
        if not self.is_voter:
            return self._vote_reply(ErrorCode.NONE)
        if request.epoch > self.epoch:
            self._unattached(request.epoch, now_ms)
        granted = request.log >= self.log.end and self._may_grant(request)
        if granted and not request.pre_vote and self.epoch_state.voted_id == NO_NODE:
            self._unattached(self.epoch, now_ms, voted_id=candidate)
            self.epoch_state.voted_directory_id = request.directory_id
        if granted and request.pre_vote and self._following is not None:
            self._following.suspect_later(self._suspicion(now_ms))  # one election is enough
        return self._vote_reply(ErrorCode.NONE, granted=granted)

    def _may_grant(self, request: Vote) -> bool:
        if request.pre_vote:
            if self.role is Role.FOLLOWER:
                return self._following is not None and (
                    self._following.suspect or request.candidate_id == self.leader_id
                )
            return self.role is not Role.LEADER
        if self.epoch_state.voted_id != NO_NODE:
            return self.epoch_state.has_voted_for(request.candidate_id, request.directory_id)
        return self.role in (Role.UNATTACHED, Role.PROSPECTIVE) and self.leader_id == NO_NODE

    def _vote_reply(self, error: ErrorCode, *, granted: bool = False) -> VoteReply:
        return VoteReply(error, self.leader_id, self.epoch, granted)

    def _on_vote_reply(self, voter: int, request: Vote, reply: VoteReply, now_ms: int) -> None:
        self._learn(reply.leader_id, reply.epoch, now_ms)
        election = self._election
        role = Role.PROSPECTIVE if request.pre_vote else Role.CANDIDATE
        if election is None or self.role is not role or request.epoch != self.epoch:
            return
        if reply.error not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH):
            self._log_once.refused(voter, reply.error)
            election.failed(voter, now_ms + self.timing.election_timeout_ms)
            return
        if not reply.granted and self._following is not None and reply.leader_id == self.leader_id:
            self._follow(self.leader_id, self.epoch, now_ms)  # another voter still hears from the leader
            return
        election.answered(voter, granted=reply.granted)
        self._elect_on(election, now_ms)

    # --- replies to own requests ----------------------------------------------------------------------------------

    def on_reply(self, to: int, request: RaftRequest, reply: RaftResponse, now_ms: int) -> None:
        """Processes the reply to a request of `take_outgoing`; recognizes late ones by the request. Raises OSError.

        Raises:
            VotersDisagree: the leader was elected by other voters than this node knows.
            InvariantViolated: this node and the leader have different committed records.
        """
        if isinstance(request, Vote) and isinstance(reply, VoteReply):
            self._on_vote_reply(to, request, reply, now_ms)
        elif isinstance(request, Fetch | SnapshotFetch) and isinstance(reply, FetchReply | SnapshotReply):
            if request is self._fetching:
                self._on_fetched(to, reply, now_ms)
            else:
                self._learn(reply.leader_id, reply.epoch, now_ms)
        elif isinstance(reply, EpochReply):
            self._learn(reply.leader_id, reply.epoch, now_ms)
            self._log_once.refused(to, reply.error)
            if isinstance(request, EndEpoch):
                self._end_epoch_to.pop(to, None)
            elif self._leadership is not None and request.epoch == self.epoch:
                self._leadership.begin_again(to, now_ms + self.timing.fetch_timeout_ms // 2)

    def on_failure(self, to: int, request: RaftRequest, failure: Failure, now_ms: int) -> None:
        """A request of `take_outgoing` got no reply. Raises OSError."""
        if isinstance(request, Fetch | SnapshotFetch):
            if request is not self._fetching:
                return
            self._fetching = None
            self._fetch_at_ms = now_ms + self.timing.suspicion_min_ms
            if self._following is not None:
                self._fetch_failed(self._following, now_ms, gone=failure is not Failure.SILENT)
        elif isinstance(request, Vote):
            if self._election is not None and request.epoch == self.epoch:
                self._election.failed(to, now_ms + self.timing.suspicion_min_ms)
                self._elect_on(self._election, now_ms)
        elif isinstance(request, EndEpoch):
            self._end_epoch_to.pop(to, None)
        elif self._leadership is not None and request.epoch == self.epoch:
            self._leadership.begin_again(to, now_ms + self.timing.suspicion_min_ms)
