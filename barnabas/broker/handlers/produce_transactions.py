"""Transactional batches of a Produce request: which ones must be verified, and the coordinator's refusals as errors of Produce (KIP-890).

Used by the Produce handler alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.handlers.produce_acks import PartitionBatch

RETRIABLE_FOR_OLD_CLIENTS: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,  # the coordinator does not know another partition of the request yet
    }
)


def guarded(transactional: list[PartitionBatch], epoch_bump: bool) -> list[PartitionBatch]:
    """Returns the batches whose partition is not known to be part of the transaction; gives each its guard (KIP-890).

    Raises:
        BrokerError: INVALID_PRODUCER_ID_MAPPING for batches of different producers.
    """
    first = transactional[0]
    unverified = []
    for batch in transactional:
        if batch.producer_id != first.producer_id or batch.producer_epoch != first.producer_epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        if batch.replica is not None and batch.replica.is_leader:
            batch.guard = batch.replica.verification_guard(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, supports_epoch_bump=epoch_bump
            )
            if batch.guard is not None:
                unverified.append(batch)
    return unverified


def verification_error(code: ErrorCode, version: int) -> BrokerError:
    """The coordinator's refusal as an error of Produce: older clients retry only the codes that they know from Produce."""
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < 11:
        return BrokerError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code in RETRIABLE_FOR_OLD_CLIENTS or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < 12):
        return BrokerError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
        )
    return BrokerError(code)
