"""Classic group member core: creates requests, applies responses (KIP-62, KIP-345, KIP-394, KIP-429, KIP-559, KIP-814)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, NotKafka, code_of, error_for
from barnabas.client.group.core.assignors import ASSIGNORS, COOPERATIVE, MemberSubscription, check_strategies
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.protocol.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    CooperativeStickyUserData,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    StickyUserData,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import decode, decode_versioned, encode, encode_versioned

_PROTOCOL_TYPE = "consumer"
_SUBSCRIPTION_VERSION = 3  # with owned partitions, their generation and the rack
_ASSIGNMENT_VERSION = 0
_EAGER = "sticky"
_COOPERATIVE = "cooperative-sticky"


class ClassicMemberState(Enum):
    """States of a classic member."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    LEFT = "left"


_S = ClassicMemberState

VALID_PREVIOUS: dict[ClassicMemberState, frozenset[ClassicMemberState]] = {
    _S.UNJOINED: frozenset({_S.JOINING, _S.SYNCING, _S.STABLE}),
    _S.JOINING: frozenset({_S.UNJOINED, _S.STABLE, _S.JOINING, _S.SYNCING}),
    _S.SYNCING: frozenset({_S.JOINING}),
    _S.STABLE: frozenset({_S.SYNCING}),
    _S.LEFT: frozenset({_S.UNJOINED, _S.JOINING, _S.SYNCING, _S.STABLE}),
}


class Next(Enum):
    """Next step of the shell after a response."""

    GO_ON = "go on"
    AGAIN = "again"  # send the join again at once
    WAIT = "wait"  # send the request again after a pause
    FIND_COORDINATOR = "find coordinator"  # look up the coordinator, then send the request again
    LOST = "lost"  # the membership is lost: a poll must report it before this member joins again


class Change(NamedTuple):
    """A change of the assignment: first revoke, then assign. Both may be empty."""

    revoked: list[TopicPartition]
    assigned: list[TopicPartition]


