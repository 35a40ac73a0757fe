"""The batches of a Produce request, and its answer while it waits for their acknowledgement.

The answer names for each partition REQUEST_TIMED_OUT if its batch is not acknowledged in time, and
NOT_ENOUGH_REPLICAS_AFTER_APPEND if too few replicas are in sync when it is. Kafka syncs within the append where a setting or a new folder
demands it; here the append is complete once the batch is durable, and `timeout_ms` counts from there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.handlers import leader_hints
from barnabas.broker.handlers.needs import Needs
from barnabas.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.api.call import Call, Pending
    from barnabas.broker.replica.core.machine import Replica
    from barnabas.broker.replica.core.verification_guard import VerificationGuard
    from barnabas.broker.scheduling.timers import Timer
    from barnabas.ports import Buffer
    from barnabas.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
    from barnabas.storage.inspection import Inspection

ACKS_ALL: Final = -1


class PartitionBatch:
    """One partition's batch in a request.

    Attributes:
        records: the bytes, or their finished inspection.
        error: why it is not appended.
        producer_id: ≥ 0 only if the batch is transactional.
        guard: allows the append while its transaction is verified (KIP-890).
    """

    __slots__ = (
        "answer",
        "base_sequence",
        "compressed",
        "error",
        "guard",
        "producer_epoch",
        "producer_id",
        "records",
        "replica",
    )

    def __init__(self, answer: PartitionProduceResponse, records: Buffer) -> None:
        self.answer = answer
        self.records: Buffer | Inspection = records
        self.compressed = False
        self.replica: Replica | None = None
        self.error: BrokerError | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.guard: VerificationGuard | None = None


class AckWait:
    """An answer that waits. acks=-1: until the high watermark of each partition has passed its batch; acks=1 with
    flush.messages: until the leader has synced it."""

    __slots__ = ("_appending", "_call", "_needs", "_open", "_pending", "_response", "_timer")

    def __init__(
        self, needs: Needs, call: Call[ProduceRequest], response: ProduceResponse, pending: Pending[ProduceResponse]
    ) -> None:
        self._needs = needs
        self._call = call
        self._response = response
        self._pending = pending
        self._open: dict[PartitionBatch, None] = {}
        self._appending = 0  # batches that are not durable here
        self._timer: Timer | None = None

    def start(self, waiting: list[tuple[PartitionBatch, int]], timeout_ms: int) -> None:
        """Waits for each batch up to its next offset; answers REQUEST_TIMED_OUT for those that are late."""
        self._open = dict.fromkeys(batch for batch, _ in waiting)
        self._pending.on_closed = self._stop
        to_all = self._call.request.acks == ACKS_ALL
        self._appending = len(waiting)
        for batch, next_offset in waiting:
            if batch.replica is not None:
                if to_all:
                    batch.replica.when_committed(next_offset, partial(self._on_acknowledged, batch))
                batch.replica.when_durable(next_offset, partial(self._on_appended, batch, timeout_ms))

    def _on_appended(self, batch: PartitionBatch, timeout_ms: int, error: BrokerError | None) -> None:
        self._appending -= 1
        if error is not None or self._call.request.acks != ACKS_ALL:
            self._on_acknowledged(batch, error)
        if self._open and not self._appending:
            self._timer = self._needs.reactor.call_later(timeout_ms, self._on_timeout)

    def _on_acknowledged(self, batch: PartitionBatch, error: BrokerError | None) -> None:
        if batch not in self._open:
            return
        del self._open[batch]
        to_all = self._call.request.acks == ACKS_ALL
        if error is None and to_all and batch.replica is not None and not _enough_in_sync(batch.replica):
            error = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if error is not None:
            batch.answer.error_code = error.code
        if not self._open:
            self._finish()

    def _on_timeout(self) -> None:
        for batch in self._open:
            batch.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._open.clear()
        self._finish()

    def _stop(self) -> None:
        self._open.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self) -> None:
        self._stop()
        self._pending.on_closed = None
        leader_hints.add_produce_hints(self._needs, self._call, self._response)
        self._pending.resolve(self._response)


def _enough_in_sync(replica: Replica) -> bool:
    return len(replica.isr) >= replica.min_insync_replicas
