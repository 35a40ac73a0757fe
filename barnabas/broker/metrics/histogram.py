"""Histogram: the distribution of durations over the last minutes, in a fixed number of buckets.

Kafka's histograms (Yammer's, with exponential decay) weigh the last five minutes most. These count the present minute and the
WINDOWS - 1 before it alike. The bounds of the buckets grow by GROWTH, so a quantile is within 7 % of the exact one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

GROWTH: Final = 1.15
LEAST_NS: Final = 1_000
GREATEST_NS: Final = 120 * 10**9
WINDOWS: Final = 5
NS_PER_MS: Final = 1_000_000

# The percentiles of Kafka's beans, as Strimzi's rules write them into the label `quantile`.
QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


def _bounds() -> list[int]:
    found = [LEAST_NS]
    while found[-1] < GREATEST_NS:
        found.append(max(int(found[-1] * GROWTH), found[-1] + 1))
    return found


BOUNDS: Final = _bounds()


class Histogram:
    """See the module.

    Attributes:
        counts: durations of the present minute in each bucket. Bucket i holds those from BOUNDS[i - 1] on, below BOUNDS[i].
    """

    __slots__ = ("_before", "_windows", "counts")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self._windows: deque[list[int]] = deque(maxlen=WINDOWS - 1)
        self._before = 0  # durations in all former minutes

    def record(self, duration_ns: int) -> None:
        """Counts a duration."""
        self.counts[bisect_right(BOUNDS, duration_ns)] += 1

    def turn(self) -> None:
        """A minute is over."""
        total = sum(self.counts)
        if not total and not any(map(any, self._windows)):
            self._windows.clear()
            return
        self._before += total
        self._windows.append(self.counts)
        self.counts = [0] * (len(BOUNDS) + 1)

    @property
    def count(self) -> int:
        """How many durations were ever recorded."""
        return self._before + sum(self.counts)

    def _recent(self) -> list[int]:
        return [sum(bucket) for bucket in zip(self.counts, *self._windows, strict=True)]

    def quantiles_ms(self) -> dict[str, float]:
        """The quantiles of the last minutes, in milliseconds; 0 without a duration, as in Kafka."""
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
        """The mean of the last minutes, from the middles of the buckets; NaN without a duration, as in Kafka."""
        counts = self._recent()
        total = sum(counts)
        weighted = sum(count * _middle_ms(at) for at, count in enumerate(counts) if count)
        return weighted / total if total else float("nan")

    def greatest_ms(self) -> float:
        """The greatest duration of the last minutes, as the middle of its bucket; NaN without a duration."""
        counts = self._recent()
        return next((_middle_ms(at) for at in reversed(range(len(counts))) if counts[at]), float("nan"))


def _middle_ms(at: int) -> float:
    low = BOUNDS[at - 1] if at else 0
    high = BOUNDS[min(at, len(BOUNDS) - 1)]
    return round((low + high) / 2 / NS_PER_MS, 4)
