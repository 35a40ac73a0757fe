"""Who may commit offsets of a group: by generation, member epoch, or because nobody is there.

Driven by: `GroupShard`, for OffsetCommit, TxnOffsetCommit (KIP-447) and OffsetFetch from version 9 on.
Emits: nothing, or a refusal.

A member of a consumer group may commit in its epoch, and in an older one what it has had since then: then no other member can
have had it in between (KIP-1251).
Follows KIP-345, KIP-447, KIP-848, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, Topics
from barnabas.broker.coordinator.groups.records import OffsetRecord
from barnabas.errors import BrokerError, ErrorCode

__all__ = ["Committer", "check_classic", "check_consumer", "check_fetch", "check_nobody"]

MEMBER_EPOCH_VERSION = 9  # of OffsetCommit and OffsetFetch


class Committer:
    """Who commits offsets: member and generation (or member epoch) as the request names them; −1 and "" for nobody.

    Attributes:
        version: of the OffsetCommit; None for a TxnOffsetCommit, whose clients before KIP-447 name no member.
    """

    __slots__ = ("generation", "group_id", "group_instance_id", "member_id", "version")

    def __init__(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int, version: int | None
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.generation = generation
        self.version = version

    @property
    def names_a_member(self) -> bool:
        return self.generation >= 0 or bool(self.member_id) or self.group_instance_id is not None

    @property
    def is_transactional(self) -> bool:
        return self.version is None


def check_nobody(committer: Committer) -> None:
    """The group is not there: only a simple consumer may commit.

    Raises:
        BrokerError: ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND from v9 on.
    """
    if committer.generation >= 0:
        knows_it = committer.version is not None and committer.version >= MEMBER_EPOCH_VERSION
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND if knows_it else ErrorCode.ILLEGAL_GENERATION)


def check_classic(group: ClassicGroup, committer: Committer) -> None:
    """Whether the member may commit in its generation.

    Raises:
        BrokerError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS.
    """
    if committer.generation < 0 and group.state is GroupState.EMPTY:
        return
    if not committer.names_a_member:
        if committer.is_transactional:
            return
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.validate_member(committer.member_id, committer.group_instance_id)
    if committer.generation != group.generation:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
    if not committer.is_transactional and group.state is GroupState.COMPLETING_REBALANCE:
        raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)


def check_consumer(group: ConsumerGroup, committer: Committer, offsets: Sequence[OffsetRecord], topics: Topics) -> None:
    """Whether the member may commit these in its epoch: all of them or none.

    Raises:
        BrokerError: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for members of the classic protocol and
            in transactions; UNSUPPORTED_VERSION for a version that does not know member epochs.
    """
    if committer.generation < 0 and group.is_empty:
        return
    if committer.is_transactional and not committer.names_a_member:
        return
    member = group.member(committer.member_id)
    if not member.is_classic and committer.version is not None and committer.version < MEMBER_EPOCH_VERSION:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    for record in offsets:
        if not member.may_commit(committer.generation, topics.topic_id(record.topic) or b"", record.partition):
            classic = member.is_classic or committer.is_transactional
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH)


def check_fetch(group: ConsumerGroup | None, member_id: str | None, epoch: int) -> None:
    """Whether a member may read offsets; who names no member may, and so may all others than members of consumer groups.

    Raises:
        BrokerError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH.
    """
    if group is None or (member_id is None and epoch < 0):
        return
    member = group.member(member_id or "")
    if epoch != member.standing.epoch:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)
