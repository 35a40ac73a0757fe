"""States of a classic consumer group, as a table, and the member that lives in it.

Driven by: `ClassicGroup`, which owns members and moves through the states; nothing here knows requests or time sources.

Invariants: a group changes state only along VALID_PREVIOUS; a member waits for at most one JoinGroup and one SyncGroup answer;
`awaiting_join` and `awaiting_sync` hold opaque reply handles of the shell, never called from a core.

Follows Kafka's classic protocol (KIP-62 background heartbeats, KIP-345 static members, KIP-394 required member ids).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

__all__ = ["VALID_PREVIOUS", "GroupMember", "GroupState", "Protocols", "Reply"]

Protocols = list[tuple[str, bytes]]
"""A member's protocols in its order of preference: (name, metadata)."""

Reply = object
"""Where an answer goes: opaque to the cores, resolved by the shell."""


class GroupState(Enum):
    """States by the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""From which states each state may be entered."""


class GroupMember:
    """One member: who it is, what it can do, what it was assigned, and which answers it waits for.

    Attributes:
        client_host: as Kafka stores it, with a leading slash ("/127.0.0.1").
        rebalance_timeout_ms, session_timeout_ms: as the member asked, already validated.
        session_deadline_ms: monotonic ms after which the member is dead unless it waits for an answer.
        is_new: joined by this rebalance and was never answered, so its session deadline counts even while it waits.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        *,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Reply | None = None
        self.awaiting_sync: Reply | None = None
        self.session_deadline_ms = 0
        self.is_new = False

    @property
    def is_static(self) -> bool:
        """Whether the member survives a missed rejoin until its session ends (KIP-345)."""
        return self.group_instance_id is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for the protocol; empty where it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str | None:
        """The member's first protocol among the candidates; None where it supports none of them."""
        allowed = set(candidates)
        return next((name for name, _ in self.protocols if name in allowed), None)

    def keeps_session_while_waiting(self) -> bool:
        """Whether a pending answer of the coordinator excuses a missing heartbeat.

        A new member's first JoinGroup is bounded instead: a client that gave up on it would leave a ghost behind
        in every retry.
        """
        if self.is_new:
            return False
        return self.awaiting_join is not None or self.awaiting_sync is not None
