"""The producer's core: which batches leave for which broker, and what becomes of them.

Driven by: `drain` with the time and the cluster's leaders, the answers and failures of its dispatches, `expire`.
Emits: dispatches (one Produce request each), outcomes of batches, `metadata_wanted`.

Order and exactly-once (KIP-98, KIP-360): an idempotent batch gets its sequence when it first leaves and keeps it over
retries; at most five batches a partition carry one (the broker remembers five), and only one until the first of an epoch is
acknowledged. While one of them waits to be sent again, or is on its way again, only the oldest leaves. A leader that no
longer remembers a batch which may have been written is asked for the next one: see `_doubt`. A sequence that the broker no
longer follows is given up by a new epoch, begun per partition once nothing of it is on the wire; in a transaction it makes
the transaction abortable instead. Without idempotence one batch a partition is in flight, so retries keep order there too.

Invariants: a batch gets exactly one outcome; `window` is in sequence order; at most `max_in_flight` requests a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.client.errors import DeliveryTimedOut, KafkaError, code_of, error_for
from barnabas.client.net.backoff import retry_pause_ms
from barnabas.client.net.metadata import NO_ID
from barnabas.client.producer.batching import Accumulator, Batch, PartitionQueue
from barnabas.client.producer.transactions import CONCURRENT_BACKOFF_MS, Transactions
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

__all__ = ["Dispatch", "Outcome", "Sender", "SenderConfig"]

_TOPIC_ID_VERSION = 13
_IMPLICIT_ADD_VERSION = 12  # KIP-890: from it on Produce adds the partition to the transaction
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
# Told before the append. A leader that resigns, or whose disk fails, while acks=all waits refuses what it has written.
_NOT_WRITTEN = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS})


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """What the sender goes by. `acks`: 0, 1 or −1 (all). Times in ms, sizes in bytes."""

    acks: int = -1
    compression: int = 0
    idempotent: bool = True
    max_request_size: int = 1_048_576
    max_in_flight: int = 5
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 20


@dataclass(slots=True)
class Dispatch:
    """One Produce request on its way. `timeout_ms` is how long its answer may take."""

    node_id: int
    batches: dict[TopicPartition, Batch]
    request: ProduceRequest
    version_max: int
    timeout_ms: int
    names: dict[bytes, str]


class Outcome(NamedTuple):
    """What became of a batch: its base offset (−1 unknown) and log append time (−1 under CreateTime), or an error."""

    batch: Batch
    base_offset: int
    log_append_time_ms: int
    error: KafkaError | None


class Sender:
    """The core of one producer.

    Args:
        accumulator: what waits.
        transactions: the state machine that holds the producer id; its transactional id is None where there is none.
        rng: spreads retries.
    """

    def __init__(self, config: SenderConfig, accumulator: Accumulator, transactions: Transactions, rng: Rng) -> None:
        self.config = config
        self.accumulator = accumulator
        self.transactions = transactions
        self.outcomes: list[Outcome] = []
        self.metadata_wanted = False
        self.leader_hints: list[tuple[TopicPartition, int, int]] = []  # (partition, leader, epoch) from refusals
        self.flushing = 0  # callers that wait for everything: nothing lingers then
        self.producer_id = -1
        self.epoch = -1
        self._rng = rng
        self._in_flight: dict[int, int] = {}
        self._wake_ms: int | None = None
        self._topic_ids: Callable[[str], bytes] = lambda _: NO_ID

    # -- identity ------------------------------------------------------------------------------------------------------

    def adopt(self, producer_id: int, epoch: int) -> None:
        """A producer id and epoch to number under; partitions begin at sequence 0 when they adopt them."""
        self.producer_id = producer_id
        self.epoch = epoch

    @property
    def needs_producer_id(self) -> bool:
        return self.config.idempotent and self.producer_id < 0

    # -- out -----------------------------------------------------------------------------------------------------------

    def drain(
        self,
        now_ms: int,
        leaders: dict[TopicPartition, int],
        ready: Callable[[int], bool],
        topic_id: Callable[[str], bytes] = lambda _: NO_ID,
    ) -> list[Dispatch]:
        """The requests to send now.

        Args:
            leaders: node id of each partition's leader, where there is one.
            ready: whether a request can be handed to a node's connection; may begin to connect.
            topic_id: a topic's id, all zero where unknown.
        """
        self._wake_ms = None
        self._topic_ids = topic_id
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
            for node_id, batches in chosen.items():
                dispatches.append(self._dispatch(node_id, batches, now_ms))

    def wake_at(self) -> int | None:
        """When `drain` or `expire` is worth calling again without other news, in monotonic ms; as of the last `drain`."""
        return self._wake_ms

    def expire(self, now_ms: int) -> None:
        """Gives up batches whose delivery time is over; those on the wire wait for their answer or its time-out."""
        for queue in list(self.accumulator.waiting):
            while queue.queue and queue.queue[0].deadline_ms <= now_ms:
                batch = queue.queue.popleft()
                self._fail(queue, batch, self._too_late(batch), lost=False)
            for batch in [b for b in queue.window if not b.on_wire and b.deadline_ms <= now_ms]:
                queue.window.remove(batch)
                # What follows keeps its sequence: the broker then tells whether this one was written. With nothing
                # behind it nobody would tell, so the partition begins a new epoch.
                self._fail(queue, batch, self._too_late(batch), lost=not queue.window)
            queue.probing = any(b.doubtful for b in queue.window)
            if queue.idle:
                self.accumulator.waiting.pop(queue, None)

    def abandon(self, error: KafkaError, *, unsent_only: bool = False) -> None:
        """Fails every batch that is not on the wire: at an abort, a fatal error, or a close that must not wait.

        Args:
            unsent_only: spare the batches that have been sent before (a close waits for those).
        """
        for queue in list(self.accumulator.waiting):
            while queue.queue:
                self._finish(queue.queue.popleft(), -1, -1, error)
            if not unsent_only:
                for batch in [b for b in queue.window if not b.on_wire]:
                    queue.window.remove(batch)
                    self._finish(batch, -1, -1, error)
                    if self.config.idempotent:
                        queue.lost_sequence = True
                        self.transactions.needs_new_epoch = self.transactions.transactional_id is not None
            if queue.idle:
                self.accumulator.waiting.pop(queue, None)

    @property
    def on_wire(self) -> int:
        """Requests whose answer is awaited."""
        return sum(self._in_flight.values())

    # -- in ------------------------------------------------------------------------------------------------------------

    def on_unsent(self, dispatch: Dispatch, now_ms: int) -> None:
        """The connection refused the request before a byte left."""
        self._done(dispatch)
        for batch in dispatch.batches.values():
            self._land(batch)
            self._again(batch, now_ms, known_unwritten=True)

    def on_failure(self, dispatch: Dispatch, error: KafkaError, now_ms: int) -> None:
        """No answer came; whether the batches were written is unknown."""
        self._done(dispatch)
        self.metadata_wanted = True
        for batch in dispatch.batches.values():
            queue = self._land(batch)
            if error.retriable:
                self._again(batch, now_ms, known_unwritten=False)
            else:
                queue.window.remove(batch)
                self._fail(queue, batch, error, lost=True)

    def on_answer(self, dispatch: Dispatch, response: ProduceResponse | None, now_ms: int) -> None:
        """Takes the answer; None where acks=0 asked for none."""
        self._done(dispatch)
        if response is None:
            for batch in dispatch.batches.values():
                queue = self._land(batch)
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
        for batch in left.values():  # an answer that leaves out a partition decides nothing about it
            self._land(batch)
            self._again(batch, now_ms, known_unwritten=False)

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _choose(
        self,
        now_ms: int,
        leaders: dict[TopicPartition, int],
        ready: Callable[[int], bool],
        readiness: dict[int, bool],
    ) -> dict[int, list[Batch]]:
        chosen: dict[int, list[Batch]] = {}
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
            if self._in_flight.get(node_id, 0) >= self.config.max_in_flight:
                continue
            can = readiness.get(node_id)
            if can is None:
                can = readiness[node_id] = ready(node_id)
            if not can:
                self._wake_by(batch.deadline_ms)
                continue
            size = sizes.get(node_id, 0) + batch.size_bytes
            if size > limit and node_id in chosen:
                continue  # it keeps its place in front for the next request
            sizes[node_id] = size
            chosen.setdefault(node_id, []).append(batch)
            self._depart(queue, batch, node_id)
            if len(waiting) > 1:
                del waiting[queue]
                waiting[queue] = None
        for node_id in chosen:
            self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        return chosen

    def _sendable(self, queue: PartitionQueue, now_ms: int, leader: int) -> Batch | None:
        """The batch of this partition that may leave now. A pause is for the leader that was tried: a new one is tried at once."""
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
            if not self.config.idempotent or len(window) >= RETAINED_BATCHES or queue.on_wire < len(window):
                return None
            if first.attempts > 1:
                # It may have been written by an earlier attempt: were five more written behind it, the leader would no
                # longer know it and take this attempt for a gap.
                return None
            if queue.lost_sequence or (queue.producer_id, queue.epoch) != (self.producer_id, self.epoch):
                return None
            if first.base_sequence == 0 and self.transactions.version < 2:
                # A leader that knows nothing of a producer takes any sequence: were this batch refused, those behind it
                # would be written before it. Under TV2 the leader insists on 0 (KIP-890).
                return None
        at = self.accumulator.ready_at(queue, flushing=self.flushing > 0)
        if at is None:
            return None
        if at > now_ms:
            self._wake_by(at)
            return None
        return queue.queue[0]

    def _depart(self, queue: PartitionQueue, batch: Batch, node_id: int) -> None:
        """Marks the batch as on the wire; at its first departure it gets its place in the sequence."""
        if batch.attempts == 0:
            if self.config.idempotent and not queue.window:
                self._catch_up(queue)
            queue.queue.popleft()
            queue.window.append(batch)
            if self.config.idempotent:
                self._number(queue, batch)
        if batch.tried != node_id:
            batch.tried = node_id
            batch.failing_since_ms = -1
        batch.on_wire = True
        batch.attempts += 1
        queue.on_wire += 1

    def _catch_up(self, queue: PartitionQueue) -> None:
        """With an empty window the partition takes over the producer's present id and epoch."""
        queue.probing = False
        if queue.lost_sequence or (queue.producer_id, queue.epoch) != (self.producer_id, self.epoch):
            queue.producer_id = self.producer_id
            queue.epoch = self.epoch
            queue.next_sequence = 0
            queue.lost_sequence = False

    def _number(self, queue: PartitionQueue, batch: Batch) -> None:
        batch.producer_id = queue.producer_id
        batch.producer_epoch = queue.epoch
        batch.base_sequence = queue.next_sequence
        batch.encoded = None
        queue.next_sequence = (queue.next_sequence + batch.record_count) & SEQUENCE_MAX

    def _renumber(self, queue: PartitionQueue) -> None:
        """Begins the new epoch with what is left of the window: the broker refused it all under the old one."""
        queue.producer_id = self.producer_id
        queue.epoch = self.epoch
        queue.next_sequence = 0
        queue.lost_sequence = False
        queue.probing = False
        for batch in queue.window:
            batch.doubtful = False
            self._number(queue, batch)

    def _dispatch(self, node_id: int, batches: list[Batch], now_ms: int) -> Dispatch:
        config = self.config
        topics: dict[str, TopicProduceData] = {}
        names: dict[bytes, str] = {}
        version_max = _TOPIC_ID_VERSION
        deadline = now_ms + config.request_timeout_ms
        for batch in batches:
            topic = batch.tp.topic
            data = topics.get(topic)
            if data is None:
                topic_id = self._topic_ids(topic)
                if topic_id == NO_ID:
                    version_max = _TOPIC_ID_VERSION - 1
                names[topic_id] = topic
                data = topics[topic] = TopicProduceData(name=topic, topic_id=topic_id)
            if batch.encoded is None:
                batch.encoded = build_batch(
                    batch.packed or batch.records,
                    compression=config.compression,
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    base_sequence=batch.base_sequence,
                    transactional=batch.transactional,
                )
            data.partition_data.append(PartitionProduceData(index=batch.tp.partition, records=batch.encoded))
            deadline = min(deadline, max(batch.deadline_ms, now_ms + 1_000))
        if self.transactions.transactional_id is not None and self.transactions.version < 2:
            version_max = min(version_max, _IMPLICIT_ADD_VERSION - 1)
        request = ProduceRequest(
            transactional_id=self.transactions.transactional_id,
            acks=config.acks,
            timeout_ms=config.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        return Dispatch(node_id, {b.tp: b for b in batches}, request, version_max, deadline - now_ms, names)

    # -- judging -------------------------------------------------------------------------------------------------------

    def _on_result(self, batch: Batch, result: PartitionProduceResponse, node_id: int, now_ms: int) -> None:
        queue = self._land(batch)
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
        if too_large and batch.packed is None and len(batch.records) > 1:
            place = queue.window.index(batch)
            queue.window[place : place + 1] = self.accumulator.split(batch)
            return
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self._head(queue) is not batch:
                self._again(batch, now_ms, known_unwritten=True, at_once=True)  # its predecessor has yet to be written
                return
            if batch.maybe_written and self._doubt(queue, batch):
                return
        error = error_for(
            code, result.error_message, broker=node_id, topic=batch.tp.topic, partition=batch.tp.partition
        )
        lost = code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
        if lost and self.config.idempotent and self.transactions.transactional_id is None:
            self._lose(queue)
            self._again(batch, now_ms, known_unwritten=True, at_once=True)
        elif code is ErrorCode.CONCURRENT_TRANSACTIONS:
            # The previous transaction completes: not a fault to back off from.
            self._again(batch, now_ms, known_unwritten=True, at_once=True)
            batch.not_before_ms = now_ms + CONCURRENT_BACKOFF_MS
        elif code.retriable and not lost:
            self._again(batch, now_ms, known_unwritten=code in _NOT_WRITTEN)
        else:
            queue.window.remove(batch)
            self._fail(queue, batch, error, lost=True)

    def _head(self, queue: PartitionQueue) -> Batch:
        """The batch of the window whose turn it is: the first that is not in doubt."""
        if queue.probing:
            for batch in queue.window:
                if not batch.doubtful:
                    return batch
        return queue.window[0]

    def _doubt(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether a later batch can tell what became of one that may have been written and is refused as out of order.

        A leader that was restarted remembers only a producer's last batch (its snapshot holds no more), so a batch before
        that one looks like a gap. Sequences have no gaps: where a later one is known or fits, all before it were written.
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
        """A later batch was known or fitted: the doubtful ones before it are in the log, at offsets nobody remembers."""
        for batch in [b for b in queue.window if b.doubtful]:
            queue.window.remove(batch)
            self._finish(batch, -1, -1, None)
        queue.probing = False

    def _land(self, batch: Batch) -> PartitionQueue:
        """The batch is no longer on the wire."""
        queue = self.accumulator.queue(batch.tp)
        batch.on_wire = False
        queue.on_wire -= 1
        self.accumulator.waiting.setdefault(queue)
        return queue

    def _again(self, batch: Batch, now_ms: int, *, known_unwritten: bool, at_once: bool = False) -> None:
        """Leaves the batch in its window, to be sent again after a growing pause."""
        if not known_unwritten:
            batch.maybe_written = True
        if at_once:
            batch.not_before_ms = now_ms
            return
        if batch.failing_since_ms < 0:
            batch.failing_since_ms = now_ms
        lasted_ms = now_ms - batch.failing_since_ms
        batch.not_before_ms = now_ms + retry_pause_ms(lasted_ms, self.config.retry_backoff_ms, self._rng)

    def _fail(self, queue: PartitionQueue, batch: Batch, error: KafkaError, *, lost: bool) -> None:
        """Gives a batch up. `lost`: the broker's sequence may now differ from ours."""
        if lost and self.config.idempotent and batch.base_sequence >= 0:
            self._lose(queue)
        self._finish(batch, -1, -1, error)
        self.transactions.on_batch_failed(error)

    def _lose(self, queue: PartitionQueue) -> None:
        """The partition goes on under a new epoch; a transaction gets its own at its end."""
        queue.lost_sequence = True
        if self.transactions.transactional_id is not None or (queue.producer_id, queue.epoch) != (
            self.producer_id,
            self.epoch,
        ):
            return
        if self.epoch < PRODUCER_EPOCH_MAX:
            self.epoch += 1  # KIP-360: without a coordinator the producer itself counts on
        else:
            self.producer_id = -1  # the shell asks for a new id
            self.epoch = -1

    def _finish(self, batch: Batch, base_offset: int, log_append_time_ms: int, error: KafkaError | None) -> None:
        self.accumulator.release(batch)
        batch.encoded = None
        self.outcomes.append(Outcome(batch, base_offset, log_append_time_ms, error))

    def _done(self, dispatch: Dispatch) -> None:
        self._in_flight[dispatch.node_id] -= 1

    def _too_late(self, batch: Batch) -> KafkaError:
        written = "it may or may not have been written" if batch.maybe_written else "it was not written"
        return DeliveryTimedOut(
            f"not acknowledged within delivery_timeout_ms after {batch.attempts} attempts; {written}",
            topic=batch.tp.topic,
            partition=batch.tp.partition,
        )

    def _wake_by(self, at_ms: int) -> None:
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms
