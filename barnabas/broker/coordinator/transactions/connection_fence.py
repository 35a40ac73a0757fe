"""Connection fence: refuses late requests of producers that use Transactions V1.

Under V1 a producer epoch lasts for many transactions. So the fields of a request do not tell whether it belongs to
the current transaction or was delayed by the network: a late EndTxn would end the wrong one. (Jepsen found this in
Kafka; KIP-890 solves it for V2.) But TCP keeps the order within a connection, and a client closes a connection before
it repeats a request over another one. So a request is late if its producer has already sent one over a newer
connection.

A client that uses several connections at once loses the older ones and continues over new ones.
Bounded: the fence forgets a producer after `limits.FENCED_PRODUCERS_MAX` others have sent requests. Kafka has no such
fence.
"""

from __future__ import annotations

from collections.abc import Hashable

from barnabas.errors import RemoteProtocolError
from barnabas.limits import FENCED_PRODUCERS_MAX


class ConnectionFence:
    """The newest connection of each producer; connections are numbered in the order of their acceptance.

    Attributes:
        refusals: requests refused since the start.
    """

    __slots__ = ("_newest", "refusals")

    def __init__(self) -> None:
        self.refusals = 0
        # Key → (producer id, epoch, connection); the one that sent nothing for the longest time first.
        self._newest: dict[Hashable, tuple[int, int, int]] = {}

    def check(self, key: Hashable, producer_id: int, producer_epoch: int, connection: int) -> None:
        """Checks a V1 request and remembers its connection.

        Args:
            key: what the producer changes: its transactional id, or transactional id and group.

        Raises:
            RemoteProtocolError: the request is late; its connection must be closed without an answer.
        """
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
