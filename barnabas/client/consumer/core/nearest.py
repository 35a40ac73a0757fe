"""Replica selection of a consumer: the leader, or a nearer replica that it names (KIP-392)."""

from __future__ import annotations

from collections.abc import Container

_NONE = -1
_WARY_MS = 10_000  # longer than a broker's session: after this time the leader knows of a dead replica


class NearestReplica:
    """The choice for one partition. `node_id` is the replica instead of the leader, or −1."""

    __slots__ = ("_leader_epoch", "_until_ms", "_wary_until_ms", "node_id")

    def __init__(self) -> None:
        self.node_id = _NONE
        self._leader_epoch = -1
        self._until_ms = 0
        self._wary_until_ms = 0

    def advise(self, node_id: int, leader_epoch: int, until_ms: int) -> None:
        self.node_id = node_id
        self._leader_epoch = leader_epoch
        self._until_ms = until_ms

    def choose(self, leader: int, leader_epoch: int, brokers: Container[int], now_ms: int) -> int:
        if self.node_id == _NONE:
            return leader
        if now_ms >= self._until_ms or leader_epoch != self._leader_epoch or self.node_id not in brokers:
            self.node_id = _NONE
            return leader
        return self.node_id

    def give_up(self, now_ms: int) -> None:
        """The replica failed: asks the leader, for a while without the rack, as it may still name the same replica."""
        self.node_id = _NONE
        self._wary_until_ms = now_ms + _WARY_MS

    def wanted(self, now_ms: int) -> bool:
        return now_ms >= self._wary_until_ms
