"""The consumer group protocol (KIP-848): what a heartbeat, a leave or a passed deadline does to a group.

Driven by: `GroupShard`, with the group, the request and the time; `ClassicMembers` for those who speak the classic protocol.
Emits: ConsumerRecords; a decision only reads the group, and what it decides is there when its records are applied.

A heartbeat: the member is added or changed; a changed subscription, or topics that have changed meanwhile, bump the group epoch;
a group epoch above the target's makes a new target (not more often than `consumer.assignment.interval.ms`); the member takes its
next step towards it (`consumer_member.reconcile`). There is no barrier: every member gets there by its own heartbeats.

Invariants: a partition has one holder at any time, assigned or not given up yet; every member has a session deadline, unless it
is a static one that is away (its last one runs on); one that must give up partitions has a rebalance deadline.
Follows KIP-848, KIP-1082 (member ids), KIP-1101 (metadata hash), KIP-1263 (assignment interval), after Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.broker.coordinator.groups.classic.rebalance import DeadlineKey
from barnabas.broker.coordinator.groups.classic.state import Reply
from barnabas.broker.coordinator.groups.consumer.assignors import ASSIGNORS, Partitions, Subscriber
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, Topics, existing, metadata_hash
from barnabas.broker.coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOT_JOINED,
    ConsumerMember,
    Epochs,
    MemberState,
    Owned,
    Profile,
    Standing,
    reconcile,
)
from barnabas.broker.coordinator.groups.consumer.records import (
    ConsumerRecord,
    GroupEpoch,
    Kind,
    ResolvedRegex,
    TargetEpoch,
)
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.host.deadlines import Deadlines
from barnabas.broker.patterns import compile_pattern
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import SUBSCRIPTION_NAMES_MAX
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    TopicIdPartitions,
)

__all__ = ["ConsumerProtocol", "ConsumerSettings", "HeartbeatCall", "check_heartbeat", "owned_by"]

NOT_SAID = -1  # a rebalance timeout that has not changed


class HeartbeatCall(NamedTuple):
    """A ConsumerGroupHeartbeat with what the connection knows about its sender.

    `fresh_id` is a random UUID's text, used if the member has no id yet.
    """

    request: ConsumerGroupHeartbeatRequest
    client_id: str
    client_host: str
    fresh_id: str
    reply: Reply


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`group.consumer.*` as it holds for one group; times in ms.

    Attributes:
        assignors: names of those that members may ask for; the first is used where nobody has a preference.
        upgrades, downgrades: whether a group may change its protocol while it has members (`migration.policy`).
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    upgrades: bool = True
    downgrades: bool = True


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """What can be said of a request without its group.

    Raises:
        BrokerError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.
    """
    epoch = request.member_epoch
    needs_id = version >= 1 or epoch != JOIN_EPOCH  # before version 1 the coordinator makes the id
    joins = epoch == JOIN_EPOCH
    no_topics = request.subscribed_topic_names is None and request.subscribed_topic_regex is None
    for wrong, message in (
        (not request.group_id, "GroupId can't be empty."),
        (needs_id and not request.member_id, "MemberId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid."),
        (joins and request.rebalance_timeout_ms == NOT_SAID, "RebalanceTimeoutMs must be provided in first request."),
        (joins and request.topic_partitions != [], "TopicPartitions must be empty when (re-)joining."),
        (
            joins and no_topics,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (epoch == LEAVE_STATIC_EPOCH and request.instance_id is None, "InstanceId can't be null."),
        (
            len(request.subscribed_topic_names or ()) > SUBSCRIPTION_NAMES_MAX,
            f"SubscribedTopicNames has more than {SUBSCRIPTION_NAMES_MAX} names; subscribe by a regular expression.",
        ),
    ):
        if wrong:
            raise BrokerError(ErrorCode.INVALID_REQUEST, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def owned_by(partitions: list[TopicIdPartitions] | None) -> Owned | None:
    """What a member says it owns."""
    if partitions is None:
        return None
    return frozenset((each.topic_id, number) for each in partitions for number in each.partitions)


class ConsumerProtocol:
    """The protocol over the consumer groups of one shard. Shares the shard's deadlines."""

    def __init__(self, deadlines: Deadlines[DeadlineKey]) -> None:
        self.deadlines = deadlines

    # -- ConsumerGroupHeartbeat ----------------------------------------------------------------------------------------

    def heartbeat(
        self,
        group: ConsumerGroup,
        call: HeartbeatCall,
        topics: Topics,
        settings: ConsumerSettings,
        at: At,
        records: list[ConsumerRecord],
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of a member that is there or joins; `group` may be a new one.

        Raises:
            BrokerError: a refusal, with its message.
        """
        request = call.request
        member_id = request.member_id or call.fresh_id
        self.check_room(group, member_id, settings)
        owned = owned_by(request.topic_partitions)
        if request.member_epoch == JOIN_EPOCH:
            group, member = self.joining(group, member_id, request.instance_id, records, classic=False)
        else:
            member = group.validate(member_id, request.instance_id)
            _check_epoch(member.standing, request.member_epoch, owned)
        profile = _changed(member.profile, call)
        updated = self.advance(group, member, profile, topics, settings, at, records, owned=owned)
        self._set("session", group, member_id, at, settings.session_timeout_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.standing.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
        )
        if _is_full(request) or updated.standing.assigned != member.standing.assigned:
            response.assignment = _assignment(updated.standing.assigned)
        return response

    def check_room(self, group: ConsumerGroup, member_id: str, settings: ConsumerSettings) -> None:
        """Raises GROUP_MAX_SIZE_REACHED for a new member of a full group."""
        if len(group.members) >= settings.size_max and member_id not in group.members:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {settings.size_max} members.",
            )

    def joining(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        records: list[ConsumerRecord],
        *,
        classic: bool,
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        """The member that joins or joins again, and the group with it: a copy where it takes the place of a static one.

        Raises:
            BrokerError: UNRELEASED_INSTANCE_ID where the instance is still there.
        """
        new = group.members.get(member_id, ConsumerMember(member_id, Profile(), NOT_JOINED))
        former_id = None if instance_id is None else group.static_members.get(instance_id)
        if former_id is None:
            return group, new
        former = group.members[former_id]
        if not classic and not former.is_classic and former.standing.epoch != LEAVE_STATIC_EPOCH:
            raise BrokerError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
                f"is owned by {former_id} member.",
            )
        standing = former.standing._replace(epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        replacement = [
            *_tombstones(group, former_id),
            ConsumerRecord(group.group_id, Kind.PROFILE, member_id, former.profile),
            ConsumerRecord(group.group_id, Kind.TARGET, member_id, group.target.get(former_id, {})),
            ConsumerRecord(group.group_id, Kind.STANDING, member_id, standing),
        ]
        records += replacement
        replaced = group.copy()
        for record in replacement:
            replaced.apply(record)
        return replaced, replaced.members[member_id]

    def advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        profile: Profile,
        topics: Topics,
        settings: ConsumerSettings,
        at: At,
        records: list[ConsumerRecord],
        *,
        owned: Owned | None,
    ) -> ConsumerMember:
        """The member with this profile, one step further; what changes is in `records`.

        Raises:
            BrokerError: INVALID_REGULAR_EXPRESSION, FENCED_MEMBER_EPOCH.
        """
        updated = member._replace(profile=profile)
        if updated != group.members.get(member.member_id):
            records.append(ConsumerRecord(group.group_id, Kind.PROFILE, member.member_id, profile))
        changed = profile.topic_names != member.profile.topic_names
        bump = changed
        if profile.topic_regex != member.profile.topic_regex:
            changed = True
            bump = self._change_regex(group, member.profile.topic_regex, profile.topic_regex, records) or bump
        epoch = self._next_epoch(group, updated, topics, records, bump=bump)
        target_epoch, target = self._target(group, updated, epoch, topics, settings, at, records)
        subscribed = _topic_ids(group, profile, topics)
        standing = reconcile(
            member.standing,
            target_epoch,
            target,
            owned=owned,
            is_taken=group.is_taken(member.member_id),
            subscribed=subscribed,
            subscription_changed=changed,
        )
        if standing != member.standing or member.member_id not in group.members:
            records.append(ConsumerRecord(group.group_id, Kind.STANDING, member.member_id, standing))
            self._time_revocation(group, updated, standing, at)
        return updated._replace(standing=standing)

    def _change_regex(self, group: ConsumerGroup, old: str, new: str, records: list[ConsumerRecord]) -> bool:
        """Whether the group epoch is bumped at once; an expression that is new to the group does so when it is looked up."""
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
        """The group epoch after this decision."""
        found = group.epoch.metadata_hash
        if bump or group.hashed_in is not topics.topics_by_name:
            found = metadata_hash(group.topic_names(updated, without), topics)
            bump = bump or found != group.epoch.metadata_hash
            if not bump:
                group.hashed_in = topics.topics_by_name
        following = GroupEpoch(group.epoch.epoch + bump, found)
        if following != group.epoch:
            records.append(ConsumerRecord(group.group_id, Kind.EPOCH, "", following))
        return following.epoch

    # -- the target ----------------------------------------------------------------------------------------------------

    def _target(
        self,
        group: ConsumerGroup,
        updated: ConsumerMember,
        epoch: int,
        topics: Topics,
        settings: ConsumerSettings,
        at: At,
        records: list[ConsumerRecord],
    ) -> tuple[int, Partitions]:
        """Epoch of the target, and the member's: a new one where the group epoch has moved on and enough time has passed."""
        made_at = group.target_epoch
        waits = made_at.timestamp_ms > 0 and 0 <= at.now_ms - made_at.timestamp_ms < settings.assignment_interval_ms
        if epoch <= made_at.epoch or waits:
            return made_at.epoch, group.target.get(updated.member_id, {})
        members = {**group.members, updated.member_id: updated}
        subscribers = {
            member_id: Subscriber(
                member.profile.instance_id, _topic_ids(group, member.profile, topics), group.target.get(member_id, {})
            )
            for member_id, member in members.items()
        }
        assign = ASSIGNORS[self.assignor(group, settings, updated)]
        targets = assign(subscribers, _partition_counts(subscribers, topics))
        for member_id, target in targets.items():
            if group.target.get(member_id) != target:
                records.append(ConsumerRecord(group.group_id, Kind.TARGET, member_id, target))
        records.append(ConsumerRecord(group.group_id, Kind.TARGET_EPOCH, "", TargetEpoch(epoch, at.now_ms)))
        return epoch, targets[updated.member_id]

    def assignor(self, group: ConsumerGroup, settings: ConsumerSettings, updated: ConsumerMember | None = None) -> str:
        """The assignor most members prefer, the first of the configured ones where nobody has a preference."""
        members = group.members if updated is None else {**group.members, updated.member_id: updated}
        votes: dict[str, int] = {}
        for member in members.values():
            if member.profile.server_assignor in settings.assignors:
                votes[member.profile.server_assignor] = votes.get(member.profile.server_assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else settings.assignors[0]

    # -- regular expressions -------------------------------------------------------------------------------------------

    def resolved(
        self, group: ConsumerGroup, found: dict[str, ResolvedRegex], topics: Topics, records: list[ConsumerRecord]
    ) -> None:
        """Expressions were looked up: other topics than before bump the group epoch."""
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

    def leave_for_a_while(self, group: ConsumerGroup, member: ConsumerMember, records: list[ConsumerRecord]) -> None:
        """A static member goes and will be back: it keeps what it has, and its session runs on."""
        standing = member.standing
        assigned = {topic_id: dict.fromkeys(held, JOIN_EPOCH) for topic_id, held in standing.assigned.items()}
        away = standing._replace(epoch=LEAVE_STATIC_EPOCH, assigned=assigned, pending_revocation={})
        records.append(ConsumerRecord(group.group_id, Kind.STANDING, member.member_id, away))

    def remove(
        self, group: ConsumerGroup, member_ids: tuple[str, ...], topics: Topics, records: list[ConsumerRecord]
    ) -> None:
        """Members are out: their tombstones, and the next group epoch."""
        for member_id in member_ids:
            records += _tombstones(group, member_id)
            self.forget_member(group, member_id)
        going = [group.members[member_id].profile.topic_regex for member_id in member_ids]
        for regex in dict.fromkeys(going):
            if regex in group.regexes and group.regex_subscribers.get(regex) == going.count(regex):
                records.append(ConsumerRecord(group.group_id, Kind.REGEX, regex, None))
        self._next_epoch(group, None, topics, records, bump=True, without=member_ids)

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def arm(self, group: ConsumerGroup, settings: ConsumerSettings, at: At) -> None:
        """Gives the members of a loaded or converted group a whole session to show up."""
        for member in group.members.values():
            classic = member.profile.classic
            session_ms = settings.session_timeout_ms if classic is None else classic.session_timeout_ms
            self._set("session", group, member.member_id, at, session_ms)
            self._time_revocation(group, member, member.standing, at)

    def forget(self, group: ConsumerGroup) -> None:
        """The group is gone: no deadlines for it."""
        for member_id in group.members:
            self.forget_member(group, member_id)

    def forget_member(self, group: ConsumerGroup, member_id: str) -> None:
        """The member is gone: no deadlines for it."""
        for kind in ("session", "rebalance", "join", "sync"):
            self.deadlines.cancel((kind, group.group_id, member_id))

    def is_overdue(self, group: ConsumerGroup, key: DeadlineKey) -> bool:
        """Whether a deadline that has passed puts its member out."""
        kind, _, member_id = key
        member = group.members.get(member_id)
        if member is None:
            return False
        return kind != "rebalance" or member.standing.state is MemberState.UNREVOKED_PARTITIONS

    def _set(self, kind: str, group: ConsumerGroup, member_id: str, at: At, delay_ms: int) -> None:
        self.deadlines.set((kind, group.group_id, member_id), at.monotonic_ms + delay_ms)

    def _time_revocation(self, group: ConsumerGroup, member: ConsumerMember, standing: Standing, at: At) -> None:
        """Members of the classic protocol have deadlines for joining and syncing instead."""
        if member.is_classic:
            return
        if standing.state is MemberState.UNREVOKED_PARTITIONS:
            self._set("rebalance", group, member.member_id, at, member.profile.rebalance_timeout_ms)
        else:
            self.deadlines.cancel(("rebalance", group.group_id, member.member_id))


# -- parts -------------------------------------------------------------------------------------------------------------


def _check_epoch(standing: Standing, epoch: int, owned: Owned | None) -> None:
    """The member's epoch, or the one before it where the answer that told of the new one may have been lost."""
    if epoch == standing.epoch:
        return
    may_have_missed_one = epoch == standing.previous_epoch and epoch < standing.epoch and owned is not None
    if may_have_missed_one and all(number in standing.assigned.get(topic, ()) for topic, number in owned or ()):
        return
    relation = "greater" if epoch > standing.epoch else "smaller"
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group coordinator "
        f"({standing.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _changed(profile: Profile, call: HeartbeatCall) -> Profile:
    """What the member says of itself now; what it leaves out is as before."""
    request = call.request
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    said = request.rebalance_timeout_ms != NOT_SAID
    return Profile(
        profile.instance_id if request.instance_id is None else request.instance_id,
        profile.rack_id if request.rack_id is None else request.rack_id,
        call.client_id,
        call.client_host,
        profile.topic_names if names is None else tuple(sorted(set(names))),
        profile.topic_regex if regex is None else regex,
        request.rebalance_timeout_ms if said else profile.rebalance_timeout_ms,
        profile.server_assignor if request.server_assignor is None else request.server_assignor,
        None,
    )


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """A member that says everything is told everything."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != NOT_SAID
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _assignment(assigned: Epochs) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=[
            TopicIdPartitions(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in assigned.items()
        ]
    )


def _topic_ids(group: ConsumerGroup, profile: Profile, topics: Topics) -> frozenset[bytes]:
    """Topics that the member subscribes to and that exist."""
    ids = [topics.topic_id(name) for name in existing(group.topic_names_of(profile), topics)]
    return frozenset([topic_id for topic_id in ids if topic_id is not None])


def _partition_counts(subscribers: dict[str, Subscriber], topics: Topics) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for subscriber in subscribers.values():
        for topic_id in subscriber.topic_ids:
            if topic_id not in counts:
                counts[topic_id] = topics.partition_count(topics.topic_name(topic_id) or "")
    return counts


def _tombstones(group: ConsumerGroup, member_id: str) -> list[ConsumerRecord]:
    return [
        ConsumerRecord(group.group_id, kind, member_id, None) for kind in (Kind.STANDING, Kind.TARGET, Kind.PROFILE)
    ]
