"""A seeded Rng port for the client's cores."""

from __future__ import annotations

import random


class SeededRng:
    """Draws from a generator of its own, or from one that it is given."""

    def __init__(self, seed: int | random.Random = 1) -> None:
        self._random = seed if isinstance(seed, random.Random) else random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> bytes:
        return self._random.randbytes(16)
