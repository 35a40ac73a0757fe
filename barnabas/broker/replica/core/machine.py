"""Replica: one partition's log with leadership, high watermark and callbacks that wait for it.
KIP-101, KIP-279, KIP-595 (leader epochs, divergence), KIP-98 (last stable offset), KIP-207 (a new leader's end), KIP-392 (reads from followers).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from barnabas.broker.api.call import Done
from barnabas.broker.replica.core.durability import Durability, weakly
from barnabas.broker.replica.core.isr import FollowedPartition, InSyncReplicas, IsrAnswer, IsrProposal
from barnabas.broker.replica.core.traffic import TopicTraffic
from barnabas.broker.replica.core.verification_guard import VerificationGuard
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated, is_passing
from barnabas.loggers import logger
from barnabas.ports import Buffer, Clock
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.inspection import Inspection
from barnabas.storage.log_config import AppendInfo, AppendOrigin
from barnabas.storage.long_reads import ReadAhead
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.segment import LogSlice
from barnabas.work import Steps

log = logger("kafka.cluster.Partition")

NO_LEADER = -1
# After a refusal: a producer's batches in flight arrive within it, and a real gap is reported after it.
GAP_MS: Final = 1_000
MAYBE_FENCED = (
    "the controllers do not answer this broker, and another one may lead the partition; ask for the leader again"
)


class Watcher(Protocol):
    """Waits for more records to read."""

    def on_progress(self, replica: Replica) -> None:
        """The readable end of the log moved, or leadership was lost. Called during an append: only record it."""
        ...


class Replica:
    """One partition on this node.

    The high watermark is the offset that every in-sync replica holds. This node's own part counts at once, unless the topic demands a flush
    (`flush.messages`): then after the sync. With fewer in sync than `min.insync.replicas` nothing is committed (KIP-966). Invariants:
    log_start ≤ last_stable_offset ≤ high_watermark ≤ log_end; the high watermark never goes back, unless a follower must truncate its log
    below it (after an unclean election); callbacks of `when_committed` run in the order of their offsets.

    `request_sync` leads to `on_synced`, `propose` to `on_isr_answer`; `on_io_error` gets the error that took this replica offline;
    `followed_since_ms` is of `Lifecycle`; a sole replica needs no `in_sync`.
    """

    __slots__ = (
        "__weakref__",
        "_followed_since_ms",
        "_gaps_until_ms",
        "_on_io_error",
        "_propose",
        "_waiters",
        "_waiters_added",
        "clock",
        "durability",
        "epoch_start_offset",
        "failed",
        "high_watermark",
        "in_sync",
        "leader_epoch",
        "leader_id",
        "log",
        "min_insync_replicas",
        "node_id",
        "partition",
        "topic",
        "topic_id",
        "traffic",
        "unsynced_since_ms",
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
        propose: Callable[[Replica, IsrProposal], None] = lambda *_: None,
        on_io_error: Callable[[Replica, OSError], None] = lambda *_: None,
        in_sync: InSyncReplicas | None = None,
        high_watermark: int = 0,
        followed_since_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        self.clock = clock
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.epoch_start_offset = 0  # of this leader's epoch; unknown to a follower
        self.in_sync = InSyncReplicas(node_id) if in_sync is None else in_sync
        self.min_insync_replicas = 1  # required in sync for acks=all, from the metadata image
        self.failed = False  # the disk failed: offline until the next start
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.watchers: dict[Watcher, None] = {}
        self.durability = Durability(log, weakly(request_sync, self))
        self._followed_since_ms = followed_since_ms
        self._propose = propose
        self._on_io_error = on_io_error
        self._waiters: list[tuple[int, int, Done[None]]] = []  # a heap by next offset, then arrival
        self._waiters_added = 0
        self._gaps_until_ms = -1  # a gap in a producer's sequence may be a batch that was refused here
        self.unsynced_since_ms: int | None = None  # monotonic: the upkeep has found unsynced records (flush.ms)
        self.traffic: TopicTraffic | None = None  # counts written and read records

    def __repr__(self) -> str:
        return f"<Replica {self.topic}-{self.partition} leader={self.leader_id} epoch={self.leader_epoch}>"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # -- leadership

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.node_id

    @property
    def isr(self) -> tuple[int, ...]:
        """At the controller."""
        return self.in_sync.committed

    @property
    def partition_epoch(self) -> int:
        """Version of the partition's state: every change of leader, ISR or replicas raises it."""
        return self.in_sync.partition_epoch

    def lead(
        self, leader_epoch: int, isr: Sequence[int], partition_epoch: int, *, replicas: Sequence[int] = ()
    ) -> bool:
        """Begins or keeps the leadership. Returns whether the leader epoch is new, so that coordinators must load.

        A state older than the controller's last answer (`on_isr_answer`) changes nothing. Raises InvariantViolated if the epoch went back.
        """
        if leader_epoch < self.leader_epoch:
            raise InvariantViolated(f"leader epoch of {self!r} went back to {leader_epoch}")
        elected = leader_epoch > self.leader_epoch or not self.is_leader
        in_sync = self.in_sync
        if partition_epoch < in_sync.partition_epoch and not elected:
            return False
        self.leader_id = self.node_id
        if elected or partition_epoch > in_sync.partition_epoch or tuple(isr) != in_sync.committed:
            in_sync.on_metadata(isr, partition_epoch)
        now_ms = self.clock.monotonic_ms()
        if elected:
            self.leader_epoch = leader_epoch
            self.epoch_start_offset = self.log.log_end_offset
            # KIP-101: the epoch begins where the log ends now.
            self.log.epochs.assign(leader_epoch, self.log.log_end_offset)
            in_sync.lead(replicas, now_ms)
        else:
            in_sync.assign(replicas, now_ms)
        self._advance()
        self.consider_isr()
        return elected

    def follow(self, leader_id: int, leader_epoch: int, isr: Sequence[int], partition_epoch: int) -> bool:
        """Another node leads, or none (-1). Returns whether this node was the leader."""
        resigned = self.is_leader
        moved = leader_epoch != self.leader_epoch
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.in_sync.on_metadata(isr, partition_epoch)
        if resigned:
            self.in_sync.resign()
            self._refuse_waiting(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if resigned or moved:
            self.progressed()
        return resigned

    def fail(self, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """The disk failed, or the partition is deleted: this replica acknowledges nothing more."""
        self.failed = True
        self.leader_id = NO_LEADER
        self._refuse_waiting(BrokerError(code))
        self.progressed()

    def require(self, min_insync_replicas: int) -> None:
        """Required in-sync replicas, from the metadata."""
        if min_insync_replicas != self.min_insync_replicas:
            self.min_insync_replicas = min_insync_replicas
            self._advance()

    def check_epoch(self, current_leader_epoch: int, *, leads: bool = True) -> None:
        """Compares the client's leader epoch (-1: none) with this replica's, and checks that this node leads (KIP-320).

        `leads`: False if a follower may serve the request (KIP-392). Raises BrokerError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
        NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        if self.failed:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
            raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if leads and self.leader_id != self.node_id:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- writing

    def verification_guard(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, supports_epoch_bump: bool = False
    ) -> VerificationGuard | None:
        """As `ProducerState.verification_guard` (KIP-890); valid in this leader epoch. Raises BrokerError if this node does not lead."""
        self.check_leads()
        verification = self.log.producers.verification_guard(
            producer_id, producer_epoch, base_sequence, supports_epoch_bump=supports_epoch_bump
        )
        return None if verification is None else VerificationGuard(verification, self.leader_epoch)

    def inspect(self, inspection: Inspection) -> Steps[None]:
        """Inspects a batch before its append, in a thread, and reserves space for a large one."""
        yield inspection.run
        if inspection.error is None:
            with suppress(BrokerError):  # the append reports it
                self.check_leads()
                yield from self.reserve(len(inspection.packed or inspection.batch), inspection.max_timestamp)

    def reserve(self, size_bytes: int, max_timestamp: int) -> Steps[None]:
        """Prepares a large append, as `PartitionLog.reserve`. The append works without it, and reports errors of the disk."""
        with suppress(OSError):
            yield from self.log.reserve(size_bytes, max_timestamp, self.clock.now_ms())

    def append(
        self,
        batches: Buffer | Inspection,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Appends one client's or coordinator's batches as leader.

        Args:
            batches: one batch, or its finished inspection; offsets and epoch are stamped in place where the buffer is writable.
            guard: result of `verification_guard` before a transaction was verified (KIP-890).

        Raises:
            LongBatch: the batch must be inspected first.
            BrokerError: NOT_LEADER_OR_FOLLOWER (also for a guard of another leader epoch: the verified transaction may have ended under another
                leader), KAFKA_STORAGE_ERROR, or any code of `PartitionLog.append_as_leader`.
        """
        self.check_leads()
        verification = None
        if guard is not None:
            if guard.leader_epoch != self.leader_epoch:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            verification = guard.verification
        try:
            info = self.log.append_as_leader(
                batches, leader_epoch=self.leader_epoch, now_ms=self.clock.now_ms(), origin=origin, guard=verification
            )
        except OSError as error:
            raise self.broken(error) from error
        except BrokerError as error:
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.clock.monotonic_ms() < self._gaps_until_ms:
                text = f"{error.message}; earlier batches may have been refused"
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text) from None
            raise
        if self.traffic is not None:
            self.traffic.on_append(info)
        if not info.duplicate:
            self._advance()
        return info

    def check_in_sync(self) -> None:
        """Raises BrokerError(NOT_ENOUGH_REPLICAS) if an append could not be committed now (acks=all)."""
        if len(self.in_sync.committed) < self.min_insync_replicas:
            self.note_refusal()
            missing = f"{len(self.isr)} in-sync replicas of {self!r}, min.insync.replicas is {self.min_insync_replicas}"
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, missing)

    def note_refusal(self) -> None:
        """A batch is refused for a passing reason: no leader yet, log not open, too few in sync. Gaps after it are answered with a retriable error.

        The next of several batches in flight leaves a gap. For OUT_OF_ORDER_SEQUENCE_NUMBER, which Kafka answers, librdkafka takes a new
        producer epoch and sends all again, also written ones: records are doubled. For NOT_LEADER_OR_FOLLOWER it sends all again in order,
        in the same epoch, and written ones are recognized.
        """
        self._gaps_until_ms = self.clock.monotonic_ms() + GAP_MS

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, transaction_version: int
    ) -> AppendInfo:
        """Ends a transaction here. Raises as `append`, and INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for an old marker."""
        self.check_leads()
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
            raise self.broken(error) from error
        if self.traffic is not None:
            self.traffic.on_append(info)
        if not info.duplicate:
            self._advance()
        return info

    def when_committed(self, next_offset: int, done: Done[None]) -> None:
        """Calls `done(None)` once high_watermark ≥ next_offset, perhaps at once; `done(error)` once this node stops acting as leader.

        A node whose session has ended may still be the leader when the session is renewed. A caller that must know the outcome then asks
        again.
        """
        if self.high_watermark >= next_offset:
            done(None)
        elif self.failed:
            done(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR))
        elif self.leader_id != self.node_id:
            done(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._waiters_added += 1
            heapq.heappush(self._waiters, (next_offset, self._waiters_added, done))

    def on_synced(self, next_offset: int) -> None:
        self.durability.on_synced(next_offset)
        self._advance()
        self.durability.release()

    # -- leading: followers and the ISR

    def on_follower_fetch(
        self,
        broker_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        fetches: FollowedPartition | None = None,
    ) -> None:
        """A follower holds everything below `offset`, which must be in this log and have the same history.

        `fetches` is its partition in the follower's fetch session. Raises BrokerError(NOT_LEADER_OR_FOLLOWER) if it holds no replica, or
        the fetch was made before its broker restarted (KIP-903).
        """
        follower = self.in_sync.followers.get(broker_id)
        if follower is None or 0 <= broker_epoch < follower.broker_epoch:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} of epoch {broker_epoch} holds no replica of {self.topic}-{self.partition}",
            )
        follower.fetches = fetches
        moved = offset != follower.log_end_offset
        deleted = log_start_offset != follower.log_start_offset
        follower.on_fetch(offset, log_start_offset, broker_epoch, self.clock.monotonic_ms(), self.log.log_end_offset)
        if moved:
            self._advance()
        elif deleted:
            self.progressed()
        if broker_id not in self.in_sync.committed:
            self.consider_isr()

    def on_follower_idle(self, broker_id: int, fetched_ms: int) -> None:
        """A follower had everything when it fetched at `fetched_ms` (monotonic), without naming this partition."""
        follower = self.in_sync.followers.get(broker_id)
        if follower is not None:
            follower.on_idle(fetched_ms)

    def consider_isr(self) -> None:
        """Proposes an ISR with followers that caught up; also called when a fenced broker is unfenced."""
        if self.leader_id == self.node_id and len(self.in_sync.committed) <= len(self.in_sync.followers):
            joins_at = max(self.high_watermark, self.epoch_start_offset)
            proposal = self.in_sync.expansion(joins_at, self.leader_epoch, self.clock.monotonic_ms())
            if proposal is not None:
                self._propose(self, proposal)

    def shrink_isr(self) -> None:
        """Proposes an ISR without followers that lag for replica.lag.time.max.ms; call it every half of that."""
        if self.leader_id == self.node_id and self.in_sync.followers:
            proposal = self.in_sync.shrinkage(self.log.log_end_offset, self.leader_epoch, self.clock.monotonic_ms())
            if proposal is not None:
                self._propose(self, proposal)
            else:
                self.consider_isr()

    def on_isr_answer(self, proposal: IsrProposal, answer: IsrAnswer | BrokerError) -> None:
        """Applies the controller's answer to a proposal, or the failure of the request (then it is sent again)."""
        if self.in_sync.on_answer(proposal, answer, self.clock.monotonic_ms()):
            self._propose(self, proposal)
        elif self.leader_id == self.node_id:
            self._advance()
            self.consider_isr()

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the in-sync replicas; -1 if one is unknown."""
        starts = [one.log_start_offset for one in self.in_sync.followers.values() if one.broker_id in self.isr]
        return min([self.log.log_start_offset, *starts])

    # -- following

    @property
    def last_fetched_epoch(self) -> int:
        """Epoch of the log's end, by which the leader detects divergence; -1 if the log is empty."""
        return self.log.epochs.latest_epoch

    def when_durable(self, next_offset: int, done: Done[None]) -> None:
        """Calls `done(None)` once its own part below `next_offset` may be acknowledged: at once, or after the flush that the topic demands."""
        if self.failed:
            done(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            self.durability.when_durable(next_offset, done)

    # -- reading

    @property
    def last_stable_offset(self) -> int:
        """First offset that a read_committed consumer must not see yet, ≤ high_watermark (KIP-98)."""
        return self.log.last_stable_offset(self.high_watermark)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        committed: bool = False,
        replicates: bool = False,
        at_least_one: bool = True,
        ahead: ReadAhead | None = None,
    ) -> LogSlice:
        """Whole batches up to the high watermark, with `committed` up to the last stable offset, with `replicates` to the log's end.

        `ahead` as in `Segment.read`. Raises BrokerError: OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR.
        """
        if replicates:
            end_offset = self.log.log_end_offset
        else:
            end_offset = self.log.last_stable_offset(self.high_watermark) if committed else self.high_watermark
        try:
            return self.log.read(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one, ahead=ahead)
        except OSError as error:
            raise self.broken(error) from error

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that touch [start_offset, end_offset), for a read_committed answer. Raises as `read`."""
        try:
            return self.log.aborted_transactions(start_offset, end_offset)
        except OSError as error:
            raise self.broken(error) from error

    def delete_records_before(self, offset: int) -> int:
        """-1 means to the high watermark. Returns the new log start offset. Raises BrokerError(OFFSET_OUT_OF_RANGE) above it."""
        self.check_leads()
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log.delete_records_before(target)
        self.progressed()
        return self.log.log_start_offset

    def check_leads(self, *, by_followers: bool = True) -> None:
        """Checks that this node leads, and that no acknowledgement is lost even if the controller has already fenced it.

        `by_followers` as in `_may_be_replaced`. Raises BrokerError(NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR); refuses waiting requests
        first.
        """
        if self.leader_id == self.node_id:
            since_ms = self._followed_since_ms()
            if since_ms is None or not self._may_be_replaced(since_ms, by_followers=by_followers):
                return
        self.note_refusal()
        if self.leader_id != self.node_id:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR if self.failed else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.refuse_unless_leading()
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, MAYBE_FENCED)

    def _may_be_replaced(self, since_ms: int, *, by_followers: bool = True) -> bool:
        """Whether another broker may lead by now, after the session with the controller; `since_ms` is of `followed_since_ms`.

        The controllers may be away, or have elected another broker: a member of the ISR, or an eligible leader (KIP-966) if the ISR is
        below min.insync.replicas. Only this leader adds members, so `maximal` has them all. This node still leads if no other broker can
        be elected or, with `by_followers`, while each of these follows it in this epoch: a new leader stops that first and has what
        acks=all acknowledged. With acks=1, and for answers of a coordinator, the time since the new leader's last fetch remains, as in
        Kafka.
        """
        in_sync = self.in_sync
        electable = in_sync.maximal if len(in_sync.committed) >= self.min_insync_replicas else tuple(in_sync.followers)
        for broker_id in electable:
            follower = in_sync.followers.get(broker_id)
            if broker_id != self.node_id and (
                follower is None or not by_followers or not follower.follows(self.leader_epoch, since_ms)
            ):
                return True
        return False

    def refuse_unless_leading(self) -> None:
        """Refuses everything that waits for this leader if another broker may lead by now.

        A producer whose first batch waits here would otherwise send its second one to the next leader, which does not have the first.
        """
        since_ms = self._followed_since_ms()
        if since_ms is not None and self.leader_id == self.node_id and self._may_be_replaced(since_ms):
            self._refuse_waiting(BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, MAYBE_FENCED))

    def broken(self, error: OSError, *, cut: bool = False) -> BrokerError:
        """The disk failed: returns the refusal. Takes the replica offline, unless the error is passing and no log was cut."""
        if cut or not is_passing(error):  # else the log is unchanged, and the request may be repeated
            self.fail()
            self._on_io_error(self, error)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.partition}: {error}")

    def _advance(self) -> None:
        """Advances the high watermark as far as allowed and calls its waiters."""
        end = self.durability.acknowledged_end()
        if self.leader_id == self.node_id and end > self.high_watermark:
            in_sync = self.in_sync
            if len(in_sync.committed) < self.min_insync_replicas:
                end = self.high_watermark  # KIP-966
            elif in_sync.followers:
                end = in_sync.committed_end_offset(end, self.log.log_end_offset, self.clock.monotonic_ms())
            if end > self.high_watermark:
                self.high_watermark = end
                self.log.producers.on_high_watermark(end)
                # Read again for each callback: it may append, wait, or fail the replica, which replaces the heap.
                while self._waiters and self._waiters[0][0] <= end:
                    heapq.heappop(self._waiters)[2](None)
        if self.watchers:
            self.progressed()

    def progressed(self) -> None:
        """Notifies the watchers: the readable part of the log has moved. Retention calls it for a new log start."""
        for watcher in list(self.watchers):
            watcher.on_progress(self)

    def _refuse_waiting(self, error: BrokerError) -> None:
        waiting, self._waiters = sorted(self._waiters, key=lambda waiter: waiter[:2]), []
        for _, _, done in waiting:
            done(error)
        self.durability.release(error)
