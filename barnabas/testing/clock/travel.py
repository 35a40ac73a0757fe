"""Clocks of one broker, which a test moves forward; nothing here waits or fires a timer."""

from __future__ import annotations

from barnabas.ports import Clock


class Travel:
    """The moved time of one broker; `machine` is the machine's clock."""

    def __init__(self, machine: Clock) -> None:
        self.offset_ms = 0  # ahead of the machine; never decreases
        self.clock: Clock = _MovedWall(machine, self)
        self.client_clock: Clock = _MovedBoth(machine, self)

    def move_to(self, offset_ms: int) -> None:
        self.offset_ms = max(self.offset_ms, offset_ms)


class _MovedWall:
    """Broker-to-broker timeouts (sessions, elections, replication) keep the machine's monotonic clock: no jump ends them."""

    __slots__ = ("_machine", "_travel", "monotonic_ms")

    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel
        self.monotonic_ms = machine.monotonic_ms

    def now_ms(self) -> int:
        return self._machine.now_ms() + self._travel.offset_ms


class _MovedBoth:
    """Client timeouts (group sessions, transactions) move with the wall clock."""

    __slots__ = ("_machine", "_travel")

    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel

    def now_ms(self) -> int:
        return self._machine.now_ms() + self._travel.offset_ms

    def monotonic_ms(self) -> int:
        return self._machine.monotonic_ms() + self._travel.offset_ms
