"""Member of a consumer group (KIP-848): metadata, current assignment, steps towards the target assignment.

Reconciliation takes up to three steps, each at one heartbeat. First the member revokes the partitions that are not in
its target assignment (UNREVOKED_PARTITIONS), still in its former epoch. When it no longer owns them, it enters the
epoch of the target and gets the partitions that no other member holds. It waits for the rest (UNRELEASED_PARTITIONS)
until it has all of them (STABLE).

Invariants: `assigned` and `pending_revocation` are disjoint; a member holds both until it reports that it has revoked
the latter; each partition has the member epoch in which it was assigned, and commits of earlier epochs are refused.
Follows KIP-848, KIP-1251 (assignment epochs), and Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from typing import NamedTuple

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.errors import BrokerError, ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2  # of a static member that leaves and may join again

PartitionEpochs = dict[bytes, dict[int, int]]
"""Topic id → partition → member epoch in which the partition was assigned."""

Owned = frozenset[tuple[bytes, int]]
"""Topic ids and partitions that a member reports as owned."""


TopicSubscription = tuple[tuple[str, ...], str]
"""Names of topics, ascending, and a regular expression of further topics."""


class MemberState(IntEnum):
    """Progress of a member towards its target assignment; the numbers are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it must revoke partitions first
    UNRELEASED_PARTITIONS = 2  # it waits for partitions that other members hold
    UNKNOWN = 127  # written by a later release


class ClassicMemberMetadata(NamedTuple):
    """Additional metadata of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, in order of preference


class MemberMetadata(NamedTuple):
    """Metadata of a member: what its requests say about it.

    Attributes:
        client_host: with a leading slash, as Kafka stores it ("/127.0.0.1").
        topic_names: subscribed topics, ascending.
        topic_regex: regular expression of further subscribed topics, "" for none.
        rebalance_timeout_ms: how long the member may take to revoke partitions; -1 unknown.
        server_assignor: the assignor that the member asks for; None for no preference.
        classic: None unless the member uses the classic protocol.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None

    @property
    def subscription(self) -> TopicSubscription:
        """The topics to which the member subscribes."""
        return self.topic_names, self.topic_regex


class CurrentAssignment(NamedTuple):
    """Current assignment of a member.

    Attributes:
        member_epoch: 0 before the first assignment; -2 after a static member has left and before it joins again.
        previous_member_epoch: accepted from the member, too: the answer with the newer epoch may have been lost.
        assigned: partitions that the member may read.
        pending_revocation: partitions that the member must revoke and still holds.
    """

    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = {}  # noqa: RUF012  # never changed in place: every change makes a new CurrentAssignment
    pending_revocation: PartitionEpochs = {}  # noqa: RUF012  # likewise

    def holds(self) -> Iterator[tuple[bytes, int]]:
        """Iterates over the partitions that no other member may have: (topic id, partition)."""
        yield from pairs(self.assigned)
        yield from pairs(self.pending_revocation)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch


NOT_JOINED = CurrentAssignment()


class ConsumerMember(NamedTuple):
    """One member of a consumer group."""

    member_id: str
    metadata: MemberMetadata
    assignment: CurrentAssignment

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.metadata.classic is not None

    @property
    def classic(self) -> ClassicMemberMetadata:
        """Metadata of the classic protocol.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID: the member uses the consumer protocol.
        """
        if self.metadata.classic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {self.member_id} does not use the classic protocol."
            )
        return self.metadata.classic

    def may_commit(self, epoch: int, topic_id: bytes, partition: int) -> bool:
        """Returns whether a commit in `epoch` is not older than the partition's assignment (KIP-1251)."""
        if epoch == self.assignment.member_epoch:
            return True
        assigned = self.assignment.assigned.get(topic_id, {}).get(partition)
        return assigned is not None and assigned <= epoch < self.assignment.member_epoch


