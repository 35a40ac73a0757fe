"""State of a consumer group (KIP-848): the sum of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.member import (
    NOT_JOINED,
    ConsumerMember,
    MemberMetadata,
    TopicSubscription,
)
from barnabas.broker.coordinator.groups.records import ConsumerRecord, GroupEpoch, Kind, ResolvedRegex, TargetEpoch
from barnabas.broker.coordinator.host.decision import Undo
from barnabas.errors import BrokerError, ErrorCode

T = TypeVar("T")
FIRST_EPOCH = 1  # of a group without an epoch record: a member without topics has an epoch above 0, too


class ConsumerGroupState(Enum):
    """Names as in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """State of one consumer group; only `apply` changes what the log contains.

    Invariants: one member at most holds a partition, as its current assignment says; `static_members` maps each group.instance.id to the
    member that used it last; members are in join order.
    """

    __slots__ = (
        "_next_rank",
        "_owners",
        "_ranks",
        "epoch",
        "group_id",
        "hashed_in",
        "is_searching",
        "members",
        "regex_subscribers",
        "regexes",
        "searched_acls",
        "searched_in",
        "searched_ms",
        "static_members",
        "subscriptions",
        "target",
        "target_epoch",
        "votes",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        # incremented when members, subscriptions or partitions of subscribed topics change
        self.epoch = GroupEpoch(FIRST_EPOCH)
        self.target_epoch = TargetEpoch(FIRST_EPOCH)  # the group epoch of `target`, and when it was computed
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.target: dict[str, Partitions] = {}  # by member id
        # topics that expressions of members matched; a missing one is not resolved yet
        self.regexes: dict[str, ResolvedRegex] = {}
        self.regex_subscribers: dict[str, int] = {}  # regular expression → number of subscribers
        # topic names and expression → number of members with exactly this subscription
        self.subscriptions: dict[TopicSubscription, int] = {}
        self.votes: dict[str, int] = {}  # server-side assignor → number of members that ask for it
        # topics when `epoch.metadata_hash` was last compared; None: never; not in the log
        self.hashed_in: Mapping[str, Any] | None = None
        self.searched_acls: Mapping[bytes, Any] | None = None  # ACLs of that resolution; not in the log
        # topics of the last resolution of expressions; None: never; not in the log
        self.searched_in: Mapping[str, Any] | None = None
        self.searched_ms = 0  # monotonic time of the last resolution
        self.is_searching = False  # a resolution is running
        self._owners: dict[tuple[bytes, int], str] = {}
        self._ranks: dict[str, int] = {}  # of members, in join order
        self._next_rank = 0

    # -- reads ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch.epoch > self.target_epoch.epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.assignment.is_reconciled(self.target_epoch.epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Id of the member that holds the partition, assigned or not revoked yet."""
        return self._owners.get((topic_id, partition))

    def is_taken(self, member_id: str) -> Callable[[bytes, int], bool]:
        """Returns a predicate: whether another member holds a partition."""
        owners = self._owners

        def taken(topic_id: bytes, partition: int) -> bool:
            return owners.get((topic_id, partition), member_id) != member_id

        return taken

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, member_id: str, instance_id: str) -> ConsumerMember:
        """Raises BrokerError(UNKNOWN_MEMBER_ID), or FENCED_INSTANCE_ID if the instance id belongs to another member id."""
        current = self.static_members.get(instance_id)
        if current is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if current != member_id:
            raise BrokerError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {current}.",
            )
        return self.members[current]

    def validate(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Raises as `static_member` with an instance id, as `member` without."""
        return self.member(member_id) if instance_id is None else self.static_member(member_id, instance_id)

    def topic_names_of(self, subscription: TopicSubscription) -> set[str]:
        """Topics by name or expression; they need not exist."""
        names, regex = subscription
        found = set(names)
        if regex and regex in self.regexes:
            found.update(self.regexes[regex].topics)
        return found

    def topic_names(self, changed: ConsumerMember | None = None, without: tuple[str, ...] = ()) -> set[str]:
        """Topics of all subscriptions, with `changed` in its new state, `without` these members."""
        counts = dict(self.subscriptions)
        for member_id in (*without, *(() if changed is None else (changed.member_id,))):
            if member_id in self.members:
                _count(counts, self.members[member_id].metadata.subscription, -1)
        if changed is not None:
            _count(counts, changed.metadata.subscription, +1)
        return set().union(*map(self.topic_names_of, counts))

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topic_names_of(subscription) for subscription in self.subscriptions)

    def classic_members(self) -> Iterator[ConsumerMember]:
        return (member for member in self.members.values() if member.is_classic)

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> Undo:
        """Applies a record of the group. The tombstone of the group epoch deletes the group; its owner applies that."""
        kind, part, value = record.kind, record.part, record.value
        if kind is Kind.GROUP_EPOCH:
            former_epoch, self.epoch = self.epoch, value
            return lambda: setattr(self, "epoch", former_epoch)
        if kind is Kind.TARGET_ASSIGNMENT_EPOCH:
            former_target, self.target_epoch = self.target_epoch, TargetEpoch(FIRST_EPOCH) if value is None else value
            return lambda: setattr(self, "target_epoch", former_target)
        if kind is Kind.TARGET_ASSIGNMENT:
            return _put(self.target, part, value)
        if kind is Kind.REGEX:
            return _put(self.regexes, part, value)
        if kind is Kind.PARTITION_METADATA:
            return _nothing
        return self._apply_member(kind, part, value)

    def _apply_member(self, kind: Kind, member_id: str, value: Any) -> Undo:
        former = self.members.get(member_id)
        rank = self._ranks.get(member_id)
        if former is None:
            if value is None:
                return _nothing
            known = ConsumerMember(member_id, MemberMetadata(), NOT_JOINED)
        else:
            known = former
        if kind is Kind.CURRENT_ASSIGNMENT:
            self._set(member_id, known._replace(assignment=NOT_JOINED if value is None else value))
        elif value is None:
            self._set(member_id, None)
        else:
            self._set(member_id, known._replace(metadata=value))

        def undo() -> None:
            self._set(member_id, former)
            if rank is not None and rank != self._ranks[member_id]:  # restores the join order, too
                self._ranks[member_id] = rank
                self.members = dict(sorted(self.members.items(), key=lambda item: self._ranks[item[0]]))

        return undo

    def _set(self, member_id: str, member: ConsumerMember | None) -> None:
        former = self.members.get(member_id)
        if former is not None:
            self._count_metadata(former.metadata, -1)
            for pair in former.assignment.holds():
                if self._owners.get(pair) == member_id:
                    del self._owners[pair]
            instance_id = former.metadata.instance_id
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        if member is None:
            self.members.pop(member_id, None)
            self._ranks.pop(member_id, None)
            return
        self.members[member_id] = member
        if member_id not in self._ranks:
            self._ranks[member_id] = self._next_rank
            self._next_rank += 1
        self._count_metadata(member.metadata, +1)
        for pair in member.assignment.holds():
            self._owners[pair] = member_id
        if member.metadata.instance_id is not None:
            self.static_members[member.metadata.instance_id] = member_id

    def _count_metadata(self, metadata: MemberMetadata, step: int) -> None:
        _count(self.subscriptions, metadata.subscription, step)
        if metadata.topic_regex:
            _count(self.regex_subscribers, metadata.topic_regex, step)
        if metadata.server_assignor is not None:
            _count(self.votes, metadata.server_assignor, step)

    def copy(self) -> ConsumerGroup:
        """A copy on which a decision applies its records."""
        copied = ConsumerGroup(self.group_id)
        copied.epoch, copied.target_epoch, copied.hashed_in = self.epoch, self.target_epoch, self.hashed_in
        copied.regex_subscribers, copied.subscriptions = dict(self.regex_subscribers), dict(self.subscriptions)
        copied.votes, copied._ranks, copied._next_rank = dict(self.votes), dict(self._ranks), self._next_rank
        copied.members, copied.static_members = dict(self.members), dict(self.static_members)
        copied.target, copied.regexes, copied._owners = dict(self.target), dict(self.regexes), dict(self._owners)
        return copied

    def tombstones(self) -> list[ConsumerRecord]:
        """Tombstones that delete the group, in Kafka's order."""
        return [
            *(ConsumerRecord(self.group_id, Kind.CURRENT_ASSIGNMENT, member_id, None) for member_id in self.members),
            *(ConsumerRecord(self.group_id, Kind.TARGET_ASSIGNMENT, member_id, None) for member_id in self.members),
            ConsumerRecord(self.group_id, Kind.TARGET_ASSIGNMENT_EPOCH, "", None),
            *(ConsumerRecord(self.group_id, Kind.MEMBER_METADATA, member_id, None) for member_id in self.members),
            *(ConsumerRecord(self.group_id, Kind.REGEX, regex, None) for regex in self.regexes),
            ConsumerRecord(self.group_id, Kind.PARTITION_METADATA, "", None),
            ConsumerRecord(self.group_id, Kind.GROUP_EPOCH, "", None),
        ]


def _count(counts: dict[T, int], key: T, step: int) -> None:
    count = counts.get(key, 0) + step
    if count:
        counts[key] = count
    else:
        del counts[key]


def _put(table: dict[str, Any], key: str, value: Any) -> Undo:
    former = table.get(key)
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value

    def undo() -> None:
        if former is None:
            table.pop(key, None)
        else:
            table[key] = former

    return undo


def _nothing() -> None:
    """Undoes nothing."""
