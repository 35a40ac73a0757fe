"""Producer core: decides which batches are sent to which broker, and the outcome of each (KIP-98, KIP-360).

An idempotent batch keeps its first sequence in retries. At most five batches of a partition have one (the broker
remembers five), and only one until an epoch's first batch is acknowledged. During a retry only the oldest batch is
sent. If the broker's sequence no longer matches, the partition starts a new epoch, or the transaction becomes
abortable. Without idempotence one batch per partition is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.client.errors import DeliveryTimedOut, KafkaError, code_of, error_for
from barnabas.client.net.core.backoff import retry_pause_ms
from barnabas.client.net.core.metadata import NO_ID
from barnabas.client.producer.core.batching import Accumulator, PartitionQueue, ProducerBatch
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.core.transactions import CONCURRENT_BACKOFF_MS, Transactions
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.limits import PRODUCER_EPOCH_MAX, RETAINED_BATCHES, SEQUENCE_MAX
from barnabas.ports import Rng
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.protocol.records import build_batch

_STALE_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
# Errors before the append. Others may follow it: a leader that resigns, or whose disk fails, while acks=all waits returns an
# error for a written batch.
_NOT_WRITTEN = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS})

_TOPIC_ID_VERSION = 13  # of Produce (KIP-516)
_IMPLICIT_ADD_VERSION = 12
_ANSWER_TIMEOUT_MS_MIN = 1_000


@dataclass(slots=True)
class Dispatch:
    """A Produce request in flight. `timeout_ms` is the time limit of its response."""

    node_id: int
    batches: dict[TopicPartition, ProducerBatch]
    request: ProduceRequest
    version_max: int
    timeout_ms: int
    names: dict[bytes, str]  # topic id → name


class BatchResult(NamedTuple):
    """Base offset (−1 unknown) and log append time (−1 with CreateTime) of a batch, or an error."""

    batch: ProducerBatch
    base_offset: int
    log_append_time_ms: int
    error: KafkaError | None


class Sender:
    """Core of one producer.

    `transactions` holds the producer id and the transactional id (None without transactions).
    """

    def __init__(self, config: ProducerConfig, accumulator: Accumulator, transactions: Transactions, rng: Rng) -> None:
        self.config = config
        self.idempotent = config.idempotent
        self.acks = config.required_acks
        self.accumulator = accumulator
        self.transactions = transactions
        self.outcomes: list[BatchResult] = []
        self.metadata_wanted = False
        self.leader_hints: list[tuple[TopicPartition, int, int]] = []  # (partition, leader, epoch) from rejections
        self.flushing = 0  # the number of callers that wait for all batches; linger_ms is ignored then
        self.producer_id = -1
        self.epoch = -1
        self._rng = rng
        self._in_flight: dict[int, int] = {}
        self._wake_ms: int | None = None

    # -- identity ------------------------------------------------------------------------------------------------------

    def adopt(self, producer_id: int, epoch: int) -> None:
        """Sets producer id and epoch of new batches; each partition then starts at sequence 0."""
        self.producer_id = producer_id
        self.epoch = epoch

    @property
    def needs_producer_id(self) -> bool:
        return self.idempotent and self.producer_id < 0

    # -- out -----------------------------------------------------------------------------------------------------------

    def drain(
        self,
        now_ms: int,
        leaders: dict[TopicPartition, int],
        ready: Callable[[int], bool],
        topic_id: Callable[[str], bytes] = lambda _: NO_ID,
    ) -> list[Dispatch]:
        """The requests to send now, at most `max_in_flight` per broker.

        Args:
            leaders: node id of each partition's leader; leaderless partitions are absent.
            ready: whether a node's connection accepts a request now; may begin to connect.
            topic_id: all zeros if unknown.
        """
        self._wake_ms = None
        dispatches: list[Dispatch] = []
        if self.needs_producer_id:
            for queue in self.accumulator.waiting:
                for batch in (*queue.window[:1], *list(queue.queue)[:1]):
                    self._wake_by(batch.deadline_ms)
            return dispatches
        if not self.accumulator.waiting:
            return dispatches
        readiness: dict[int, bool] = {}
        while True:
            chosen = self._choose(now_ms, leaders, ready, readiness)
            if not chosen:
                return dispatches
            dispatches += [self._dispatch(node_id, batches, topic_id, now_ms) for node_id, batches in chosen.items()]

    def wake_at(self) -> int | None:
        """When to call `drain` or `expire` next if nothing else happens, in monotonic ms; set by the last `drain`."""
        return self._wake_ms

    def expire(self, now_ms: int, obstacle: Callable[[TopicPartition], str] = lambda _: "") -> None:
        """Fails batches after their delivery timeout, unless in flight. `obstacle`: why a leader is unreachable, or ""."""
        for queue in list(self.accumulator.waiting):
            while queue.queue and queue.queue[0].deadline_ms <= now_ms:
                batch = queue.queue.popleft()
                self._fail(queue, batch, self._too_late(batch, obstacle), lost=False)
            for batch in [b for b in queue.window if not b.on_wire and b.deadline_ms <= now_ms]:
                queue.window.remove(batch)
                # The batches after it keep their sequences; the response to the next one shows whether this one was written.
                # Without a next batch this stays unknown, so the partition starts a new epoch.
                self._fail(queue, batch, self._too_late(batch, obstacle), lost=not queue.window)
            queue.probing = any(b.doubtful for b in queue.window)
            if queue.idle:
                self.accumulator.waiting.pop(queue, None)

    def abandon(
        self,
        error: KafkaError,
        *,
        on_its_way: KafkaError | None = None,
        unanswered: bool = False,
    ) -> None:
        """Fails every batch that is not in flight: at an abort, a fatal error, or a close that must not wait.

        Args:
            on_its_way: replaces `error` for batches that may have been written.
            unanswered: also fails batches in flight: no response can arrive.
        """
        for queue in list(self.accumulator.waiting):
            while queue.queue:
                self._finish(queue.queue.popleft(), -1, -1, error)
            for batch in [b for b in queue.window if unanswered or not b.on_wire]:
                queue.window.remove(batch)
                self._finish(batch, -1, -1, ((batch.maybe_written or batch.on_wire) and on_its_way) or error)
                if self.idempotent:
                    queue.lost_sequence = True
                    self.transactions.needs_new_epoch = self.transactions.transactional_id is not None
            if queue.idle:
                self.accumulator.waiting.pop(queue, None)

    # -- in ------------------------------------------------------------------------------------------------------------

    def on_unsent(self, dispatch: Dispatch, now_ms: int) -> None:
        self._done(dispatch)
        for batch in dispatch.batches.values():
            self._mark_returned(batch)
            self._retry(batch, now_ms, known_unwritten=True)

    def on_failure(self, dispatch: Dispatch, error: KafkaError, now_ms: int) -> None:
        """No response; whether the batches were written is unknown."""
        self._done(dispatch)
        self.metadata_wanted = True
        for batch in dispatch.batches.values():
            queue = self._mark_returned(batch)
            if error.retriable:
                self._retry(batch, now_ms, known_unwritten=False)
            else:
                queue.window.remove(batch)
                self._fail(queue, batch, error, lost=True)

    def on_answer(self, dispatch: Dispatch, response: ProduceResponse | None, now_ms: int) -> None:
        self._done(dispatch)
        if response is None:
            for batch in dispatch.batches.values():
                queue = self._mark_returned(batch)
                queue.window.remove(batch)
                self._finish(batch, -1, -1, None)
            return
        left = dict(dispatch.batches)
        for topic in response.responses:
            name = topic.name or dispatch.names.get(topic.topic_id, "")
            for result in topic.partition_responses:
                found = left.pop(TopicPartition(name, result.index), None)
                if found is not None:
                    self._on_result(found, result, dispatch.node_id, now_ms)
        for batch in left.values():  # the response does not contain this partition: its outcome is unknown
            self._mark_returned(batch)
            self._retry(batch, now_ms, known_unwritten=False)

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _choose(
        self,
        now_ms: int,
        leaders: dict[TopicPartition, int],
        ready: Callable[[int], bool],
        readiness: dict[int, bool],
    ) -> dict[int, list[ProducerBatch]]:
        chosen: dict[int, list[ProducerBatch]] = {}
        sizes: dict[int, int] = {}
        limit = self.config.max_request_size
        waiting = self.accumulator.waiting
        for queue in list(waiting):
            node_id = leaders.get(queue.tp, -1)
            batch = self._sendable(queue, now_ms, node_id)
            if batch is None:
                if queue.idle:
                    del waiting[queue]
                continue
            if node_id < 0:
                self.metadata_wanted = True
                self._wake_by(batch.deadline_ms)
                continue
            if self._in_flight.get(node_id, 0) >= self.config.max_in_flight_requests_per_connection:
                continue
            can = readiness.get(node_id)
            if can is None:
                can = readiness[node_id] = ready(node_id)
            if not can:
                self._wake_by(batch.deadline_ms)
                continue
            size = sizes.get(node_id, 0) + batch.size_bytes
            if size > limit and node_id in chosen:
                continue  # it stays first in the queue, for the next request
            sizes[node_id] = size
            chosen.setdefault(node_id, []).append(batch)
            self._mark_sent(queue, batch, node_id)
            if len(waiting) > 1:
                del waiting[queue]
                waiting[queue] = None
        for node_id in chosen:
            self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        return chosen

    def _sendable(self, queue: PartitionQueue, now_ms: int, leader: int) -> ProducerBatch | None:
        """The partition's batch to send now. Retry backoff applies only to the leader that failed."""
        transactional = self.transactions.transactional_id is not None
        if transactional and not self.transactions.may_send(queue.tp):
            if queue.queue:
                self._wake_by(queue.queue[0].deadline_ms)
            return None
        window = queue.window
        if window:
            first = self._head(queue)
            self._wake_by(window[0].deadline_ms)
            if not first.on_wire:
                if queue.lost_sequence and not transactional:
                    if queue.on_wire:
                        return None
                    self._renumber(queue)
                if first.not_before_ms > now_ms and leader in (first.tried, -1):
                    self._wake_by(first.not_before_ms)
                    return None
                return first
            if not self.idempotent or len(window) >= RETAINED_BATCHES or queue.on_wire < len(window):
                return None
            if first.attempts > 1:
                # An earlier attempt may have written it. After five more batches the leader would have forgotten it and
                # would reject this attempt as out of order.
                return None
            if queue.lost_sequence or (queue.producer_id, queue.epoch) != (self.producer_id, self.epoch):
                return None
            if first.base_sequence == 0 and self.transactions.version < 2:
                # A leader without state of this producer accepts any sequence: after rejecting this batch it could still
                # write the later ones. With TV2 the leader requires sequence 0 (KIP-890).
                return None
        at = self.accumulator.ready_at(queue, flushing=self.flushing > 0)
        if at is None:
            return None
        if at > now_ms:
            self._wake_by(at)
            return None
        return queue.queue[0]

    def _mark_sent(self, queue: PartitionQueue, batch: ProducerBatch, node_id: int) -> None:
        if batch.attempts == 0:
            if self.idempotent and not queue.window:
                self._adopt_identity(queue)
            queue.queue.popleft()
            queue.window.append(batch)
            if self.idempotent:
                self._number(queue, batch)
        if batch.tried != node_id:
            batch.tried = node_id
            batch.failing_since_ms = -1
        batch.on_wire = True
        batch.attempts += 1
        queue.on_wire += 1

    def _adopt_identity(self, queue: PartitionQueue) -> None:
        queue.probing = False
        if queue.lost_sequence or (queue.producer_id, queue.epoch) != (self.producer_id, self.epoch):
            queue.producer_id = self.producer_id
            queue.epoch = self.epoch
            queue.next_sequence = 0
            queue.lost_sequence = False

    def _number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        batch.producer_id = queue.producer_id
        batch.producer_epoch = queue.epoch
        batch.base_sequence = queue.next_sequence
        batch.encoded = None
        queue.next_sequence = (queue.next_sequence + batch.record_count) & SEQUENCE_MAX

    def _renumber(self, queue: PartitionQueue) -> None:
        """Starts the new epoch with the window's batches, all of which the broker rejected in the old epoch."""
        queue.producer_id = self.producer_id
        queue.epoch = self.epoch
        queue.next_sequence = 0
        queue.lost_sequence = False
        queue.probing = False
        for batch in queue.window:
            batch.doubtful = False
            self._number(queue, batch)

    def _dispatch(
        self, node_id: int, batches: list[ProducerBatch], topic_id: Callable[[str], bytes], now_ms: int
    ) -> Dispatch:
        """The Produce request for batches with the same leader."""
        topics: dict[str, TopicProduceData] = {}
        names: dict[bytes, str] = {}
        version_max = _TOPIC_ID_VERSION
        deadline = now_ms + self.config.request_timeout_ms
        for batch in batches:
            topic = batch.tp.topic
            data = topics.get(topic)
            if data is None:
                known = topic_id(topic)
                if known == NO_ID:
                    version_max = _TOPIC_ID_VERSION - 1
                names[known] = topic
                data = topics[topic] = TopicProduceData(name=topic, topic_id=known)
            if batch.encoded is None:
                batch.encoded = build_batch(
                    batch.packed or batch.records,
                    compression=self.config.codec,
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    base_sequence=batch.base_sequence,
                    transactional=batch.transactional,
                )
            data.partition_data.append(PartitionProduceData(index=batch.tp.partition, records=batch.encoded))
            deadline = min(deadline, max(batch.deadline_ms, now_ms + _ANSWER_TIMEOUT_MS_MIN))
        transactional_id = self.transactions.transactional_id
        if transactional_id is not None and self.transactions.version < 2:
            version_max = min(version_max, _IMPLICIT_ADD_VERSION - 1)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=self.acks,
            timeout_ms=self.config.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        return Dispatch(node_id, {b.tp: b for b in batches}, request, version_max, deadline - now_ms, names)

    # -- results -------------------------------------------------------------------------------------------------------

    def _on_result(self, batch: ProducerBatch, result: PartitionProduceResponse, node_id: int, now_ms: int) -> None:
        queue = self._mark_returned(batch)
        code = code_of(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if queue.probing:
                self._confirm(queue)
            queue.window.remove(batch)
            known = code is ErrorCode.NONE
            self._finish(batch, result.base_offset if known else -1, result.log_append_time_ms if known else -1, None)
            return
        if code in _STALE_LEADER:
            self.metadata_wanted = True
            if result.current_leader.leader_id >= 0:
                hint = result.current_leader
                self.leader_hints.append((batch.tp, hint.leader_id, hint.leader_epoch))
        too_large = code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
        if too_large and batch.divisible:
            place = queue.window.index(batch)
            queue.window[place : place + 1] = self.accumulator.split(batch)
            return
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self._head(queue) is not batch:
                self._retry(batch, now_ms, known_unwritten=True, at_once=True)  # its predecessor is not written yet
                return
            if batch.maybe_written and self._mark_doubtful(queue, batch):
                return
        error = error_for(
            code, result.error_message, broker=node_id, topic=batch.tp.topic, partition=batch.tp.partition
        )
        lost = code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
        if lost and self.idempotent and self.transactions.transactional_id is None:
            self._lose_sequence(queue)
            self._retry(batch, now_ms, known_unwritten=True, at_once=True)
        elif code is ErrorCode.CONCURRENT_TRANSACTIONS:
            # The previous transaction is still completing: not a failure, so the backoff does not grow.
            self._retry(batch, now_ms, known_unwritten=True, at_once=True)
            batch.not_before_ms = now_ms + CONCURRENT_BACKOFF_MS
        elif code.retriable and not lost:
            self._retry(batch, now_ms, known_unwritten=code in _NOT_WRITTEN)
        else:
            queue.window.remove(batch)
            self._fail(queue, batch, error, lost=True)

    def _head(self, queue: PartitionQueue) -> ProducerBatch:
        if queue.probing:
            for batch in queue.window:
                if not batch.doubtful:
                    return batch
        return queue.window[0]

    def _mark_doubtful(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Marks a possibly written batch that was rejected as out of order; False if no later batch can decide.

        After a restart a leader remembers only a producer's last batch, so it takes an earlier one for a gap. Sequences
        have no gaps: if a later batch is a duplicate or fits, all earlier ones were written.
        """
        batch.doubtful = True
        queue.probing = True
        if not all(b.doubtful for b in queue.window):
            return True
        for doubtful in queue.window:
            doubtful.doubtful = False
        queue.probing = False
        return False

    def _confirm(self, queue: PartitionQueue) -> None:
        """A later batch was a duplicate or fitted: the doubtful ones before it are in the log, at unknown offsets."""
        for batch in [b for b in queue.window if b.doubtful]:
            queue.window.remove(batch)
            self._finish(batch, -1, -1, None)
        queue.probing = False

    def _mark_returned(self, batch: ProducerBatch) -> PartitionQueue:
        queue = self.accumulator.queue(batch.tp)
        batch.on_wire = False
        queue.on_wire -= 1
        self.accumulator.waiting.setdefault(queue)
        return queue

    def _retry(self, batch: ProducerBatch, now_ms: int, *, known_unwritten: bool, at_once: bool = False) -> None:
        """Schedules another attempt with backoff; the batch stays in its window."""
        if not known_unwritten:
            batch.maybe_written = True
        if at_once:
            batch.not_before_ms = now_ms
            return
        if batch.failing_since_ms < 0:
            batch.failing_since_ms = now_ms
        failing_ms = now_ms - batch.failing_since_ms
        batch.not_before_ms = now_ms + retry_pause_ms(failing_ms, self.config.retry_backoff_ms, self._rng)

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError, *, lost: bool) -> None:
        """Fails a batch. `lost`: the broker's sequence may now differ from the producer's."""
        if lost and self.idempotent and batch.base_sequence >= 0:
            self._lose_sequence(queue)
        self._finish(batch, -1, -1, error)
        self.transactions.on_batch_failed(error)

    def _lose_sequence(self, queue: PartitionQueue) -> None:
        """The partition needs a new epoch; a transactional producer gets it at the end of the transaction."""
        queue.lost_sequence = True
        if self.transactions.transactional_id is not None or (queue.producer_id, queue.epoch) != (
            self.producer_id,
            self.epoch,
        ):
            return
        if self.epoch < PRODUCER_EPOCH_MAX:
            self.epoch += 1  # KIP-360: without a coordinator the producer raises the epoch itself
        else:
            self.producer_id = -1  # the delivery requests a new id
            self.epoch = -1

    def _finish(
        self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int, error: KafkaError | None
    ) -> None:
        self.accumulator.release(batch)
        batch.encoded = None
        self.outcomes.append(BatchResult(batch, base_offset, log_append_time_ms, error))

    def _done(self, dispatch: Dispatch) -> None:
        self._in_flight[dispatch.node_id] -= 1

    def _too_late(self, batch: ProducerBatch, obstacle: Callable[[TopicPartition], str]) -> KafkaError:
        written = "it may or may not have been written" if batch.maybe_written else "it was not written"
        why = obstacle(batch.tp)
        error = DeliveryTimedOut(
            f"not acknowledged within delivery_timeout_ms after {batch.attempts} attempts; {written}"
            + (f": {why}" if why else ""),
            topic=batch.tp.topic,
            partition=batch.tp.partition,
        )
        error.maybe_written = batch.maybe_written
        return error

    def _wake_by(self, at_ms: int) -> None:
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms
