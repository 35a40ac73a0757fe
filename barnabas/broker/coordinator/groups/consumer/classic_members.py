"""Members of the classic protocol in a consumer group: their requests, answered from the group as the coordinator assigns it.

Driven by: `GroupShard`, with JoinGroup, SyncGroup, Heartbeat and LeaveGroup for a group that is of KIP-848.
Emits: answers at once, nothing is parked; ConsumerRecords.

For such a member a rebalance looks as ever: Heartbeat says REBALANCE_IN_PROGRESS when the group epoch has moved on or partitions
must go, JoinGroup is its next step (what it still owns stands in its subscription), SyncGroup gives it what it has by then.
Nobody leads, for nobody assigns but the coordinator. Its generation is its member epoch.

Follows KIP-848 ("supporting online consumer group upgrade"), after Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, Topics
from barnabas.broker.coordinator.groups.consumer.member import (
    ClassicProfile,
    ConsumerMember,
    Epochs,
    MemberState,
    Owned,
    pairs,
)
from barnabas.broker.coordinator.groups.consumer.protocol import ConsumerProtocol, ConsumerSettings
from barnabas.broker.coordinator.groups.consumer.records import ConsumerRecord
from barnabas.broker.coordinator.groups.effects import At, JoinCall, rebalance_timeout_ms
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    JoinGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicPartition,
)
from barnabas.protocol.schema import decode_versioned, encode_versioned

__all__ = ["ClassicMembers", "assignment_bytes", "read_assignment", "read_subscription"]

PROTOCOL_VERSION_MAX = 3  # of the consumer protocol; what is newer is read as this, as Kafka does
UUID_TEXT_VERSION = 4  # from this version of JoinGroup on, a new member comes back with the id it is given


def _known_version(data: bytes) -> bytes:
    version = int.from_bytes(data[:2], "big", signed=True)
    return data if version <= PROTOCOL_VERSION_MAX else PROTOCOL_VERSION_MAX.to_bytes(2, "big") + data[2:]


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """What a consumer wants.

    Raises:
        BrokerError: INCONSISTENT_GROUP_PROTOCOL: it cannot be read.
    """
    try:
        return decode_versioned(ConsumerProtocolSubscription, _known_version(metadata))
    except RemoteProtocolError as error:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a subscription cannot be read: {error}") from None


def read_assignment(data: bytes, topics: Topics) -> Partitions:
    """What a consumer was given, of topics that still exist. Raises as `read_subscription`."""
    if not data:
        return {}
    try:
        read = decode_versioned(ConsumerProtocolAssignment, _known_version(data))
    except RemoteProtocolError as error:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"an assignment cannot be read: {error}") from None
    return {
        topic_id: tuple(sorted(set(each.partitions)))
        for each in read.assigned_partitions
        if each.partitions and (topic_id := topics.topic_id(each.topic)) is not None
    }


def assignment_bytes(assigned: Epochs | Partitions, metadata: bytes, topics: Topics) -> bytes:
    """What a member has, as its client reads it: in the version of its subscription."""
    version = min(max(int.from_bytes(metadata[:2], "big", signed=True), 0), PROTOCOL_VERSION_MAX)
    value = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=list(numbers))
            for topic_id, numbers in assigned.items()
            if (name := topics.topic_name(topic_id)) is not None
        ]
    )
    return encode_versioned(value, version)


class ClassicMembers:
    """The classic protocol over the consumer groups of one shard."""

    def __init__(self, protocol: ConsumerProtocol) -> None:
        self._protocol = protocol

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        call: JoinCall,
        topics: Topics,
        settings: ConsumerSettings,
        at: At,
        records: list[ConsumerRecord],
    ) -> tuple[JoinGroupResponse, ConsumerMember | None]:
        """The answer, and the member as it is then; None where it must come back with its member id.

        Raises:
            BrokerError: a refusal.
        """
        request = call.request
        protocols = tuple({each.name: each.metadata for each in request.protocols}.items())
        member_id = request.member_id or call.fresh_id
        self._protocol.check_room(group, member_id, settings)
        if not _supports(group, request.protocol_type, [name for name, _ in protocols]):
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        instance_id = request.group_instance_id
        if not request.member_id and instance_id is None and call.version >= UUID_TEXT_VERSION:
            code = ErrorCode.MEMBER_ID_REQUIRED
            return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None), None
        if request.member_id and instance_id is not None:
            member = group.static_member(member_id, instance_id)
        else:
            group, member = self._protocol.joining(group, member_id, instance_id, records, classic=True)
        subscription = read_subscription(protocols[0][1])
        profile = member.profile._replace(
            instance_id=member.profile.instance_id if instance_id is None else instance_id,
            rack_id=member.profile.rack_id if subscription.rack_id is None else subscription.rack_id,
            client_id=call.client_id,
            client_host=call.client_host,
            topic_names=tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            classic=ClassicProfile(request.session_timeout_ms, protocols),
        )
        owned = _owned(subscription.owned_partitions, topics)
        updated = self._protocol.advance(group, member, profile, topics, settings, at, records, owned=owned)
        deadlines = self._protocol.deadlines
        deadlines.cancel(("join", group.group_id, member_id))
        deadlines.set(("session", group.group_id, member_id), at.monotonic_ms + request.session_timeout_ms)
        deadlines.set(("sync", group.group_id, member_id), at.monotonic_ms + profile.rebalance_timeout_ms)
        response = JoinGroupResponse(
            generation_id=updated.standing.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
            leader="",
            member_id=member_id,
        )
        return response, updated

    # -- SyncGroup and Heartbeat ---------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, topics: Topics, at: At) -> SyncGroupResponse:
        """The member's assignment.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
                REBALANCE_IN_PROGRESS.
        """
        member = self._member(group, request.member_id, request.group_instance_id, request.generation_id)
        name, metadata = member.classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        standing = member.standing
        if group.epoch.epoch > standing.epoch and standing.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member, at)
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._protocol.deadlines.cancel(("sync", group.group_id, member.member_id))
        self._keep_session(group, member, at)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_bytes(standing.assigned, metadata, topics),
        )

    def heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, at: At
    ) -> ErrorCode:
        """NONE or REBALANCE_IN_PROGRESS; raises BrokerError with the codes of `sync` that fit."""
        member = self._member(group, member_id, instance_id, generation)
        self._keep_session(group, member, at)
        standing = member.standing
        if (
            standing.epoch < group.epoch.epoch
            or standing.state is MemberState.UNREVOKED_PARTITIONS
            or (standing.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
        ):
            self._expect_join(group, member, at)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
        member = group.validate(member_id, instance_id)
        if member.classic and generation != member.standing.epoch:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _keep_session(self, group: ConsumerGroup, member: ConsumerMember, at: At) -> None:
        key = ("session", group.group_id, member.member_id)
        self._protocol.deadlines.set(key, at.monotonic_ms + member.classic.session_timeout_ms)

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember, at: At) -> None:
        """It was told to join again, and has its rebalance timeout for that from the first time on."""
        key = ("join", group.group_id, member.member_id)
        if key not in self._protocol.deadlines:
            self._protocol.deadlines.set(key, at.monotonic_ms + member.profile.rebalance_timeout_ms)

    # -- LeaveGroup ----------------------------------------------------------------------------------------------------

    def leavers(
        self, group: ConsumerGroup, identities: Sequence[MemberIdentity]
    ) -> tuple[list[MemberResponse], tuple[str, ...]]:
        """Answer for each, and who is out: members of both protocols, so that an operator may remove anyone."""
        responses: list[MemberResponse] = []
        gone: dict[str, None] = {}
        for identity in identities:
            code = ErrorCode.NONE
            member_id, instance_id = identity.member_id, identity.group_instance_id
            try:
                if not member_id and instance_id is not None:
                    member_id = group.static_members.get(instance_id, "")
                gone[group.validate(member_id, instance_id).member_id] = None
            except BrokerError as error:
                code = error.code
            responses.append(
                MemberResponse(member_id=identity.member_id, group_instance_id=instance_id, error_code=code)
            )
        return responses, tuple(gone)


def _supports(group: ConsumerGroup, protocol_type: str, names: list[str]) -> bool:
    """Whether a member fits in: a consumer, with a protocol that all members of the classic protocol support."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
        return False
    others = [{name for name, _ in member.classic.protocols} for member in group.classic_members()]
    return any(all(name in supported for supported in others) for name in names)


def _owned(partitions: Sequence[TopicPartition], topics: Topics) -> Owned:
    named = ((topics.topic_id(each.topic), each.partitions) for each in partitions)
    return frozenset((topic_id, n) for topic_id, numbers in named if topic_id is not None for n in numbers)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether a partition of its target is still held by someone else."""
    taken = group.is_taken(member.member_id)
    return any(
        taken(topic_id, number)
        for topic_id, number in pairs(group.target.get(member.member_id, {}))
        if number not in member.standing.assigned.get(topic_id, ())
    )
