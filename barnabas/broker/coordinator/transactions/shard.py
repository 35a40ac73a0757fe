"""Transaction shard: one partition of `__transaction_state` as a replayed state machine.
KIP-98 (exactly once), KIP-360 (producer recovery), KIP-664 (describe), KIP-890 (TV2), KIP-939 (two-phase commit).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp, Undo, undo_all
from barnabas.broker.coordinator.transactions.records import TransactionRecord, decode_record, encode_record
from barnabas.broker.coordinator.transactions.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
    check_transition,
)
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import PRODUCER_EPOCH_MAX
from barnabas.loggers import logger
from barnabas.storage.checkpoints import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logger("kafka.coordinator.transaction")

_A = TypeVar("_A")
_S = TransactionState
_PREPARED = frozenset((_S.PREPARE_COMMIT, _S.PREPARE_ABORT))
_EXPIRABLE = frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT))


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and an epoch."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


class TransactionAnswer(NamedTuple):
    """Result of InitProducerId, EndTxn or an abort."""

    identity: ProducerIdAndEpoch  # of the producer's next transaction; NO_PRODUCER for an abort by the coordinator
    prepared: TransactionMetadata | None  # the transaction that needs markers now
    kept: ProducerIdAndEpoch = NO_PRODUCER  # identity of a transaction that the producer took over (KIP-939)


class TransactionShardOwner(Protocol):
    """The coordinator of a shard."""

    def on_shard_active(self, shard: TransactionShard) -> None: ...

    def on_transition_committed(self, shard: TransactionShard, metadata: TransactionMetadata) -> None: ...

    def on_shard_resigned(self, shard: TransactionShard) -> None: ...


class TransactionShard:
    """The transactional ids of one partition. `coordinator_epoch` is its leader epoch, written into markers.

    Only `on_committed` and `replay` change the committed state; the newest pending transition of an id is kept apart from it. During a
    pending transition decisions are refused with CONCURRENT_TRANSACTIONS, but additions of partitions stack: each broker that a transaction
    writes to sends its own. A request never affects another transaction. `owner` must not change the shard when it is notified of
    transitions. `record_version` returns that of TransactionLogValue: 1, or 0 below transaction.version 1.
    """

    def __init__(
        self, partition: int, coordinator_epoch: int, owner: TransactionShardOwner, record_version: Callable[[], int]
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, TransactionMetadata] = {}
        self.pending: dict[str, TransactionMetadata] = {}
        self.deadlines: dict[str, int] = {}  # monotonic ms at which an ONGOING transaction is aborted
        self._owner = owner
        self._record_version = record_version

    # --- the log ------------------------------------------------------------------------------------------------------

    def size(self) -> int:
        return len(self.transactions)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record, self._record_version())

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        return decode_record(key, value)

    def stage(self, records: Sequence[TransactionRecord], producer: ProducerStamp | None) -> Undo:
        return partial(undo_all, [self._stage(record) for record in records])

    def _stage(self, record: TransactionRecord) -> Undo:
        transactional_id = record.transactional_id
        staged = self.pending.get(transactional_id)
        after = record.metadata
        if staged is not None and not (staged.state is _S.ONGOING and after is not None and after.state is _S.ONGOING):
            raise InvariantViolated(f"{transactional_id}: a second pending transition")
        before = staged or self.transactions.get(transactional_id)
        check_transition(before, after.state if after is not None else _S.DEAD)
        if after is not None:
            self.pending[transactional_id] = after
        elif before is not None:
            self.pending[transactional_id] = before.dead()
        return lambda: self._take_back(transactional_id, staged)

    def _take_back(self, transactional_id: str, staged: TransactionMetadata | None) -> None:
        """Restores the former pending transition, unless it has been committed since; newest writes first."""
        if staged is None or staged is self.transactions.get(transactional_id):
            del self.pending[transactional_id]
        else:
            self.pending[transactional_id] = staged

    def on_committed(self, record: TransactionRecord) -> None:
        metadata = record.metadata
        if metadata is None:
            del self.pending[record.transactional_id]
            del self.transactions[record.transactional_id]
            return
        if self.pending[record.transactional_id] is metadata:  # otherwise a later addition is pending
            del self.pending[record.transactional_id]
        before = self.transactions.get(record.transactional_id)
        self.transactions[record.transactional_id] = metadata
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "Transaction changes its state: transactional_id=%s before=%s after=%s producer_id=%d producer_epoch=%d "
                "partitions=%d",
                metadata.transactional_id,
                "none" if before is None else before.state.name,
                metadata.state.name,
                metadata.producer_id,
                metadata.producer_epoch,
                len(metadata.partitions),
            )
        if metadata.state is _S.ONGOING and not metadata.is_two_phase:
            if before is None or before.state is not _S.ONGOING:
                self.deadlines[record.transactional_id] = metadata.started_monotonic_ms + metadata.timeout_ms
            else:
                self.deadlines[record.transactional_id] += metadata.timeout_ms - before.timeout_ms
        else:
            self.deadlines.pop(record.transactional_id, None)
        self._owner.on_transition_committed(self, metadata)

    def replay(self, record: TransactionRecord, producer_id: int, producer_epoch: int) -> None:
        if record.metadata is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = record.metadata

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Batches of `__transaction_state` are not transactional."""

    def on_active(self) -> None:
        self._owner.on_shard_active(self)

    def on_resigned(self) -> None:
        self._owner.on_shard_resigned(self)

    def restart_deadlines(self, now_ms: int, monotonic_ms: int) -> None:
        """After loading: the rest of each timeout by the wall clock, between 0 and the timeout."""
        for transactional_id, metadata in self.transactions.items():
            if metadata.state is _S.ONGOING and not metadata.is_two_phase:
                elapsed_ms = min(max(now_ms - metadata.started_ms, 0), metadata.timeout_ms)
                self.deadlines[transactional_id] = monotonic_ms + metadata.timeout_ms - elapsed_ms

    def prepared(self) -> Iterator[TransactionMetadata]:
        """Transactions whose markers are still to be written."""
        return (metadata for metadata in self.transactions.values() if metadata.state in _PREPARED)

    def timed_out(self, monotonic_ms: int) -> list[TransactionMetadata]:
        """Ongoing transactions with a passed deadline and without a pending transition."""
        return [
            self.transactions[transactional_id]
            for transactional_id, deadline_ms in self.deadlines.items()
            if deadline_ms <= monotonic_ms and transactional_id not in self.pending
        ]

    def next_deadline_ms(self) -> int | None:
        return min(self.deadlines.values(), default=None)

    # --- InitProducerId -----------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: Callable[[], int],
        server_version: int,
        now_ms: int,
        *,
        keep_prepared: bool = False,
    ) -> Decision[TransactionAnswer, TransactionRecord]:
        """A producer id and epoch for a producer that starts or recovers (KIP-360).

        Aborts an ongoing transaction: the answer is NO_PRODUCER with the prepared transaction, and the client gets CONCURRENT_TRANSACTIONS
        until the abort is complete. With `keep_prepared` the new producer gets the transaction to end it, and the former one is fenced
        (KIP-939). Raises BrokerError(CONCURRENT_TRANSACTIONS, PRODUCER_FENCED).
        """
        before = self.transactions.get(transactional_id)
        if transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before is None:
            before = TransactionMetadata(transactional_id, new_producer_id(), timeout_ms=timeout_ms, updated_ms=now_ms)
        elif expected is not None and not _may_continue(before, expected):
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        if before.state in _PREPARED:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before.state is _S.ONGOING:
            if keep_prepared:
                return _keep(before, timeout_ms, expected, new_producer_id, now_ms)
            if before.is_two_phase and expected not in (None, (before.client_id, before.client_epoch)):
                # The producer was replaced before. Kafka checks the epoch only after the abort; here a later producer
                # may have prepared this transaction and decided its outcome.
                raise BrokerError(ErrorCode.PRODUCER_FENCED)
            return self._fence(before, new_producer_id, server_version, now_ms)
        if before.is_epoch_exhausted and (expected is None or expected.producer_epoch == before.producer_epoch):
            after = before.with_new_producer_id(
                new_producer_id(), timeout_ms, now_ms, keep_last_epoch=expected is not None
            )
        else:
            after = before.with_next_epoch(timeout_ms, expected.producer_epoch if expected else None, now_ms)
        return _changed(after, TransactionAnswer(ProducerIdAndEpoch(after.producer_id, after.producer_epoch), None))

    def abort_timed_out(
        self, timed_out: TransactionMetadata, new_producer_id: Callable[[], int], server_version: int, now_ms: int
    ) -> Decision[TransactionAnswer, TransactionRecord]:
        """Fences and aborts. Raises BrokerError(CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE) if the transaction changed since `timed_out`."""
        before = self.transactions.get(timed_out.transactional_id)
        if timed_out.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before is not timed_out:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        return self._fence(before, new_producer_id, server_version, now_ms)

    def _fence(
        self, before: TransactionMetadata, new_producer_id: Callable[[], int], server_version: int, now_ms: int
    ) -> Decision[TransactionAnswer, TransactionRecord]:
        log.info(
            "Producer is fenced and its transaction is aborted: transactional_id=%s producer_id=%d producer_epoch=%d",
            before.transactional_id,
            before.producer_id,
            before.producer_epoch,
        )
        if server_version >= 2:
            # An abort under TV2 increments the epoch, which fences. The producer may take the new epoch (KIP-360).
            next_producer_id = new_producer_id() if before.is_epoch_exhausted else NO_PRODUCER_ID
            after = before.prepared(_S.PREPARE_ABORT, server_version, now_ms, next_producer_id=next_producer_id)
        else:
            # The fence is not written alone: its epoch and the abort are one record.
            after = before.fenced().prepared(_S.PREPARE_ABORT, server_version, now_ms)
        return _changed(after, TransactionAnswer(NO_PRODUCER, after))

    # --- AddPartitionsToTxn, AddOffsetsToTxn --------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        transaction_version: int,
        now_ms: int,
        monotonic_ms: int,
    ) -> Decision[None, TransactionRecord]:
        """Adds partitions; the first ones begin the transaction.

        Raises BrokerError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS; INVALID_TXN_STATE if the transaction was
        kept and can only be ended.
        """
        before = self._of_writer(transactional_id, producer)
        before = self.pending.get(transactional_id, before)
        if before.state in _PREPARED or (transactional_id in self.pending and before.state is not _S.ONGOING):
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before.state is _S.ONGOING and before.partitions.issuperset(partitions):
            return Decision(None)
        return _changed(before.with_partitions(partitions, transaction_version, now_ms, monotonic_ms), None)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """NONE or TRANSACTION_ABORTABLE (KIP-890), without pending transitions: the log checks again. Raises as `add_partitions`."""
        metadata = self._of_writer(transactional_id, producer)
        if metadata.state in _PREPARED:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE if partition in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _of_producer(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        metadata = self.transactions.get(transactional_id)
        if metadata is None or metadata.client_id != producer.producer_id:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if metadata.client_epoch != producer.producer_epoch:
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        return metadata

    def _of_writer(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        metadata = self._of_producer(transactional_id, producer)
        if metadata.is_kept and metadata.state is _S.ONGOING:
            text = f"the transaction of {transactional_id} is prepared: it can be committed or aborted, not written to"
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, text)
        return metadata

    # --- EndTxn -------------------------------------------------------------------------------------------------------

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        transaction_version: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> Decision[TransactionAnswer, TransactionRecord]:
        """Decides EndTxn, or repeats the answer of an earlier decision. TV2 has its own rules: the epoch alone names the transaction.

        Raises BrokerError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (being completed), INVALID_TXN_STATE
        (nothing to end, or ended otherwise).
        """
        before = self.transactions.get(transactional_id)
        if before is None:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction_version >= 2:
            return self._end_tv2(before, producer, commit, transaction_version, new_producer_id, now_ms)
        return self._end_tv1(before, producer, commit, transaction_version, now_ms)

    def _end_tv1(
        self,
        before: TransactionMetadata,
        producer: ProducerIdAndEpoch,
        commit: bool,
        transaction_version: int,
        now_ms: int,
    ) -> Decision[TransactionAnswer, TransactionRecord]:
        self._of_producer(before.transactional_id, producer)
        if before.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        prepare, complete = _outcome(commit)
        if before.state is _S.ONGOING:
            after = before.prepared(prepare, transaction_version, now_ms)
            return _changed(after, TransactionAnswer(producer, after))
        if before.state is complete:  # the same epoch: the answer was lost and the client retries
            return Decision(TransactionAnswer(producer, None))
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS if before.state is prepare else ErrorCode.INVALID_TXN_STATE)

    def _end_tv2(
        self,
        before: TransactionMetadata,
        producer: ProducerIdAndEpoch,
        commit: bool,
        transaction_version: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> Decision[TransactionAnswer, TransactionRecord]:
        # First: the pending transition may bring the producer id that this request names.
        if before.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        producer_id, epoch = before.client_id, before.client_epoch
        retry_over_ids = (
            producer_id != producer.producer_id
            and before.previous_producer_id == producer.producer_id
            and producer.producer_epoch == PRODUCER_EPOCH_MAX
            and epoch == 0
        )
        if producer_id != producer.producer_id and not retry_over_ids:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        # KIP-890: the current epoch names the next transaction, the epoch before it the one that was ended last.
        is_current = producer.producer_epoch == epoch and not retry_over_ids
        retry = retry_over_ids or epoch == producer.producer_epoch + 1
        state = before.state
        prepare, complete = _outcome(commit)
        if state in _PREPARED:
            if not retry:
                # Kafka answers PRODUCER_FENCED to the current epoch, too. That ends a producer that aborts its next
                # transaction, of which no partition was added yet, while the previous one is being completed.
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS if is_current else ErrorCode.PRODUCER_FENCED)
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS if state is prepare else ErrorCode.INVALID_TXN_STATE)
        if not is_current and (not retry or state in (_S.ONGOING, _S.EMPTY)):
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        if retry and not is_current:
            if state is not complete:
                raise BrokerError(ErrorCode.INVALID_TXN_STATE)
            return Decision(TransactionAnswer(ProducerIdAndEpoch(producer_id, epoch), None))
        if state is not _S.ONGOING and commit:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        next_producer_id = new_producer_id() if before.is_epoch_exhausted else NO_PRODUCER_ID
        after = before.prepared(
            prepare,
            transaction_version,
            now_ms,
            next_producer_id=next_producer_id,
            without_partitions=state is not _S.ONGOING,
        )
        if next_producer_id != NO_PRODUCER_ID:
            identity = ProducerIdAndEpoch(next_producer_id, 0)
        else:
            identity = ProducerIdAndEpoch(after.client_id, after.client_epoch)
        return _changed(after, TransactionAnswer(identity, after))

    def complete(self, prepared: TransactionMetadata, now_ms: int) -> Decision[bool, TransactionRecord]:
        """Answers False if the transaction was completed before. Raises BrokerError(CONCURRENT_TRANSACTIONS) while the completion is pending."""
        if prepared.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return Decision(False)
        return _changed(prepared.completed(now_ms), True)

    def described(self, transactional_id: str) -> TransactionMetadata | None:
        """The committed state of a transactional id; None if it is unknown or being deleted."""
        pending = self.pending.get(transactional_id)
        return None if pending is not None and pending.state is _S.DEAD else self.transactions.get(transactional_id)

    # --- expiry -------------------------------------------------------------------------------------------------------

    def expirable(self, updated_before_ms: int) -> list[str]:
        """Ids without a transaction, last updated at or before this wall-clock time in ms."""
        return [
            transactional_id
            for transactional_id, metadata in self.transactions.items()
            if metadata.state in _EXPIRABLE
            and metadata.updated_ms <= updated_before_ms
            and transactional_id not in self.pending
        ]

    def expire(self, transactional_id: str, updated_before_ms: int) -> Decision[None, TransactionRecord]:
        """Deletes a transactional id by a tombstone, if it was not updated since."""
        metadata = self.transactions.get(transactional_id)
        if metadata is None or transactional_id in self.pending:
            return Decision(None)
        if metadata.state not in _EXPIRABLE or metadata.updated_ms > updated_before_ms:
            return Decision(None)
        return Decision(None, (TransactionRecord(transactional_id, None),))


