"""Membership checks of OffsetCommit, TxnOffsetCommit and OffsetFetch (KIP-345, KIP-447, KIP-848, KIP-1251)."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.records import OffsetRecord
from barnabas.broker.coordinator.groups.topics import Topics
from barnabas.errors import BrokerError, ErrorCode

MEMBER_EPOCH_VERSION = 9  # OffsetCommit and OffsetFetch have member epochs from this version on


class Committer:
    """Sender of an OffsetCommit or TxnOffsetCommit, as the request names it."""

    __slots__ = ("generation", "group_id", "group_instance_id", "member_id", "version")

    def __init__(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int, version: int | None
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id  # "" without membership
        self.group_instance_id = group_instance_id
        self.generation = generation  # or member epoch; -1 without membership
        # of the OffsetCommit; None for a TxnOffsetCommit, whose clients before KIP-447 name no member
        self.version = version

    @property
    def names_a_member(self) -> bool:
        return self.generation >= 0 or bool(self.member_id) or self.group_instance_id is not None

    @property
    def is_transactional(self) -> bool:
        return self.version is None


def check_missing(committer: Committer) -> None:
    """Only clients without membership may commit: else ILLEGAL_GENERATION, from OffsetCommit 9 on GROUP_ID_NOT_FOUND."""
    if committer.generation >= 0:
        has_code = committer.version is not None and committer.version >= MEMBER_EPOCH_VERSION
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND if has_code else ErrorCode.ILLEGAL_GENERATION)


def check_classic(group: ClassicGroup, committer: Committer) -> None:
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
    """A member may commit in its epoch, and in an older one for partitions that it has had since then (KIP-1251).

    Raises BrokerError: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, which is ILLEGAL_GENERATION for members of the classic protocol and in
    transactions; UNSUPPORTED_VERSION for versions without member epochs.
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


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """A request without member is allowed.

    Raises BrokerError: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, which is ILLEGAL_GENERATION for members of the classic protocol.
    """
    if member_id is None and epoch < 0:
        return
    member = group.member(member_id or "")
    if epoch != member.assignment.member_epoch:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)
