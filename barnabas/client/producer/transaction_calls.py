"""Transaction calls of a producer: coroutines over its state machine (KIP-98, KIP-447, KIP-890, KIP-939).
A cancelled or timed-out call changes nothing: the transition continues, and the same call waits for its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from barnabas.client.committable import committable
from barnabas.client.errors import IllegalState, RequestTimedOut, TransactionFailed
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.client.producer.core.transactions import Transactions
from barnabas.client.producer.delivery import Delivery
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition

_CLOSE_TIMEOUT_MS = 5_000
_OPEN = (TransactionPhase.IN_TRANSACTION, TransactionPhase.PREPARING, TransactionPhase.ABORTABLE_ERROR)
_ENDING = (TransactionPhase.COMMITTING, TransactionPhase.ABORTING, TransactionPhase.INITIALIZING)


class TransactionCalls:
    """Transaction calls of one producer. `forced_version`: protocol 1 or 2; None: the finalized one."""

    def __init__(
        self, transactions: Transactions, delivery: Delivery, cluster: NetworkClient, forced_version: int | None
    ) -> None:
        self._txn = transactions
        self._delivery = delivery
        self._cluster = cluster
        self._forced_version = forced_version
        # the caller of the last commit was cancelled, and its outcome was not returned yet
        self._commit_abandoned = False

    async def begin(self, timeout_ms: int) -> None:
        """Opens a transaction, after the end of a commit or abort whose caller has left."""
        await self._left(_ENDING, timeout_ms, "the end of the previous transaction was not answered")
        version = self._forced_version or await self._cluster.learn_transaction_version()
        if self._txn.two_phase and version < 2:
            raise IllegalState("two_phase_commit needs a cluster that has finalized transaction.version 2")
        self._txn.begin(version)
        self._commit_abandoned = False

    async def prepare(self) -> PreparedTransaction:
        """Sends queued records; afterwards the transaction can only be committed or aborted."""
        self._txn.prepare()
        self._delivery.wake()
        while self._txn.state is TransactionPhase.PREPARING:
            await self._delivery.progress()
        self._txn.check_usable()
        if self._txn.prepared is None:
            self._txn.check_sendable()
            raise IllegalState(f"the transaction was ended by another call: the producer is {self._txn.state.value}")
        return self._txn.prepared

    async def complete(self, decided: PreparedTransaction | None, timeout_ms: int) -> bool:
        if self._txn.prepared is None:
            self._txn.check_usable()
            return False
        if decided == self._txn.prepared:
            await self.commit(timeout_ms)
            return True
        await self.abort(timeout_ms)
        return False

    async def commit(self, timeout_ms: int | None) -> None:
        ended_or_ending = self._txn.state in (TransactionPhase.READY, TransactionPhase.COMMITTING)
        if not (self._commit_abandoned and ended_or_ending):
            self._use_present_version()
            self._txn.commit()
        self._commit_abandoned = True
        self._delivery.wake()
        await self._left(
            (TransactionPhase.COMMITTING,),
            timeout_ms,
            "the commit was not answered; it goes on, and commit_transaction waits for it again",
        )
        self._commit_abandoned = False
        self._txn.check_usable()
        if self._txn.state is TransactionPhase.ABORTABLE_ERROR:
            self._txn.check_sendable()

    async def abort(self, timeout_ms: int | None) -> None:
        self._use_present_version()
        self._txn.abort()
        self._delivery.wake()
        await self._left(
            (TransactionPhase.ABORTING, TransactionPhase.INITIALIZING),
            timeout_ms,
            "the abort was not answered; it goes on, and abort_transaction waits for it again",
        )
        self._txn.check_usable()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: ConsumerGroupMetadata
    ) -> None:
        job = self._txn.add_offsets(committable(offsets), group)
        self._delivery.wake()
        while not job.done and job.error is None:
            await self._delivery.progress()
        if job.error is not None:
            self._txn.check_usable()
            raise TransactionFailed(f"the offsets were not committed: {job.error}", code=job.error.code) from job.error

    async def close(self) -> None:
        """Aborts an unprepared transaction, waits ≤ 5 s for a commit in progress. Raises TimeoutError, KafkaError."""
        state = self._txn.state
        async with asyncio.timeout(_CLOSE_TIMEOUT_MS / 1000):
            if state is TransactionPhase.COMMITTING:
                await self.commit(None)
            elif state in _OPEN:
                await self.abort(None)

    async def _left(self, states: Sequence[TransactionPhase], timeout_ms: int | None, what: str) -> None:
        """Waits until the producer has left these states. Raises RequestTimedOut with `what`."""
        deadline_ms = None if timeout_ms is None else self._cluster.clock.monotonic_ms() + timeout_ms
        while self._txn.state in states:
            if not await self._delivery.progress(deadline_ms) and self._txn.state in states:
                raise RequestTimedOut(f"not within {timeout_ms} ms: {what}")

    def _use_present_version(self) -> None:
        """Another producer began a kept transaction: its end uses the finalized version."""
        if self._txn.state is TransactionPhase.PREPARED and self._txn.kept:
            self._txn.version = self._forced_version or self._cluster.transaction_version()
