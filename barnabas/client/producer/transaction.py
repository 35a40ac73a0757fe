"""The block of one transaction: `async with producer.transaction():`.

Commits where the block ends, aborts where an exception leaves it; a commit that turns out impossible is aborted, and raised.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING

from barnabas.client.errors import KafkaError, TransactionFailed

if TYPE_CHECKING:
    from barnabas.client.producer.producer import Producer

__all__ = ["Transaction"]

log = logging.getLogger("barnabas.client.producer.producer")


class Transaction:
    """The block of one transaction; see `Producer.transaction`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Producer:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        producer = self._producer
        if error is None:
            try:
                await producer.commit_transaction()
            except TransactionFailed:
                await producer.abort_transaction()
                raise
            return
        try:
            await producer.abort_transaction()
        except KafkaError as failure:
            log.warning("the transaction was left by %r and could not be aborted: %s", error, failure)
