"""Travel: the clocks of one broker, which a test moves forward. Nothing here waits or fires a timer.

The wall clock of a broker is that of the machine plus the offset. Its monotonic clock exists twice. What brokers measure of each
other (sessions, elections, replication, requests) keeps the time of the machine, so no jump ends it. What a broker measures for clients
(sessions of groups, timeouts of transactions) moves with the wall clock.

Invariants: the offset never decreases.
"""

from __future__ import annotations

from barnabas.ports import Clock


class Travel:
    """The moved time of one broker.

    Args:
        machine: the clock of the machine.

    Attributes:
        offset_ms: how far the broker is ahead of the machine.
        clock: for the node: moved wall clock, monotonic clock of the machine.
        client_clock: for what it measures for clients: both are moved.
    """

    def __init__(self, machine: Clock) -> None:
        self.offset_ms = 0
        self.clock: Clock = _MovedWall(machine, self)
        self.client_clock: Clock = _MovedBoth(machine, self)

    def move_to(self, offset_ms: int) -> None:
        """Moves both clocks forward to the offset; never back."""
        self.offset_ms = max(self.offset_ms, offset_ms)


class _MovedWall:
    """Moved wall clock, monotonic clock of the machine."""

    __slots__ = ("_machine", "_travel", "monotonic_ms")

    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel
        self.monotonic_ms = machine.monotonic_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, moved."""
        return self._machine.now_ms() + self._travel.offset_ms


class _MovedBoth:
    """Moved wall clock, moved monotonic clock."""

    __slots__ = ("_machine", "_travel")

    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, moved."""
        return self._machine.now_ms() + self._travel.offset_ms

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start, moved; never goes back."""
        return self._machine.monotonic_ms() + self._travel.offset_ms
