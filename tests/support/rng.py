"""Random numbers for cores and faults, from a seed or fixed."""

from __future__ import annotations

import random


class SeededRng:
    """The Rng port over a generator of its own, or over one that it is given."""

    def __init__(self, seed: int | random.Random = 1) -> None:
        self._random = seed if isinstance(seed, random.Random) else random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> bytes:
        return self._random.randbytes(16)


class FixedRng:
    """The Rng port whose every draw is the same number, or the largest one below the limit."""

    def __init__(self, number: int) -> None:
        self._number = number

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int) -> int:
        return min(self._number, stop - 1)

    def uuid(self) -> bytes:
        return bytes(16)
