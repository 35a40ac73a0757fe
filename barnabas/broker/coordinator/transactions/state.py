"""State of one transactional id: eight states, their transition table, and the transitions as values.
KIP-98, KIP-360 (epoch bump and retry of InitProducerId), KIP-890 (an epoch per transaction, previous and next producer id), KIP-915
(flexible records), KIP-939 (prepared transactions that a later producer takes over).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import PRODUCER_EPOCH_MAX
from barnabas.storage.checkpoints import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_FENCE = 32_767  # highest int16: only fences and markers of TV2 have it, no client
NO_TIMEOUT_MS = 2**31 - 1  # two-phase commit: transactions never time out (KIP-939)


class TransactionState(IntEnum):
    """Kafka's numbers, as in the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # being deleted; its record is a tombstone
    PREPARE_EPOCH_FENCE = 7  # a fence, never written; becomes PREPARE_ABORT within the same decision

    @property
    def label(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return _LABELS[self]


_LABELS = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

_S = TransactionState
VALID_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.ONGOING: frozenset((_S.EMPTY, _S.ONGOING, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.PREPARE_COMMIT: frozenset((_S.ONGOING,)),
        # Also from states without a transaction: under TV2 a client may abort before it adds a partition (KIP-890).
        _S.PREPARE_ABORT: frozenset(
            (_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
        ),
        _S.COMPLETE_COMMIT: frozenset((_S.PREPARE_COMMIT,)),
        _S.COMPLETE_ABORT: frozenset((_S.PREPARE_ABORT,)),
        _S.DEAD: frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.PREPARE_EPOCH_FENCE: frozenset((_S.ONGOING,)),
    }
)


class TransactionMetadata(NamedTuple):
    """Immutable state of a transactional id, and its record. Times are ms; -1: none.

    Each transition returns a new one, which replaces the former one when it is committed. An epoch never decreases, except to 0 with a new
    producer id.
    """

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID  # before the last transition
    # Becomes producer_id at COMPLETE_*: after the last epoch of producer_id, or if the transaction was kept.
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH  # not in the log: after a failover a retry is fenced
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1  # wall clock, in the log
    updated_ms: int = -1
    client_transaction_version: int = 0  # TV of the client in the last transition: 0 or 2
    started_monotonic_ms: int = -1  # not in the log; a coordinator measures timeouts by it
    next_producer_epoch: int = NO_EPOCH  # set only if the transaction was kept

    @property
    def is_kept(self) -> bool:
        """Whether a later producer took the transaction over (KIP-939). It uses next_*; markers use producer_*."""
        return self.next_producer_epoch != NO_EPOCH

    @property
    def client_id(self) -> int:
        """The producer id that requests must name."""
        return self.next_producer_id if self.is_kept else self.producer_id

    @property
    def client_epoch(self) -> int:
        """The epoch that requests must name."""
        return self.next_producer_epoch if self.is_kept else self.producer_epoch

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the client's producer id has no further epoch."""
        return self.client_epoch >= PRODUCER_EPOCH_MAX

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are still to be written."""
        return self.state is TransactionState.PREPARE_COMMIT or self.state is TransactionState.PREPARE_ABORT

    @property
    def completes_as(self) -> TransactionState:
        return (
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        )

    # --- transitions: each returns the metadata that would follow -----------------------------------------------------

    def with_next_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionMetadata:
        """InitProducerId with the same producer id. Raises BrokerError(PRODUCER_FENCED) for another `expected_epoch`.

        A producer that names its current epoch gets the next one (KIP-360). One that names the epoch before repeats a call that succeeded,
        and gets the same answer.
        """
        if expected_epoch is None:
            epoch, last = self.producer_epoch + 1, NO_EPOCH
        elif self.producer_epoch in (NO_EPOCH, expected_epoch):
            epoch, last = self.producer_epoch + 1, self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:
            epoch, last = self.producer_epoch, self.last_producer_epoch
        else:
            raise BrokerError(
                ErrorCode.PRODUCER_FENCED,
                f"epoch {expected_epoch} of {self.transactional_id} is neither the current one, {self.producer_epoch}, "
                "nor the one before",
            )
        return self._initialised(self.producer_id, epoch, last, timeout_ms, now_ms)

    def with_new_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keep_last_epoch: bool
    ) -> TransactionMetadata:
        """InitProducerId after the last epoch: a new producer id with epoch 0."""
        last = self.producer_epoch if keep_last_epoch else NO_EPOCH
        return self._initialised(producer_id, 0, last, timeout_ms, now_ms)

    def _initialised(
        self, producer_id: int, epoch: int, last: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return self._replace(
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_ms=-1,
            updated_ms=now_ms,
            started_monotonic_ms=-1,
        )

    def kept(self, timeout_ms: int, now_ms: int, *, next_producer_id: int = NO_PRODUCER_ID) -> TransactionMetadata:
        """InitProducerId with keepPreparedTxn: the next producer can only end the transaction, which keeps the longer timeout."""
        rolled_over = next_producer_id != NO_PRODUCER_ID
        return self._replace(
            previous_producer_id=self.client_id,
            next_producer_id=next_producer_id if rolled_over else self.client_id,
            next_producer_epoch=0 if rolled_over else self.client_epoch + 1,
            last_producer_epoch=self.client_epoch,
            timeout_ms=max(self.timeout_ms, timeout_ms),
            updated_ms=now_ms,
        )

    def with_partitions(
        self, added: Iterable[TopicPartition], transaction_version: int, now_ms: int, monotonic_ms: int
    ) -> TransactionMetadata:
        """The first partitions begin the transaction."""
        if self.state is TransactionState.ONGOING:
            started_ms, started_monotonic_ms = self.started_ms, self.started_monotonic_ms
        else:
            started_ms, started_monotonic_ms = now_ms, monotonic_ms
        return self._replace(
            previous_producer_id=self.producer_id,
            state=TransactionState.ONGOING,
            partitions=self.partitions.union(added),
            started_ms=started_ms,
            updated_ms=now_ms,
            client_transaction_version=transaction_version,
            started_monotonic_ms=started_monotonic_ms,
        )

    def prepared(
        self,
        state: TransactionState,
        transaction_version: int,
        now_ms: int,
        *,
        next_producer_id: int = NO_PRODUCER_ID,
        without_partitions: bool = False,
    ) -> TransactionMetadata:
        """PREPARE_COMMIT or PREPARE_ABORT. Under TV2 the markers already carry the next epoch (KIP-890)."""
        epoch, last, next_epoch = self.producer_epoch, self.last_producer_epoch, self.next_producer_epoch
        if transaction_version >= 2:
            last = self.client_epoch
            epoch = min(epoch + 1, EPOCH_FENCE)
        if self.is_kept:
            if next_producer_id != NO_PRODUCER_ID:
                next_epoch = 0
            elif transaction_version >= 2:
                next_epoch += 1
        rolled_over = next_producer_id != NO_PRODUCER_ID or not self.is_kept
        return self._replace(
            previous_producer_id=self.client_id,
            next_producer_id=next_producer_id if rolled_over else self.next_producer_id,
            next_producer_epoch=next_epoch,
            producer_epoch=epoch,
            last_producer_epoch=last,
            state=state,
            # A transaction without partitions starts at the time of its abort.
            started_ms=now_ms if without_partitions else self.started_ms,
            updated_ms=now_ms,
            client_transaction_version=transaction_version,
        )

    def fenced(self) -> TransactionMetadata:
        """PREPARE_EPOCH_FENCE: fences the current producer by an epoch; `prepared` follows in the same decision."""
        check_transition(self, TransactionState.PREPARE_EPOCH_FENCE)
        return self._replace(
            producer_epoch=min(self.producer_epoch + 1, EPOCH_FENCE),
            next_producer_epoch=min(self.next_producer_epoch + 1, EPOCH_FENCE) if self.is_kept else NO_EPOCH,
            last_producer_epoch=NO_EPOCH,
            state=TransactionState.PREPARE_EPOCH_FENCE,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        producer_id, epoch = self.client_id, self.client_epoch
        if not self.is_kept and self.client_transaction_version >= 2 and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._replace(
            producer_id=producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
            producer_epoch=epoch,
            state=self.completes_as,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def dead(self) -> TransactionMetadata:
        return self._replace(state=TransactionState.DEAD, partitions=frozenset())


def check_transition(before: TransactionMetadata | None, state: TransactionState) -> None:
    """A new transactional id begins as EMPTY. Raises InvariantViolated for an invalid transition."""
    if before is None:
        if state is not TransactionState.EMPTY:
            raise InvariantViolated(f"a new transactional id begins as Empty, not {state.label}")
    elif before.state not in VALID_PREVIOUS[state]:
        raise InvariantViolated(f"{before.transactional_id}: no transition from {before.state.label} to {state.label}")
