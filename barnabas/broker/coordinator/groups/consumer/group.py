"""One consumer group (KIP-848), whose partitions the coordinator assigns: the sum of its records. No requests, no clock.

Driven by: `GroupShard`, with decided and replayed ConsumerRecords.
Emits: an undo for each record; reads.

Invariants: `apply` alone changes what the log holds; `owner` names the one member that holds a partition, and a member holds what
its standing says; `static_members` maps each group.instance.id to the member that has it last; members keep the order of joining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from typing import Any, Protocol
from zlib import crc32

from crc32c import crc32c

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.member import NOT_JOINED, ConsumerMember, Profile
from barnabas.broker.coordinator.groups.consumer.records import (
    ConsumerRecord,
    GroupEpoch,
    Kind,
    ResolvedRegex,
    TargetEpoch,
)
from barnabas.errors import BrokerError, ErrorCode

__all__ = ["ConsumerGroup", "ConsumerGroupState", "Topics", "existing", "metadata_hash"]

FIRST_EPOCH = 1  # of a group without a record of its epoch: a member without topics is in it, in an epoch that is not 0

Undo = Callable[[], None]


class Topics(Protocol):
    """What a coordinator knows of topics: the metadata as this node has them now."""

    @property
    def offset(self) -> int:
        """Of the last change of the metadata: it grows with every one."""
        ...

    @property
    def topics_by_name(self) -> Mapping[str, Any]:
        """All topics; another object when one of them has changed."""
        ...

    def topic_id(self, name: str) -> bytes | None:
        """None where there is no such topic."""
        ...

    def topic_name(self, topic_id: bytes) -> str | None:
        """None where there is no such topic."""
        ...

    def partition_count(self, name: str) -> int:
        """0 where there is no such topic."""
        ...


class ConsumerGroupState(Enum):
    """States by the names that ConsumerGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


def existing(names: Set[str], topics: Topics) -> Set[str]:
    """Those of the names that topics have."""
    return topics.topics_by_name.keys() & names


def metadata_hash(names: set[str], topics: Topics) -> int:
    """A hash of these topics as far as they exist: another one when one comes, goes or grows. 0 for none.

    Kafka's is another function of the same: a group that moves between the two rebalances once, and nothing moves.
    """
    parts = [
        f"{name}:{topic_id.hex()}:{topics.partition_count(name)}"
        for name in sorted(existing(names, topics))
        if (topic_id := topics.topic_id(name)) is not None
    ]
    if not parts:
        return 0
    text = "\n".join(parts).encode("utf-8", "surrogatepass")
    both = crc32c(text) << 32 | crc32(text)  # two polynomials: no other hash is loaded at start
    return both - (1 << 64) if both >> 63 else both


