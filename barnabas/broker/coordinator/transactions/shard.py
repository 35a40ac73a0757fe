"""Transaction shard: one partition of __transaction_state as a replayed state machine.

Driven by: the decisions of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, completed markers, deadlines and expiry;
committed records through `on_committed`, loaded ones through `replay`.
Emits: Decisions (answer and record); its owner learns of transitions through `on_transition_committed`, loading and resignation.

Invariants: on_committed() and replay() alone mutate what is; the newest pending transition of a transactional id is kept apart from it;
a decision over a pending one is refused with CONCURRENT_TRANSACTIONS, except that additions of partitions stack: the brokers a
transaction writes to ask on their own and at once. An effect is never on another transaction than the one the request names.
Follows KIP-98 (exactly once), KIP-360 (producer recovery), KIP-664 (describe), KIP-890 (an epoch per transaction, TV2),
KIP-939 (two-phase commit).
TV2 has its own rules for EndTxn, because the epoch alone says which transaction is meant: `_end_tv1` and `_end_tv2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp, Undo
from barnabas.broker.coordinator.transactions.records import TransactionRecord, decode_record, encode_record
from barnabas.broker.coordinator.transactions.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
    check_transition,
)
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ended", "ProducerIdentity", "ShardOwner", "TransactionShard"]

_A = TypeVar("_A")
_S = TransactionState
_PREPARED = frozenset((_S.PREPARE_COMMIT, _S.PREPARE_ABORT))
_EXPIRABLE = frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT))


class ProducerIdentity(NamedTuple):
    """A producer id with one of its epochs."""

    producer_id: int
    producer_epoch: int


NOBODY = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


class Ended(NamedTuple):
    """Outcome of InitProducerId, EndTxn or a fence: what to answer, the prepared transaction where markers are to be sent, and
    the one that was kept."""

    identity: ProducerIdentity
    prepared: TransactionMetadata | None
    kept: ProducerIdentity = NOBODY


class ShardOwner(Protocol):
    """Who acts on what a shard went through."""

    def on_shard_active(self, shard: TransactionShard) -> None: ...

    def on_transition_committed(self, shard: TransactionShard, metadata: TransactionMetadata) -> None: ...

    def on_shard_resigned(self, shard: TransactionShard) -> None: ...


class TransactionShard:
    """The transactional ids of one partition.

    Args:
        partition: of `__transaction_state`.
        coordinator_epoch: leader epoch of that partition, written into markers.
        owner: told of transitions; its calls must not re-enter the shard's mutators.
        record_version: () → version of TransactionLogValue to write: 1, or 0 below transaction.version 1.
    """

    def __init__(
        self, partition: int, coordinator_epoch: int, owner: ShardOwner, record_version: Callable[[], int]
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, TransactionMetadata] = {}
        self.pending: dict[str, TransactionMetadata] = {}
        self.deadlines: dict[str, int] = {}  # monotonic ms at which an ONGOING transaction is aborted
        self._owner = owner
        self._record_version = record_version

    # --- the log --------------------------------------------------------------------------------------------------------

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record, self._record_version())

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        return decode_record(key, value)

    def stage(self, record: TransactionRecord, producer: ProducerStamp | None) -> Undo:
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
        """What was pending before is so again, unless it was committed meanwhile. Failed writes are taken back newest first."""
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
        if self.pending[record.transactional_id] is metadata:  # else more was added on top of it meanwhile
            del self.pending[record.transactional_id]
        before = self.transactions.get(record.transactional_id)
        self.transactions[record.transactional_id] = metadata
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
        """No transactional batch is ever written here."""

    def on_active(self) -> None:
        self._owner.on_shard_active(self)

    def on_resigned(self) -> None:
        self._owner.on_shard_resigned(self)

    def restart_deadlines(self, now_ms: int, monotonic_ms: int) -> None:
        """After a load: what had run of a timeout by the wall clock then, clamped to [0, timeout], by the monotonic one since."""
        for transactional_id, metadata in self.transactions.items():
            if metadata.state is _S.ONGOING and not metadata.is_two_phase:
                elapsed_ms = min(max(now_ms - metadata.started_ms, 0), metadata.timeout_ms)
                self.deadlines[transactional_id] = monotonic_ms + metadata.timeout_ms - elapsed_ms

    def prepared(self) -> Iterator[TransactionMetadata]:
        """Transactions whose markers are still to be written."""
        return (metadata for metadata in self.transactions.values() if metadata.state in _PREPARED)

    def timed_out(self, monotonic_ms: int) -> list[TransactionMetadata]:
        """Ongoing transactions whose deadline has come and that nothing else is about to change."""
        return [
            self.transactions[transactional_id]
            for transactional_id, deadline_ms in self.deadlines.items()
            if deadline_ms <= monotonic_ms and transactional_id not in self.pending
        ]

    def next_deadline_ms(self) -> int | None:
        """The earliest monotonic deadline."""
        return min(self.deadlines.values(), default=None)

    # --- InitProducerId ---------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        new_producer_id: Callable[[], int],
        server_version: int,
        now_ms: int,
        *,
        keep_prepared: bool = False,
    ) -> Decision[Ended, TransactionRecord]:
        """A producer id and epoch for a producer that begins, or continues after an error (KIP-360).

        Over an ongoing transaction: fences it off and prepares its abort; the answer is then NOBODY with the prepared
        transaction, and the client asks again (CONCURRENT_TRANSACTIONS) until the abort is complete. With `keep_prepared` its
        former producer is fenced off and the transaction kept, for the new one to end (KIP-939).

        Raises:
            BrokerError: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED.
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
                # A producer that was replaced long ago recovers from an error. Kafka looks at the epoch only when the abort is
                # done; this transaction may have been prepared, and decided upon, by another since.
                raise BrokerError(ErrorCode.PRODUCER_FENCED)
            return self._fence(before, new_producer_id, server_version, now_ms)
        if before.is_epoch_exhausted and (expected is None or expected.producer_epoch == before.producer_epoch):
            after = before.with_new_producer_id(
                new_producer_id(), timeout_ms, now_ms, keep_last_epoch=expected is not None
            )
        else:
            after = before.with_next_epoch(timeout_ms, expected.producer_epoch if expected else None, now_ms)
        return _changed(after, Ended(ProducerIdentity(after.producer_id, after.producer_epoch), None))

    def abort_timed_out(
        self, timed_out: TransactionMetadata, new_producer_id: Callable[[], int], server_version: int, now_ms: int
    ) -> Decision[Ended, TransactionRecord]:
        """Fences and aborts a transaction past its deadline, if it is still the one that was seen.

        Raises:
            BrokerError: CONCURRENT_TRANSACTIONS or INVALID_TXN_STATE: it has moved on by itself.
        """
        before = self.transactions.get(timed_out.transactional_id)
        if timed_out.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before is not timed_out:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        return self._fence(before, new_producer_id, server_version, now_ms)

    def _fence(
        self, before: TransactionMetadata, new_producer_id: Callable[[], int], server_version: int, now_ms: int
    ) -> Decision[Ended, TransactionRecord]:
        if server_version >= 2:
            # The next epoch that every TV2 abort brings is fence enough; it is the producer's if it asks for it (KIP-360).
            next_producer_id = new_producer_id() if before.is_epoch_exhausted else NO_PRODUCER_ID
            after = before.prepared(_S.PREPARE_ABORT, server_version, now_ms, next_producer_id=next_producer_id)
        else:
            # The fence is never written by itself: its epoch and the abort are one record.
            after = before.fenced().prepared(_S.PREPARE_ABORT, server_version, now_ms)
        return _changed(after, Ended(NOBODY, after))

    # --- AddPartitionsToTxn, AddOffsetsToTxn --------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        transaction_version: int,
        now_ms: int,
        monotonic_ms: int,
    ) -> Decision[None, TransactionRecord]:
        """Adds partitions, beginning the transaction with the first ones.

        Raises:
            BrokerError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS; INVALID_TXN_STATE where the
                transaction was kept and can only be ended.
        """
        before = self._of_writer(transactional_id, producer)
        before = self.pending.get(transactional_id, before)
        if before.state in _PREPARED or (transactional_id in self.pending and before.state is not _S.ONGOING):
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before.state is _S.ONGOING and before.partitions.issuperset(partitions):
            return Decision(None)
        return _changed(before.with_partitions(partitions, transaction_version, now_ms, monotonic_ms), None)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """NONE for partitions of the ongoing transaction, else TRANSACTION_ABORTABLE (KIP-890).

        A pending transition is not looked at: the log itself checks once more at the append.

        Raises:
            BrokerError: the same as `add_partitions`.
        """
        metadata = self._of_writer(transactional_id, producer)
        if metadata.state in _PREPARED:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE if partition in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _of_producer(self, transactional_id: str, producer: ProducerIdentity) -> TransactionMetadata:
        metadata = self.transactions.get(transactional_id)
        if metadata is None or metadata.client_id != producer.producer_id:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if metadata.client_epoch != producer.producer_epoch:
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        return metadata

    def _of_writer(self, transactional_id: str, producer: ProducerIdentity) -> TransactionMetadata:
        metadata = self._of_producer(transactional_id, producer)
        if metadata.is_kept and metadata.state is _S.ONGOING:
            text = f"the transaction of {transactional_id} is prepared: it can be committed or aborted, not written to"
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, text)
        return metadata

    # --- EndTxn -------------------------------------------------------------------------------------------------------------

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        commit: bool,
        transaction_version: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> Decision[Ended, TransactionRecord]:
        """Decides the outcome of a transaction, or repeats the answer of a decision that was made.

        Raises:
            BrokerError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (being completed),
                INVALID_TXN_STATE (nothing to end, or ended otherwise).
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
        producer: ProducerIdentity,
        commit: bool,
        transaction_version: int,
        now_ms: int,
    ) -> Decision[Ended, TransactionRecord]:
        self._of_producer(before.transactional_id, producer)
        if before.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        prepare, complete = _outcome(commit)
        if before.state is _S.ONGOING:
            after = before.prepared(prepare, transaction_version, now_ms)
            return _changed(after, Ended(producer, after))
        if before.state is complete:  # the same epoch means the retry of an answer that was lost
            return Decision(Ended(producer, None))
        raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS if before.state is prepare else ErrorCode.INVALID_TXN_STATE)

    def _end_tv2(
        self,
        before: TransactionMetadata,
        producer: ProducerIdentity,
        commit: bool,
        transaction_version: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> Decision[Ended, TransactionRecord]:
        # First of all: a pending transition may be the one that brings the producer id this request names.
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
        # KIP-890: the present epoch names the next transaction, the one before it the transaction that was ended last.
        present = producer.producer_epoch == epoch and not retry_over_ids
        retry = retry_over_ids or epoch == producer.producer_epoch + 1
        state = before.state
        prepare, complete = _outcome(commit)
        if state in _PREPARED:
            if not retry:
                # Beyond Kafka: it answers PRODUCER_FENCED to the present epoch, too, and so ends a producer that aborts what it
                # has begun, and no leader has told of yet, while its transaction before is being completed.
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS if present else ErrorCode.PRODUCER_FENCED)
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS if state is prepare else ErrorCode.INVALID_TXN_STATE)
        if not present and (not retry or state in (_S.ONGOING, _S.EMPTY)):
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        if retry and not present:
            if state is not complete:
                raise BrokerError(ErrorCode.INVALID_TXN_STATE)
            return Decision(Ended(ProducerIdentity(producer_id, epoch), None))
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
            identity = ProducerIdentity(next_producer_id, 0)
        else:
            identity = ProducerIdentity(after.client_id, after.client_epoch)
        return _changed(after, Ended(identity, after))

    def complete(self, prepared: TransactionMetadata, now_ms: int) -> Decision[bool, TransactionRecord]:
        """Every marker of `prepared` is written. Answers whether there was anything left to do.

        Raises:
            BrokerError: CONCURRENT_TRANSACTIONS while this very completion is under way.
        """
        if prepared.transactional_id in self.pending:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.transactions.get(prepared.transactional_id) is not prepared:
            return Decision(False)
        return _changed(prepared.completed(now_ms), True)

    def described(self, transactional_id: str) -> TransactionMetadata | None:
        """Returns the committed state of a transactional id; None if it is unknown or being deleted."""
        pending = self.pending.get(transactional_id)
        return None if pending is not None and pending.state is _S.DEAD else self.transactions.get(transactional_id)

    # --- expiry ---------------------------------------------------------------------------------------------------------------

    def expirable(self, updated_before_ms: int) -> list[str]:
        """Transactional ids without a transaction that were last touched at or before that wall-clock time."""
        return [
            transactional_id
            for transactional_id, metadata in self.transactions.items()
            if metadata.state in _EXPIRABLE
            and metadata.updated_ms <= updated_before_ms
            and transactional_id not in self.pending
        ]

    def expire(self, transactional_id: str, updated_before_ms: int) -> Decision[None, TransactionRecord]:
        """Forgets a transactional id by a tombstone, if it is still untouched."""
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
    expected: ProducerIdentity | None,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Decision[Ended, TransactionRecord]:
    """Hands an ongoing transaction to the producer that asks, by a new epoch of its own."""
    kept = ProducerIdentity(before.producer_id, before.producer_epoch)
    client = ProducerIdentity(before.client_id, before.client_epoch)
    if expected is not None and expected != client:
        if not before.is_kept or expected != (before.previous_producer_id, before.last_producer_epoch):
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        return Decision(Ended(client, None, kept))  # the retry of a call that succeeded
    after = before.kept(
        timeout_ms, now_ms, next_producer_id=new_producer_id() if before.is_epoch_exhausted else NO_PRODUCER_ID
    )
    return _changed(after, Ended(ProducerIdentity(after.client_id, after.client_epoch), None, kept))


def _may_continue(before: TransactionMetadata, expected: ProducerIdentity) -> bool:
    """Whether InitProducerId may go on from the identity it names; the epoch is looked at when it is raised."""
    return (
        before.producer_epoch == NO_EPOCH
        or expected.producer_id == before.client_id
        # The retry of a call that gave out a new producer id after the last epoch of this one.
        or (expected.producer_id == before.previous_producer_id and expected.producer_epoch >= PRODUCER_EPOCH_MAX)
    )
