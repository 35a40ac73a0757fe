"""Classic group protocol: decides JoinGroup, SyncGroup, Heartbeat, LeaveGroup and deadlines of a group.
KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-389 (size limit), KIP-394 (required member ids), KIP-559 (protocol
type and name), KIP-814 (skip_assignment).
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.records import group_record
from barnabas.broker.coordinator.groups.classic.state import GroupMember, GroupState, Protocols
from barnabas.broker.coordinator.groups.effects import At, DeadlineKey, Effects, JoinCall, MemberAnswer, Responder
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.broker.coordinator.host.deadlines import Deadlines
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import GROUP_METADATA_BYTES_MAX
from barnabas.loggers import logger
from barnabas.protocol.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logger("kafka.coordinator.group")

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # how long the first JoinGroup of a member may be parked; fixed in Kafka, too
MEMBER_NAME_LENGTH_MAX = 1_000  # characters of a client id or instance id at the start of a member id
EMPTY_ASSIGNMENT = b""


class ClassicProtocol:
    """The classic protocol for the groups of one shard.

    PreparingRebalance parks JoinGroups until all members have joined or the longest rebalance timeout is over; after an empty group it
    lasts `group.initial.rebalance.delay.ms`, longer while new members join. CompletingRebalance waits for the leader's assignment; its
    record makes the group Stable. Between two records everything is in memory: after a failover members continue with the generation of the
    last record.

    Invariants: a parked request is answered exactly once; a member is removed only when none of its requests is parked; every member of a
    generation has a session deadline; a group in PreparingRebalance has a join deadline.
    """

    def __init__(self, settings: GroupSettings, deadlines: Deadlines[DeadlineKey]) -> None:
        self.settings = settings
        self.deadlines = deadlines  # of all groups of the shard, also of consumer groups
        # While a group waits out the initial rebalance delay: group id → (current delay, longest further delay) in ms.
        self._initial_delays: dict[str, tuple[int, int]] = {}

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(self, group: ClassicGroup, call: JoinCall, at: At, effects: Effects) -> None:
        """Parks a JoinGroup or answers it; refusals are answers, too."""
        request = call.request
        protocols: Protocols = list({protocol.name: protocol.metadata for protocol in request.protocols}.items())
        member_id = request.member_id
        if not self._accepts(group, member_id):
            self._remove(group, member_id)  # a member may be refused, too, after the limit was lowered
            effects.refuse_join(call.reply, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            self._complete_if_joined(group, at, effects)
        elif _too_much_metadata(
            group, member_id or group.static_members.get(request.group_instance_id or ""), protocols
        ):
            self._remove_pending(group, member_id)  # a member stays until it leaves or its session ends
            effects.refuse_join(call.reply, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id)
            self._complete_if_joined(group, at, effects)
        elif not group.supports(request.protocol_type, protocols):
            effects.refuse_join(call.reply, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif not member_id:
            self._join_unknown(group, call, protocols, at, effects)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                effects.refuse_join(call.reply, ErrorCode.UNKNOWN_MEMBER_ID, member_id)
            else:
                self._add(group, call, protocols, member_id, at, effects)
        else:
            self._rejoin(group, call, protocols, at, effects)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has room (KIP-389). In PreparingRebalance only joined members count."""
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
        # KIP-394: the member must join again with this id, so that a lost answer leaves no unused member in the group.
        deadline_ms = at.monotonic_ms + call.request.session_timeout_ms
        group.pending_joins[new_id] = deadline_ms
        self.deadlines.set(("session", group.group_id, new_id), deadline_ms)
        effects.refuse_join(call.reply, ErrorCode.MEMBER_ID_REQUIRED, new_id)

    def _add(
        self, group: ClassicGroup, call: JoinCall, protocols: Protocols, member_id: str, at: At, effects: Effects
    ) -> None:
        request = call.request
        member = GroupMember(
            member_id,
            request.group_instance_id,
            client_id=call.client_id,
            client_host=call.client_host,
            rebalance_timeout_ms=call.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        member.is_new = True
        if group.is_initial_rebalance:
            group.new_member_added = True
        group.add(member, request.protocol_type, call.reply)
        log.info(
            "Member joins: group=%s member=%s client_id=%s host=%s",
            group.group_id,
            member_id,
            call.client_id,
            call.client_host,
        )
        self._set_session(group, member, at, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare_or_complete(group, at, effects)

    def _rejoin(self, group: ClassicGroup, call: JoinCall, protocols: Protocols, at: At, effects: Effects) -> None:
        request = call.request
        try:
            member = group.validate_member(request.member_id, request.group_instance_id)
        except BrokerError as error:
            effects.refuse_join(call.reply, error.code, request.member_id)
            return
        leads = group.leader_id == member.member_id
        unchanged = member.protocols == protocols
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The answer to its JoinGroup may have been lost.
            effects.answers.append(MemberAnswer(call.reply, _joined(group, member)))
        elif group.state is GroupState.STABLE and unchanged and not leads:
            effects.answers.append(MemberAnswer(call.reply, _joined(group, member)))
        elif group.state is GroupState.EMPTY:
            raise InvariantViolated(f"group {group.group_id!r} is Empty and has member {member.member_id!r}")
        else:
            # A rebalance is under way, the metadata changed, or the leader requests a rebalance.
            self._update(group, member, call, protocols, effects)
            self._prepare_or_complete(group, at, effects)

    def _update(
        self, group: ClassicGroup, member: GroupMember, call: JoinCall, protocols: Protocols, effects: Effects
    ) -> None:
        """Stores the member's data of the request, and parks the request in place of an older one."""
        request = call.request
        group.update(member, protocols, call.rebalance_timeout_ms, request.session_timeout_ms)
        former = group.park_join(member, call.reply)
        if former is not None:  # Kafka never answers it
            effects.refuse_join(former, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)

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
        """A static member joins without its member id: it gets a new id and keeps leadership and assignment."""
        request = call.request
        former_leader = group.leader_id
        self._refuse_parked(group, group.members[old_id], ErrorCode.FENCED_INSTANCE_ID, effects, old_id)
        self.deadlines.cancel(("session", group.group_id, old_id))
        member = group.replace_static_member(old_id, new_id)
        self._set_session(group, member, at)
        group.update(member, protocols, call.rebalance_timeout_ms, request.session_timeout_ms)
        if group.state is not GroupState.STABLE:
            group.park_join(member, call.reply)
            if group.state is GroupState.COMPLETING_REBALANCE:
                # The leader may be computing an assignment that contains the old id.
                self._prepare(group, at, effects)
            else:
                self._complete_if_joined(group, at, effects)
            return
        if group.select_protocol() != group.protocol_name:
            group.park_join(member, call.reply)
            self._prepare(group, at, effects)
            return
        # Only the new id is written, without a rebalance.
        response = _joined(group, member)
        if call.version >= 9:
            response.skip_assignment = group.leader_id == new_id
        else:
            # An older client does not know skip_assignment. As leader it would send an assignment.
            response.members = []
            response.leader = former_leader or ""
        effects.answers.append(MemberAnswer(call.reply, response))
        effects.records.append(group_record(group))

    # -- the join phase ------------------------------------------------------------------------------------------------

    def _prepare_or_complete(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.can_rebalance:
            self._prepare(group, at, effects)
        else:
            self._complete_if_joined(group, at, effects)

    def rebalance(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.can_rebalance and group.members:
            self._prepare(group, at, effects)

    def end_for_upgrade(self, group: ClassicGroup, effects: Effects) -> None:
        """Refuses parked requests with REBALANCE_IN_PROGRESS: the group becomes a consumer group."""
        for member in group.members.values():
            self._refuse_parked(group, member, ErrorCode.REBALANCE_IN_PROGRESS, effects, member.member_id)
        self.cancel_deadlines(group)

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
            self._initial_delays[group.group_id] = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            self._set_join(group, at, delay_ms)
        elif group.all_joined:
            self._complete(group, at, effects)
        else:
            self._set_join(group, at, group.rebalance_timeout_ms)

    def _complete_if_joined(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and not group.is_initial_rebalance and group.all_joined:
            self._complete(group, at, effects)

    def _complete(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        """Ends the join phase: removes dynamic members that have not joined, answers all others."""
        self.deadlines.cancel(("join", group.group_id, ""))
        self._initial_delays.pop(group.group_id, None)
        for member in list(group.members.values()):
            if member.awaiting_join is None and not member.is_static:
                self._remove(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has joined: waits until one joins or the sessions expire.
            self._set_join(group, at, group.rebalance_timeout_ms)
            return
        group.next_generation(at.now_ms)
        if group.state is GroupState.EMPTY:
            effects.records.append(group_record(group))
            return
        for member in group.members.values():
            reply = group.park_join(member, None)
            if reply is not None:
                effects.answers.append(MemberAnswer(reply, _joined(group, member)))
            self._set_session(group, member, at)
            member.is_new = False
            group.pending_syncs[member.member_id] = None
        self.deadlines.set(("sync", group.group_id, ""), at.monotonic_ms + group.rebalance_timeout_ms)

    # -- SyncGroup -----------------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, reply: Responder, at: At, effects: Effects) -> None:
        """Parks a SyncGroup until the leader sends the assignment, or answers it.

        Raises BrokerError(UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS).
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
            effects.answers.append(MemberAnswer(reply, _synced(group, member.assignment)))
            return
        if member.awaiting_sync is not None:  # the member repeats the request over another connection
            effects.refuse_sync(member.awaiting_sync, ErrorCode.REBALANCE_IN_PROGRESS)
        member.awaiting_sync = reply
        if member.member_id == group.leader_id:
            self._assign(group, request, at, effects)

    def _assign(self, group: ClassicGroup, request: SyncGroupRequest, at: At, effects: Effects) -> None:
        assignment = {entry.member_id: entry.assignment for entry in request.assignments}
        for member in group.members.values():
            member_assignment = assignment.get(member.member_id, EMPTY_ASSIGNMENT)
            self._answer_sync(group, member, _synced(group, member_assignment), at, effects)
        effects.records.append(group_record(group, assignment))

    # -- Heartbeat and LeaveGroup --------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        """Extends a session. REBALANCE_IN_PROGRESS: the session is extended and the member must join again.

        Raises BrokerError(UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS).
        """
        member = group.validate_member(member_id, instance_id)
        if generation != group.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        self._set_session(group, member, at)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)

    def extend_session(self, group: ClassicGroup, member_id: str, at: At) -> None:
        """For offset commits while the group is Stable or in PreparingRebalance."""
        member = group.members.get(member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._set_session(group, member, at)

    def leave(
        self, group: ClassicGroup, members: Sequence[MemberIdentity], at: At, effects: Effects
    ) -> list[MemberResponse]:
        """Removes members, by member id or by instance id alone (an administrator's request, KIP-345)."""
        responses: list[MemberResponse] = []
        removed = False
        for identity in members:
            code = ErrorCode.NONE
            try:
                self._remove_named(group, identity, effects)
                removed = True
            except BrokerError as error:
                code = error.code
            responses.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        if removed and group.state is not GroupState.EMPTY:
            self._prepare_or_complete(group, at, effects)
        return responses

    def _remove_named(self, group: ClassicGroup, identity: MemberIdentity, effects: Effects) -> None:
        """Raises BrokerError(UNKNOWN_MEMBER_ID) or FENCED_INSTANCE_ID."""
        instance_id = identity.group_instance_id
        member_id: str | None = identity.member_id
        if not member_id:
            member_id = group.static_members.get(instance_id) if instance_id is not None else None
            if member_id is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        elif member_id in group.pending_joins:
            self._remove_pending(group, member_id)
            return
        else:
            group.validate_member(member_id, instance_id)
        self._refuse_parked(group, group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID, effects)
        self._remove(group, member_id)

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def on_deadline(self, group: ClassicGroup, key: DeadlineKey, at: At, effects: Effects) -> None:
        kind, _, member_id = key
        if kind == "session":
            self._expire_session(group, member_id, at, effects)
        elif kind == "sync":
            self._expire_syncs(group, at, effects)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._expire_join(group, at, effects)

    def _expire_session(self, group: ClassicGroup, member_id: str, at: At, effects: Effects) -> None:
        if member_id in group.pending_joins:
            self._remove_pending(group, member_id)
            self._complete_after_removal(group, at, effects)
            return
        member = group.members.get(member_id)
        if member is None or member.keeps_session_while_waiting():
            return
        log.info("Member's session has timed out, it is removed: group=%s member=%s", group.group_id, member_id)
        self._refuse_parked(group, member, ErrorCode.UNKNOWN_MEMBER_ID, effects)
        self._remove(group, member_id)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare(group, at, effects)
        else:
            self._complete_after_removal(group, at, effects)

    def _complete_after_removal(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        """Ends the join phase if all other members have joined, even during the initial delay, as in Kafka."""
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self._complete(group, at, effects)

    def _expire_join(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        delay_ms, remaining_ms = self._initial_delays.get(group.group_id, (0, 0))
        if group.new_member_added and remaining_ms:
            group.new_member_added = False
            next_delay_ms = min(self.settings.initial_rebalance_delay_ms, remaining_ms)
            self._initial_delays[group.group_id] = (next_delay_ms, max(remaining_ms - delay_ms, 0))
            self._set_join(group, at, next_delay_ms)
            return
        self._complete(group, at, effects)

    def _expire_syncs(self, group: ClassicGroup, at: At, effects: Effects) -> None:
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
            return
        for member_id in list(group.pending_syncs):
            log.info("Member has not synced, it is removed: group=%s member=%s", group.group_id, member_id)
            self._remove(group, member_id)
        self._prepare(group, at, effects)

    def start_sessions(self, group: ClassicGroup, at: At) -> None:
        """After the group was loaded or converted."""
        for member in group.members.values():
            self._set_session(group, member, at)

    def cancel_deadlines(self, group: ClassicGroup) -> None:
        for member_id in (*group.members, *group.pending_joins):
            self.deadlines.cancel(("session", group.group_id, member_id))
        self.deadlines.cancel(("join", group.group_id, ""))
        self.deadlines.cancel(("sync", group.group_id, ""))
        self._initial_delays.pop(group.group_id, None)

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
            effects.answers.append(MemberAnswer(member.awaiting_sync, response))
            member.awaiting_sync = None
            self._set_session(group, member, at)

    def _refuse_parked(
        self, group: ClassicGroup, member: GroupMember, code: ErrorCode, effects: Effects, member_id: str = ""
    ) -> None:
        reply = group.park_join(member, None)
        if reply is not None:
            effects.refuse_join(reply, code, member_id)
        if member.awaiting_sync is not None:
            effects.refuse_sync(member.awaiting_sync, code)
            member.awaiting_sync = None

    def _remove(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        log.info("Member is removed: group=%s member=%s", group.group_id, member_id)
        self.deadlines.cancel(("session", group.group_id, member_id))

    def _remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        if group.pending_joins.pop(member_id, None) is not None:
            self.deadlines.cancel(("session", group.group_id, member_id))


def _too_much_metadata(group: ClassicGroup, member_id: str | None, protocols: Protocols) -> bool:
    """Whether the metadata of all members would be too long for a record of the group, or for the leader's answer."""
    size_bytes = group.metadata_bytes + sum(len(metadata) for _, metadata in protocols)
    if size_bytes <= GROUP_METADATA_BYTES_MAX:
        return False
    member = None if member_id is None else group.members.get(member_id)
    if member is not None:  # its metadata is replaced
        size_bytes -= sum(len(metadata) for _, metadata in member.protocols)
    return size_bytes > GROUP_METADATA_BYTES_MAX


def _member_id(name: str, fresh_id: str) -> str:
    """Begins with a part of the client id or instance id: the member id must fit into an answer."""
    return f"{name[:MEMBER_NAME_LENGTH_MAX]}-{fresh_id}"


def _joined(group: ClassicGroup, member: GroupMember) -> JoinGroupResponse:
    """The leader gets all members with their metadata."""
    response = JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.member_id,
    )
    if member.member_id == group.leader_id:
        response.members = [
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.group_instance_id,
                metadata=other.metadata(group.protocol_name),
            )
            for other in group.members.values()
        ]
    return response


def _synced(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )
