"""States of a classic group, as a table, and its members (KIP-62, KIP-345, KIP-394)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from barnabas.broker.coordinator.groups.effects import Responder

Protocols = list[tuple[str, bytes]]
"""A member's protocols in its order of preference: (name, metadata)."""


class GroupState(Enum):
    """Names as in DescribeGroups and ListGroups."""

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
"""The states from which each state may be entered."""


class GroupMember:
    """One member of a classic group; at most one JoinGroup and one SyncGroup are parked."""

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
        self.client_host = client_host  # with a leading slash, as Kafka stores it ("/127.0.0.1")
        self.rebalance_timeout_ms = rebalance_timeout_ms  # as requested, validated
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Responder | None = None  # reply of its parked JoinGroup
        self.awaiting_sync: Responder | None = None
        # its first JoinGroup is not answered yet; its session expires even while the request is parked
        self.is_new = False

    @property
    def is_static(self) -> bool:
        """KIP-345: keeps its place without joining a rebalance, until its session expires."""
        return self.group_instance_id is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str | None:
        """The member's first protocol that is a candidate; None if none is."""
        allowed = set(candidates)
        return next((name for name, _ in self.protocols if name in allowed), None)

    def keeps_session_while_waiting(self) -> bool:
        """Whether a parked request keeps the session alive without heartbeats.

        Not the first JoinGroup of a new member: a client that repeats it gets another member id each time, and the former ids must expire.
        """
        if self.is_new:
            return False
        return self.awaiting_join is not None or self.awaiting_sync is not None
