"""Delivery shell of a producer: sends batches and transaction requests and sets the outcomes.
Only the callback `_pump` sends and delivers, and it awaits nothing: no cancellation leaves anything half done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from barnabas.client.errors import (
    ClientClosed,
    KafkaError,
    PartlyWritten,
    ProducerFailed,
    SendFailed,
    TransactionFailed,
)
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.failures import first_error
from barnabas.client.net.waiters import Waiters
from barnabas.client.producer.core.batching import Accumulator
from barnabas.client.producer.core.sender import Dispatch, Sender
from barnabas.client.producer.core.transaction_state import Outgoing, TransactionPhase
from barnabas.client.producer.core.transactions import Transactions
from barnabas.client.types import RecordMetadata, TopicPartition
from barnabas.errors import LocalProtocolError
from barnabas.protocol.messages.produce import ProduceResponse

log = logging.getLogger("barnabas.client.producer")

_EXPIRE_EVERY_MS = 50  # shortest time between two searches for overdue batches
FUTURES_MAX = 10_000
ERRORS_MAX = 100  # errors of one SendFailed; all records are counted

_Future = asyncio.Future[Any]
Fail = Callable[[Sequence[asyncio.Future[RecordMetadata]], KafkaError], None]


class Delivery:
    """Runs the cores of one producer over its cluster. `flushes` counts waiting `flush` calls."""

    def __init__(
        self, cluster: NetworkClient, accumulator: Accumulator, sender: Sender, transactions: Transactions
    ) -> None:
        self.closed = False
        self.flushes = 0
        self.unclaimed = UnretrievedErrors()
        self._cluster = cluster
        self._accumulator = accumulator
        self._sender = sender
        self._txn = transactions
        self._clock = cluster.clock
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._expire_at_ms = 0
        self._waiters = Waiters(cluster.clock)
        self.loop: asyncio.AbstractEventLoop | None = None  # while records can be sent
        cluster.listeners.append(self.wake)

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Closes the connections; incomplete records fail with ClientClosed."""
        if self.closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._cluster.close()
        finally:
            self._end()
            self._waiters.wake_all()

    def abandon(self) -> None:
        """As `close`, for a closed event loop: tasks that wait there never run."""
        self._cluster.abandon()
        self._waiters = Waiters(self._clock)
        self._end(unanswered=True)

    def _end(self, *, unanswered: bool = False) -> None:
        on_its_way = ClientClosed(
            "the producer was closed before the record was acknowledged; it may or may not have been written"
        )
        on_its_way.maybe_written = True
        unsent = ClientClosed("the producer was closed before the record was sent")
        self._sender.abandon(unsent, on_its_way=on_its_way, unanswered=unanswered)
        self._deliver()
        self.closed = True
        self.loop = None

    async def progress(self, deadline_ms: int | None = None) -> bool:
        """Waits for an outcome of a batch or transaction request; False after `deadline_ms`."""
        if self.closed:
            raise ClientClosed("the producer is closed")
        return await self._waiters.wait(deadline_ms)

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """See `Transactions.resume`."""
        self._txn.resume(producer_id, producer_epoch)
        self._sender.adopt(producer_id, producer_epoch)

    async def outcomes(self) -> None:
        """Waits for the outcomes of all records queued so far, without linger."""
        serial = self._accumulator.last_serial
        self.flushes += 1
        try:
            self.wake()
            while not self._accumulator.all_done_up_to(serial):
                await self.progress()
        finally:
            self.flushes -= 1

    def wake(self) -> None:
        """Runs the pump at the end of this event-loop iteration."""
        if not self._pump_scheduled and self.loop is not None:
            self._pump_scheduled = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self.closed:
            return
        now = self._clock.monotonic_ms()
        txn, sender, accumulator = self._txn, self._sender, self._accumulator
        if txn.state is TransactionPhase.FATAL_ERROR:
            sender.abandon(txn.error or ProducerFailed("the producer cannot continue"))
        elif txn.state in (TransactionPhase.ABORTING, TransactionPhase.ABORTABLE_ERROR):
            cause = f": {txn.error}" if txn.error else ""
            sender.abandon(
                TransactionFailed(f"the transaction is aborted{cause}", code=txn.error.code if txn.error else None)
            )
        if now >= self._expire_at_ms:
            self._expire_at_ms = now + _EXPIRE_EVERY_MS
            sender.expire(now, self._obstacle)
        if sender.needs_producer_id and txn.state is TransactionPhase.READY and self._txn.transactional_id is None:
            txn.initialize()
        sender.flushing = self.flushes + (txn.state in (TransactionPhase.COMMITTING, TransactionPhase.PREPARING))
        request = txn.next_request(now, drained=not accumulator.incomplete)
        if request is not None:
            self._send_transactional(request, now)
        for dispatch in sender.drain(now, self._cluster.metadata.leaders, self._ready, self._cluster.metadata.topic_id):
            self._send_batches(dispatch, now)
        if sender.metadata_wanted:
            sender.metadata_wanted = False
            self._cluster.want_update()
        self._deliver()
        self._arm(now)

    def _obstacle(self, tp: TopicPartition) -> str:
        leader = self._cluster.metadata.leaders.get(tp)
        if leader is None:
            return "no leader of the partition is known"
        failed = first_error(each for each in self._cluster.connections() if each.node_id == leader and not each.ready)
        if failed is None:
            return ""
        return (
            f"{failed.message}. This is the address that broker {leader} advertises for its clients: set its "
            "advertised.listeners to one that they reach"
        )

    def _ready(self, node_id: int) -> bool:
        connection = self._cluster.connection(node_id)
        return connection is not None and connection.writable

    def _send_batches(self, dispatch: Dispatch, now: int) -> None:
        connection = self._cluster.connection(dispatch.node_id)
        answered = self._sender.acks != 0

        def done(outcome: Any) -> None:
            at = self._clock.monotonic_ms()
            if isinstance(outcome, ProduceResponse):
                self._sender.on_answer(dispatch, outcome, at)
                self._cluster.metadata.hint_endpoints(outcome.node_endpoints)
                for tp, leader, epoch in self._sender.leader_hints:
                    self._cluster.metadata.hint(tp, leader, epoch)
                self._sender.leader_hints.clear()
            else:
                self._sender.on_failure(dispatch, outcome, at)
            self._deliver()  # before the pump runs: a flush that wakes up first must find the futures done
            self.wake()

        try:
            if connection is None:
                self._sender.on_unsent(dispatch, now)
                return
            connection.send(
                dispatch.request,
                done,
                timeout_ms=dispatch.timeout_ms,
                version_max=dispatch.version_max,
                answered=answered,
            )
        except (KafkaError, LocalProtocolError) as error:
            failure = error if isinstance(error, KafkaError) else KafkaError(f"cannot be encoded: {error}")
            self._sender.on_failure(dispatch, failure, now)
            return
        if not answered:
            self._sender.on_answer(dispatch, None, now)

    def _send_transactional(self, request: Outgoing, now: int) -> None:
        try:
            if request.coordinator:
                node_id = self._cluster.coordinator(request.coordinator, request.key)
                connection = None if node_id is None else self._cluster.connection(node_id)
                if node_id is not None and connection is None and self._cluster.backoff(node_id):
                    # unreachable: another broker may be the coordinator now
                    self._cluster.forget_coordinator(request.coordinator, request.key)
                    self._cluster.coordinator(request.coordinator, request.key)
            else:
                connection = self._cluster.any_connection()
            if connection is None:
                self._txn.on_unsent(request)
                return
            connection.send(
                request.message,
                lambda outcome: self._on_transactional(request, outcome),
                version_max=request.version_max,
                version_min=request.version_min,
            )
        except KafkaError as error:
            self._on_transactional(request, error)

    def _on_transactional(self, request: Outgoing, outcome: Any) -> None:
        now = self._clock.monotonic_ms()
        txn = self._txn
        if isinstance(outcome, KafkaError):
            txn.on_failure(request, outcome, now)
        else:
            txn.on_answer(request, outcome, now)
        if txn.lost_coordinator is not None:
            self._cluster.forget_coordinator(*txn.lost_coordinator)
            txn.lost_coordinator = None
        if txn.state is TransactionPhase.READY and (
            self._txn.transactional_id is not None or self._sender.needs_producer_id
        ):
            self._sender.adopt(txn.producer_id, txn.producer_epoch)
        self._waiters.wake_all()
        self.wake()

    def _deliver(self) -> None:
        outcomes, self._sender.outcomes = self._sender.outcomes, []
        if not outcomes:
            if self._txn.state in (TransactionPhase.READY, TransactionPhase.PREPARED, TransactionPhase.FATAL_ERROR):
                self._waiters.wake_all()
            return
        new = tuple.__new__  # as in `send`
        for batch, base_offset, append_time, error in outcomes:
            topic, partition = batch.tp
            handles: list[Any] = batch.handles
            if error is not None:
                log.warning("%d records for %s-%d failed: %s", batch.record_count, topic, partition, error)
                self.unclaimed.fail(handles, error)
                continue
            kind = 0 if append_time < 0 else 1
            if batch.packed is not None:
                timestamp = append_time if kind else batch.packed.max_timestamp
                for future in handles:
                    if not future.done():
                        future.set_result(RecordMetadata(topic, partition, base_offset, timestamp, kind))
                continue
            offset = base_offset
            for future, (_, _, timestamp, _) in zip(handles, batch.records, strict=True):
                if not future.done():
                    written = append_time if kind else timestamp
                    future.set_result(new(RecordMetadata, (topic, partition, offset, written, kind)))
                if base_offset >= 0:
                    offset += 1
        self._waiters.wake_all()

    def _arm(self, now: int) -> None:
        at = self._sender.wake_at()
        other = self._txn.wake_at()
        if other is not None and (at is None or other < at):
            at = other
        if at is None or (self._timer is not None and self._timer_ms <= at and self._timer_ms > now):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = max(at, now + 1)
        self._timer = asyncio.get_running_loop().call_later((self._timer_ms - now) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()


class UnretrievedErrors:
    """Failures of one producer since they were last taken. Above FUTURES_MAX futures the oldest are decided at once."""

    def __init__(self) -> None:
        self._held: deque[tuple[KafkaError, list[_Future]]] = deque()
        self._held_count = 0
        self._errors: list[KafkaError] = []
        self._record_count = 0

    def fail(self, handles: Sequence[_Future | DividedRecord], error: KafkaError) -> None:
        """Sets the error of one batch's futures; keeps those that no caller waits for."""
        held: list[_Future] = []
        untold = 0
        for future in handles:
            if isinstance(future, DividedRecord):
                future.set_exception(error)
                continue
            if future.done():
                untold += 1  # only its caller can have ended it, by a cancellation
                continue
            watched = bool(future._callbacks)
            try:
                future.set_exception(error)
            except RuntimeError:  # its event loop is closed, so its callbacks cannot run
                untold += 1
                continue
            if not watched:
                held.append(future)
        if untold:
            self._count(error, untold)
        if held:
            self._held.append((error, held))
            self._held_count += len(held)
            while self._held_count > FUTURES_MAX:
                self._decide()

    def take(self) -> SendFailed | None:
        """All unretrieved failures as one error, or None. The next call begins anew."""
        while self._held:
            self._decide()
        errors, count = self._errors, self._record_count
        self._errors, self._record_count = [], 0
        return SendFailed(count, errors) if errors else None

    def clear(self) -> None:
        self.take()

    def _decide(self) -> None:
        error, futures = self._held.popleft()
        self._held_count -= len(futures)
        left = 0
        for future in futures:
            if future._log_traceback:
                future._log_traceback = False
                left += 1
        if left:
            self._count(error, left)

    def _count(self, error: KafkaError, records: int) -> None:
        self._record_count += records
        if len(self._errors) < ERRORS_MAX:
            self._errors.append(error)


class _Tally:
    """Counts the outcomes of one batch's records; its future completes with the last."""

    def __init__(self, fail: Fail, future: asyncio.Future[RecordMetadata], count: int) -> None:
        self._fail = fail
        self._future = future
        self._left = count
        self._count = count
        self._first: RecordMetadata | None = None
        self._failed: dict[int, BaseException] = {}

    def count(self, place: int, outcome: RecordMetadata | BaseException) -> None:
        self._left -= 1
        if isinstance(outcome, BaseException):
            self._failed[place] = outcome
        elif place == 0:
            self._first = outcome
        if self._left:
            return
        if self._failed or self._first is None:
            self._fail([self._future], PartlyWritten(dict(sorted(self._failed.items())), self._count))
        elif not self._future.done():
            self._future.set_result(self._first)


class DividedRecord:
    """One record of a divided batch, in place of a future."""

    __slots__ = ("_place", "_tally")

    def __init__(self, tally: _Tally, place: int) -> None:
        self._tally = tally
        self._place = place

    def done(self) -> bool:
        return False

    def set_result(self, metadata: RecordMetadata) -> None:
        self._tally.count(self._place, metadata)

    def set_exception(self, error: BaseException) -> None:
        self._tally.count(self._place, error)


def divided(fail: Fail, future: asyncio.Future[RecordMetadata], count: int) -> list[object]:
    """Handles of `count` records whose outcomes together complete `future`; `fail` sets its error."""
    tally = _Tally(fail, future, count)
    return [DividedRecord(tally, place) for place in range(count)]