def _changed(after: TransactionMetadata, answer: _A) -> Decision[_A, TransactionRecord]:
    return Decision(answer, (TransactionRecord(after.transactional_id, after),))


def _outcome(commit: bool) -> tuple[TransactionState, TransactionState]:
    return (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT) if commit else (_S.PREPARE_ABORT, _S.COMPLETE_ABORT)


def _keep(
    before: TransactionMetadata,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Decision[TransactionAnswer, TransactionRecord]:
    """Gives an ongoing transaction to the producer of this request, with a new identity (KIP-939)."""
    kept = ProducerIdAndEpoch(before.producer_id, before.producer_epoch)
    client = ProducerIdAndEpoch(before.client_id, before.client_epoch)
    if expected is not None and expected != client:
        if not before.is_kept or expected != (before.previous_producer_id, before.last_producer_epoch):
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        return Decision(TransactionAnswer(client, None, kept))  # the client retries a call that succeeded
    after = before.kept(
        timeout_ms, now_ms, next_producer_id=new_producer_id() if before.is_epoch_exhausted else NO_PRODUCER_ID
    )
    return _changed(after, TransactionAnswer(ProducerIdAndEpoch(after.client_id, after.client_epoch), None, kept))


def _may_continue(before: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether InitProducerId may continue from this producer id; `with_next_epoch` checks the epoch."""
    return (
        before.producer_epoch == NO_EPOCH
        or expected.producer_id == before.client_id
        # The client retries a call that returned a new producer id after the last epoch of this one.
        or (expected.producer_id == before.previous_producer_id and expected.producer_epoch >= PRODUCER_EPOCH_MAX)
    )
