"""Replica: one partition's log with what makes it a replica: leadership, high watermark, and who waits for it.

Driven by: appends and reads of handlers and coordinators, leadership from the metadata image, `on_synced` from the flusher.
Emits: appended offsets, slices of the log, the callbacks of `when_committed`, and `on_progress` to its watchers.

What is acknowledged hangs on the high watermark and never on the append. A sole replica's high watermark is its log end
offset at once, unless the topic asks for a flush (`flush.messages`): then it moves up when the disk has synced.

Invariants: log_start ≤ last_stable_offset ≤ high_watermark ≤ log_end; the high watermark never goes back while leading;
callbacks of `when_committed` run in the order of their offsets.
Follows KIP-101 and KIP-279 (leader epochs), KIP-98 (last stable offset), KIP-392's fetch bounds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol

from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.ports import Buffer, Clock
from barnabas.storage.log_config import Origin
from barnabas.storage.partition_log import AbortedTransaction, AppendInfo, LogSlice, PartitionLog

__all__ = ["Replica", "Watcher"]

NO_LEADER = -1


class Watcher(Protocol):
    """Who waits for more to read."""

    def on_progress(self, replica: Replica) -> None:
        """The readable end of the log moved, or leadership was lost. Called in the middle of an append: take note only."""
        ...


class Replica:
    """One partition on this node.

    Args:
        request_sync: asks for a sync of this replica's log; answered by `on_synced` with the offset that is durable.
    """

    __slots__ = (
        "_request_sync",
        "_sequence",
        "_sync_requested",
        "_synced_offset",
        "_waiting",
        "clock",
        "failed",
        "high_watermark",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "min_insync_replicas",
        "node_id",
        "partition",
        "partition_epoch",
        "topic",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        log: PartitionLog,
        *,
        node_id: int,
        clock: Clock,
        request_sync: Callable[[Replica], None],
        high_watermark: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        self.clock = clock
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.min_insync_replicas = 1  # how many must be in sync for acks=all, from the metadata image
        self.failed = False  # the disk failed under it: offline until the next start
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.watchers: dict[Watcher, None] = {}
        self._request_sync = request_sync
        self._sync_requested = False
        self._synced_offset = log.recovery_point  # exclusive: everything below is durable
        self._waiting: list[
            tuple[int, int, Callable[[BrokerError | None], None]]
        ] = []  # heap by next_offset, then arrival
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<Replica {self.topic}-{self.partition} leader={self.leader_id} epoch={self.leader_epoch}>"

    # -- leadership

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the partition."""
        return self.leader_id == self.node_id

    def lead(self, leader_epoch: int, isr: Sequence[int], partition_epoch: int) -> bool:
        """Takes or keeps the leadership. Returns whether the leader epoch is new, so that coordinators must load.

        Raises:
            InvariantViolated: the epoch went back.
        """
        if leader_epoch < self.leader_epoch:
            raise InvariantViolated(f"leader epoch of {self!r} went back to {leader_epoch}")
        elected = leader_epoch > self.leader_epoch or not self.is_leader
        self.leader_id = self.node_id
        self.partition_epoch = partition_epoch
        self.isr = tuple(isr)
        if elected:
            self.leader_epoch = leader_epoch
            # KIP-101: the epoch begins where the log ends now.
            self.log.epochs.assign(leader_epoch, self.log.log_end_offset)
        self._advance()
        return elected

    def follow(self, leader_id: int, leader_epoch: int, isr: Sequence[int], partition_epoch: int) -> bool:
        """Another node leads, or none (-1). Returns whether this node led until now."""
        resigned = self.is_leader
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.isr = tuple(isr)
        if resigned:
            self._refuse_waiting(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self._progressed()
        return resigned

    def fail(self, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """The disk failed under the log, or the partition is deleted: nothing more is acknowledged from here."""
        self.failed = True
        self.leader_id = NO_LEADER
        self._refuse_waiting(BrokerError(code))
        self._progressed()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compares the epoch a client believes in (-1: none) with ours, and that this node leads (KIP-320).

        Raises:
            BrokerError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        if self.failed:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
            raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.leader_id != self.node_id:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- writing

    def append(self, batches: Buffer, *, origin: Origin = Origin.CLIENT, guard: object | None = None) -> AppendInfo:
        """Appends one client's or coordinator's batches as leader.

        Args:
            batches: whole batches; offsets and epoch are stamped in place where the buffer is writable.
            guard: what `PartitionLog.verification_guard` gave before a transaction was verified (KIP-890).

        Raises:
            BrokerError: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, or any code of `PartitionLog.append_as_leader`.
        """
        self._check_leads()
        try:
            info = self.log.append_as_leader(
                batches, leader_epoch=self.leader_epoch, now_ms=self.clock.now_ms(), origin=origin, guard=guard
            )
        except OSError as error:
            raise self._broken(error) from error
        if not info.duplicate:
            self._advance()
        return info

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, transaction_version: int
    ) -> AppendInfo:
        """Appends the control batch that ends a producer's transaction here.

        Raises:
            BrokerError: as `append`, and INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for an old marker.
        """
        self._check_leads()
        try:
            info = self.log.append_marker(
                producer_id,
                producer_epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                leader_epoch=self.leader_epoch,
                now_ms=self.clock.now_ms(),
                transaction_version=transaction_version,
            )
        except OSError as error:
            raise self._broken(error) from error
        if not info.duplicate:
            self._advance()
        return info

    def when_committed(self, next_offset: int, done: Callable[[BrokerError | None], None]) -> None:
        """Calls `done(None)` once high_watermark ≥ next_offset, at once where it is; `done(error)` if that cannot come."""
        if self.high_watermark >= next_offset:
            done(None)
        elif self.failed:
            done(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR))
        elif self.leader_id != self.node_id:
            done(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._sequence += 1
            heapq.heappush(self._waiting, (next_offset, self._sequence, done))

    def on_synced(self, next_offset: int) -> None:
        """Everything below `next_offset` is durable."""
        self._sync_requested = False
        self._synced_offset = max(self._synced_offset, next_offset)
        self._advance()

    # -- reading

    @property
    def last_stable_offset(self) -> int:
        """First offset a read_committed consumer must not see yet, ≤ high_watermark (KIP-98)."""
        return self.log.last_stable_offset(self.high_watermark)

    def read(self, offset: int, max_bytes: int, *, committed: bool = False, at_least_one: bool = True) -> LogSlice:
        """Whole batches from `offset` up to the high watermark, or with `committed` up to the last stable offset.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE or KAFKA_STORAGE_ERROR.
        """
        end_offset = self.log.last_stable_offset(self.high_watermark) if committed else self.high_watermark
        try:
            return self.log.read(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one)
        except OSError as error:
            raise self._broken(error) from error

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that touch [start_offset, end_offset), for a read_committed answer."""
        return self.log.aborted_transactions(start_offset, end_offset)

    def delete_records_before(self, offset: int) -> int:
        """Moves the log start up; -1 means to the high watermark. Returns the new log start offset.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE (above the high watermark), NOT_LEADER_OR_FOLLOWER.
        """
        self._check_leads()
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log.delete_records_before(target)
        self._progressed()
        return self.log.log_start_offset

    def on_log_start_moved(self) -> None:
        """Retention took segments away: a fetch session has news."""
        self._progressed()

    # -- inside

    def _check_leads(self) -> None:
        if self.leader_id != self.node_id:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR if self.failed else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _broken(self, error: OSError) -> BrokerError:
        self.fail()
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.partition}: {error}")

    def _advance(self) -> None:
        """Moves the high watermark to where it may go, releases who waited for it."""
        end = self.log.log_end_offset
        flush_messages = self.log.config.flush_messages
        if end - self._synced_offset >= flush_messages:
            if not self._sync_requested:
                self._sync_requested = True
                self._request_sync(self)
            end = self._synced_offset
        if end > self.high_watermark and self.leader_id == self.node_id:
            self.high_watermark = end
            waiting = self._waiting
            while waiting and waiting[0][0] <= end:
                heapq.heappop(waiting)[2](None)
        self._progressed()

    def _progressed(self) -> None:
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.on_progress(self)

    def _refuse_waiting(self, error: BrokerError) -> None:
        waiting, self._waiting = sorted(self._waiting, key=lambda entry: entry[:2]), []
        for _, _, done in waiting:
            done(error)
