"""Transaction context manager: commits at the end of the block, aborts after an exception or an impossible commit."""

from __future__ import annotations

import logging
from typing import Generic, Protocol, TypeVar

from barnabas.client.errors import KafkaError, TransactionFailed

log = logging.getLogger("barnabas.client.producer")


class _Transactional(Protocol):
    """What the context manager needs from its producer."""

    async def begin_transaction(self) -> None: ...

    async def commit_transaction(self) -> None: ...

    async def abort_transaction(self) -> None: ...


P = TypeVar("P", bound=_Transactional)


class Transaction(Generic[P]):
    """One transaction; see `Producer.transaction`."""

    def __init__(self, producer: P) -> None:
        self._producer = producer

    async def __aenter__(self) -> P:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
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
