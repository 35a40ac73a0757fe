"""Consumer group protocol: decides heartbeats, leaves and deadlines of a group; its records change the group when applied.
KIP-848, KIP-1101 (metadata hash), KIP-1263 (assignment interval), Kafka 4.3.1.
"""

from __future__ import annotations

from typing import NamedTuple

from barnabas.broker.coordinator.groups.consumer.assignors import ASSIGNORS, Partitions, SubscribedMember
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.heartbeat_request import is_full, owned_partitions, updated_metadata
from barnabas.broker.coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOT_JOINED,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    Owned,
    PartitionEpochs,
    TopicSubscription,
    reconcile,
)
from barnabas.broker.coordinator.groups.effects import At, DeadlineKey, HeartbeatCall
from barnabas.broker.coordinator.groups.records import ConsumerRecord, GroupEpoch, Kind, ResolvedRegex, TargetEpoch
from barnabas.broker.coordinator.groups.settings import ConsumerSettings
from barnabas.broker.coordinator.groups.topics import Topics, existing_names, metadata_hash
from barnabas.broker.coordinator.host.deadlines import Deadlines
from barnabas.broker.patterns import compile_pattern
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    TopicIdPartitions,
)


class Context(NamedTuple):
    """Input of a decision besides the group and the request."""

    topics: Topics
    settings: ConsumerSettings
    at: At


