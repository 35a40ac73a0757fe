"""Virtual clock and seeded randomness: the Clock and Rng ports of a simulated process.

Invariants: the same seed and label draw the same numbers and uuids under any PYTHONHASHSEED. Clocks of different
machines may differ, but `monotonic_ms` never goes back.
"""

from __future__ import annotations

import random

from barnabas.runtime.randomness import uuid_from_bytes
from barnabas.testing.simulation.loop import SimLoop

EPOCH_MS = 1_700_000_000_000  # wall clock at virtual time 0: 2023-11-14T22:13:20Z
_NS_PER_MS = 1_000_000


class SimClock:
    """The clock of one machine. `skew_ms` is the offset of its wall clock and may be changed at any time."""

    __slots__ = ("_loop", "skew_ms")

    def __init__(self, loop: SimLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch by this machine's wall clock."""
        return EPOCH_MS + self.skew_ms + self._loop.now_ns // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """Milliseconds since the world began."""
        return self._loop.now_ns // _NS_PER_MS


class SimRng:
    """The random source of one process, seeded by the world's seed and the process's label."""

    __slots__ = ("_random",)

    def __init__(self, seed: int, label: str = "") -> None:
        self._random = random.Random(f"{seed}/{label}")  # text is hashed by SHA-512, not by hash()

    def random(self) -> float:
        """A float in [0, 1)."""
        return self._random.random()

    def randrange(self, stop: int) -> int:
        """An int in [0, stop)."""
        return self._random.randrange(stop)

    def uuid(self) -> bytes:
        """16 bytes in the form of a version-4 UUID."""
        return uuid_from_bytes(self._random.randbytes(16))
