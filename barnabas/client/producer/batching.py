"""Record batches that wait to be sent: one queue a partition, bounded in bytes over all of them.

Driven by: `append` for every record; `next_batch` and the sender's bookkeeping.
Emits: batches in the order their records came.

A batch is sent when it is full, when its linger has passed, when somebody flushes, or when a newer batch stands behind it.
Sizes are upper bounds (as Java's estimate), so an encoded batch never exceeds what was counted. Handles are whatever the
caller wants back with the outcome of a record (the shell keeps futures there); this module never looks at them.

Invariants: records leave a partition in the order they came; a batch in `queue.window` keeps its sequence until it is
acknowledged, failed or renumbered under a new epoch; `bytes_held` counts every batch until `release`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from barnabas.client.types import TopicPartition
from barnabas.protocol.records import EncodedRecords, NewRecord

__all__ = ["BATCH_OVERHEAD", "RECORD_OVERHEAD_MAX", "Accumulator", "Batch", "PartitionQueue", "record_size_max"]

BATCH_OVERHEAD = 61  # the header of a batch
# Of a record without headers: length 5, attributes 1, timestamp 10, offset 5 (as Kafka counts it).
RECORD_OVERHEAD_MAX = 21
_HEADER_OVERHEAD_MAX = 10  # of one header: two varint lengths


def record_size_max(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Bytes that an encoded record takes at most."""
    size = RECORD_OVERHEAD_MAX + 5 + 5
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, data in headers:
        size += _HEADER_OVERHEAD_MAX + len(name.encode()) + (len(data) if data is not None else 0)
    return size


class Batch:
    """Records of one partition that travel together.

    `base_sequence` is −1 until the batch is first sent by an idempotent producer. `on_wire` is true from a send to its
    answer. `maybe_written` is true once a send's outcome is unknown. `tried` is the node that it was last sent to, −1 before
    that. Times are monotonic milliseconds. `packed` takes the place of `records` where the caller has encoded them, and one
    handle stands for all.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "created_ms",
        "deadline_ms",
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
        self.serial = serial  # of its creation; halves of a split batch share it
        self.records: list[NewRecord] = []
        self.handles: list[object] = []
        self.packed: EncodedRecords | None = None
        self.size_bytes = BATCH_OVERHEAD
        self.size_bytes_max = size_bytes_max  # it is full, and leaves without linger, once `size_bytes` is that
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.not_before_ms = 0
        self.failing_since_ms = -1  # −1 while the node `tried` has not failed yet
        self.tried = -1
        self.attempts = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.transactional = False
        self.on_wire = False
        self.maybe_written = False
        # Refused as out of order although an earlier send may have written it: a later one will tell.
        self.doubtful = False
        self.encoded: bytearray | None = None

    @property
    def record_count(self) -> int:
        return len(self.records) if self.packed is None else self.packed.record_count


class PartitionQueue:
    """What waits for one partition, and its place in the producer's sequence.

    Idempotent producers: `window` holds the batches with a sequence, oldest first, sent or to be sent again; `queue` those
    without. `epoch` and `producer_id` are those under which `next_sequence` counts.
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
        self.queue: deque[Batch] = deque()
        self.window: list[Batch] = []
        self.on_wire = 0  # batches of the window whose answer is awaited; ≤ len(window)
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        # The broker's sequence is no longer ours: a new epoch must begin before the next send.
        self.lost_sequence = False
        self.probing = False  # the first batches of the window are doubtful

    @property
    def idle(self) -> bool:
        return not self.queue and not self.window


class Accumulator:
    """All partitions' queues.

    Args:
        batch_size: bytes at which a batch is full; one larger record makes a batch of its own.
        linger_ms: how long a batch that is not full waits for more.
        delivery_timeout_ms: from the first record's `append` to the batch's last chance.
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
        self.waiting: dict[PartitionQueue, None] = {}  # queues with something to send, in the order they got it
        self.bytes_held = 0
        self.full_batches = 0  # batches that waited complete since the shell last looked: its cue to let the loop run
        self.incomplete: dict[int, int] = {}  # serial → batches of it without an outcome
        self._serial = 0

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """The partition's queue, made when it is missing."""
        found = self.queues.get(tp)
        if found is None:
            found = self.queues[tp] = PartitionQueue(tp)
        return found

    def append(
        self, queue: PartitionQueue, record: NewRecord, size_bytes: int, handle: object, now_ms: Callable[[], int]
    ) -> bool:
        """Places a record of at most `size_bytes`; true where it began a new batch (so the sender should look).

        `now_ms` tells the monotonic time; it is asked where a batch begins.
        """
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

    def append_packed(self, queue: PartitionQueue, packed: EncodedRecords, handle: object, now_ms: int) -> None:
        """Places a whole batch behind those that wait; it leaves as it is."""
        self.full_batches += 1
        self._begin(queue, len(packed.data), handle, now_ms, 0).packed = packed

    def _begin(self, queue: PartitionQueue, size_bytes: int, handle: object, now_ms: int, size_bytes_max: int) -> Batch:
        self._serial += 1
        batch = Batch(queue.tp, self._serial, now_ms, now_ms + self.delivery_timeout_ms, size_bytes_max)
        batch.transactional = self.transactional
        batch.handles.append(handle)
        batch.size_bytes += size_bytes
        self.bytes_held += batch.size_bytes
        self.incomplete[batch.serial] = 1
        queue.queue.append(batch)
        self.waiting[queue] = None
        return batch

    def ready_at(self, queue: PartitionQueue, *, flushing: bool) -> int | None:
        """When the queue's first batch without a sequence may leave; None where there is none."""
        waiting = queue.queue
        if not waiting:
            return None
        first = waiting[0]
        if flushing or len(waiting) > 1 or first.size_bytes >= first.size_bytes_max:
            return first.not_before_ms
        return max(first.created_ms + self.linger_ms, first.not_before_ms)

    def release(self, batch: Batch) -> None:
        """Forgets a batch that has its outcome."""
        self.bytes_held -= batch.size_bytes
        left = self.incomplete[batch.serial] - 1
        if left:
            self.incomplete[batch.serial] = left
        else:
            del self.incomplete[batch.serial]

    def split(self, batch: Batch) -> tuple[Batch, Batch]:
        """Two halves of a batch the broker found too large (≥ 2 records, none packed). Sequences follow on, so their order stays proven."""
        middle = len(batch.records) // 2
        halves = []
        for part in (slice(None, middle), slice(middle, None)):
            half = Batch(batch.tp, batch.serial, batch.created_ms, batch.deadline_ms)
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

    def batches(self) -> Iterator[Batch]:
        """Every batch without an outcome, partition by partition, oldest first."""
        for queue in self.queues.values():
            yield from queue.window
            yield from queue.queue

    @property
    def last_serial(self) -> int:
        """Serial of the newest batch; a flush waits until none up to it is incomplete."""
        return self._serial

    def all_done_up_to(self, serial: int) -> bool:
        """Whether every batch created up to `serial` has its outcome."""
        if not self.incomplete:
            return True
        return next(iter(self.incomplete)) > serial
