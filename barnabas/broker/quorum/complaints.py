"""Complaints: what is wrong between members of the quorum and no retry cures, said once each however often it comes.

Driven by: `RaftMachine` and the handlers of the quorum's requests. Emits: log lines that name what to correct.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from barnabas.errors import ErrorCode

__all__ = ["Complaints"]

log = logging.getLogger(__name__)

COMPLAINTS_MAX: Final = 100  # different ones in the life of a process: a peer that sends nonsense cannot fill the log
REFUSALS: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.INVALID_VOTER_KEY,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class Complaints:
    """Of one node."""

    __slots__ = ("_node_id", "_said")

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._said: dict[str, None] = {}

    def refused(self, peer: int, error: ErrorCode) -> None:
        """A peer answered a request with that error; those that pass by themselves are not told."""
        if error in REFUSALS:
            self.say(f"node {peer} refuses node {self._node_id} in the metadata quorum: {error.name}, {error.meaning}")

    def foreigner(self, node_id: int, voters: Sequence[int]) -> None:
        """A node takes itself, or another, for a voter that is none here."""
        self.say(
            f"node {node_id} claims to vote in the metadata quorum; controller.quorum.voters names "
            f"{', '.join(map(str, voters))} here: give every node the same list"
        )

    def led(self, leader_id: int, epoch: int) -> None:
        """An epoch that is new to this node has this leader: where that is this node itself, it is not alone."""
        if leader_id == self._node_id:
            self.say(
                f"node {leader_id} leads epoch {epoch} of the metadata quorum, and that is not this process: another one runs "
                f"as node {leader_id}; each node needs an id and a directory of its own"
            )

    def say(self, message: str) -> None:
        """Logs it, unless it was said before."""
        if message not in self._said and len(self._said) < COMPLAINTS_MAX:
            self._said[message] = None
            log.error("%s", message)
