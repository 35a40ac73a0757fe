"""The classic group protocol: what a join, a sync, a heartbeat, a leave or a passed deadline does to a group.

Driven by: `GroupShard`, with the group, the request and the time.
Emits: into an `Effects`: answers (of this request and of others parked before it) and GroupMetadata records.

A rebalance: PreparingRebalance collects JoinGroups until all known members have joined or the slowest one's rebalance timeout
has passed; the first one of an empty group lasts `group.initial.rebalance.delay.ms`, longer while members keep coming. Then
everyone is answered with the next generation (CompletingRebalance), the leader sends the assignment, its record goes to the log,
and with it the group is Stable. The phase between two records lives in memory only: after a failover the members find the
generation of the last record and go on from there.

Invariants: a parked answer is taken exactly once; a member leaves only with nothing parked; every member of a generation has a
session deadline; a group in PreparingRebalance has a join deadline.
Follows KIP-62, KIP-134 (initial delay), KIP-345, KIP-389 (size limit), KIP-394, KIP-559, KIP-814 (skip assignment).
"""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupMember, GroupState, Protocols, Reply
from barnabas.broker.coordinator.groups.effects import (
    Answer,
    At,
    Effects,
    GroupSettings,
    JoinCall,
    joined,
    rebalance_timeout_ms,
    refuse_join,
    synced,
)
from barnabas.broker.coordinator.groups.records import group_record
from barnabas.broker.coordinator.host.deadlines import Deadlines
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.protocol.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

__all__ = ["DeadlineKey", "Rebalancing"]

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # how long a new member's JoinGroup may be parked (Kafka's fixed five minutes)
MEMBER_NAME_LENGTH_MAX = 1_000  # characters of a client id or instance id that a member id begins with
EMPTY_ASSIGNMENT = b""

DeadlineKey = tuple[str, str, str]
"""(kind, group id, member id or ""): kinds are "session", "join" and "sync"."""


