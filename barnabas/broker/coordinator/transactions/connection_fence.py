"""Connection fence: rejects late requests of producers that use Transactions V1. Kafka has no such fence."""

from __future__ import annotations

from collections.abc import Hashable

from barnabas.errors import RemoteProtocolError
from barnabas.limits import FENCED_PRODUCERS_MAX


class ConnectionFence:
    """The newest connection of each producer; connections are numbered in the order of their acceptance.

    A V1 producer epoch lasts for many transactions, so a late EndTxn could end the wrong one (found by Jepsen in Kafka; KIP-890 solves it
    for V2). TCP keeps the order within a connection, and a client closes a connection before it retries over another one: a request is late
    if its producer has already used a newer connection. A client with several connections at once loses the older ones and continues over
    new ones. Evicts the least recently used producer above `limits.FENCED_PRODUCERS_MAX`.
    """

    __slots__ = ("_newest", "refusals")

    def __init__(self) -> None:
        self.refusals = 0
        # Key → (producer id, epoch, connection), least recently used first.
        self._newest: dict[Hashable, tuple[int, int, int]] = {}

    def check(self, key: Hashable, producer_id: int, producer_epoch: int, connection: int) -> None:
        """`key`: transactional id, or with group. Raises RemoteProtocolError for a late request: close its connection without an answer."""
        known = self._newest.get(key)
        if known is not None and known[0] == producer_id:
            if producer_epoch < known[1]:
                return  # another rule refuses it
            if producer_epoch == known[1] and connection < known[2]:
                self.refusals += 1
                raise RemoteProtocolError(
                    f"late request: producer {producer_id} of {key!r} already uses a newer connection"
                )
        self._newest.pop(key, None)
        self._newest[key] = producer_id, producer_epoch, connection
        if len(self._newest) > FENCED_PRODUCERS_MAX:
            del self._newest[next(iter(self._newest))]
