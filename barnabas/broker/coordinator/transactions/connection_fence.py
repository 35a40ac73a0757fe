"""Connection fence: a producer of Transactions V1 is heard over the newest connection it has spoken over, and no older one.

Driven by: requests of V1 that change a transaction (AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit), with the number of
the connection they came by. Emits: whether they may be decided.

Under V1 an epoch spans transactions, so a request that the network held back cannot be told by its fields from one of the present
transaction: a late EndTxn would end the wrong one (Jepsen found that in Kafka, and KIP-890 is the answer to it, for V2). But TCP
keeps the order within a connection, and a client gives a connection up before it repeats a request over another. So what
comes over an older connection, after a newer one has been heard, is late.

A client that does use several connections loses the older one and comes back over a new one; it does not starve.
Bounded: who was silent while `limits.FENCED_PRODUCERS_MAX` others spoke is forgotten, and fenced no more until it speaks.
Kafka has no such fence.
"""

from __future__ import annotations

from collections.abc import Hashable

from barnabas.errors import RemoteProtocolError
from barnabas.limits import FENCED_PRODUCERS_MAX

__all__ = ["ConnectionFence"]


class ConnectionFence:
    """Of one coordinator on one node; connections are numbered in the order in which they were accepted."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        # by what is coordinated: producer id, epoch, connection; least recently heard first
        self._newest: dict[Hashable, tuple[int, int, int]] = {}

    def check(self, key: Hashable, producer_id: int, producer_epoch: int, connection: int) -> None:
        """Takes note of a request of V1.

        Args:
            key: what the producer changes: its transactional id, or that and the group.

        Raises:
            RemoteProtocolError: it is late: its connection is to be closed, unanswered.
        """
        known = self._newest.get(key)
        if known is not None and known[0] == producer_id:
            if producer_epoch < known[1]:
                return  # another rule refuses it
            if producer_epoch == known[1] and connection < known[2]:
                raise RemoteProtocolError(
                    f"producer {producer_id} of {key!r} speaks over a newer connection: this is late"
                )
        self._newest.pop(key, None)
        self._newest[key] = producer_id, producer_epoch, connection
        if len(self._newest) > FENCED_PRODUCERS_MAX:
            del self._newest[next(iter(self._newest))]
