"""A seeded Rng port for the client's cores."""

from __future__ import annotations

import random


class SeededRng:
    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> bytes:
        return self._random.randbytes(16)