def pairs(partitions: PartitionEpochs | Partitions) -> Iterator[tuple[bytes, int]]:
    """Iterates over the partitions: (topic id, partition)."""
    for topic_id, numbers in partitions.items():
        for number in numbers:
            yield topic_id, number


def reconcile(
    assignment: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    *,
    owned: Owned | None,
    is_taken: Callable[[bytes, int], bool],
    subscribed: Collection[bytes],
    subscription_changed: bool = False,
) -> CurrentAssignment:
    """Computes the next step of a member towards its target assignment.

    Args:
        assignment: the current one.
        owned: partitions that the member reports as owned; None if its request does not say.
        is_taken: tells whether another member holds a partition.
        subscribed: ids of the topics to which the member subscribes; the target may be older than the subscription.

    Returns:
        The new current assignment; the same object if nothing changes.

    Raises:
        BrokerError: FENCED_MEMBER_EPOCH for a member in a state that this release does not know.
    """
    if assignment.is_reconciled(target_epoch) and not subscription_changed:
        return assignment
    if assignment.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, assignment.pending_revocation):
            return _drop_unsubscribed(assignment, owned, subscribed) if subscription_changed else assignment
        epoch = min(assignment.member_epoch + 1, target_epoch)
    elif assignment.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise BrokerError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        epoch = target_epoch
    elif assignment.is_reconciled(target_epoch):
        return _drop_unsubscribed(assignment, owned, subscribed)
    else:
        epoch = assignment.member_epoch
    wanted = {topic_id: numbers for topic_id, numbers in target.items() if topic_id in subscribed}
    return _next_assignment(assignment, epoch, target_epoch, wanted, owned, is_taken)


def _next_assignment(
    assignment: CurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Owned | None,
    is_taken: Callable[[bytes, int], bool],
) -> CurrentAssignment:
    kept: PartitionEpochs = {}
    revoked: PartitionEpochs = {}
    for topic_id, held in assignment.assigned.items():
        wanted = frozenset(target.get(topic_id, ()))
        _put(kept, topic_id, {number: since for number, since in held.items() if number in wanted})
        _put(revoked, topic_id, {number: since for number, since in held.items() if number not in wanted})
    if revoked and _owns_any(owned, revoked):
        return CurrentAssignment(epoch, assignment.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    assigned: PartitionEpochs = dict(kept)
    unreleased = False
    for topic_id, numbers in target.items():
        merged = dict(kept.get(topic_id, {}))
        for number in numbers:
            if number in merged:
                continue
            if is_taken(topic_id, number):
                unreleased = True
            else:
                merged[number] = target_epoch
        _put(assigned, topic_id, dict(sorted(merged.items())))
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return CurrentAssignment(target_epoch, assignment.member_epoch, state, assigned, {})


def _drop_unsubscribed(
    assignment: CurrentAssignment, owned: Owned | None, subscribed: Collection[bytes]
) -> CurrentAssignment:
    """Removes topics to which the member no longer subscribes, before there is a new target assignment."""
    dropped = {topic_id: held for topic_id, held in assignment.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return assignment
    kept = {topic_id: held for topic_id, held in assignment.assigned.items() if topic_id in subscribed}
    pending = {topic_id: dict(held) for topic_id, held in assignment.pending_revocation.items()}
    for topic_id, held in dropped.items():
        pending[topic_id] = {**pending.get(topic_id, {}), **held}
    if _owns_any(owned, pending):
        return CurrentAssignment(
            assignment.member_epoch, assignment.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending
        )
    return CurrentAssignment(assignment.member_epoch, assignment.member_epoch, MemberState.STABLE, kept, {})


def _put(partitions: PartitionEpochs, topic_id: bytes, numbers: dict[int, int]) -> None:
    if numbers:
        partitions[topic_id] = numbers


def _owns_any(owned: Owned | None, partitions: PartitionEpochs) -> bool:
    """Returns whether the member may still own one of the partitions; True if its request does not say."""
    return owned is None or any(pair in owned for pair in pairs(partitions))
