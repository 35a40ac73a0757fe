"""Group conversion between the classic and the consumer protocol (`group.consumer.migration.policy`, KIP-848, Kafka 4.3.1)."""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from barnabas.broker.coordinator.groups.classic.records import group_record
from barnabas.broker.coordinator.groups.classic.state import GroupMember
from barnabas.broker.coordinator.groups.consumer.embedded import assignment_bytes, read_assignment, read_subscription
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import (
    ClassicMemberMetadata,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    PartitionEpochs,
)
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.groups.records import ConsumerRecord, GroupEpoch, GroupRecord, Kind, TargetEpoch
from barnabas.broker.coordinator.groups.settings import ConsumerSettings
from barnabas.broker.coordinator.groups.topics import Topics, metadata_hash
from barnabas.errors import BrokerError, ErrorCode


def check_upgrade(group: ClassicGroup, settings: ConsumerSettings) -> None:
    """For a consumer protocol member that joins a classic group with members. Raises BrokerError(GROUP_ID_NOT_FOUND) with the reason."""
    why = None
    if not settings.upgrades:
        why = "the online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.size_max:
        why = "the group size exceeds the consumer group maximum size"
    if why is not None:
        raise BrokerError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because {why}.",
        )


def upgraded(group: ClassicGroup, topics: Topics) -> list[ConsumerRecord]:
    """Records of the consumer group that a classic group becomes; its epoch is the generation.

    Every member has its assignment of that generation, continues with the classic protocol and learns from the next answer that it must
    rebalance. Raises BrokerError(GROUP_ID_NOT_FOUND) for a malformed subscription or assignment.
    """
    try:
        members = _members(group, topics)
    except BrokerError as error:
        raise BrokerError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade the classic group {group.group_id} to consumer group because the embedded consumer "
            f"protocol is malformed: {error.message}.",
        ) from None
    names = {name for member in members for name in member.metadata.topic_names}
    group_id = group.group_id
    epoch = GroupEpoch(group.generation, metadata_hash(names, topics))
    targets = {m.member_id: {t: tuple(held) for t, held in m.assignment.assigned.items()} for m in members}
    return [
        *(ConsumerRecord(group_id, Kind.MEMBER_METADATA, member.member_id, member.metadata) for member in members),
        ConsumerRecord(group_id, Kind.GROUP_EPOCH, "", epoch),
        *(ConsumerRecord(group_id, Kind.TARGET_ASSIGNMENT, member_id, target) for member_id, target in targets.items()),
        ConsumerRecord(group_id, Kind.TARGET_ASSIGNMENT_EPOCH, "", TargetEpoch(group.generation)),
        *(ConsumerRecord(group_id, Kind.CURRENT_ASSIGNMENT, member.member_id, member.assignment) for member in members),
    ]


def _members(group: ClassicGroup, topics: Topics) -> list[ConsumerMember]:
    taken: set[tuple[bytes, int]] = set()
    members = []
    for member in group.members.values():
        subscription = read_subscription(member.metadata(group.protocol_name) or member.protocols[0][1])
        assigned: PartitionEpochs = {}
        for topic_id, numbers in read_assignment(member.assignment, topics).items():
            # A leader may have assigned a partition to two members; here one member holds it.
            free = {number: group.generation for number in numbers if (topic_id, number) not in taken}
            taken.update((topic_id, number) for number in free)
            if free:
                assigned[topic_id] = free
        metadata = MemberMetadata(
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topic_names=tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMemberMetadata(member.session_timeout_ms, tuple(member.protocols)),
        )
        assignment = CurrentAssignment(group.generation, group.generation, MemberState.STABLE, assigned, {})
        members.append(ConsumerMember(member.member_id, metadata, assignment))
    return members


def rest_to_downgrade(
    group: ConsumerGroup, gone: list[ConsumerMember], settings: ConsumerSettings, classic_size_max: int
) -> list[ConsumerMember]:
    """The remaining members if the last consumer protocol members leave (`gone`) and the group becomes a classic group, else none."""
    gone_ids = {member.member_id for member in gone}
    if not settings.downgrades or all(member.is_classic for member in gone):
        return []
    if any(not member.is_classic for member in group.members.values() if member.member_id not in gone_ids):
        return []
    rest = [member for member in group.members.values() if member.member_id not in gone_ids]
    return rest if len(rest) <= classic_size_max else []


def downgraded(
    group: ConsumerGroup, members: list[ConsumerMember], topics: Topics, at: At
) -> list[ConsumerRecord | GroupRecord]:
    """Tombstones of a consumer group, and the record of the classic group: the group epoch as generation, the target assignments."""
    classic = ClassicGroup(group.group_id, state_timestamp_ms=at.now_ms)
    for member in members:
        subscription = member.classic.protocols[0][1]
        classic.add(
            GroupMember(
                member.member_id,
                member.metadata.instance_id,
                client_id=member.metadata.client_id,
                client_host=member.metadata.client_host,
                rebalance_timeout_ms=member.metadata.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocols=list(member.classic.protocols),
                assignment=assignment_bytes(group.target.get(member.member_id, {}), subscription, topics),
            ),
            CONSUMER_PROTOCOL_TYPE,
            None,
        )
    classic.generation = group.epoch.epoch
    classic.protocol_name = classic.select_protocol()
    return [*group.tombstones(), group_record(classic)]
