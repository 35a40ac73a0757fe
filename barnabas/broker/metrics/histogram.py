"""Histogram: durations of the last minutes, in a fixed number of buckets."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

GROWTH: Final = 1.15
LEAST_NS: Final = 1_000
GREATEST_NS: Final = 120 * 10**9
WINDOWS: Final = 5
NS_PER_MS: Final = 1_000_000

# The percentiles of Kafka's beans, for the label `quantile` of Strimzi's rules.
QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


def _bounds() -> list[int]:
    found = [LEAST_NS]
    while found[-1] < GREATEST_NS:
        found.append(max(int(found[-1] * GROWTH), found[-1] + 1))
    return found


BOUNDS: Final = _bounds()


class Histogram:
    """Counts the present minute and the WINDOWS - 1 before it alike; Kafka's (Yammer's) decay exponentially over five minutes.

    Bounds grow by GROWTH, so a quantile is within 7 % of the exact one.
    """

    __slots__ = ("_before", "_windows", "counts")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # of the present minute; bucket i: BOUNDS[i - 1] <= duration < BOUNDS[i]
        self._windows: deque[list[int]] = deque(maxlen=WINDOWS - 1)
        self._before = 0  # durations in all former minutes

    def record(self, duration_ns: int) -> None:
        self.counts[bisect_right(BOUNDS, duration_ns)] += 1

    def turn(self) -> None:
        total = sum(self.counts)
        if not total and not any(map(any, self._windows)):
            self._windows.clear()
            return
        self._before += total
        self._windows.append(self.counts)
        self.counts = [0] * (len(BOUNDS) + 1)

    @property
    def count(self) -> int:
        return self._before + sum(self.counts)

    def _recent(self) -> list[int]:
        return [sum(bucket) for bucket in zip(self.counts, *self._windows, strict=True)]

    def quantiles_ms(self) -> dict[str, float]:
        """Of the last minutes, in milliseconds; 0 without a duration, as in Kafka."""
        counts = self._recent()
        total = sum(counts)
        found = {}
        passed = at = 0
        for quantile in QUANTILES:
            wanted = float(quantile) * total
            while total and at < len(counts) - 1 and passed + counts[at] < wanted:
                passed += counts[at]
                at += 1
            found[quantile] = _middle_ms(at) if total else 0.0
        return found

    def mean_ms(self) -> float:
        """Of the last minutes, from the middles of the buckets; NaN without a duration, as in Kafka."""
        counts = self._recent()
        total = sum(counts)
        weighted = sum(count * _middle_ms(at) for at, count in enumerate(counts) if count)
        return weighted / total if total else float("nan")

    def greatest_ms(self) -> float:
        """Of the last minutes, the middle of its bucket; NaN without a duration."""
        counts = self._recent()
        return next((_middle_ms(at) for at in reversed(range(len(counts))) if counts[at]), float("nan"))


def _middle_ms(at: int) -> float:
    low = BOUNDS[at - 1] if at else 0
    high = BOUNDS[min(at, len(BOUNDS) - 1)]
    return round((low + high) / 2 / NS_PER_MS, 4)