class ConsumerProtocol:
    """The consumer protocol for the groups of one shard. Every member proceeds by its own heartbeats, without a barrier.

    Invariants: one member at a time holds a partition, assigned or not revoked yet; every member has a session deadline (a static member
    that has left keeps its last one); a member that must revoke partitions has a rebalance deadline.
    """

    def __init__(self, deadlines: Deadlines[DeadlineKey]) -> None:
        self.deadlines = deadlines

    # -- ConsumerGroupHeartbeat ----------------------------------------------------------------------------------------

    def heartbeat(
        self,
        group: ConsumerGroup,
        call: HeartbeatCall,
        context: Context,
        records: list[ConsumerRecord],
    ) -> ConsumerGroupHeartbeatResponse:
        """Decides a heartbeat of a member or a joining client; `group` may be new. `records` gets the records.

        Raises BrokerError(GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, FENCED_MEMBER_EPOCH,
        INVALID_REGULAR_EXPRESSION), with a message for the client.
        """
        request, settings = call.request, context.settings
        member_id = request.member_id or call.fresh_id
        self.check_size(group, member_id, settings)
        owned = owned_partitions(request.topic_partitions)
        if request.member_epoch == JOIN_EPOCH:
            group, member = self.joining_member(group, member_id, request.instance_id, records, classic=False)
        else:
            member = group.validate(member_id, request.instance_id)
            _check_epoch(member.assignment, request.member_epoch, owned)
        metadata = updated_metadata(member.metadata, call)
        updated = self.update_member(group, member, metadata, context, records, owned=owned)
        self._set("session", group, member_id, context.at, settings.session_timeout_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.assignment.member_epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
        )
        if is_full(request) or updated.assignment.assigned != member.assignment.assigned:
            response.assignment = _assignment(updated.assignment.assigned)
        return response

    def check_size(self, group: ConsumerGroup, member_id: str, settings: ConsumerSettings) -> None:
        """Raises BrokerError(GROUP_MAX_SIZE_REACHED) if the group is full and has no such member."""
        if len(group.members) >= settings.size_max and member_id not in group.members:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {settings.size_max} members.",
            )

    def joining_member(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        records: list[ConsumerRecord],
        *,
        classic: bool,
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        """Returns the group and the joining member.

        A client with the instance id of a static member replaces that member: it gets its metadata, target and current assignment under the
        new member id, and the returned group is a copy with these `records` applied. `classic`: whether the client uses the classic
        protocol. Raises BrokerError(UNRELEASED_INSTANCE_ID) if the static member has not left.
        """
        new = group.members.get(member_id, ConsumerMember(member_id, MemberMetadata(), NOT_JOINED))
        former_id = None if instance_id is None else group.static_members.get(instance_id)
        if former_id is None:
            return group, new
        former = group.members[former_id]
        if not classic and not former.is_classic and former.assignment.member_epoch != LEAVE_STATIC_EPOCH:
            raise BrokerError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {former_id} member.",
            )
        assignment = former.assignment._replace(member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
        replacement = [
            *_tombstones(group, former_id),
            ConsumerRecord(group.group_id, Kind.MEMBER_METADATA, member_id, former.metadata),
            ConsumerRecord(group.group_id, Kind.TARGET_ASSIGNMENT, member_id, group.target.get(former_id, {})),
            ConsumerRecord(group.group_id, Kind.CURRENT_ASSIGNMENT, member_id, assignment),
        ]
        records += replacement
        replaced = group.copy()
        for record in replacement:
            replaced.apply(record)
        return replaced, replaced.members[member_id]

    def update_member(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        metadata: MemberMetadata,
        context: Context,
        records: list[ConsumerRecord],
        *,
        owned: Owned | None,
    ) -> ConsumerMember:
        """Stores the metadata of a member and returns it after its next step towards its target assignment.

        `owned` are the partitions that the member reports, None if its request does not say. `records` gets the changes. Raises
        BrokerError(INVALID_REGULAR_EXPRESSION, FENCED_MEMBER_EPOCH).
        """
        updated = member._replace(metadata=metadata)
        if updated != group.members.get(member.member_id):
            records.append(ConsumerRecord(group.group_id, Kind.MEMBER_METADATA, member.member_id, metadata))
        changed = metadata.topic_names != member.metadata.topic_names
        bump = changed
        if metadata.topic_regex != member.metadata.topic_regex:
            changed = True
            bump = self._change_regex(group, member.metadata.topic_regex, metadata.topic_regex, records) or bump
        epoch = self._next_epoch(group, updated, context.topics, records, bump=bump)
        target_epoch, target = self._target(group, updated, epoch, context, records)
        subscribed = _topic_ids(group, metadata, context.topics)
        assignment = reconcile(
            member.assignment,
            target_epoch,
            target,
            owned=owned,
            is_taken=group.is_taken(member.member_id),
            subscribed=subscribed,
            subscription_changed=changed,
        )
        if assignment != member.assignment or member.member_id not in group.members:
            records.append(ConsumerRecord(group.group_id, Kind.CURRENT_ASSIGNMENT, member.member_id, assignment))
            self._set_rebalance_deadline(group, updated, assignment, context.at)
        return updated._replace(assignment=assignment)

    def _change_regex(self, group: ConsumerGroup, old: str, new: str, records: list[ConsumerRecord]) -> bool:
        """Returns whether the group epoch is incremented now; an expression new to the group increments it when it is resolved."""
        if old and group.regex_subscribers.get(old) == 1 and old in group.regexes:
            records.append(ConsumerRecord(group.group_id, Kind.REGEX, old, None))
        if not new:
            return True
        if new not in group.regex_subscribers:
            try:
                compile_pattern(new)
            except BrokerError as error:
                raise BrokerError(
                    error.code, f"SubscribedTopicRegex `{new}` is not a valid regular expression: {error.message}."
                ) from None
        return new in group.regexes

    def _next_epoch(
        self,
        group: ConsumerGroup,
        updated: ConsumerMember | None,
        topics: Topics,
        records: list[ConsumerRecord],
        *,
        bump: bool,
        without: tuple[str, ...] = (),
    ) -> int:
        found = group.epoch.metadata_hash
        if bump or group.hashed_in is not topics.topics_by_name:
            found = metadata_hash(group.topic_names(updated, without), topics)
            bump = bump or found != group.epoch.metadata_hash
            if not bump:
                group.hashed_in = topics.topics_by_name
        following = GroupEpoch(group.epoch.epoch + bump, found)
        if following != group.epoch:
            records.append(ConsumerRecord(group.group_id, Kind.GROUP_EPOCH, "", following))
        return following.epoch

    # -- the target ----------------------------------------------------------------------------------------------------

    def _target(
        self,
        group: ConsumerGroup,
        updated: ConsumerMember,
        epoch: int,
        context: Context,
        records: list[ConsumerRecord],
    ) -> tuple[int, Partitions]:
        """Epoch and target of the member; a new target if the group epoch is above the target's and the assignment interval is over."""
        topics, settings, now_ms = context.topics, context.settings, context.at.now_ms
        made_at = group.target_epoch
        waits = made_at.timestamp_ms > 0 and 0 <= now_ms - made_at.timestamp_ms < settings.assignment_interval_ms
        if epoch <= made_at.epoch or waits:
            return made_at.epoch, group.target.get(updated.member_id, {})
        members = {**group.members, updated.member_id: updated}
        subscribers = _subscribers(group, members, topics)
        assign = ASSIGNORS[self.assignor(group, settings, updated)]
        targets = assign(subscribers, _partition_counts(subscribers, topics))
        for member_id, target in targets.items():
            if group.target.get(member_id) != target:
                records.append(ConsumerRecord(group.group_id, Kind.TARGET_ASSIGNMENT, member_id, target))
        records.append(ConsumerRecord(group.group_id, Kind.TARGET_ASSIGNMENT_EPOCH, "", TargetEpoch(epoch, now_ms)))
        return epoch, targets[updated.member_id]

    def assignor(self, group: ConsumerGroup, settings: ConsumerSettings, updated: ConsumerMember | None = None) -> str:
        """The assignor that most members ask for; the first configured one if no member asks for one."""
        votes = dict(group.votes)
        if updated is not None:
            for member, step in ((group.members.get(updated.member_id), -1), (updated, +1)):
                if member is not None and member.metadata.server_assignor is not None:
                    name = member.metadata.server_assignor
                    votes[name] = votes.get(name, 0) + step
        return max(settings.assignors, key=lambda name: votes.get(name, 0))

    # -- regular expressions -------------------------------------------------------------------------------------------

    def store_resolved(
        self, group: ConsumerGroup, found: dict[str, ResolvedRegex], topics: Topics, records: list[ConsumerRecord]
    ) -> None:
        """Stores the topics that expressions match; increments the group epoch if they changed."""
        after = group.copy()
        bump = False
        for regex, resolved in found.items():
            if regex not in group.regex_subscribers:
                continue
            former = group.regexes.get(regex)
            if former is not None and former.topics == resolved.topics:
                continue
            record = ConsumerRecord(group.group_id, Kind.REGEX, regex, resolved)
            records.append(record)
            after.apply(record)
            bump = bump or bool(resolved.topics) or former is not None
        if bump:
            self._next_epoch(after, None, topics, records, bump=True)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def leave_static(self, group: ConsumerGroup, member: ConsumerMember, records: list[ConsumerRecord]) -> None:
        """A static member leaves and may join again: it keeps its partitions until its session expires."""
        assignment = member.assignment
        assigned = {topic_id: dict.fromkeys(held, JOIN_EPOCH) for topic_id, held in assignment.assigned.items()}
        away = assignment._replace(member_epoch=LEAVE_STATIC_EPOCH, assigned=assigned, pending_revocation={})
        records.append(ConsumerRecord(group.group_id, Kind.CURRENT_ASSIGNMENT, member.member_id, away))

    def remove(
        self, group: ConsumerGroup, member_ids: tuple[str, ...], topics: Topics, records: list[ConsumerRecord]
    ) -> None:
        for member_id in member_ids:
            records += _tombstones(group, member_id)
            self._cancel_member_deadlines(group, member_id)
        going = [group.members[member_id].metadata.topic_regex for member_id in member_ids]
        for regex in dict.fromkeys(going):
            if regex in group.regexes and group.regex_subscribers.get(regex) == going.count(regex):
                records.append(ConsumerRecord(group.group_id, Kind.REGEX, regex, None))
        self._next_epoch(group, None, topics, records, bump=True, without=member_ids)

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def start_sessions(self, group: ConsumerGroup, settings: ConsumerSettings, at: At) -> None:
        """After the group was loaded or converted."""
        for member in group.members.values():
            classic = member.metadata.classic
            session_ms = settings.session_timeout_ms if classic is None else classic.session_timeout_ms
            self._set("session", group, member.member_id, at, session_ms)
            self._set_rebalance_deadline(group, member, member.assignment, at)

    def cancel_deadlines(self, group: ConsumerGroup) -> None:
        for member_id in group.members:
            self._cancel_member_deadlines(group, member_id)

    def _cancel_member_deadlines(self, group: ConsumerGroup, member_id: str) -> None:
        for kind in ("session", "rebalance", "join", "sync"):
            self.deadlines.cancel((kind, group.group_id, member_id))

    def is_overdue(self, group: ConsumerGroup, key: DeadlineKey) -> bool:
        """Whether a passed deadline removes its member."""
        kind, _, member_id = key
        member = group.members.get(member_id)
        if member is None:
            return False
        return kind != "rebalance" or member.assignment.state is MemberState.UNREVOKED_PARTITIONS

    def _set(self, kind: str, group: ConsumerGroup, member_id: str, at: At, delay_ms: int) -> None:
        self.deadlines.set((kind, group.group_id, member_id), at.monotonic_ms + delay_ms)

    def _set_rebalance_deadline(
        self, group: ConsumerGroup, member: ConsumerMember, assignment: CurrentAssignment, at: At
    ) -> None:
        """Sets or cancels the rebalance deadline; classic members have join and sync deadlines instead."""
        if member.is_classic:
            return
        if assignment.state is MemberState.UNREVOKED_PARTITIONS:
            self._set("rebalance", group, member.member_id, at, member.metadata.rebalance_timeout_ms)
        else:
            self.deadlines.cancel(("rebalance", group.group_id, member.member_id))


# -- parts -------------------------------------------------------------------------------------------------------------


def _check_epoch(assignment: CurrentAssignment, epoch: int, owned: Owned | None) -> None:
    """Accepts the previous epoch, too, if the answer with the current one may be lost. Raises BrokerError(FENCED_MEMBER_EPOCH)."""
    if epoch == assignment.member_epoch:
        return
    may_have_missed_one = (
        epoch == assignment.previous_member_epoch and epoch < assignment.member_epoch and owned is not None
    )
    if may_have_missed_one and all(number in assignment.assigned.get(topic, ()) for topic, number in owned or ()):
        return
    relation = "greater" if epoch > assignment.member_epoch else "smaller"
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({assignment.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _assignment(assigned: PartitionEpochs) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=[
            TopicIdPartitions(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in assigned.items()
        ]
    )


def _subscribers(
    group: ConsumerGroup, members: dict[str, ConsumerMember], topics: Topics
) -> dict[str, SubscribedMember]:
    """Members as an assignor sees them; equal subscriptions share one set of topic ids."""
    ids: dict[TopicSubscription, frozenset[bytes]] = {}
    result: dict[str, SubscribedMember] = {}
    nothing: Partitions = {}
    for member_id, (_, metadata, _) in members.items():
        key = metadata.topic_names, metadata.topic_regex
        topic_ids = ids.get(key)
        if topic_ids is None:
            topic_ids = ids[key] = _topic_ids(group, metadata, topics)
        seen = (metadata.instance_id, topic_ids, group.target.get(member_id, nothing))
        result[member_id] = tuple.__new__(SubscribedMember, seen)  # its own constructor takes three times as long
    return result


def _topic_ids(group: ConsumerGroup, metadata: MemberMetadata, topics: Topics) -> frozenset[bytes]:
    ids = [topics.topic_id(name) for name in existing_names(group.topic_names_of(metadata.subscription), topics)]
    return frozenset([topic_id for topic_id in ids if topic_id is not None])


def _partition_counts(subscribers: dict[str, SubscribedMember], topics: Topics) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for topic_ids in {subscriber.topic_ids: None for subscriber in subscribers.values()}:
        for topic_id in topic_ids:
            if topic_id not in counts:
                counts[topic_id] = topics.partition_count(topics.topic_name(topic_id) or "")
    return counts


def _tombstones(group: ConsumerGroup, member_id: str) -> list[ConsumerRecord]:
    return [
        ConsumerRecord(group.group_id, kind, member_id, None)
        for kind in (Kind.CURRENT_ASSIGNMENT, Kind.TARGET_ASSIGNMENT, Kind.MEMBER_METADATA)
    ]
