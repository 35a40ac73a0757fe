"""Log lines of transactions: fences that abort at level info, every committed transition at level debug."""

from __future__ import annotations

import logging

from barnabas.broker.coordinator.transactions.state import TransactionMetadata
from barnabas.loggers import logger

log = logger("kafka.coordinator.transaction")


def on_fenced(transaction: TransactionMetadata) -> None:
    """The producer is fenced while its transaction is open: the transaction is aborted."""
    log.info(
        "Producer is fenced and its transaction is aborted: transactional_id=%s producer_id=%d producer_epoch=%d",
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
    )


def on_transition(before: TransactionMetadata | None, after: TransactionMetadata) -> None:
    """A record of a transaction is committed."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug(
            "Transaction changes its state: transactional_id=%s before=%s after=%s producer_id=%d producer_epoch=%d "
            "partitions=%d",
            after.transactional_id,
            "none" if before is None else before.state.name,
            after.state.name,
            after.producer_id,
            after.producer_epoch,
            len(after.partitions),
        )
