"""Reads a partition's log: records, timestamps, aborted transactions, the last stable offset and leader epochs. `PartitionLog` adds the writes.

Invariants: log_start_offset ≤ last stable offset ≤ log_end_offset.
Follows KIP-98 (transactions).
"""

from __future__ import annotations

from barnabas.errors import BrokerError, ErrorCode
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.epochs import EpochCache
from barnabas.storage.log_config import LogConfig
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.segment import LogSlice, TimestampOffset
from barnabas.storage.segments import Segments
from barnabas.storage.tail import Tail
from barnabas.work import Steps


class ReadableLog:
    """The read methods of a log. Attributes as in PartitionLog."""

    __slots__ = ("_tail", "config", "epochs", "log_end_offset", "log_start_offset", "producers", "segments")

    def __init__(self) -> None:
        self.config: LogConfig
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.producers = PartitionProducers()
        self.segments: Segments
        self.epochs = EpochCache()
        self._tail = Tail(0)

    # -- transactions ---------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction, at least the log start; None if no transaction is open."""
        first = self.producers.first_undecided_offset
        return None if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset (exclusive) up to which every transaction is complete and its marker is below the high watermark."""
        first = self.producers.first_unstable_offset(high_watermark)
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that a reader of [start_offset, end_offset) must skip, in the order of their markers."""
        return self.segments.aborted_transactions(start_offset, end_offset)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool = True) -> LogSlice:
        """Whole batches from the one that contains `offset`. All begin below `end_offset`.

        Args:
            max_bytes: largest size of the result; with `at_least_one` a larger first batch is returned, too.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE: `offset` is below the log start or above the log end.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within [{self.log_start_offset}, {self.log_end_offset}]",
            )
        if offset >= end_offset:
            return LogSlice(b"", offset, offset)
        if offset >= self._tail.start_offset:
            return self._tail.read(offset, max_bytes, end_offset, at_least_one)
        return self.segments.read(offset, max_bytes, end_offset, self.log_end_offset, at_least_one=at_least_one)

    def offset_for_timestamp(self, timestamp: int, *, end_offset: int) -> Steps[TimestampOffset | None]:
        """The first record below `end_offset` with a timestamp ≥ `timestamp`."""
        return self.segments.offset_for_timestamp(timestamp, self.log_start_offset, end_offset)

    def max_timestamp_offset(self, end_offset: int) -> Steps[TimestampOffset | None]:
        """The first record with the largest timestamp of the log; None if it has none or it is not below `end_offset`."""
        return self.segments.max_timestamp_offset(self.log_start_offset, end_offset)

    def divergence(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """The point where this log diverges from one that ends at `offset` in that epoch: (epoch, end offset) here; None without one.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE: this log does not know such an epoch.
        """
        epoch, end_offset = self.epochs.end_offset_for_epoch(last_fetched_epoch, self.log_end_offset)
        if end_offset < 0:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch >= last_fetched_epoch and end_offset >= offset:
            return None
        return epoch, end_offset
