"""From the classic protocol to that of KIP-848 and back, while members are there (`group.consumer.migration.policy`).

Driven by: `GroupShard`: the first member of the consumer protocol joins a classic group of consumers; the last one leaves, is put
out, or is replaced by a static member of the classic protocol.
Emits: the records that end the one group and make the other.

A classic group becomes one in which everyone has what the last generation gave them, in an epoch of that number; its members go
on with their requests and are told to rebalance. The way back makes a generation of the group epoch's number, in which everyone
has its target: they rebalance at once.

Follows KIP-848, after Kafka 4.3.1.
"""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupMember
from barnabas.broker.coordinator.groups.consumer.classic_members import (
    assignment_bytes,
    read_assignment,
    read_subscription,
)
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, Topics, metadata_hash
from barnabas.broker.coordinator.groups.consumer.member import (
    ClassicProfile,
    ConsumerMember,
    Epochs,
    MemberState,
    Profile,
    Standing,
)
from barnabas.broker.coordinator.groups.consumer.protocol import ConsumerSettings
from barnabas.broker.coordinator.groups.consumer.records import ConsumerRecord, GroupEpoch, Kind, TargetEpoch
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.groups.records import GroupRecord, group_record
from barnabas.errors import BrokerError, ErrorCode

__all__ = ["check_upgrade", "downgraded", "may_downgrade", "upgraded"]


def check_upgrade(group: ClassicGroup, settings: ConsumerSettings) -> None:
    """Whether a member of the consumer protocol may join the classic group.

    Raises:
        BrokerError: GROUP_ID_NOT_FOUND, and why.
    """
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
    """The consumer group that the classic one becomes.

    Raises:
        BrokerError: GROUP_ID_NOT_FOUND: a member's subscription or assignment cannot be read.
    """
    try:
        members = _members(group, topics)
    except BrokerError as error:
        raise BrokerError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade the classic group {group.group_id} to consumer group because the embedded consumer protocol "
            f"is malformed: {error.message}.",
        ) from None
    names = {name for member in members for name in member.profile.topic_names}
    group_id = group.group_id
    epoch = GroupEpoch(group.generation, metadata_hash(names, topics))
    targets = {m.member_id: {t: tuple(held) for t, held in m.standing.assigned.items()} for m in members}
    return [
        *(ConsumerRecord(group_id, Kind.PROFILE, member.member_id, member.profile) for member in members),
        ConsumerRecord(group_id, Kind.EPOCH, "", epoch),
        *(ConsumerRecord(group_id, Kind.TARGET, member_id, target) for member_id, target in targets.items()),
        ConsumerRecord(group_id, Kind.TARGET_EPOCH, "", TargetEpoch(group.generation)),
        *(ConsumerRecord(group_id, Kind.STANDING, member.member_id, member.standing) for member in members),
    ]


def _members(group: ClassicGroup, topics: Topics) -> list[ConsumerMember]:
    taken: set[tuple[bytes, int]] = set()
    members = []
    for member in group.members.values():
        metadata = member.metadata(group.protocol_name) or member.protocols[0][1]
        subscription = read_subscription(metadata)
        assigned: Epochs = {}
        for topic_id, numbers in read_assignment(member.assignment, topics).items():
            # A leader may have given a partition twice; here it has one holder.
            free = {number: group.generation for number in numbers if (topic_id, number) not in taken}
            taken.update((topic_id, number) for number in free)
            if free:
                assigned[topic_id] = free
        profile = Profile(
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topic_names=tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicProfile(member.session_timeout_ms, tuple(member.protocols)),
        )
        standing = Standing(group.generation, group.generation, MemberState.STABLE, assigned, {})
        members.append(ConsumerMember(member.member_id, profile, standing))
    return members


def may_downgrade(
    gone: list[ConsumerMember], rest: list[ConsumerMember], settings: ConsumerSettings, classic_size_max: int
) -> bool:
    """Whether the last members of the consumer protocol have gone and members of the classic one are left."""
    return (
        settings.downgrades
        and 0 < len(rest) <= classic_size_max
        and all(member.is_classic for member in rest)
        and any(not member.is_classic for member in gone)
    )


def downgraded(
    group: ConsumerGroup, members: list[ConsumerMember], topics: Topics, at: At
) -> list[ConsumerRecord | GroupRecord]:
    """The end of the consumer group, and the classic one that it becomes: of these members, who all speak its protocol."""
    classic = ClassicGroup(group.group_id, state_timestamp_ms=at.now_ms)
    for member in members:
        metadata = member.classic.protocols[0][1]
        classic.add(
            GroupMember(
                member.member_id,
                member.profile.instance_id,
                client_id=member.profile.client_id,
                client_host=member.profile.client_host,
                rebalance_timeout_ms=member.profile.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocols=list(member.classic.protocols),
                assignment=assignment_bytes(group.target.get(member.member_id, {}), metadata, topics),
            ),
            CONSUMER_PROTOCOL_TYPE,
            None,
        )
    classic.generation = group.epoch.epoch
    classic.protocol_name = classic.select_protocol()
    return [*group.tombstones(), group_record(classic)]