class ClassicMember:
    """Core of one membership. States change as VALID_PREVIOUS allows.

    Args:
        group_instance_id: makes the member static; None for a dynamic member.
        strategies: assignors in order of preference. Rebalances are cooperative if all of them are.
        session_timeout_ms: the coordinator removes the member after this time without a heartbeat.
        rebalance_timeout_ms: how long the coordinator waits for members to join again; `max_poll_interval_ms`.
    """

    def __init__(
        self,
        group_id: str,
        *,
        group_instance_id: str | None = None,
        rack_id: str | None = None,
        strategies: Sequence[str] = ("range", "roundrobin"),
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        heartbeat_interval_ms: int = 3_000,
    ) -> None:
        check_strategies(strategies)
        self.group_id = group_id
        self.group_instance_id = group_instance_id
        self.rack_id = rack_id
        self.strategies = tuple(strategies)
        self.cooperative = all(name in COOPERATIVE for name in strategies)
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.state = ClassicMemberState.UNJOINED
        self.member_id = ""
        self.generation_id = -1
        self.topics: tuple[str, ...] = ()
        self.rejoin_wanted = True  # the next poll must join
        self.lost = False  # the membership of `metadata` has ended: its partitions may belong to another member
        self.membership_number = 0  # increases when `metadata` changes to another membership
        self.assignment: list[TopicPartition] = []  # the partitions that are read
        self.joined: list[TopicPartition] | None = None  # the result of the last rebalance, until it is applied
        # The member of OffsetCommit and `send_offsets`. It stays that of the last assignment when that is lost: its records may
        # still be at the caller, and a commit without a member would not be fenced.
        self.metadata = ConsumerGroupMetadata(group_id, -1, "", group_instance_id)
        self.group_topics: tuple[str, ...] = ()  # on the leader: all topics that any member subscribes to
        self._ownership = Ownership((), -1)  # the last assignment, for sticky assignors; kept when it is revoked
        self._protocol = ""
        self._members: list[MemberSubscription] = []
        self._leads = False
        self._skip_assignment = False
        self._next_heartbeat_ms = 0
        self._answered_ms = 0
        self._polled_ms = 0

    @property
    def leads(self) -> bool:
        return self._leads

    # -- joining -------------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        wanted = tuple(sorted(set(topics)))
        if wanted != self.topics:
            self.topics = wanted
            self.rejoin_wanted = True

    def on_poll(self, now_ms: int) -> None:
        """The consumer's caller has polled (KIP-62)."""
        self._polled_ms = now_ms

    def join_request(self) -> JoinGroupRequest:
        self._transition(ClassicMemberState.JOINING)
        self.rejoin_wanted = False
        self.joined = None
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=self._offer(name)) for name in self.strategies],
        )

    def _offer(self, strategy: str) -> bytes:
        subscription = ConsumerProtocolSubscription(
            topics=list(self.topics),
            user_data=user_data(strategy, self._ownership),
            owned_partitions=_to_wire(self.assignment),
            generation_id=self._ownership.generation_id,
            rack_id=self.rack_id,
        )
        return encode_versioned(subscription, _SUBSCRIPTION_VERSION)

    def on_join(self, response: JoinGroupResponse, now_ms: int) -> Next:
        """Applies JoinGroup. Raises KafkaError if the group rejects this member."""
        code = code_of(response.error_code)
        self._answered_ms = now_ms
        if code is ErrorCode.NONE:
            self.member_id = response.member_id
            self.generation_id = response.generation_id
            self._protocol = response.protocol_name or ""
            self._leads = response.leader == response.member_id and bool(response.members)
            self._skip_assignment = response.skip_assignment
            self._members = [self._member(m.member_id, m.group_instance_id, m.metadata) for m in response.members]
            self.group_topics = tuple(sorted({t for m in self._members for t in m.topics}))
            self._transition(ClassicMemberState.SYNCING)
            return Next.GO_ON
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return Next.AGAIN
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            return self._on_removed(code)
        return self._on_error(code, "JoinGroup")

    def sync_request(self, partition_counts: Mapping[str, int]) -> SyncGroupRequest:
        """Second request of a rebalance; the leader's has all assignments, from `partition_counts` of `group_topics`."""
        assignments = []
        if self._leads and not self._skip_assignment:
            shares = ASSIGNORS[self._protocol](self._members, partition_counts)
            for member_id, partitions in shares.items():
                record = ConsumerProtocolAssignment(assigned_partitions=_to_wire(partitions))
                assignments.append(
                    SyncGroupRequestAssignment(
                        member_id=member_id, assignment=encode_versioned(record, _ASSIGNMENT_VERSION)
                    )
                )
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=assignments,
        )

    def on_sync(self, response: SyncGroupResponse, now_ms: int) -> Next:
        """Applies SyncGroup. After GO_ON a poll must apply `joined`. Raises KafkaError if rejected."""
        code = code_of(response.error_code)
        self._answered_ms = now_ms
        if code is ErrorCode.NONE:
            self.joined = self._assignment(response.assignment)
            self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
            self._transition(ClassicMemberState.STABLE)
            return Next.GO_ON
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return Next.AGAIN
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            return self._on_removed(code)
        return self._on_error(code, "SyncGroup")

    def take_assignment(self) -> Change:
        """Takes over the result of the rebalance, inside a poll. After the change call `on_assignment_applied`."""
        joined = self.joined or []
        self.joined = None
        if self.lost:
            self.lost = False
            self.membership_number += 1
        self.metadata = ConsumerGroupMetadata(self.group_id, self.generation_id, self.member_id, self.group_instance_id)
        self._ownership = Ownership(tuple(joined), self.generation_id)
        wanted, held = frozenset(joined), frozenset(self.assignment)
        return Change([tp for tp in self.assignment if tp not in wanted], [tp for tp in joined if tp not in held])

    def on_assignment_applied(self, change: Change) -> None:
        """After a cooperative revocation the member joins again, so that others get the partitions."""
        self.assignment = [tp for tp in self.assignment if tp not in change.revoked] + change.assigned
        if change.revoked:
            self.rejoin_wanted = True

    # -- staying -------------------------------------------------------------------------------------------------------

    def heartbeat_at(self) -> int | None:
        """Next heartbeat in monotonic ms; None without a membership."""
        return self._next_heartbeat_ms if self.state is ClassicMemberState.STABLE else None

    def overdue_at(self) -> int:
        """When the member must leave unless its caller polls, in monotonic ms."""
        return self._polled_ms + self.rebalance_timeout_ms

    def retry_heartbeat_at(self, at_ms: int) -> None:
        """The last heartbeat reached no coordinator: sends the next one early."""
        self._next_heartbeat_ms = min(self._next_heartbeat_ms, at_ms)

    def heartbeat_request(self, now_ms: int) -> HeartbeatRequest:
        self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
        )

    def is_current(self, generation_id: int) -> bool:
        """Whether this is the present generation; responses of other generations are ignored."""
        return self.state is ClassicMemberState.STABLE and generation_id == self.generation_id

    def on_heartbeat(self, response: HeartbeatResponse, generation_id: int, now_ms: int) -> Next:
        """Applies a heartbeat response of `generation_id`. Raises KafkaError if this member is fenced."""
        if not self.is_current(generation_id):
            return Next.GO_ON  # the response belongs to an earlier membership
        code = code_of(response.error_code)
        if code is ErrorCode.NONE:
            self._answered_ms = now_ms
            return Next.GO_ON
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._answered_ms = now_ms
            self.rejoin_wanted = True
            return Next.GO_ON
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.on_lost(code)
            return Next.GO_ON
        if code in COORDINATOR_MOVED:
            return Next.FIND_COORDINATOR
        if code.retriable:
            return Next.WAIT
        raise error_for(code, f"group {self.group_id!r} refuses this member")

    def session_expired(self, now_ms: int) -> bool:
        """No response within the session timeout: the coordinator must have removed this member."""
        return self.state is ClassicMemberState.STABLE and now_ms - self._answered_ms > self.session_timeout_ms

    def on_lost(self, code: ErrorCode) -> None:
        self._forget(code)
        self.lost = True
        self.rejoin_wanted = True
        self.joined = None
        if self.state is not ClassicMemberState.UNJOINED:
            self._transition(ClassicMemberState.UNJOINED)

    def on_rebalance_failed(self) -> None:
        """A rebalance was interrupted (no response, or the coordinator moved); the next one starts over."""
        self.rejoin_wanted = True
        if self.state in (ClassicMemberState.JOINING, ClassicMemberState.SYNCING):
            self._transition(ClassicMemberState.UNJOINED)

    def leave_request(self, reason: str) -> LeaveGroupRequest | None:
        """Ends the membership. None without a request: never joined, or static, which keeps its place (KIP-345)."""
        member_id, joined = self.member_id, self.state is not ClassicMemberState.LEFT
        if joined:
            self._transition(ClassicMemberState.LEFT)
        self.member_id = ""
        self.generation_id = -1
        self.joined = None
        if not member_id or not joined or self.group_instance_id is not None:
            return None
        return LeaveGroupRequest(
            group_id=self.group_id,
            member_id=member_id,
            members=[MemberIdentity(member_id=member_id, reason=reason)],
        )

    def rejoin(self) -> None:
        """The next poll joins again, after a leave because of a missing poll or a new subscription."""
        self.state = ClassicMemberState.UNJOINED
        self.lost = True
        self.rejoin_wanted = True

    # -- internal --------------------------------------------------------------------------------------------------------

    def _on_error(self, code: ErrorCode, what: str) -> Next:
        if code in COORDINATOR_MOVED:
            return Next.FIND_COORDINATOR
        if code is ErrorCode.REBALANCE_IN_PROGRESS or code.retriable:
            return Next.WAIT
        raise error_for(code, f"{what}: group {self.group_id!r} refuses this member")

    def _on_removed(self, code: ErrorCode) -> Next:
        if self.assignment:
            self.on_lost(code)
            return Next.LOST
        self._forget(code)
        return Next.AGAIN

    def _forget(self, code: ErrorCode) -> None:
        self.generation_id = -1
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _member(self, member_id: str, group_instance_id: str | None, data: bytes) -> MemberSubscription:
        try:
            subscription = decode_versioned(ConsumerProtocolSubscription, _at_version(data, 3))
        except RemoteProtocolError as error:
            raise NotKafka(
                f"member {member_id!r} of group {self.group_id!r} sent an unreadable subscription"
            ) from error
        owned = read_ownership(self._protocol, subscription)
        return MemberSubscription(
            member_id, tuple(subscription.topics), group_instance_id, owned.partitions, owned.generation_id
        )

    def _assignment(self, data: bytes) -> list[TopicPartition]:
        try:
            return list(assigned_partitions(data))
        except RemoteProtocolError as error:
            raise KafkaError(f"the leader of group {self.group_id!r} sent an unreadable assignment") from error

    def _transition(self, state: ClassicMemberState) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a group member cannot become {state.value} from {self.state.value}")
        self.state = state


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """Partitions in a classic assignment; none in empty data, before the first one. Raises RemoteProtocolError."""
    if not data:
        return ()
    record = decode_versioned(ConsumerProtocolAssignment, _at_version(data, ConsumerProtocolAssignment.VERSIONS[1]))
    return tuple(TopicPartition(t.topic, p) for t in record.assigned_partitions for p in t.partitions)


