"""Classic protocol of consumer group members (KIP-848, "Supporting Online Consumer Group Upgrade"; Kafka 4.3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from barnabas.broker.coordinator.groups.consumer.embedded import assignment_bytes, owned_by_name, read_subscription
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import (
    ClassicMemberMetadata,
    ConsumerMember,
    MemberMetadata,
    MemberState,
    pairs,
)
from barnabas.broker.coordinator.groups.consumer.protocol import ConsumerProtocol, Context
from barnabas.broker.coordinator.groups.effects import At, JoinCall
from barnabas.broker.coordinator.groups.records import ConsumerRecord
from barnabas.broker.coordinator.groups.topics import Topics
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.groups import (
    ConsumerProtocolSubscription,
    JoinGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

MEMBER_ID_REQUIRED_VERSION = 4  # of JoinGroup: from it on, a new member joins again with the returned id

_Protocols = tuple[tuple[str, bytes], ...]


class ClassicMembers:
    """The classic protocol for members of the consumer groups of one shard.

    The generation is the member epoch; there is no leader, because the coordinator assigns. Heartbeat answers REBALANCE_IN_PROGRESS if the
    group epoch is above the member's or the member must revoke partitions. JoinGroup (its subscription names the owned partitions) is the
    next step towards the target assignment, and SyncGroup answers the current assignment.
    """

    def __init__(self, protocol: ConsumerProtocol) -> None:
        self._protocol = protocol

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(
        self, group: ConsumerGroup, call: JoinCall, context: Context, records: list[ConsumerRecord]
    ) -> tuple[JoinGroupResponse, ConsumerMember | None]:
        """Returns the response, and the member after the decision; None if the client must join again with its member id.

        `records` gets the records of the decision. Raises BrokerError(GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL,
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID).
        """
        request = call.request
        protocols = tuple({each.name: each.metadata for each in request.protocols}.items())
        member_id = request.member_id or call.fresh_id
        self._protocol.check_size(group, member_id, context.settings)
        if not _supports(group, request.protocol_type, [name for name, _ in protocols]):
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        instance_id = request.group_instance_id
        if not request.member_id and instance_id is None and call.version >= MEMBER_ID_REQUIRED_VERSION:
            code = ErrorCode.MEMBER_ID_REQUIRED
            return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None), None
        if request.member_id and instance_id is not None:
            member = group.static_member(member_id, instance_id)
        else:
            group, member = self._protocol.joining_member(group, member_id, instance_id, records, classic=True)
        subscription = read_subscription(protocols[0][1])
        metadata = _updated_metadata(member.metadata, call, subscription, protocols)
        owned = owned_by_name(subscription.owned_partitions, context.topics)
        updated = self._protocol.update_member(group, member, metadata, context, records, owned=owned)
        self._await_sync(group, member_id, metadata, call, context.at)
        response = JoinGroupResponse(
            generation_id=updated.assignment.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
            leader="",
            member_id=member_id,
        )
        return response, updated

    def _await_sync(
        self, group: ConsumerGroup, member_id: str, metadata: MemberMetadata, call: JoinCall, at: At
    ) -> None:
        deadlines = self._protocol.deadlines
        deadlines.cancel(("join", group.group_id, member_id))
        deadlines.set(("session", group.group_id, member_id), at.monotonic_ms + call.request.session_timeout_ms)
        deadlines.set(("sync", group.group_id, member_id), at.monotonic_ms + metadata.rebalance_timeout_ms)

    # -- SyncGroup and Heartbeat ---------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, topics: Topics, at: At) -> SyncGroupResponse:
        """Raises as `ClassicProtocol.sync`."""
        member = self._member(group, request.member_id, request.group_instance_id, request.generation_id)
        name, subscription = member.classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        assignment = member.assignment
        if group.epoch.epoch > assignment.member_epoch and assignment.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member, at)
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._protocol.deadlines.cancel(("sync", group.group_id, member.member_id))
        self._extend_session(group, member, at)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_bytes(assignment.assigned, subscription, topics),
        )

    def heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        """As `ClassicProtocol.heartbeat`."""
        member = self._member(group, member_id, instance_id, generation)
        self._extend_session(group, member, at)
        assignment = member.assignment
        if (
            assignment.member_epoch < group.epoch.epoch
            or assignment.state is MemberState.UNREVOKED_PARTITIONS
            or (assignment.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
        ):
            self._await_join(group, member, at)
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
        member = group.validate(member_id, instance_id)
        if member.classic and generation != member.assignment.member_epoch:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _extend_session(self, group: ConsumerGroup, member: ConsumerMember, at: At) -> None:
        key = ("session", group.group_id, member.member_id)
        self._protocol.deadlines.set(key, at.monotonic_ms + member.classic.session_timeout_ms)

    def _await_join(self, group: ConsumerGroup, member: ConsumerMember, at: At) -> None:
        """Sets the join deadline, unless it is set already: one rebalance timeout from now."""
        key = ("join", group.group_id, member.member_id)
        if key not in self._protocol.deadlines:
            self._protocol.deadlines.set(key, at.monotonic_ms + member.metadata.rebalance_timeout_ms)

    # -- LeaveGroup ----------------------------------------------------------------------------------------------------

    def members_to_remove(
        self, group: ConsumerGroup, identities: Sequence[MemberIdentity]
    ) -> tuple[list[MemberResponse], tuple[str, ...]]:
        """A response for each identity, and the ids of the members of both protocols to remove."""
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
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
        return False
    others = [{name for name, _ in member.classic.protocols} for member in group.classic_members()]
    return any(all(name in supported for supported in others) for name in names)


def _updated_metadata(
    metadata: MemberMetadata, call: JoinCall, subscription: ConsumerProtocolSubscription, protocols: _Protocols
) -> MemberMetadata:
    instance_id = call.request.group_instance_id
    return metadata._replace(
        instance_id=metadata.instance_id if instance_id is None else instance_id,
        rack_id=metadata.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=call.client_id,
        client_host=call.client_host,
        topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=call.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(call.request.session_timeout_ms, protocols),
    )


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member still holds a partition of the member's target assignment."""
    taken = group.is_taken(member.member_id)
    return any(
        taken(topic_id, number)
        for topic_id, number in pairs(group.target.get(member.member_id, {}))
        if number not in member.assignment.assigned.get(topic_id, ())
    )
