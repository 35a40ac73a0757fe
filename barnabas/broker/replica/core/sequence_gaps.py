"""SequenceGaps: after a transient refusal, a leader answers a sequence gap with a retriable error."""

from __future__ import annotations

from typing import Final

from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Clock

# after a passing refusal: a producer's batches in flight arrive within it, and a real gap is reported after it
GAP_MS: Final = 1_000


class SequenceGaps:
    """Transient refusals of one leader. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER at once.

    Of several batches in flight the first may be refused (no leader yet, log not open, too few in sync), and the next one leaves a gap. For
    OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a new producer epoch and sends all again, also written ones: records are doubled. For
    NOT_LEADER_OR_FOLLOWER it sends all again in order, in the same epoch, and written ones are recognized.
    """

    __slots__ = ("_clock", "_until_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms = -1

    def note(self) -> None:
        self._until_ms = self._clock.monotonic_ms() + GAP_MS

    def error_for(self, error: BrokerError) -> BrokerError:
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._clock.monotonic_ms() < self._until_ms:
            return BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{error.message}; earlier batches may have been refused"
            )
        return error