def _to_wire(partitions: Sequence[TopicPartition]) -> list[TopicPartitions]:
    topics: dict[str, TopicPartitions] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, TopicPartitions(topic=topic)).partitions.append(partition)
    return list(topics.values())


def _at_version(data: bytes, highest: int) -> bytes:
    """Marks data of a later version as the highest known one: later versions only append fields."""
    version = int.from_bytes(data[:2], "big", signed=True)
    return data if version <= highest else highest.to_bytes(2, "big") + data[2:]


class Ownership(NamedTuple):
    """Owned partitions and the generation of their assignment; −1 unknown or without one."""

    partitions: tuple[TopicPartition, ...]
    generation_id: int


def user_data(strategy: str, owned: Ownership) -> bytes | None:
    if strategy == _COOPERATIVE:
        return encode(CooperativeStickyUserData(generation_id=owned.generation_id), 0)
    if strategy != _EAGER or not owned.partitions:
        return None
    data = StickyUserData(previous_assignment=_to_wire(owned.partitions), generation_id=owned.generation_id)
    return encode(data, StickyUserData.VERSIONS[1])


def read_ownership(strategy: str, subscription: ConsumerProtocolSubscription) -> Ownership:
    if strategy == _EAGER:
        return _read_sticky(subscription.user_data)
    generation_id = subscription.generation_id
    if strategy == _COOPERATIVE and generation_id < 0 and subscription.user_data:
        generation_id = _read_generation(subscription.user_data)
    return Ownership(_partitions(subscription.owned_partitions), generation_id)


def _read_sticky(data: bytes | None) -> Ownership:
    for version in (1, 0):
        try:
            found = decode(StickyUserData, data or b"", version)
        except RemoteProtocolError:
            continue
        return Ownership(_partitions(found.previous_assignment), found.generation_id)
    return Ownership((), -1)


def _read_generation(data: bytes) -> int:
    """The generation in user data, if the subscription has none. librdkafka writes it in the format of "sticky"."""
    if len(data) > 4:
        return _read_sticky(data).generation_id
    try:
        return decode(CooperativeStickyUserData, data, 0).generation_id
    except RemoteProtocolError:
        return -1


def _partitions(topics: list[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, number) for each in topics for number in each.partitions)
