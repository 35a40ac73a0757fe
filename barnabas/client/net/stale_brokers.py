"""StaleBrokers: brokers whose metadata was stale; the next refresh asks another one.
A leader that is cut off from the controller still names itself: its clients would never learn of its successor.
"""

from __future__ import annotations


class StaleBrokers:
    """Stale brokers `without` news, never all of them; `asked` is the broker that answered last."""

    def __init__(self) -> None:
        self.asked = -1
        self.without: dict[int, None] = {}

    def on_answer(self, nothing_new: bool, brokers: int) -> None:
        """Broker `asked` has answered; `nothing_new`: an update was needed but it brought none."""
        if nothing_new and len(self.without) + 1 < brokers:
            self.without[self.asked] = None
        else:
            self.without.clear()
