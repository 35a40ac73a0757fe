"""RaftMachine: one member of the metadata quorum, by KRaft's rules (KIP-595, KIP-630, KIP-996). The core; `quorum.py` is its shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.quorum.core.election import Election
from barnabas.broker.quorum.core.epoch_state import EpochState
from barnabas.broker.quorum.core.following import Following, Installation
from barnabas.broker.quorum.core.leadership import Leadership
from barnabas.broker.quorum.core.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    Failure,
    Fetch,
    FetchReply,
    OutboundRequest,
    RaftRequest,
    RaftResponse,
    SnapshotFetch,
    SnapshotReply,
    Vote,
    VoteReply,
)
from barnabas.broker.quorum.core.quorum_state import NO_NODE, QuorumState
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.roles import Role, Timing
from barnabas.broker.quorum.core.voters import VoterSet
from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError, RemoteProtocolError
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.protocol.records import EncodedRecords

START_SPREAD_MS: Final = 50  # the first pre-votes after a start, so that voters started together do not tie
MISCONFIGURATIONS: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.INVALID_VOTER_KEY,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)  # answers that no retry cures

log = logger("kafka.raft")


class RaftMachine:
    """One member of the metadata quorum. Inputs raise OSError if the disk failed; all that an answer promises is durable before they return.

    Invariants: an epoch has one leader, and one vote of this node; epoch and high watermark never go back; nothing below the high watermark
    is truncated; a follower fetches from its log's end only once everything before is synced. Ours: a lost connection to the leader starts
    a pre-vote after 50 to 200 ms, and a follower grants a pre-vote as soon as its own fetch failed; real votes follow KRaft.
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
        limited_log: RateLimitedLogger,
        directory_id: bytes = bytes(16),
    ) -> None:
        """Continues from `state`; sends nothing before `start`. An observer is not among `voters`; `random` returns floats in [0, 1)."""
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
        self._limited_log = limited_log
        self._end_epoch_to: dict[int, None] = {}  # voters that have not answered EndQuorumEpoch

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self.epoch_state.role

    @property
    def epoch(self) -> int:
        return self.epoch_state.epoch

    @property
    def leader_id(self) -> int:
        """Of `epoch`, NO_NODE if unknown."""
        return self.epoch_state.leader_id

    @property
    def is_voter(self) -> bool:
        """Whether this node may vote: not while its log may lack records that it acknowledged."""
        return self.node_id in self.voters and not self.log.lost_records

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def epoch_committed(self) -> bool:
        """Whether this node leads and its LeaderChange is committed."""
        leadership = self._leadership
        return leadership is not None and self.high_watermark > leadership.epoch_start_offset

    @property
    def leadership(self) -> Leadership | None:
        return self._leadership

    @property
    def wants_sync(self) -> bool:
        """A leader counts its synced end, a follower acknowledges it; both write only behind a durable truncation."""
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
        """Names successors to the other voters. No effect if this node does not lead."""
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
        if epoch < self.epoch or (epoch == self.epoch and leader_id in (NO_NODE, self.leader_id)):
            return
        if leader_id != NO_NODE and leader_id not in self.voters:
            self._log_unknown_voter(leader_id)
        elif epoch == self.epoch and self.leader_id != NO_NODE:
            self._limited_log.error(
                "A message names another leader of the metadata quorum: epoch=%d leader=%d named=%d",
                epoch,
                self.leader_id,
                leader_id,
            )
        elif leader_id in (NO_NODE, self.node_id):
            if epoch > self.epoch:
                if leader_id == self.node_id:
                    self._limited_log.error(
                        "Another process leads the metadata quorum with the id of this node; each node needs an id and a "
                        "directory of its own: node_id=%d epoch=%d",
                        leader_id,
                        epoch,
                    )
                self._unattached(epoch, now_ms)
        else:
            self._follow(leader_id, epoch, now_ms)

    def _log_unknown_voter(self, node_id: int) -> None:
        self._limited_log.error(
            "A node claims to vote in the metadata quorum, and controller.quorum.voters lacks it here; give every node "
            "the same list: node_id=%d voters=%s",
            node_id,
            ",".join(map(str, self.voters)),
        )

    def _log_refusal(self, peer: int, error: ErrorCode) -> None:
        if error in MISCONFIGURATIONS:
            self._limited_log.error(
                "Node is refused in the metadata quorum: node_id=%d refused_by=%d error=%s meaning=%s",
                self.node_id,
                peer,
                error.name,
                error.meaning,
            )

    # --- epochs ---------------------------------------------------------------------------------------------------

    def on_begin_epoch(self, request: BeginEpoch, now_ms: int) -> EpochReply:
        error = self._check_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._learn(request.leader_id, request.epoch, now_ms)
            if self._following is not None and self.role is Role.FOLLOWER and self._fetching is None:
                self._fetch_at_ms = min(self._fetch_at_ms, now_ms)  # the leader is back: fetch without a pause
        return EpochReply(error, self.leader_id, self.epoch)

    def on_end_epoch(self, request: EndEpoch, now_ms: int) -> EpochReply:
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
            self._log_unknown_voter(leader_id)
            return ErrorCode.INCONSISTENT_VOTER_SET
        if leader_id == self.node_id or (epoch == self.epoch and self.leader_id not in (NO_NODE, leader_id)):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    # --- requests -----------------------------------------------------------------------------------------------------

    def _send(self, to: int, request: RaftRequest) -> None:
        timing = self.timing
        timeout_ms = timing.election_timeout_ms if isinstance(request, Vote) else timing.request_timeout_ms
        self._outgoing.append(OutboundRequest(to, request, timeout_ms))

    # --- leading --------------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes] | EncodedRecords) -> int:
        """Writes one batch; returns the last offset. Raises LocalProtocolError if this node does not lead."""
        if self._leadership is None:
            raise LocalProtocolError("only the leader appends to the metadata log")
        return self.log.append(values, self.epoch)

    def _lead_on(self, now_ms: int) -> None:
        leadership = self._leadership
        if leadership is None:
            return
        until_ms = leadership.majority_until_ms(self.timing.check_quorum_ms)
        if until_ms is not None and now_ms >= until_ms:
            log.warning("Node lost its majority of voters and resigns: node_id=%d epoch=%d", self.node_id, self.epoch)
            self.resign(now_ms)
            return
        for voter in leadership.take_begin_due(now_ms, self.timing.fetch_timeout_ms // 2):
            self._send(voter, BeginEpoch(self.epoch, self.node_id))

    def on_synced(self, now_ms: int) -> None:
        """After `RaftLog.mark_synced`."""
        self._advance()
        self._fetch_on(now_ms)

    def _advance(self) -> None:
        if self._leadership is not None:
            end_offset = self._leadership.committed_end_offset()
            if end_offset is not None and end_offset > self.high_watermark:
                self.high_watermark = end_offset

    # --- serving fetches ------------------------------------------------------------------------------------------

    def on_fetch(self, request: Fetch, max_bytes: int, now_ms: int) -> FetchReply | None:
        """None: the fetch waits, see `fetch_reply`."""
        leadership = self._leadership
        point = request.log
        if self._fetch_error(request.epoch, request.replica_id) is ErrorCode.NONE and leadership is not None:
            if not 0 <= point.epoch <= self.epoch or point.end_offset < 0 or request.max_wait_ms < 0:
                return self._refuse_fetch(ErrorCode.INVALID_REQUEST)
            leadership.on_fetch(request, now_ms)
            self._advance()
        return self.fetch_reply(request, max_bytes, waited=request.max_wait_ms == 0)

    def fetch_reply(self, request: Fetch, max_bytes: int, *, waited: bool = False) -> FetchReply | None:
        """None if there is nothing new and the fetch has not `waited` long enough."""
        error = self._fetch_error(request.epoch, request.replica_id)
        if error is not ErrorCode.NONE or self._leadership is None:
            return self._refuse_fetch(error)
        return self._leadership.reply(request, self.high_watermark, max_bytes, waited=waited)

    def on_snapshot_fetch(self, request: SnapshotFetch, now_ms: int) -> SnapshotReply:
        error = self._fetch_error(request.epoch, request.replica_id)
        if error is not ErrorCode.NONE or self._leadership is None:
            return SnapshotReply(error, self.leader_id, self.epoch, request.snapshot)
        return self._leadership.snapshot_reply(request, now_ms)

    def _fetch_error(self, epoch: int, replica_id: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self._leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.INVALID_REQUEST if replica_id == self.node_id else ErrorCode.NONE

    def _refuse_fetch(self, error: ErrorCode) -> FetchReply:
        return FetchReply(error, self.leader_id, self.epoch)

    # --- fetching -------------------------------------------------------------------------------------------------

    @property
    def _may_fetch(self) -> bool:
        """A voter's fetch acknowledges all before it, so that must be synced; so must a truncation be."""
        unsynced = self.wants_sync if self.node_id in self.voters else self.log.cut
        if self._fetching is not None or unsynced or self.installation is not None or self.voters == (self.node_id,):
            return False
        return self.role in (Role.UNATTACHED, Role.FOLLOWER)

    def _fetch_on(self, now_ms: int) -> None:
        if not self._may_fetch or now_ms < self._fetch_at_ms:
            return
        if self._following is not None:
            to = self.leader_id
            self._fetching = self._following.next_request(
                self.epoch, self.node_id, self._directory_id, self.high_watermark, self.timing.fetch_wait_ms
            )
        else:
            others = [voter for voter in self.voters if voter != self.node_id]
            to = others[self._discovery % len(others)]
            self._discovery += 1
            self._fetching = Fetch(self.epoch, self.node_id, self.log.end, self.high_watermark, 0, self._directory_id)
        self._send(to, self._fetching)

    def _on_fetched(self, to: int, reply: FetchReply | SnapshotReply, now_ms: int) -> None:
        self._fetching = None
        self._fetch_at_ms = now_ms + self.timing.suspicion_min_ms
        asked = self._following
        self._learn(reply.leader_id, reply.epoch, now_ms)
        following = self._following
        if following is None or following is not asked:  # an unattached node asked, or there is a new leader
            self._log_refusal(to, reply.error)
            self._fetch_on(now_ms)
            return
        leads = reply.error in (ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
        if not leads or (reply.leader_id, reply.epoch) != (self.leader_id, self.epoch):
            self._log_refusal(to, reply.error)
            self._fetch_failed(following, now_ms, gone=reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self._fetch_at_ms = now_ms
        try:
            if isinstance(reply, FetchReply):
                self.high_watermark = following.take(reply, self.high_watermark)
            else:
                self.installation = following.take_part(reply)
            following.answered(self._fetch_deadline(now_ms))
        except (RemoteProtocolError, BrokerError) as error:  # not a leader's answer: the fetch timeout keeps running
            self._limited_log.error(
                "The leader of the metadata quorum sent something invalid: leader=%d error=%s", self.leader_id, error
            )
            self._fetch_at_ms = now_ms + self.timing.election_timeout_ms
        self._fetch_on(now_ms)

    # --- a snapshot instead of the log ----------------------------------------------------------------------------

    def start_at_snapshot(self, installation: Installation, voter_set: VoterSet) -> bool:
        """Replaces the log by the snapshot, which is durable under its name; `on_installed` follows after a sync. False if it is not wanted."""
        if self.installation is not installation:
            return False
        self.log.start_at_snapshot(installation.snapshot, voter_set)
        self.high_watermark = max(self.high_watermark, installation.snapshot.end_offset)
        return True

    def on_installed(self, installation: Installation, damage: RemoteProtocolError | None, now_ms: int) -> None:
        """The new beginning of the log is durable. `damage`: why the snapshot was refused instead; the next fetch comes later."""
        if self.installation is not installation:
            return
        self.installation = None
        if damage is not None:
            self._limited_log.error(
                "The leader of the metadata quorum sent an invalid snapshot: leader=%d error=%s", self.leader_id, damage
            )
            self._fetch_at_ms = now_ms + self.timing.election_timeout_ms
        self._fetch_on(now_ms)

    def _fetch_failed(self, following: Following, now_ms: int, *, gone: bool) -> None:
        following.suspect = True
        self._fetch_at_ms = now_ms + self.timing.suspicion_min_ms
        if gone and self.is_voter:
            following.lost(self._suspicion(now_ms))
        elif not self.is_voter:
            self._unattached(self.epoch, now_ms)

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """The sole voter leads at once; others follow the last known leader, or look for one."""
        state = self.epoch_state.stored
        self._discovery = int(self._random() * len(self.voters))
        if self.log.end.epoch > self.epoch:
            self._unattached(self.log.end.epoch, now_ms)  # quorum-state was removed, or restored from an older copy
        elif self.voters == (self.node_id,):
            pass  # it leads at once, in the next epoch
        elif state.leader_id == self.node_id:
            # Records of this epoch that were never synced may be lost, and their offsets must not be used twice in it.
            # So this epoch is over; this node does not vote in it either.
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
        """Performs the due actions. Early and repeated calls are harmless."""
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
        candidate = request.candidate_id
        if candidate not in self.voters or candidate == self.node_id:
            self._log_unknown_voter(candidate)
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
            self._log_refusal(voter, reply.error)
            election.failed(voter, now_ms + self.timing.election_timeout_ms)
            return
        if not reply.granted and self._following is not None and reply.leader_id == self.leader_id:
            self._follow(self.leader_id, self.epoch, now_ms)  # another voter still hears from the leader
            return
        election.answered(voter, granted=reply.granted)
        self._elect_on(election, now_ms)

    # --- replies to own requests ----------------------------------------------------------------------------------

    def on_reply(self, to: int, request: RaftRequest, reply: RaftResponse, now_ms: int) -> None:
        """Processes the reply to a request of `take_outgoing`; recognizes late ones by the request.

        Raises:
            VotersDisagree: other voters than this node knows elected the leader.
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
            self._log_refusal(to, reply.error)
            if isinstance(request, EndEpoch):
                self._end_epoch_to.pop(to, None)
            elif self._leadership is not None and request.epoch == self.epoch:
                self._leadership.begin_again(to, now_ms + self.timing.fetch_timeout_ms // 2)

    def on_failure(self, to: int, request: RaftRequest, failure: Failure, now_ms: int) -> None:
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
