"""A member of a consumer group (KIP-848): what it says of itself, what it has, and how it gets what it shall have.

Driven by: `ConsumerGroup` holds members, `ConsumerProtocol` decides about them.
Emits: new values; nothing here changes in place.

Reconciliation is three steps a heartbeat each: a member first gives up what is not in its target (UNREVOKED_PARTITIONS, in its
old epoch), and only when it no longer owns that does it enter the target's epoch; there it gets what nobody else holds, and waits
for the rest (UNRELEASED_PARTITIONS) until it is all there (STABLE).

Invariants: `assigned` and `pending_revocation` are disjoint; a member holds both until it says that it gave the latter up;
every partition has the epoch in which this member got it (commits of earlier epochs are refused).
Follows KIP-848, KIP-1251 (assignment epochs); after Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from typing import NamedTuple

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.errors import BrokerError, ErrorCode

__all__ = [
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "LEAVE_STATIC_EPOCH",
    "NOT_JOINED",
    "ClassicProfile",
    "ConsumerMember",
    "Epochs",
    "MemberState",
    "Owned",
    "Profile",
    "Standing",
    "pairs",
    "reconcile",
]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2  # of a static member that will be back

Epochs = dict[bytes, dict[int, int]]
"""Partitions by topic id, each with the member epoch in which it was assigned."""

Owned = frozenset[tuple[bytes, int]]
"""What a member says it owns."""


class MemberState(IntEnum):
    """Where a member stands with its target; numbers as in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it must give up partitions first
    UNRELEASED_PARTITIONS = 2  # it waits for partitions that others still hold
    UNKNOWN = 127  # of a later release


class ClassicProfile(NamedTuple):
    """What a member of the classic protocol adds to its profile."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, preferred ones first


class Profile(NamedTuple):
    """What a member says of itself.

    Attributes:
        client_host: as Kafka stores it, with a leading slash ("/127.0.0.1").
        topic_names: subscribed by name, ascending.
        topic_regex: subscribed by expression, "" for none.
        rebalance_timeout_ms: how long it may take to give partitions up.
        server_assignor: the assignor it would like; None for no preference.
        classic: of a member that speaks the classic protocol, None of others.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicProfile | None = None


class Standing(NamedTuple):
    """What a member has.

    Attributes:
        epoch: 0 before its first assignment, −2 while a static member is away.
        previous_epoch: also accepted from the member, whose answer may have been lost.
        assigned: what it may read.
        pending_revocation: what it must give up, and still holds.
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Epochs = {}  # noqa: RUF012  # never changed in place: every change makes a new Standing
    pending_revocation: Epochs = {}  # noqa: RUF012  # likewise

    def holds(self) -> Iterator[tuple[bytes, int]]:
        """Partitions that nobody else may have."""
        yield from pairs(self.assigned)
        yield from pairs(self.pending_revocation)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


NOT_JOINED = Standing()


class ConsumerMember(NamedTuple):
    """One member."""

    member_id: str
    profile: Profile
    standing: Standing

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.profile.classic is not None

    @property
    def classic(self) -> ClassicProfile:
        """What it said in the classic protocol.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID: it speaks the other one.
        """
        if self.profile.classic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {self.member_id} does not use the classic protocol."
            )
        return self.profile.classic

    def may_commit(self, epoch: int, topic_id: bytes, partition: int) -> bool:
        """Whether a commit in `epoch` cannot be that of an owner before: same epoch, or not older than the assignment."""
        if epoch == self.standing.epoch:
            return True
        assigned = self.standing.assigned.get(topic_id, {}).get(partition)
        return assigned is not None and assigned <= epoch < self.standing.epoch


def pairs(partitions: Epochs | Partitions) -> Iterator[tuple[bytes, int]]:
    """(topic id, partition) of each."""
    for topic_id, numbers in partitions.items():
        for number in numbers:
            yield topic_id, number


def reconcile(
    standing: Standing,
    target_epoch: int,
    target: Partitions,
    *,
    owned: Owned | None,
    is_taken: Callable[[bytes, int], bool],
    subscribed: Collection[bytes],
    subscription_changed: bool = False,
) -> Standing:
    """The next step of a member towards its target; the same Standing where there is none.

    Args:
        owned: what the member says it owns, None where it did not say.
        is_taken: whether another member holds the partition.
        subscribed: topics it subscribes to now; the target may be older than the subscription.

    Raises:
        BrokerError: FENCED_MEMBER_EPOCH for a member in a state that is not known here.
    """
    if standing.is_reconciled(target_epoch) and not subscription_changed:
        return standing
    if standing.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, standing.pending_revocation):
            return _drop_unsubscribed(standing, owned, subscribed) if subscription_changed else standing
        epoch = min(standing.epoch + 1, target_epoch)
    elif standing.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise BrokerError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        epoch = target_epoch
    elif standing.is_reconciled(target_epoch):
        return _drop_unsubscribed(standing, owned, subscribed)
    else:
        epoch = standing.epoch
    wanted = {topic_id: numbers for topic_id, numbers in target.items() if topic_id in subscribed}
    return _approach(standing, epoch, target_epoch, wanted, owned, is_taken)


def _approach(
    standing: Standing,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Owned | None,
    is_taken: Callable[[bytes, int], bool],
) -> Standing:
    kept: Epochs = {}
    revoked: Epochs = {}
    for topic_id, held in standing.assigned.items():
        wanted = frozenset(target.get(topic_id, ()))
        _put(kept, topic_id, {number: since for number, since in held.items() if number in wanted})
        _put(revoked, topic_id, {number: since for number, since in held.items() if number not in wanted})
    if revoked and _owns_any(owned, revoked):
        return Standing(epoch, standing.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    assigned: Epochs = dict(kept)
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
    return Standing(target_epoch, standing.epoch, state, assigned, {})


def _drop_unsubscribed(standing: Standing, owned: Owned | None, subscribed: Collection[bytes]) -> Standing:
    """Takes topics away at once that the member no longer subscribes to, without a new target."""
    dropped = {topic_id: held for topic_id, held in standing.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return standing
    kept = {topic_id: held for topic_id, held in standing.assigned.items() if topic_id in subscribed}
    pending = {topic_id: dict(held) for topic_id, held in standing.pending_revocation.items()}
    for topic_id, held in dropped.items():
        pending[topic_id] = {**pending.get(topic_id, {}), **held}
    if _owns_any(owned, pending):
        return Standing(standing.epoch, standing.epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)
    return Standing(standing.epoch, standing.epoch, MemberState.STABLE, kept, {})


def _put(partitions: Epochs, topic_id: bytes, numbers: dict[int, int]) -> None:
    if numbers:
        partitions[topic_id] = numbers


def _owns_any(owned: Owned | None, partitions: Epochs) -> bool:
    """Whether the member still holds one of them; so it does where it did not say."""
    return owned is None or any(pair in owned for pair in pairs(partitions))
