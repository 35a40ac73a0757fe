"""The life of one transactional id: its eight states, their table, and the transitions between them as values.

A TransactionMetadata is immutable and is also the record of `__transaction_state`: every transition is a new one, decided by
the functions below and, once committed, put in the place of the old. They are pure; who may ask for which is decided in
`shard.py`.

Invariants: a transition is one of VALID_PREVIOUS; no epoch above 32,766 is handed to a client, 32,767 is the coordinator's own
fence; an epoch never goes back but to 0 with a new producer id; partitions only grow while a transaction is ongoing.
Follows KIP-98, KIP-360 (epoch bump and retry of InitProducerId), KIP-890 (an epoch for each transaction, previous and next
producer id), KIP-915 (flexible records), KIP-939 (a prepared transaction that a later producer takes over). States are numbered
as in Kafka; PREPARE_EPOCH_FENCE is never written to the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import PRODUCER_EPOCH_MAX

__all__ = [
    "EPOCH_FENCE",
    "NO_EPOCH",
    "NO_PRODUCER_ID",
    "NO_TIMEOUT_MS",
    "VALID_PREVIOUS",
    "TopicPartition",
    "TransactionMetadata",
    "TransactionState",
    "check_transition",
]

TopicPartition = tuple[str, int]

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_FENCE = 32_767  # highest int16: reached by fences and by markers of TV2, never handed out
NO_TIMEOUT_MS = 2**31 - 1  # of two-phase commit transactions, which never time out (KIP-939)


class TransactionState(IntEnum):
    """States of a transactional id; the numbers are those of the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # being expired; its record is a tombstone
    PREPARE_EPOCH_FENCE = 7  # a fence decided on; passes into PREPARE_ABORT within the same decision

    @property
    def label(self) -> str:
        """The name of the protocol (DescribeTransactions, ListTransactions)."""
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
        # From a state without a transaction too: under TV2 a client may abort what it never told us of (KIP-890).
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
    """Everything the coordinator knows of a transactional id. Times are ms; -1 means none."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID  # the id before the last transition
    # Taken over at COMPLETE_*: after the last epoch of producer_id, or where kept.
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH  # not in the log: a retry over a failover is fenced instead
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1  # wall clock, in the log
    updated_ms: int = -1
    client_transaction_version: int = 0  # TV of the client at the last transition: 0 or 2
    started_monotonic_ms: int = -1  # not in the log: timeouts are measured by it within one coordinator's life
    next_producer_epoch: int = NO_EPOCH  # set where the transaction was kept, and only there

    @property
    def is_kept(self) -> bool:
        """A later producer has taken the transaction over (KIP-939): it speaks by next_*, markers go by producer_*."""
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
        """No further epoch can be handed out for the client's producer id."""
        return self.client_epoch >= PRODUCER_EPOCH_MAX

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def is_prepared(self) -> bool:
        """Its outcome is decided, markers are still to be written."""
        return self.state is TransactionState.PREPARE_COMMIT or self.state is TransactionState.PREPARE_ABORT

    @property
    def completes_as(self) -> TransactionState:
        """The state after PREPARE_*."""
        return (
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        )

    # --- transitions: each returns the metadata that would follow ---------------------------------------------------------

    def with_next_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionMetadata:
        """InitProducerId with the same producer id.

        KIP-360: a producer that names its present epoch continues with the next one; naming the one before is the retry of a
        call that succeeded, and gets the same answer.

        Raises:
            BrokerError: PRODUCER_FENCED where `expected_epoch` is neither.
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
                f"epoch {expected_epoch} of {self.transactional_id} is neither the present {self.producer_epoch} nor the one before",
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
        """InitProducerId with keepPreparedTxn over an ongoing transaction: another producer may end it, and do nothing else to it.

        The longer timeout holds, so that no two-phase transaction gets one by being taken over.
        """
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
        """More partitions; the first ones begin the transaction."""
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
            # A transaction that nobody told us of needs a start all the same: the time of its abort.
            started_ms=now_ms if without_partitions else self.started_ms,
            updated_ms=now_ms,
            client_transaction_version=transaction_version,
        )

    def fenced(self) -> TransactionMetadata:
        """The epoch taken away from the present producer; abort it from here. Only ever a step inside one decision."""
        check_transition(self, TransactionState.PREPARE_EPOCH_FENCE)
        return self._replace(
            producer_epoch=min(self.producer_epoch + 1, EPOCH_FENCE),
            next_producer_epoch=min(self.next_producer_epoch + 1, EPOCH_FENCE) if self.is_kept else NO_EPOCH,
            last_producer_epoch=NO_EPOCH,
            state=TransactionState.PREPARE_EPOCH_FENCE,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """COMPLETE_COMMIT or COMPLETE_ABORT: every marker is written."""
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
        """Expired: its record is a tombstone."""
        return self._replace(state=TransactionState.DEAD, partitions=frozenset())


def check_transition(before: TransactionMetadata | None, state: TransactionState) -> None:
    """Refuses a transition that the table does not have. A new transactional id begins as EMPTY.

    Raises:
        InvariantViolated: the coordinator decided something it must not.
    """
    if before is None:
        if state is not TransactionState.EMPTY:
            raise InvariantViolated(f"a new transactional id begins as Empty, not {state.label}")
    elif before.state not in VALID_PREVIOUS[state]:
        raise InvariantViolated(f"{before.transactional_id}: no transition from {before.state.label} to {state.label}")
