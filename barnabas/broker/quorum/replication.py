"""Replication: how the metadata log passes from the leader to the other members of the quorum.

A leader advances the high watermark by the voters' progress, and resigns if it lost their majority. A follower fetches from its
leader; an unattached node asks the voters in turn who leads.

A follower whose records the leader has dropped fetches a snapshot. `installation` is the whole snapshot while the shell installs it:
checks it, makes it durable, `start_at_snapshot`, syncs, `on_installed`. It stays over changes of the leader, because it is committed.

Invariants: the high watermark never goes back; a voter fetches from its log's end only once all before it is synced; nothing is
fetched while a snapshot is installed.
Follows KIP-595, KIP-630.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.quorum.following import Following, Installation
from barnabas.broker.quorum.member import QuorumMember
from barnabas.broker.quorum.messages import BeginEpoch, Fetch, FetchReply, SnapshotFetch, SnapshotReply
from barnabas.broker.quorum.roles import Role
from barnabas.broker.quorum.voters import VoterSet
from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.protocol.records import EncodedRecords

log = logger("kafka.raft")


class Replication(QuorumMember):
    """A member that leads the log or fetches it. The module docstring describes it."""

    # --- leading --------------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes] | EncodedRecords) -> int:
        """Writes encoded records as one batch, as the leader. Returns the last offset.

        Raises:
            LocalProtocolError: this node does not lead.
            OSError: the disk failed.
        """
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
        """The log was synced: `RaftLog.mark_synced` was called."""
        self._advance()
        self._fetch_on(now_ms)

    def _advance(self) -> None:
        """Advances the leader's high watermark by the voters' progress."""
        if self._leadership is not None:
            end_offset = self._leadership.committed_end_offset()
            if end_offset is not None and end_offset > self.high_watermark:
                self.high_watermark = end_offset

    # --- serving fetches ------------------------------------------------------------------------------------------

    def on_fetch(self, request: Fetch, max_bytes: int, now_ms: int) -> FetchReply | None:
        """A replica fetches, which reports its progress. None: it waits, see `fetch_reply`. Raises OSError."""
        leadership = self._leadership
        point = request.log
        if self._fetch_error(request.epoch, request.replica_id) is ErrorCode.NONE and leadership is not None:
            if not 0 <= point.epoch <= self.epoch or point.end_offset < 0 or request.max_wait_ms < 0:
                return self._refuse_fetch(ErrorCode.INVALID_REQUEST)
            leadership.on_fetch(request, now_ms)
            self._advance()
        return self.fetch_reply(request, max_bytes, waited=request.max_wait_ms == 0)

    def fetch_reply(self, request: Fetch, max_bytes: int, *, waited: bool = False) -> FetchReply | None:
        """The reply to a fetch; None if there is nothing new and it has not `waited` long enough. Raises OSError."""
        error = self._fetch_error(request.epoch, request.replica_id)
        if error is not ErrorCode.NONE or self._leadership is None:
            return self._refuse_fetch(error)
        return self._leadership.reply(request, self.high_watermark, max_bytes, waited=waited)

    def on_snapshot_fetch(self, request: SnapshotFetch, now_ms: int) -> SnapshotReply:
        """A replica fetches a part of a snapshot. Raises OSError."""
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
        """Whether a fetch is allowed: a voter's fetch acknowledges all before it, so that must be synced; so must a truncation be."""
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
            self._log_once.refused(to, reply.error)
            self._fetch_on(now_ms)
            return
        leads = reply.error in (ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
        if not leads or (reply.leader_id, reply.epoch) != (self.leader_id, self.epoch):
            self._log_once.refused(to, reply.error)
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
            self._log_once.error(
                "The leader of the metadata quorum sent something invalid: leader=%d error=%s", self.leader_id, error
            )
            self._fetch_at_ms = now_ms + self.timing.election_timeout_ms
        self._fetch_on(now_ms)

    # --- a snapshot instead of the log ----------------------------------------------------------------------------

    def start_at_snapshot(self, installation: Installation, voter_set: VoterSet) -> bool:
        """The snapshot is durable under its name: replaces the log. `on_installed` follows after a sync. Raises OSError.

        Returns whether the snapshot is still wanted.
        """
        if self.installation is not installation:
            return False
        self.log.start_at_snapshot(installation.snapshot, voter_set)
        self.high_watermark = max(self.high_watermark, installation.snapshot.end_offset)
        return True

    def on_installed(self, installation: Installation, damage: RemoteProtocolError | None, now_ms: int) -> None:
        """The new beginning of the log is durable: fetches what follows.

        Args:
            damage: why the snapshot was refused instead; nothing was changed, and the next fetch comes later.
        """
        if self.installation is not installation:
            return
        self.installation = None
        if damage is not None:
            self._log_once.error(
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
