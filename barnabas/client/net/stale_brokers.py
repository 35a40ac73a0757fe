"""StaleBrokers: brokers whose metadata was stale; the next refresh asks another one.

A leader that is cut off from the controller refuses records with NOT_LEADER_OR_FOLLOWER, and its Metadata still names itself. A client
that asked only this broker would never learn of its successor.

Invariant: there is a broker that is not in `without`.
"""

from __future__ import annotations


class StaleBrokers:
    """Brokers whose metadata was stale.

    Attributes:
        asked: node id of the broker that answered last.
        without: node ids of brokers that brought nothing new, since one did.
    """

    def __init__(self) -> None:
        self.asked = -1
        self.without: dict[int, None] = {}

    def on_answer(self, nothing_new: bool, brokers: int) -> None:
        """The broker `asked` has answered Metadata.

        Args:
            nothing_new: the client had a reason to ask, and knows as much as before.
            brokers: how many the cluster has.
        """
        if nothing_new and len(self.without) + 1 < brokers:
            self.without[self.asked] = None
        else:
            self.without.clear()