class Rebalancing:
    """The protocol over the groups of one shard. Holds their deadlines, not the groups."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.deadlines: Deadlines[DeadlineKey] = Deadlines()
        self._initial: dict[str, tuple[int, int]] = {}  # group id → (present delay, what may be added to it), ms

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(self, group: ClassicGroup, call: JoinCall, at: At, effects: Effects) -> None:
        """A JoinGroup for a group that exists; refusals are answers like others."""
        request = call.request
        protocols: Protocols = list({protocol.name: protocol.metadata for protocol in request.protocols}.items())
        member_id = request.member_id
        if not self._accepts(group, member_id):
            self._drop(group, member_id)  # one that is over a limit lowered since, too
            refuse_join(call.reply, ErrorCode.GROUP_MAX_SIZE_REACHED, "", effects)
            self._complete_if_joined(group, at, effects)
        elif not group.supports(request.protocol_type, protocols):
            refuse_join(call.reply, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id, effects)
        elif not member_id:
            self._join_unknown(group, call, protocols, at, effects)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                refuse_join(call.reply, ErrorCode.UNKNOWN_MEMBER_ID, member_id, effects)
            else:
                self._add(group, call, protocols, member_id, at, effects)
        else:
            self._rejoin(group, call, protocols, at, effects)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """KIP-389: whether the group has room. While it rebalances, those who have joined count, not those who might."""
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            awaiting = member is not None and member.awaiting_join is not None
            return awaiting or group.awaiting_joins < self.settings.size_max
        return member is not None or len(group.members) < self.settings.size_max

    def _join_unknown(
        self, group: ClassicGroup, call: JoinCall, protocols: Protocols, at: At, effects: Effects
    ) -> None:
        instance_id = call.request.group_instance_id
        if instance_id is not None:
            new_id = _member_id(instance_id, call.fresh_id)
            known_id = group.static_members.get(instance_id)
            if known_id is None:
                self._add(group, call, protocols, new_id, at, effects)
            else:
                self._replace_static(group, call, protocols, known_id, new_id, at, effects)
            return
        new_id = _member_id(call.client_id, call.fresh_id)
        if call.version < 4:
            self._add(group, call, protocols, new_id, at, effects)
            return
        # KIP-394: the member must come back with this id, so that lost answers leave no ghosts in the group.
        deadline_ms = at.monotonic_ms + call.request.session_timeout_ms
        group.pending_joins[new_id] = deadline_ms
        self.deadlines.set(("session", group.group_id, new_id), deadline_ms)
        refuse_join(call.reply, ErrorCode.MEMBER_ID_REQUIRED, new_id, effects)

    def _add(
        self, group: ClassicGroup, call: JoinCall, protocols: Protocols, member_id: str, at: At, effects: Effects
    ) -> None:
        request = call.request
        member = GroupMember(
            member_id,
            request.group_instance_id,
            client_id=call.client_id,
            client_host=call.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        member.is_new = True
        if group.is_initial_rebalance:
            group.new_member_added = True
        group.add(member, request.protocol_type, call.reply)
        self._set_session(group, member, at, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare_or_complete(group, at, effects)

    def _rejoin(self, group: ClassicGroup, call: JoinCall, protocols: Protocols, at: At, effects: Effects) -> None:
        request = call.request
        try:
            member = group.validate_member(request.member_id, request.group_instance_id)
        except BrokerError as error:
            refuse_join(call.reply, error.code, request.member_id, effects)
            return
        leads = group.leader_id == member.member_id
        unchanged = member.protocols == protocols
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # Its JoinGroup answer may have been lost: the same one again.
            effects.answers.append(Answer(call.reply, joined(group, member)))
        elif group.state is GroupState.STABLE and unchanged and not leads:
            effects.answers.append(Answer(call.reply, joined(group, member)))
        elif group.state is GroupState.EMPTY:
            raise InvariantViolated(f"group {group.group_id!r} is Empty and has member {member.member_id!r}")
        else:
            # Joining a rebalance, changed metadata, or a leader that wants one (topics may have changed).
            self._update(group, member, call, protocols, effects)
            self._prepare_or_complete(group, at, effects)

    def _update(
        self, group: ClassicGroup, member: GroupMember, call: JoinCall, protocols: Protocols, effects: Effects
    ) -> None:
        """Takes over what the member now says of itself and parks its answer, in place of one that waits already."""
        request = call.request
        group.update(member, protocols, rebalance_timeout_ms(request), request.session_timeout_ms)
        former = group.park_join(member, call.reply)
        if former is not None:  # Kafka forgets it and never answers
            refuse_join(former, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id, effects)

    def _replace_static(
        self,
        group: ClassicGroup,
        call: JoinCall,
        protocols: Protocols,
        old_id: str,
        new_id: str,
        at: At,
        effects: Effects,
    ) -> None:
        """A static member came back without its member id: it keeps place, leadership and assignment under a new id."""
        request = call.request
        former_leader = group.leader_id
        self._take(group, group.members[old_id], ErrorCode.FENCED_INSTANCE_ID, effects, old_id)
        self.deadlines.cancel(("session", group.group_id, old_id))
        member = group.replace_static_member(old_id, new_id)
        self._set_session(group, member, at)
        group.update(member, protocols, rebalance_timeout_ms(request), request.session_timeout_ms)
        if group.state is not GroupState.STABLE:
            group.park_join(member, call.reply)
            if group.state is GroupState.COMPLETING_REBALANCE:
                # The leader may have the old id in the assignment it is computing.
                self._prepare(group, at, effects)
            else:
                self._complete_if_joined(group, at, effects)
            return
        if group.select_protocol() != group.protocol_name:
            group.park_join(member, call.reply)
            self._prepare(group, at, effects)
            return
        # Nothing that matters to the others has changed: only the new id is written, nobody is disturbed.
        response = joined(group, member)
        if call.version >= 9:
            response.skip_assignment = group.leader_id == new_id
        else:
            # A client that cannot skip must not think it leads: it would assign anew without a rebalance.
            response.members = []
            response.leader = former_leader or ""
        effects.answers.append(Answer(call.reply, response))
        effects.records.append(group_record(group))

    # -- the join phase ------------------------------------------------------------------------------------------------

    def _prepare_or_complete(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.can_rebalance:
            self._prepare(group, at, effects)
        else:
            self._complete_if_joined(group, at, effects)

    def force(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        """Starts a rebalance where the state allows one (an assignment that could not be stored, a group over its limit)."""
        if group.can_rebalance and group.members:
            self._prepare(group, at, effects)

    def dissolve(self, group: ClassicGroup, effects: Effects) -> None:
        """The group goes over to the consumer protocol: whoever waits is told to join again."""
        for member in group.members.values():
            self._take(group, member, ErrorCode.REBALANCE_IN_PROGRESS, effects, member.member_id)
        self.forget(group)

    def _prepare(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = EMPTY_ASSIGNMENT
                self._answer_sync(
                    group, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), at, effects
                )
        group.pending_syncs.clear()
        self.deadlines.cancel(("sync", group.group_id, ""))
        initial = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE, at.now_ms)
        if initial:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._initial[group.group_id] = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            self._set_join(group, at, delay_ms)
        elif group.all_joined:
            self._complete(group, at, effects)
        else:
            self._set_join(group, at, group.rebalance_timeout_ms)

    def _complete_if_joined(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and not group.is_initial_rebalance and group.all_joined:
            self._complete(group, at, effects)

    def _complete(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        """Ends the join phase: dynamic members that have not joined are out, the others get the next generation."""
        self.deadlines.cancel(("join", group.group_id, ""))
        self._initial.pop(group.group_id, None)
        for member in list(group.members.values()):
            if member.awaiting_join is None and not member.is_static:
                self._drop(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has joined: wait until one does or their sessions end.
            self._set_join(group, at, group.rebalance_timeout_ms)
            return
        group.next_generation(at.now_ms)
        if group.state is GroupState.EMPTY:
            effects.records.append(group_record(group))
            return
        for member in group.members.values():
            reply = group.park_join(member, None)
            if reply is not None:
                effects.answers.append(Answer(reply, joined(group, member)))
            self._set_session(group, member, at)
            member.is_new = False
            group.pending_syncs[member.member_id] = None
        self.deadlines.set(("sync", group.group_id, ""), at.monotonic_ms + group.rebalance_timeout_ms)

    # -- SyncGroup -----------------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, reply: Reply, at: At, effects: Effects) -> None:
        """A SyncGroup: a follower's waits for the leader's, whose assignment makes the group Stable.

        Raises:
            BrokerError: a refusal.
        """
        if group.state is GroupState.EMPTY:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
            None,
            group.protocol_name,
        ):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.pop(member.member_id, None)
        if not group.pending_syncs:
            self.deadlines.cancel(("sync", group.group_id, ""))
        if group.state is GroupState.STABLE:
            effects.answers.append(Answer(reply, synced(group, member.assignment)))
            return
        if member.awaiting_sync is not None:  # asked again on another connection
            effects.answers.append(
                Answer(member.awaiting_sync, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            )
        member.awaiting_sync = reply
        if member.member_id == group.leader_id:
            self._assign(group, request, at, effects)

    def _assign(self, group: ClassicGroup, request: SyncGroupRequest, at: At, effects: Effects) -> None:
        assignment = {entry.member_id: entry.assignment for entry in request.assignments}
        for member in group.members.values():
            member_assignment = assignment.get(member.member_id, EMPTY_ASSIGNMENT)
            self._answer_sync(group, member, synced(group, member_assignment), at, effects)
        effects.records.append(group_record(group, assignment))

    # -- Heartbeat and LeaveGroup --------------------------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, at: At
    ) -> ErrorCode:
        """The answer's code: NONE or REBALANCE_IN_PROGRESS.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        member = group.validate_member(member_id, instance_id)
        if generation != group.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        self._set_session(group, member, at)
        rejoin = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if rejoin else ErrorCode.NONE

    def keep_session(self, group: ClassicGroup, member_id: str, at: At) -> None:
        """An OffsetCommit counts as a heartbeat while the group is Stable or rebalancing."""
        member = group.members.get(member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._set_session(group, member, at)

    def leave(self, group: ClassicGroup, request: LeaveGroupRequest, at: At, effects: Effects) -> LeaveGroupResponse:
        """Removes the named members, by member id or (for an operator, KIP-345) by instance id alone."""
        response = LeaveGroupResponse()
        left = False
        for identity in request.members:
            code = self._leave_one(group, identity, effects)
            left = left or code is ErrorCode.NONE
            response.members.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        if left and group.state is not GroupState.EMPTY:
            self._prepare_or_complete(group, at, effects)
        return response

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity, effects: Effects) -> ErrorCode:
        member_id: str | None = identity.member_id
        if not member_id:
            instance_id = identity.group_instance_id
            member_id = group.static_members.get(instance_id) if instance_id is not None else None
            if member_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in group.pending_joins:
            self._forget_pending(group, member_id)
            return ErrorCode.NONE
        else:
            try:
                group.validate_member(member_id, identity.group_instance_id)
            except BrokerError as error:
                return error.code
        self._take(group, group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID, effects)
        self._drop(group, member_id)
        return ErrorCode.NONE

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def on_deadline(self, group: ClassicGroup, key: DeadlineKey, at: At, effects: Effects) -> None:
        """A deadline of the group has passed."""
        kind, _, member_id = key
        if kind == "session":
            self._expire_session(group, member_id, at, effects)
        elif kind == "sync":
            self._expire_syncs(group, at, effects)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._expire_join(group, at, effects)

    def _expire_session(self, group: ClassicGroup, member_id: str, at: At, effects: Effects) -> None:
        if member_id in group.pending_joins:
            self._forget_pending(group, member_id)
            self._complete_after_removal(group, at, effects)
            return
        member = group.members.get(member_id)
        if member is None or member.keeps_session_while_waiting():
            return
        self._take(group, member, ErrorCode.UNKNOWN_MEMBER_ID, effects)
        self._drop(group, member_id)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare(group, at, effects)
        else:
            self._complete_after_removal(group, at, effects)

    def _complete_after_removal(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        """Unlike a join, an expiry ends even the initial delay when nobody else is waited for, as in Kafka."""
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self._complete(group, at, effects)

    def _expire_join(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        delay_ms, remaining_ms = self._initial.get(group.group_id, (0, 0))
        if group.new_member_added and remaining_ms:
            group.new_member_added = False
            next_delay_ms = min(self.settings.initial_rebalance_delay_ms, remaining_ms)
            self._initial[group.group_id] = (next_delay_ms, max(remaining_ms - delay_ms, 0))
            self._set_join(group, at, next_delay_ms)
            return
        self._complete(group, at, effects)

    def _expire_syncs(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        """Members of the generation that never sent SyncGroup are out, and the rest rebalances."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
            return
        for member_id in list(group.pending_syncs):
            self._drop(group, member_id)
        self._prepare(group, at, effects)

    def arm(self, group: ClassicGroup, at: At) -> None:
        """Gives the members of a loaded group a whole session to show up."""
        for member in group.members.values():
            self._set_session(group, member, at)

    def forget(self, group: ClassicGroup) -> None:
        """The group is gone: no deadlines for it."""
        for member_id in (*group.members, *group.pending_joins):
            self.deadlines.cancel(("session", group.group_id, member_id))
        self.deadlines.cancel(("join", group.group_id, ""))
        self.deadlines.cancel(("sync", group.group_id, ""))
        self._initial.pop(group.group_id, None)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _set_session(self, group: ClassicGroup, member: GroupMember, at: At, timeout_ms: int | None = None) -> None:
        deadline_ms = at.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.deadlines.set(("session", group.group_id, member.member_id), deadline_ms)

    def _set_join(self, group: ClassicGroup, at: At, delay_ms: int) -> None:
        self.deadlines.set(("join", group.group_id, ""), at.monotonic_ms + delay_ms)

    def _answer_sync(
        self, group: ClassicGroup, member: GroupMember, response: SyncGroupResponse, at: At, effects: Effects
    ) -> None:
        if member.awaiting_sync is not None:
            effects.answers.append(Answer(member.awaiting_sync, response))
            member.awaiting_sync = None
            self._set_session(group, member, at)

    def _take(
        self, group: ClassicGroup, member: GroupMember, code: ErrorCode, effects: Effects, member_id: str = ""
    ) -> None:
        """Refuses whatever the member has parked, so that it may leave."""
        reply = group.park_join(member, None)
        if reply is not None:
            refuse_join(reply, code, member_id, effects)
        if member.awaiting_sync is not None:
            effects.answers.append(Answer(member.awaiting_sync, SyncGroupResponse(error_code=code)))
            member.awaiting_sync = None

    def _drop(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self.deadlines.cancel(("session", group.group_id, member_id))

    def _forget_pending(self, group: ClassicGroup, member_id: str) -> None:
        if group.pending_joins.pop(member_id, None) is not None:
            self.deadlines.cancel(("session", group.group_id, member_id))


def _member_id(name: str, fresh_id: str) -> str:
    """A new member id from an instance id or client id; a name of 32,767 bytes with a suffix would not fit an answer."""
    return f"{name[:MEMBER_NAME_LENGTH_MAX]}-{fresh_id}"
