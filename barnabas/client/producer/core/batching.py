"""Accumulator: record batches that wait to be sent, one queue per partition, one byte count for all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from barnabas.client.types import TopicPartition
from barnabas.protocol.record_codec import NewRecord, decode
from barnabas.protocol.records import EncodedRecords

BATCH_OVERHEAD = 61  # the header of a batch
# For a record without headers: length 5, attributes 1, timestamp 10, offset 5 (as Kafka counts them).
RECORD_OVERHEAD_MAX = 21
_HEADER_OVERHEAD_MAX = 10  # for one record header: two varint lengths


def record_size_max(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Upper bound in bytes of the encoded record."""
    size = RECORD_OVERHEAD_MAX + 5 + 5
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, data in headers:
        size += (
            _HEADER_OVERHEAD_MAX + len(name.encode("utf-8", "surrogateescape")) + (len(data) if data is not None else 0)
        )
    return size


class ProducerBatch:
    """Records of one partition that are sent together.

    `base_sequence` is −1 until an idempotent producer first sends the batch. `on_wire`: a request with it is in flight.
    `maybe_written`: the outcome of an attempt is unknown. `tried` is the node of the last attempt, −1 before. Times are
    monotonic milliseconds. An encoded batch has `packed` instead of `records` and a single handle; `divide` makes one
    handle per record to split it, None forbids that.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "created_ms",
        "deadline_ms",
        "divide",
        "doubtful",
        "encoded",
        "failing_since_ms",
        "handles",
        "maybe_written",
        "not_before_ms",
        "on_wire",
        "packed",
        "producer_epoch",
        "producer_id",
        "records",
        "serial",
        "size_bytes",
        "size_bytes_max",
        "tp",
        "transactional",
        "tried",
    )

    def __init__(
        self, tp: TopicPartition, serial: int, created_ms: int, deadline_ms: int, size_bytes_max: int = 0
    ) -> None:
        self.tp = tp
        self.serial = serial  # in the order of creation; the halves of a split batch share it
        self.records: list[NewRecord] = []
        self.handles: list[object] = []
        self.packed: EncodedRecords | None = None
        self.divide: Callable[[int], list[object]] | None = None
        self.size_bytes = BATCH_OVERHEAD
        self.size_bytes_max = size_bytes_max  # at this size the batch is full and is sent without linger
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.not_before_ms = 0
        self.failing_since_ms = -1  # time of the first failure of the node `tried`; −1 if it has not failed
        self.tried = -1
        self.attempts = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.transactional = False
        self.on_wire = False
        self.maybe_written = False
        # Rejected as out of order, although an earlier attempt may have written it: the response to a later batch decides.
        self.doubtful = False
        self.encoded: bytearray | None = None

    @property
    def record_count(self) -> int:
        return len(self.records) if self.packed is None else self.packed.record_count

    @property
    def divisible(self) -> bool:
        return self.record_count > 1 and (self.packed is None or self.divide is not None)

    def unpack(self) -> None:
        if self.packed is None or self.divide is None:
            return
        data, count, base_timestamp, _ = self.packed
        decoded = decode(bytes(data), count, 0, base_timestamp, -1)
        self.records = [NewRecord(key, value, timestamp, headers) for _, timestamp, key, value, headers in decoded]
        self.handles = self.divide(count)
        self.packed = None


class PartitionQueue:
    """The batches of one partition, in the order of `append`, and the next sequence number.

    `window` holds the batches that were sent at least once, oldest first; with idempotence they keep their sequence
    until they are acknowledged, failed or renumbered. `queue` holds the others. `next_sequence` belongs to
    `producer_id` and `epoch`.
    """

    __slots__ = (
        "epoch",
        "lost_sequence",
        "next_sequence",
        "on_wire",
        "probing",
        "producer_id",
        "queue",
        "tp",
        "window",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.queue: deque[ProducerBatch] = deque()
        self.window: list[ProducerBatch] = []
        self.on_wire = 0  # the number of unanswered batches of the window; ≤ len(window)
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        # The broker's sequence may differ from `next_sequence`: a new epoch must start before the next batch is sent.
        self.lost_sequence = False
        self.probing = False  # the first batches of the window are doubtful

    @property
    def idle(self) -> bool:
        return not self.queue and not self.window


class Accumulator:
    """The queues of all partitions.

    Args:
        batch_size: bytes at which a batch is full; a larger record gets its own batch.
        linger_ms: how long an incomplete batch waits for more records.
        delivery_timeout_ms: time limit from the first `append` to the outcome of the batch.
        transactional: whether the batches belong to transactions.
    """

    def __init__(
        self, *, batch_size: int, linger_ms: int, delivery_timeout_ms: int, transactional: bool = False
    ) -> None:
        self.batch_size = batch_size
        self.linger_ms = linger_ms
        self.delivery_timeout_ms = delivery_timeout_ms
        self.transactional = transactional
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.waiting: dict[PartitionQueue, None] = {}  # queues that are not idle, next first
        self.bytes_held = 0
        self.full_batches = 0  # batches filled since the producer last reset this: it then lets the event loop run
        self.incomplete: dict[int, int] = {}  # serial → number of its batches without an outcome
        self._serial = 0

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        found = self.queues.get(tp)
        if found is None:
            found = self.queues[tp] = PartitionQueue(tp)
        return found

    def append(
        self, queue: PartitionQueue, record: NewRecord, size_bytes: int, handle: object, now_ms: Callable[[], int]
    ) -> bool:
        """Queues a record; True if it started a new batch (only then `now_ms` is called), so that the sender must run."""
        waiting = queue.queue
        if waiting:
            batch = waiting[-1]
            if batch.size_bytes + size_bytes <= batch.size_bytes_max:
                batch.records.append(record)
                batch.handles.append(handle)
                batch.size_bytes += size_bytes
                self.bytes_held += size_bytes
                return False
            self.full_batches += 1
        batch = self._begin(queue, size_bytes, handle, now_ms(), self.batch_size)
        batch.records.append(record)
        return True

    def append_packed(
        self,
        queue: PartitionQueue,
        packed: EncodedRecords,
        handle: object,
        now_ms: int,
        divide: Callable[[int], list[object]] | None = None,
    ) -> None:
        """Queues an encoded batch. It is sent unchanged, unless the broker finds it too large and `divide` is given."""
        self.full_batches += 1
        batch = self._begin(queue, len(packed.data), handle, now_ms, 0)
        batch.packed = packed
        batch.divide = divide

    def _begin(
        self, queue: PartitionQueue, size_bytes: int, handle: object, now_ms: int, size_bytes_max: int
    ) -> ProducerBatch:
        self._serial += 1
        batch = ProducerBatch(queue.tp, self._serial, now_ms, now_ms + self.delivery_timeout_ms, size_bytes_max)
        batch.transactional = self.transactional
        batch.handles.append(handle)
        batch.size_bytes += size_bytes
        self.bytes_held += batch.size_bytes
        self.incomplete[batch.serial] = 1
        queue.queue.append(batch)
        self.waiting[queue] = None
        return batch

    def ready_at(self, queue: PartitionQueue, *, flushing: bool) -> int | None:
        """When the first batch of `queue.queue` may be sent; None without one."""
        waiting = queue.queue
        if not waiting:
            return None
        first = waiting[0]
        if flushing or len(waiting) > 1 or first.size_bytes >= first.size_bytes_max:
            return first.not_before_ms
        return max(first.created_ms + self.linger_ms, first.not_before_ms)

    def release(self, batch: ProducerBatch) -> None:
        self.bytes_held -= batch.size_bytes
        left = self.incomplete[batch.serial] - 1
        if left:
            self.incomplete[batch.serial] = left
        else:
            del self.incomplete[batch.serial]

    def split(self, batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        """Halves of a batch that was too large for the broker (`divisible`), with consecutive sequences."""
        batch.unpack()
        middle = len(batch.records) // 2
        halves = []
        for part in (slice(None, middle), slice(middle, None)):
            half = ProducerBatch(batch.tp, batch.serial, batch.created_ms, batch.deadline_ms)
            half.records = batch.records[part]
            half.handles = batch.handles[part]
            half.size_bytes = BATCH_OVERHEAD + sum(record_size_max(r.key, r.value, r.headers) for r in half.records)
            half.attempts = batch.attempts
            half.producer_id = batch.producer_id
            half.producer_epoch = batch.producer_epoch
            half.transactional = batch.transactional
            halves.append(half)
        first, second = halves
        if batch.base_sequence >= 0:
            first.base_sequence = batch.base_sequence
            second.base_sequence = (batch.base_sequence + middle) & 0x7FFFFFFF
        self.bytes_held += first.size_bytes + second.size_bytes - batch.size_bytes
        self.incomplete[batch.serial] += 1
        return first, second

    @property
    def last_serial(self) -> int:
        """Serial of the newest batch; a flush waits for all batches up to it."""
        return self._serial

    def all_done_up_to(self, serial: int) -> bool:
        if not self.incomplete:
            return True
        return next(iter(self.incomplete)) > serial
