"""State of a classic group: members, leader, generation, protocol votes.
KIP-62, KIP-345 (static members), KIP-394 (pending members), KIP-559 (protocol type and name).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.broker.coordinator.groups.classic.state import VALID_PREVIOUS, GroupMember, GroupState, Protocols
from barnabas.broker.coordinator.groups.effects import Responder
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated, LocalProtocolError
from barnabas.limits import SUBSCRIBED_NAMES_MAX
from barnabas.loggers import logger

log = logger("kafka.coordinator.group")

CONSUMER_PROTOCOL_TYPE = "consumer"
KNOWN_SUBSCRIPTIONS_MAX: Final = 8  # different subscriptions with which each further one is compared


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics of subscriptions of any version; None if one is malformed or has more than SUBSCRIBED_NAMES_MAX names."""
    topics: list[str] = []
    known: list[bytes] = []  # encoded topics of the subscriptions that were read
    for blob in metadata:
        if any(blob.startswith(each, 2) for each in known):
            continue
        view = memoryview(blob)
        if len(view) < 6:
            return None
        count = int.from_bytes(view[2:6], "big", signed=True)
        position = 6
        if count > SUBSCRIBED_NAMES_MAX:
            return None
        for _ in range(count):
            end = position + 2
            if end > len(view):
                return None
            end += int.from_bytes(view[position:end], "big", signed=True)
            if end < position + 2 or end > len(view):
                return None
            try:
                topics.append(str(view[position + 2 : end], "utf-8"))
            except UnicodeDecodeError:
                return None
            position = end
        if len(topics) > SUBSCRIBED_NAMES_MAX:
            return None
        if len(known) < KNOWN_SUBSCRIPTIONS_MAX:
            known.append(bytes(view[2:position]))
    return frozenset(topics)


class ClassicGroup:
    """State of one classic group.

    Invariants: the leader is a member, or None without members; `protocol_counts[name]` is the number of members that support `name`;
    members are in join order (dicts, not sets), so that the same member becomes leader in every run.
    """

    __slots__ = (
        "awaiting_joins",
        "generation",
        "group_id",
        "is_recorded",
        "leader_id",
        "members",
        "metadata_bytes",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_counts",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed",
    )

    def __init__(self, group_id: str, *, state_timestamp_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        # wall clock of the last change of state; -1 unknown (records of old versions)
        self.state_timestamp_ms = state_timestamp_ms
        self.generation = 0  # 0 before the first rebalance, then the number of completed rebalances
        # "consumer", "connect"…; None for a group without members that only has offsets
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None  # of this generation; None without members
        self.leader_id: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.static_members: dict[str, str] = {}
        # KIP-394: returned member ids that have not joined yet → monotonic deadline in ms
        self.pending_joins: dict[str, int] = {}
        self.pending_syncs: dict[str, None] = {}  # members of this generation without SyncGroup
        self.protocol_counts: dict[str, int] = {}
        self.metadata_bytes = 0  # size of the protocols of all members
        self.awaiting_joins = 0  # members whose JoinGroup is parked
        self.new_member_added = False  # during the initial delay, which is then extended
        self.is_recorded = False  # a record of the group is in the log or in the current batch
        self.subscribed: frozenset[str] | None = None  # topics of all subscriptions; None: unknown

    # -- state ---------------------------------------------------------------------------------------------------------

    def transition(self, state: GroupState, now_ms: int) -> None:
        """`now_ms` is wall clock. Raises InvariantViolated if VALID_PREVIOUS does not allow the transition."""
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"group {self.group_id!r} may not go from {self.state.value} to {state.value}")
        log.info(
            "Group changes its state: group=%s before=%s after=%s generation=%d members=%d",
            self.group_id,
            self.state.value,
            state.value,
            self.generation,
            len(self.members),
        )
        self.previous_state, self.state, self.state_timestamp_ms = self.state, state, now_ms

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS[GroupState.PREPARING_REBALANCE]

    @property
    def is_initial_rebalance(self) -> bool:
        """Whether the join phase lasts until the initial delay is over, even if all members have joined."""
        return self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.awaiting_joins and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Unknown subscriptions: True for consumers, False for others."""
        if self.subscribed is not None:
            return topic in self.subscribed
        return self.uses_consumer_protocol

    # -- members -------------------------------------------------------------------------------------------------------

    def add(self, member: GroupMember, protocol_type: str, reply: Responder | None) -> None:
        """The first member becomes the leader. Raises InvariantViolated for a known member id or instance id, or another protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        elif self.protocol_type != protocol_type:
            raise InvariantViolated(f"group {self.group_id!r} is of type {self.protocol_type!r}, not {protocol_type!r}")
        if member.member_id in self.members:
            raise InvariantViolated(f"group {self.group_id!r} already has member {member.member_id!r}")
        if member.group_instance_id is not None:
            if member.group_instance_id in self.static_members:
                raise InvariantViolated(f"group {self.group_id!r} already has instance {member.group_instance_id!r}")
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, +1)
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending_joins.pop(member.member_id, None)
        self.park_join(member, reply)

    def remove(self, member_id: str) -> GroupMember | None:
        """Removes a member or a pending member id. Raises LocalProtocolError if a request of the member is parked."""
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.get(member_id)
        if member is None:
            return None
        if member.awaiting_join is not None or member.awaiting_sync is not None:
            raise LocalProtocolError(f"member {member_id!r} is removed while a request of it is parked")
        del self.members[member_id]
        self._count(member.protocols, -1)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def replace_static_member(self, old_id: str, new_id: str) -> GroupMember:
        """Gives a static member without parked requests a new id; it keeps all else (KIP-345)."""
        old = self.members[old_id]
        if old.group_instance_id is None:
            raise LocalProtocolError(f"member {old_id!r} is not static")
        leads = self.leader_id == old_id
        self.remove(old_id)
        new = GroupMember(
            new_id,
            old.group_instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members[new_id] = new
        self._count(new.protocols, +1)
        self.static_members[old.group_instance_id] = new_id
        if leads:
            self.leader_id = new_id
        return new

    def update(
        self, member: GroupMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, +1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: GroupMember, reply: Responder | None) -> Responder | None:
        """Parks a JoinGroup of the member, or with None takes the parked one; returns the former reply."""
        former, member.awaiting_join = member.awaiting_join, reply
        self.awaiting_joins += (reply is not None) - (former is not None)
        return former

    def validate_member(self, member_id: str, group_instance_id: str | None) -> GroupMember:
        """Raises BrokerError(UNKNOWN_MEMBER_ID), or FENCED_INSTANCE_ID if the instance id belongs to another member id now."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise BrokerError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def elect_joined_leader(self) -> bool:
        """Makes the first joined member the leader, unless the leader has joined. False if no member has."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is None:
            return False
        if leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    # -- protocols -----------------------------------------------------------------------------------------------------

    def _count(self, protocols: Protocols, step: int) -> None:
        for name, metadata in protocols:
            self.metadata_bytes += step * len(metadata)
            count = self.protocol_counts.get(name, 0) + step
            if count:
                self.protocol_counts[name] = count
            else:
                self.protocol_counts.pop(name, None)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member may join: same protocol type, and a protocol that all members support."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.protocol_counts.get(name, 0) == size for name, _ in protocols
        )

    def select_protocol(self) -> str | None:
        """The protocol with most votes of those that all members support; of equal ones the first voted for."""
        size = len(self.members)
        candidates = [name for name, count in self.protocol_counts.items() if count == size]
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            if choice is None:
                raise InvariantViolated(f"group {self.group_id!r} has members without a protocol in common")
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else None

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol_name = self.select_protocol()
        self.refresh_subscriptions()
        self.transition(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def refresh_subscriptions(self) -> None:
        self.subscribed = None
        if not self.uses_consumer_protocol:
            return
        if not self.members:
            self.subscribed = frozenset()
        elif self.protocol_name is not None:
            self.subscribed = subscribed_topics(member.metadata(self.protocol_name) for member in self.members.values())
