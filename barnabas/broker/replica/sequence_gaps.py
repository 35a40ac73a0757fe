"""SequenceGaps: after a transient refusal, a leader answers a sequence gap with a retriable error.

A producer has several batches in flight. The first one may arrive before this node is the leader, before the log is open, or while
too few replicas are in sync, and a later one right after. The later one then leaves a gap in the sequence. For OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a
new producer epoch and sends all of them again, also those that an earlier leader has written: records are doubled. For
NOT_LEADER_OR_FOLLOWER it sends all of them again in order, in the same epoch, and written ones are recognized.
Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER at once.
"""

from __future__ import annotations

from typing import Final

from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Clock

GAP_MS: Final = (
    1_000  # after a passing refusal; a producer's batches in flight arrive within it, and a real gap is named after it
)


class SequenceGaps:
    """See the module."""

    __slots__ = ("_clock", "_until_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms = -1

    def note(self) -> None:
        """Notes that a batch was refused now for a passing reason."""
        self._until_ms = self._clock.monotonic_ms() + GAP_MS

    def error_for(self, error: BrokerError) -> BrokerError:
        """Returns what a client gets for the error of its batch."""
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._clock.monotonic_ms() < self._until_ms:
            return BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{error.message}; earlier batches may have been refused"
            )
        return error
