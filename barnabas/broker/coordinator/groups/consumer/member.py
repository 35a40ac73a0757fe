"""Member of a consumer group (KIP-848, KIP-1251): metadata, current assignment, reconciliation (Kafka's CurrentAssignmentBuilder)."""

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
    UNREVOKED_PARTITIONS = 1  # must revoke partitions first
    UNRELEASED_PARTITIONS = 2  # waits for partitions that other members hold
    UNKNOWN = 127  # written by a later release


class ClassicMemberMetadata(NamedTuple):
    """Additional metadata of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, in order of preference


class MemberMetadata(NamedTuple):
    """Metadata of a member from its requests."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""  # with a leading slash, as Kafka stores it ("/127.0.0.1")
    topic_names: tuple[str, ...] = ()  # ascending
    topic_regex: str = ""  # of further subscribed topics, "" for none
    rebalance_timeout_ms: int = -1  # to revoke partitions; -1 unknown
    server_assignor: str | None = None  # None: no preference
    classic: ClassicMemberMetadata | None = None  # None unless the member uses the classic protocol

    @property
    def subscription(self) -> TopicSubscription:
        return self.topic_names, self.topic_regex


class CurrentAssignment(NamedTuple):
    """Current assignment of a member: partitions with the epoch of their assignment, before which commits are refused."""

    # 0 before the first assignment; -2 after a static member left, before it joins again
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH  # accepted, too: the answer with the newer epoch may have been lost
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = {}  # noqa: RUF012  # never changed in place: every change makes a new CurrentAssignment
    pending_revocation: PartitionEpochs = {}  # noqa: RUF012  # likewise

    def holds(self) -> Iterator[tuple[bytes, int]]:
        """Partitions that no other member may have: (topic id, partition)."""
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
        return self.metadata.classic is not None

    @property
    def classic(self) -> ClassicMemberMetadata:
        """Raises BrokerError(UNKNOWN_MEMBER_ID) if the member uses the consumer protocol."""
        if self.metadata.classic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {self.member_id} does not use the classic protocol."
            )
        return self.metadata.classic

    def may_commit(self, epoch: int, topic_id: bytes, partition: int) -> bool:
        """Whether a commit in `epoch` is not older than the partition's assignment (KIP-1251)."""
        if epoch == self.assignment.member_epoch:
            return True
        assigned = self.assignment.assigned.get(topic_id, {}).get(partition)
        return assigned is not None and assigned <= epoch < self.assignment.member_epoch


def pairs(partitions: PartitionEpochs | Partitions) -> Iterator[tuple[bytes, int]]:
    """(topic id, partition)."""
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
    """The next step of a member towards its target assignment; the same object if nothing changes.

    UNREVOKED_PARTITIONS: the member revokes what is not in its target, still in its former epoch. UNRELEASED_PARTITIONS: it enters the
    epoch of the target and gets the partitions that no other member holds. STABLE: it has all of them. `owned` is None if the request does
    not say; `is_taken`: another member holds the partition; the target may be older than `subscribed` topics. Raises
    BrokerError(FENCED_MEMBER_EPOCH) for a member in a state that this release does not know.
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
    """Removes unsubscribed topics before a new target assignment is computed."""
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
    """Whether the member may still own one of the partitions; True if its request does not say."""
    return owned is None or any(pair in owned for pair in pairs(partitions))