class ConsumerGroup:
    """State of one group.

    Attributes:
        epoch: bumped when members, subscriptions or the topics' partitions change.
        target_epoch: the group epoch for which the target was computed, and when.
        target: by member id, what it shall have.
        regexes: expressions that members subscribe by, with what they matched; missing ones are not looked up yet.
        regex_subscribers: number of members that subscribe by each expression.
        hashed_in, searched_in: the topics for which `epoch.metadata_hash` was compared, and expressions were looked up, last;
            None for never (memory only).
        searched_ms: when that was, monotonic; `is_searching`: a search is under way.
    """

    __slots__ = (
        "_owners",
        "epoch",
        "group_id",
        "hashed_in",
        "is_searching",
        "members",
        "regex_subscribers",
        "regexes",
        "searched_in",
        "searched_ms",
        "static_members",
        "target",
        "target_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = GroupEpoch(FIRST_EPOCH)
        self.target_epoch = TargetEpoch(FIRST_EPOCH)
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.regex_subscribers: dict[str, int] = {}
        self.hashed_in: Mapping[str, Any] | None = None
        self.searched_in: Mapping[str, Any] | None = None
        self.searched_ms = 0
        self.is_searching = False
        self._owners: dict[tuple[bytes, int], str] = {}

    # -- reads ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch.epoch > self.target_epoch.epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.standing.is_reconciled(self.target_epoch.epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Id of the member that holds the partition, assigned or not yet given up."""
        return self._owners.get((topic_id, partition))

    def is_taken(self, member_id: str) -> Callable[[bytes, int], bool]:
        """Whether a partition is held by someone else than this member."""
        owners = self._owners

        def taken(topic_id: bytes, partition: int) -> bool:
            return owners.get((topic_id, partition), member_id) != member_id

        return taken

    def member(self, member_id: str) -> ConsumerMember:
        """The member.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID.
        """
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, member_id: str, instance_id: str) -> ConsumerMember:
        """The member that has the instance id.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID where it has another member id.
        """
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
        """As `static_member` where there is an instance id, as `member` where there is none."""
        return self.member(member_id) if instance_id is None else self.static_member(member_id, instance_id)

    def topic_names_of(self, profile: Profile) -> set[str]:
        """Topics the member subscribes to, by name or by expression; they need not exist."""
        names = set(profile.topic_names)
        if profile.topic_regex and profile.topic_regex in self.regexes:
            names.update(self.regexes[profile.topic_regex].topics)
        return names

    def topic_names(self, changed: ConsumerMember | None = None, without: tuple[str, ...] = ()) -> set[str]:
        """Topics of all subscriptions, with `changed` in place of its former self and `without` these members."""
        names: set[str] = set()
        for member in self.members.values():
            if member.member_id not in without and (changed is None or member.member_id != changed.member_id):
                names |= self.topic_names_of(member.profile)
        if changed is not None:
            names |= self.topic_names_of(changed.profile)
        return names

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(topic in self.topic_names_of(member.profile) for member in self.members.values())

    def classic_members(self) -> Iterator[ConsumerMember]:
        """Members that speak the classic protocol."""
        return (member for member in self.members.values() if member.is_classic)

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> Undo:
        """Takes over a record of the group; a tombstone of its epoch is the end of the group and not for it."""
        kind, part, value = record.kind, record.part, record.value
        if kind is Kind.EPOCH:
            former_epoch, self.epoch = self.epoch, value
            return lambda: setattr(self, "epoch", former_epoch)
        if kind is Kind.TARGET_EPOCH:
            former_target, self.target_epoch = self.target_epoch, TargetEpoch(FIRST_EPOCH) if value is None else value
            return lambda: setattr(self, "target_epoch", former_target)
        if kind is Kind.TARGET:
            return _put(self.target, part, value)
        if kind is Kind.REGEX:
            return _put(self.regexes, part, value)
        if kind is Kind.PARTITION_METADATA:
            return _nothing
        return self._apply_member(kind, part, value)

    def _apply_member(self, kind: Kind, member_id: str, value: Any) -> Undo:
        former = self.members.get(member_id)
        position = list(self.members) if former is not None and kind is Kind.PROFILE and value is None else None
        if former is None:
            if value is None:
                return _nothing
            known = ConsumerMember(member_id, Profile(), NOT_JOINED)
        else:
            known = former
        if kind is Kind.STANDING:
            self._set(member_id, known._replace(standing=NOT_JOINED if value is None else value))
        elif value is None:
            self._set(member_id, None)
        else:
            self._set(member_id, known._replace(profile=value))

        def undo() -> None:
            self._set(member_id, former)
            if position is not None:  # the order of joining, too
                self.members = {known_id: self.members[known_id] for known_id in position if known_id in self.members}

        return undo

    def _set(self, member_id: str, member: ConsumerMember | None) -> None:
        former = self.members.get(member_id)
        if former is not None:
            self._count_regex(former.profile.topic_regex, -1)
            for pair in former.standing.holds():
                if self._owners.get(pair) == member_id:
                    del self._owners[pair]
            instance_id = former.profile.instance_id
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        if member is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = member
        self._count_regex(member.profile.topic_regex, +1)
        for pair in member.standing.holds():
            self._owners[pair] = member_id
        if member.profile.instance_id is not None:
            self.static_members[member.profile.instance_id] = member_id

    def _count_regex(self, regex: str, step: int) -> None:
        if regex:
            count = self.regex_subscribers.get(regex, 0) + step
            if count:
                self.regex_subscribers[regex] = count
            else:
                del self.regex_subscribers[regex]

    def copy(self) -> ConsumerGroup:
        """The group on which a decision tries its own records."""
        copied = ConsumerGroup(self.group_id)
        copied.epoch, copied.target_epoch, copied.hashed_in = self.epoch, self.target_epoch, self.hashed_in
        copied.regex_subscribers = dict(self.regex_subscribers)
        copied.members, copied.static_members = dict(self.members), dict(self.static_members)
        copied.target, copied.regexes, copied._owners = dict(self.target), dict(self.regexes), dict(self._owners)
        return copied

    def tombstones(self) -> list[ConsumerRecord]:
        """What ends the group, in Kafka's order."""
        return [
            *(ConsumerRecord(self.group_id, Kind.STANDING, member_id, None) for member_id in self.members),
            *(ConsumerRecord(self.group_id, Kind.TARGET, member_id, None) for member_id in self.members),
            ConsumerRecord(self.group_id, Kind.TARGET_EPOCH, "", None),
            *(ConsumerRecord(self.group_id, Kind.PROFILE, member_id, None) for member_id in self.members),
            *(ConsumerRecord(self.group_id, Kind.REGEX, regex, None) for regex in self.regexes),
            ConsumerRecord(self.group_id, Kind.PARTITION_METADATA, "", None),
            ConsumerRecord(self.group_id, Kind.EPOCH, "", None),
        ]


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
    """Undo of what changed nothing."""
