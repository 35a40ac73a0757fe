"""SampledRate and TokenBucket: Kafka's Rate, SampledStat, TokenBucket and QuotaUtils (KIP-13, KIP-124, KIP-599).
All times are monotonic milliseconds.
"""

from __future__ import annotations

from collections import deque
from math import floor


class SampledRate:
    """Sum of the last samples by the time since the oldest began, at least samples_max − 1 samples: a new client may use all at once."""

    __slots__ = ("_sample_ms", "_samples", "_samples_max")

    def __init__(self, samples_max: int, sample_ms: int) -> None:
        self._samples_max = samples_max
        self._sample_ms = sample_ms
        # [begin, last use, amount], the oldest first; one more than counts, because the oldest may overlap the window
        self._samples: deque[list[float]] = deque(maxlen=samples_max + 1)

    def record(self, amount: float, now_ms: int) -> None:
        """A negative amount takes back what was counted at the same time."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._sample_ms:
            samples.append([now_ms, now_ms, amount])
        else:
            samples[-1][1] = now_ms
            samples[-1][2] += amount

    def window_ms(self, now_ms: int) -> float:
        """The time by which the sum is divided."""
        samples = self._samples
        expired_ms = self._samples_max * self._sample_ms
        while samples and now_ms - samples[0][1] >= expired_ms:
            samples.popleft()
        elapsed_ms = now_ms - samples[0][0] if samples else 0
        missing = self._samples_max - 1 - elapsed_ms // self._sample_ms
        return max(elapsed_ms + max(missing, 0) * self._sample_ms, 1)

    def rate(self, now_ms: int) -> float:
        """The amount a second."""
        window_ms = self.window_ms(now_ms)
        return sum(sample[2] for sample in self._samples) * 1_000 / window_ms

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Time until the rate is within the bound without further use; 0: it is."""
        rate = self.rate(now_ms)
        if not rate > bound:
            return 0
        return whole_ms((rate - bound) / bound * self.window_ms(now_ms))


class TokenBucket:
    """Refilled at a rate, full after `samples_max * sample_ms`; may be overdrawn once."""

    __slots__ = ("_full_after_s", "_tokens", "_updated_ms")

    def __init__(self, samples_max: int, sample_ms: int) -> None:
        self._full_after_s = samples_max * sample_ms / 1_000
        self._tokens: float | None = None  # None: full
        self._updated_ms = 0

    def tokens(self, rate: float, now_ms: int) -> float:
        """Negative after an overdraft. `rate` is the refill a second."""
        burst = self._full_after_s * rate
        found = burst if self._tokens is None else self._tokens + rate * (now_ms - self._updated_ms) / 1_000
        self._tokens, self._updated_ms = min(burst, found), now_ms
        return self._tokens

    def take(self, amount: float, rate: float, now_ms: int) -> None:
        """Also more than the bucket has."""
        burst = self._full_after_s * rate
        self._tokens = min(burst, self.tokens(rate, now_ms) - amount)

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Time until the bucket is no longer overdrawn; 0: it is not."""
        tokens = self.tokens(rate, now_ms)
        return whole_ms(-tokens / rate * 1_000) if tokens < 0 else 0


def whole_ms(time_ms: float) -> int:
    """Rounds as Kafka does; at most the largest number that an answer can carry."""
    return floor(min(time_ms, 2.0**31 - 2) + 0.5)
