"""Group: the interface of ClassicDecisions, ConsumerDecisions (KIP-848) and MissingGroup, which only decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import At, DeadlineKey, Effects, HeartbeatCall, JoinCall, Responder
from barnabas.broker.coordinator.groups.records import AnyRecord, OffsetRecord
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import MemberIdentity, MemberResponse, SyncGroupRequest


class OffsetExpiry(NamedTuple):
    """How the offsets of a group expire (KIP-211)."""

    emptied_ms: int | None  # wall clock from which the retention counts; None: from each commit


class Group(Protocol):
    """A group. Methods raise BrokerError to refuse a request; then nothing has changed."""

    @property
    def group_id(self) -> str: ...

    # -- membership

    def join(self, call: JoinCall, at: At, effects: Effects) -> None: ...

    def sync(self, request: SyncGroupRequest, reply: Responder, at: At, effects: Effects) -> None: ...

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        """Extends the session of a classic member; raises as `ClassicProtocol.heartbeat`."""
        ...

    def leave(self, members: Sequence[MemberIdentity], at: At, effects: Effects) -> list[MemberResponse]:
        """Removes members; a response for each. Raises BrokerError(UNKNOWN_MEMBER_ID) for a missing group."""
        ...

    def consumer_heartbeat(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        """A member joins, stays or leaves. Raises BrokerError(GROUP_ID_NOT_FOUND), and as `ConsumerProtocol.heartbeat`."""
        ...

    # -- time

    def start_sessions(self, at: At) -> None:
        """After the group was loaded or converted."""
        ...

    def rebalance(self, at: At, effects: Effects) -> None:
        """Starts a rebalance if the group needs one to get a new assignment and its state allows it."""
        ...

    def is_over_size(self) -> bool:
        """Whether the group must rebalance because it has more members than the settings allow."""
        ...

    def on_deadline(self, key: DeadlineKey, at: At, effects: Effects) -> bool:
        """Returns whether `remove_members` must be called for the member of the passed deadline."""
        ...

    def remove_members(self, member_ids: tuple[str, ...], at: At, effects: Effects) -> None: ...

    # -- offsets

    def check_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], at: At) -> None:
        """Checks that a member may commit these offsets; raises as `committing`. A commit extends the session of a classic member."""
        ...

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Checks that a member may read offsets; raises as `committing.check_fetch`."""
        ...

    def check_offset_delete(self) -> None:
        """Deletion needs the topics that members read. Raises BrokerError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
        ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_expiry(self) -> OffsetExpiry | None:
        """None if offsets do not expire now."""
        ...

    # -- deletion

    @property
    def is_empty(self) -> bool: ...

    def check_delete(self) -> None:
        """Raises BrokerError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
        ...

    def tombstones(self) -> Sequence[AnyRecord]:
        """Tombstones that delete the group, without its offsets."""
        ...
