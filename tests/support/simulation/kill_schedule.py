"""Schedules of kills, drawn from a seed: for simulated brokers, processes and containers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

AGAIN_SECONDS_MAX = 15.0
DOWN_SECONDS_MAX = 3.0


@dataclass(frozen=True)
class Kill:
    """One step of a schedule.

    Attributes:
        kind: "one", "two", "all", "again" or "controller and leader".
        after_seconds: since the end of the former step.
        down_seconds: until what was killed is started again.
    """

    kind: str
    after_seconds: float
    down_seconds: float


KINDS = ("one", "again", "controller and leader", "two", "all", "one", "again", "one")


def schedule(
    seed: int,
    count: int,
    *,
    kinds: Sequence[str] = KINDS,
    calm_seconds: float = 0.0,
) -> list[Kill]:
    """Draws `count` kills. The kinds come in rounds of random order, so a short schedule has all of them.

    Args:
        calm_seconds: added before each kill that is not "again".
    """
    rng = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += rng.sample(kinds, len(kinds))
    found = []
    for kind in drawn[:count]:
        after = rng.uniform(0, AGAIN_SECONDS_MAX) if kind == "again" else calm_seconds + rng.uniform(1, 5)
        found.append(Kill(kind, after, rng.choice((0.0, rng.uniform(0, DOWN_SECONDS_MAX)))))
    return found
