"""LogOnce: logs each quorum misconfiguration once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.errors import ErrorCode
from barnabas.loggers import logger

log = logger("kafka.raft")

MESSAGES_MAX: Final = 100  # different messages per process: a peer that sends invalid requests cannot fill the log
REFUSALS: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INCONSISTENT_VOTER_SET,
        ErrorCode.INVALID_VOTER_KEY,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class LogOnce:
    """Logs each message of one node once, up to MESSAGES_MAX different messages."""

    __slots__ = ("_logged", "_node_id")

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._logged: dict[str, None] = {}

    def refused(self, peer: int, error: ErrorCode) -> None:
        """A peer answered a request with an error. Logs only errors that retries do not cure."""
        if error in REFUSALS:
            self.error(
                "Node is refused in the metadata quorum: node_id=%d refused_by=%d error=%s meaning=%s",
                self._node_id,
                peer,
                error.name,
                error.meaning,
            )

    def unknown_voter(self, node_id: int, voters: Sequence[int]) -> None:
        """A request names a voter that is missing from controller.quorum.voters."""
        self.error(
            "A node claims to vote in the metadata quorum, and controller.quorum.voters lacks it here; give every node "
            "the same list: node_id=%d voters=%s",
            node_id,
            ",".join(map(str, voters)),
        )

    def duplicate_node(self, leader_id: int, epoch: int) -> None:
        """Logs if the leader of a new epoch has this node's id: two processes share it."""
        if leader_id == self._node_id:
            self.error(
                "Another process leads the metadata quorum with the id of this node; each node needs an id and a "
                "directory of its own: node_id=%d epoch=%d",
                leader_id,
                epoch,
            )

    def error(self, template: str, *values: object) -> None:
        """Logs at level ERROR unless it was logged before with the same values."""
        message = template % values
        if message not in self._logged and len(self._logged) < MESSAGES_MAX:
            self._logged[message] = None
            log.error(template, *values)
