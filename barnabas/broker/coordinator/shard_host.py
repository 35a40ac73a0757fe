"""Host of coordinator shards, after Kafka's CoordinatorRuntime: one for each partition of an internal topic, replayed from its log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from barnabas.broker.api.call import Done
from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp, Shard, Undo, undo_all
from barnabas.broker.coordinator.host.loading import replay_log
from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slice, Slices
from barnabas.errors import BarnabasError, BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.log_config import AppendOrigin

log = logger("kafka.server")

LONG_DECISION = 256  # records
# Varints and framing of one record: at least, and rounded up to keep a batch below max.message.bytes.
RECORD_OVERHEAD_BYTES_MIN = 7
RECORD_OVERHEAD_BYTES = 32


_new = tuple.__new__  # the constructor of a named tuple takes three times as long
A = TypeVar("A")
S = TypeVar("S", bound="Shard[Any]")


class _Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class _Write:
    """A decision that is not committed yet; without records it is an answer that waits for earlier ones."""

    __slots__ = ("answer", "done", "encoded", "producer", "records", "size_bytes", "undo")

    def __init__(self, decision: Decision[Any, Any], shard: Shard[Any], bytes_max: int, done: Done[Any]) -> None:
        """Raises BrokerError(UNKNOWN_SERVER_ERROR) if the records need more than `bytes_max`: the append would refuse them after all the work."""
        self.answer = decision.answer
        self.records = decision.records
        # Encoded before anything is staged: a record that cannot be written fails its own decision and no other.
        self.encoded: list[tuple[bytes, bytes | None]] = []
        self.size_bytes = 0
        left = bytes_max - len(decision.records) * RECORD_OVERHEAD_BYTES_MIN
        for key, value in decision.encoded or map(shard.encode, decision.records):
            self.encoded.append((key, value))
            self.size_bytes += len(key) + len(value or b"")
            if self.size_bytes > left:
                text = "the records of the request exceed max.message.bytes"
                raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        self.producer = decision.producer
        self.done = done
        self.undo: Undo


class _Appended:
    """Writes whose records are appended and not committed."""

    __slots__ = ("timer", "writes")

    def __init__(self, writes: list[_Write]) -> None:
        self.writes = writes
        self.timer: Any = None


class _Partition(Generic[S]):
    """A led partition: its shard, queued writes, and uncommitted appends."""

    def __init__(self, partition: int, leader_epoch: int, shard: S) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.shard = shard
        self.phase = _Phase.LOADING
        self.load_began_ms = 0
        self.loading: Slice | None = None
        self.queue: list[_Write] = []
        self.uncommitted: dict[int, _Appended] = {}  # by the next offset that must be committed; ascending
        self.appended_offset = 0  # next offset after our last append


class ShardHost(Generic[S]):
    """The shards of one internal topic on this node.

    A write has five steps: decide, stage, append, commit, answer. `decide` only reads the shard. `stage` makes the decision visible to
    later ones; failed appends are undone in reverse order. `on_committed` follows the commit; then the answer leaves. `replay` does both
    for a record of the log. If the leadership is lost, the shard is dropped with everything uncommitted.

    Invariants: nothing is answered before the high watermark has passed its records; records of one decision are in one batch; an answer
    without records leaves after everything staged before it; a shard serves only while its replica leads at `leader_epoch`, which is the
    coordinator epoch.

    Args:
        make_shard: (partition, coordinator epoch) → an empty shard.
        partition_count: () → number of partitions of the topic, 0 if it does not exist.
        answer_timeout_ms: () → longest wait of an answer for the commit in ms; None: no limit.
        slices: loads the shards, two at a time.
    """

    def __init__(
        self,
        topic: str,
        reactor: Reactor,
        replicas: Replicas,
        make_shard: Callable[[int, int], S],
        partition_count: Callable[[], int],
        slices: Slices,
        compression: int = 0,
        answer_timeout_ms: Callable[[], int] | None = None,
    ) -> None:
        self.topic = topic
        self._slices = slices
        self._reactor = reactor
        self._replicas = replicas
        self._make_shard = make_shard
        self._partition_count = partition_count
        self._compression = compression
        self._answer_timeout_ms = answer_timeout_ms
        self._partitions: dict[int, _Partition[S]] = {}
        self._log = logger(
            "kafka.coordinator.transaction" if topic == TRANSACTION_STATE_TOPIC else "kafka.coordinator.group"
        )
        self._dirty: dict[int, _Partition[S]] = {}
        self._flush_due = False

    # --- leadership ---------------------------------------------------------------------------------------------------

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """Loads the shard of a partition that this node leads, unless it knows this epoch."""
        known = self._partitions.get(partition)
        if known is not None:
            if known.leader_epoch >= leader_epoch:
                return
            self.on_resigned(partition)
        part = _Partition(partition, leader_epoch, self._make_shard(partition, leader_epoch))
        self._partitions[partition] = part
        replica: Replica | None = self._replicas.get(self.topic, partition)
        if replica is None:
            self._close(part, ErrorCode.NOT_COORDINATOR)
            return
        # Up to the log end, not the high watermark: this leader will commit what earlier ones appended.
        end_offset = replica.log.log_end_offset
        part.load_began_ms = self._reactor.clock.monotonic_ms()
        part.loading = self._slices.run(
            replay_log(part.shard, replica, end_offset),
            lambda _: replica.when_committed(end_offset, partial(self._on_loaded, part, replica, end_offset)),
            partial(self._on_not_loaded, part),
            line=self._slices.loads,
        )

    def on_resigned(self, partition: int) -> None:
        """Drops the shard, answers NOT_COORDINATOR to uncommitted decisions."""
        part = self._partitions.get(partition)
        if part is not None:
            self._close(part, ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Drops all shards, in partition order; appended records stay in the log."""
        for partition in sorted(self._partitions):
            self.on_resigned(partition)

    def _on_not_loaded(self, part: _Partition[S], error: BaseException) -> None:
        log.error(
            "Coordinator cannot load a partition, clients are answered NOT_COORDINATOR until another replica leads: "
            "topic=%s partition=%d error=%s",
            self.topic,
            part.partition,
            error,
            exc_info=error if not isinstance(error, (BarnabasError, OSError)) else None,
        )
        self._close(part, ErrorCode.NOT_COORDINATOR)

    def _on_loaded(self, part: _Partition[S], replica: Replica, end_offset: int, error: BrokerError | None) -> None:
        if part.phase is not _Phase.LOADING:
            return
        if error is not None and _still_leads(part, replica):
            replica.when_committed(end_offset, lambda error: self._on_loaded(part, replica, end_offset, error))
            return
        if error is not None:
            self._close(part, ErrorCode.NOT_COORDINATOR)
            return
        part.phase = _Phase.ACTIVE
        entries = part.shard.size()
        self._log.log(
            logging.INFO if entries else logging.DEBUG,  # most of the 50 partitions are empty
            "Coordinator has loaded a partition: topic=%s partition=%d entries=%d bytes=%d duration_ms=%d",
            self.topic,
            part.partition,
            entries,
            replica.log.size_bytes,
            self._reactor.clock.monotonic_ms() - part.load_began_ms,
        )
        part.shard.on_active()

    def _close(self, part: _Partition[S], code: ErrorCode) -> None:
        if part.phase is _Phase.CLOSED:
            return
        part.phase = _Phase.CLOSED
        entries = part.shard.size()
        self._log.log(
            logging.INFO if entries else logging.DEBUG,
            "Coordinator gives a partition up: topic=%s partition=%d entries=%d",
            self.topic,
            part.partition,
            entries,
        )
        if part.loading is not None:
            part.loading.cancel()
        if self._partitions.get(part.partition) is part:
            del self._partitions[part.partition]
        writes = [write for appended in part.uncommitted.values() for write in appended.writes] + part.queue
        for appended in part.uncommitted.values():
            if appended.timer is not None:
                appended.timer.cancel()
        part.queue, part.uncommitted = [], {}
        part.shard.on_resigned()
        for write in writes:
            write.done(BrokerError(code))

    # --- reads --------------------------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """Raises BrokerError(COORDINATOR_NOT_AVAILABLE) while the topic does not exist."""
        count = self._partition_count()
        if count <= 0:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {self.topic} does not exist yet")
        return partition_for(key, count)

    def shard(self, partition: int) -> S:
        """The active shard. Raises BrokerError(NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS)."""
        return self._active(partition).shard

    def shard_for(self, key: str) -> tuple[int, S]:
        """Partition and active shard of a key; raises as `partition_of` and `shard`."""
        partition = self.partition_of(key)
        return partition, self._active(partition).shard

    def coordinator_epoch(self, partition: int) -> int:
        """Leader epoch at which the partition's shard serves; raises as `shard`."""
        return self._active(partition).leader_epoch

    def check_leads(self, partition: int) -> None:
        """As `shard`, for reads, which have no append that would fail; also while this broker's session with the controller may be over."""
        self._active(partition)
        try:
            self._replicas.leader(self.topic, partition).check_leads()
        except BrokerError as error:
            raise BrokerError(_coordinator_code(error.code), str(error)) from error

    def is_here(self, partition: int) -> bool:
        return partition in self._partitions

    def active_shards(self) -> list[tuple[int, S]]:
        return [(p, part.shard) for p, part in sorted(self._partitions.items()) if part.phase is _Phase.ACTIVE]

    @property
    def is_idle(self) -> bool:
        """Whether every decision is committed."""
        return not any(part.queue or part.uncommitted for part in self._partitions.values())

    @property
    def is_loading(self) -> bool:
        """ListGroups and ListTransactions then answer an error."""
        return any(part.phase is _Phase.LOADING for part in self._partitions.values())

    def _active(self, partition: int) -> _Partition[S]:
        part = self._partitions.get(partition)
        if part is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if part.phase is _Phase.LOADING:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return part

    # --- writes -------------------------------------------------------------------------------------------------------

    def write(
        self,
        partition: int,
        decide: Callable[[S, int], Decision[A, Any]],
        done: Done[A],
    ) -> None:
        """Decides now, appends at the end of the turn of the loop, answers when the records are committed.

        Args:
            decide: (shard, wall clock in ms) → decision; if it raises BrokerError, nothing is written.
            done: gets the answer of the decision, its error, or an error of `shard`; NOT_COORDINATOR if the leadership is lost in between;
                COORDINATOR_NOT_AVAILABLE if replicas are missing (nothing is written) or too slow (the records are written);
                UNKNOWN_SERVER_ERROR if no batch can hold the records, as in Kafka; other codes of a refused append (producer epochs).
        """
        try:
            part = self._active(partition)
            decision = decide(part.shard, self._reactor.clock.now_ms())
        except BrokerError as error:
            done(error)
            return
        if not decision.records and not part.queue and not part.uncommitted:
            done(decision.answer)
            return
        try:
            bytes_max = self._bytes_max(partition) if len(decision.records) > LONG_DECISION else sys.maxsize
            write = _Write(decision, part.shard, bytes_max, done)
        except BrokerError as error:
            done(error)
            return
        self._slices.count(len(decision.records) - 1)  # one is part of its request
        write.undo = part.shard.stage(decision.records, decision.producer)
        part.queue.append(write)
        self._dirty[partition] = part
        if not self._flush_due:
            self._flush_due = True
            self._reactor.soon(self._flush_all)

    def _bytes_max(self, partition: int) -> int:
        """The largest batch of a partition. Raises BrokerError if this broker does not lead it."""
        try:
            replica: Replica = self._replicas.leader(self.topic, partition)
        except BrokerError as error:
            raise BrokerError(_coordinator_code(error.code), str(error)) from None
        return replica.log.config.max_message_bytes

    def flush(self, partition: int) -> None:
        """Appends the queued writes of a partition now, before a marker is appended to the same log."""
        part = self._partitions.get(partition)
        if part is not None and part.queue:
            self._flush(part)

    def _flush_all(self) -> None:
        self._flush_due = False
        dirty, self._dirty = self._dirty, {}
        for part in dirty.values():
            if part.queue:
                self._flush(part)

    def _flush(self, part: _Partition[S]) -> None:
        queue, part.queue = part.queue, []
        try:
            replica: Replica = self._replicas.leader(self.topic, part.partition)
            if replica.leader_epoch != part.leader_epoch:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        except BrokerError as error:
            self._refuse(part, queue, error)
            return
        size_max = replica.log.config.max_message_bytes
        at = 0
        while at < len(queue) and part.phase is _Phase.ACTIVE:
            end, records, producer = _next_batch(queue, at, size_max, self._reactor.clock.now_ms())
            writes = queue[at:end]
            if records:
                try:
                    replica.check_in_sync()
                    self._append(part, replica, records, producer)
                except BrokerError as error:
                    self._refuse(part, queue[at:], error)
                    return
            at = end
            self._await_commit(part, replica, writes)
        if at < len(queue):  # a callback of an earlier batch closed the partition
            self._refuse(part, queue[at:], BrokerError(ErrorCode.NOT_COORDINATOR))

    def _append(
        self, part: _Partition[S], replica: Replica, records: list[NewRecord], producer: ProducerStamp | None
    ) -> None:
        if producer is None:
            batch = build_batch(records, compression=self._compression)
            info = replica.append(batch, origin=AppendOrigin.COORDINATOR)
        else:
            batch = build_batch(
                records,
                compression=self._compression,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,  # as in Kafka, whose cleaner cannot rewrite a producer's batch without one
                transactional=True,
            )
            info = replica.append(batch, origin=AppendOrigin.COORDINATOR, guard=producer.guard)
        part.appended_offset = info.last_offset + 1

    def _await_commit(self, part: _Partition[S], replica: Replica, writes: list[_Write]) -> None:
        next_offset = part.appended_offset
        waiting = part.uncommitted.get(next_offset)
        if waiting is not None:  # answers without records wait for the append before them
            waiting.writes.extend(writes)
            return
        appended = part.uncommitted[next_offset] = _Appended(writes)
        replica.when_committed(next_offset, lambda error: self._on_committed(part, replica, next_offset, error))
        if self._answer_timeout_ms is not None and part.uncommitted.get(next_offset) is appended:
            appended.timer = self._reactor.call_later(self._answer_timeout_ms(), lambda: self._on_overdue(appended))

    def _on_overdue(self, appended: _Appended) -> None:
        """Answers an error: replicas are too slow. The decisions stay, and take effect when they are committed."""
        overdue = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic}: replicas do not follow in time")
        _answer_early(appended, overdue)

    def _on_committed(self, part: _Partition[S], replica: Replica, next_offset: int, error: BrokerError | None) -> None:
        if part.phase is _Phase.CLOSED:
            return
        if error is not None and _still_leads(part, replica):
            # The session is over, but the node may keep the leadership in its next session: the decisions stay.
            if self._answer_timeout_ms is not None:
                _answer_early(part.uncommitted[next_offset], BrokerError(_coordinator_code(error.code), error.message))
            replica.when_committed(next_offset, lambda error: self._on_committed(part, replica, next_offset, error))
            return
        if error is not None:
            self._close(part, _coordinator_code(error.code))
            return
        appended = part.uncommitted.pop(next_offset)
        if appended.timer is not None:
            appended.timer.cancel()
        shard = part.shard
        for write in appended.writes:
            for record in write.records:
                shard.on_committed(record)
        for write in appended.writes:
            write.done(write.answer)

    def _refuse(self, part: _Partition[S], writes: list[_Write], error: BrokerError) -> None:
        """Undoes and refuses writes that were not appended, and everything queued after them."""
        writes = writes + part.queue  # they were decided after the writes that are undone now
        part.queue = []
        if part.phase is not _Phase.CLOSED:
            undo_all([write.undo for write in writes])
        refusal = BrokerError(_coordinator_code(error.code), str(error))
        for write in writes:
            write.done(refusal)


