"""Which broker a partition is read from: its leader, or a replica nearer by that the leader has named (KIP-392).

Driven by: the leader's advice, refusals and silence of the replica that it named, time. Emits: the broker to ask.

The advice holds until metadata would be too old (then the leader is asked again), another leader takes over, or the
replica is of no use. The leader may not know yet that it is not, and would name it again: for a while it is not told the rack
then, and so serves itself.
"""

from __future__ import annotations

from collections.abc import Container

__all__ = ["NearestReplica"]

_NOBODY = -1
_WARY_MS = 10_000  # longer than a broker's session: by then the leader knows that a replica is gone


class NearestReplica:
    """Of one partition. Attributes:

    node_id: the replica that is read from instead of the leader; −1 where there is none.
    """

    __slots__ = ("_leader_epoch", "_until_ms", "_wary_until_ms", "node_id")

    def __init__(self) -> None:
        self.node_id = _NOBODY
        self._leader_epoch = -1
        self._until_ms = 0
        self._wary_until_ms = 0

    def advise(self, node_id: int, leader_epoch: int, until_ms: int) -> None:
        """The leader of an epoch names a replica; it is read from until then."""
        self.node_id = node_id
        self._leader_epoch = leader_epoch
        self._until_ms = until_ms

    def choose(self, leader: int, leader_epoch: int, brokers: Container[int], now_ms: int) -> int:
        """Whom to ask now.

        Args:
            brokers: ids of those that are known.
        """
        if self.node_id == _NOBODY:
            return leader
        if now_ms >= self._until_ms or leader_epoch != self._leader_epoch or self.node_id not in brokers:
            self.node_id = _NOBODY
            return leader
        return self.node_id

    def give_up(self, now_ms: int) -> None:
        """The replica was of no use: the leader is asked next, and serves itself for a while."""
        self.node_id = _NOBODY
        self._wary_until_ms = now_ms + _WARY_MS

    def wanted(self, now_ms: int) -> bool:
        """Whether the leader may name a replica."""
        return now_ms >= self._wary_until_ms