def _still_leads(part: _Partition[Any], replica: Replica) -> bool:
    """Whether the replica leads in the epoch in which the shard was loaded, as far as this node knows."""
    return replica.is_leader and replica.leader_epoch == part.leader_epoch


def _answer_early(appended: _Appended, error: BrokerError) -> None:
    """Answers the requests of an append before its outcome is known."""
    for write in appended.writes:
        done, write.done = write.done, _ignore_outcome
        done(error)


def _ignore_outcome(_outcome: Any) -> None:
    """The request was answered early."""


def _next_batch(
    queue: list[_Write], at: int, size_max: int, now_ms: int
) -> tuple[int, list[NewRecord], ProducerStamp | None]:
    """End of the writes from `at` that fit into one batch, their records and their producer; no decision is split."""
    records: list[NewRecord] = []
    producer: ProducerStamp | None = None
    size = 128
    while at < len(queue):
        write = queue[at]
        if write.records:
            if records and (write.producer != producer or write.producer is not None):
                break
            added = write.size_bytes + len(write.records) * RECORD_OVERHEAD_BYTES
            if records and size + added > size_max:
                break
            size += added
            producer = write.producer
            records += [_new(NewRecord, (key, value, now_ms, ())) for key, value in write.encoded]
        at += 1
    return at, records, producer


_NOT_AVAILABLE = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
_TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
_NOT_COORDINATOR = frozenset(
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR)
)


def _coordinator_code(code: ErrorCode) -> ErrorCode:
    """Translates an error of the log for clients, as Kafka's CoordinatorOperationExceptionHelper."""
    if code in _NOT_AVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in _TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR if code in _NOT_COORDINATOR else code


class PartitionCoordinator(Protocol):
    """The coordinator of an internal topic."""

    def on_elected(self, partition: int, leader_epoch: int) -> None: ...

    def on_resigned(self, partition: int) -> None: ...
