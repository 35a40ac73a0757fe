"""The counts of `produce` when an outcome is not known: late acknowledgements, and a commit that was interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.cli.record_writer import InputPlace, RecordWriter
from barnabas.client.errors import DeliveryTimedOut, KafkaError, PartlyWritten, RecordTooLarge
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.core.transaction_state import TransactionPhase

LINES = InputPlace(0, 1)


class OnePartition:
    """As a Producer: every batch has the same outcome, and a commit waits until the test answers it."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.config = ProducerConfig()
        self.transaction_state = TransactionPhase.READY
        self.committing = asyncio.Event()
        self.answered = asyncio.Event()
        self._error = error

    async def send_batch(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._error is None:
            future.set_result(None)
        else:
            future.set_exception(self._error)
        return future

    async def flush(self) -> None:
        pass

    async def begin_transaction(self) -> None:
        self.transaction_state = TransactionPhase.IN_TRANSACTION

    async def commit_transaction(self, _timeout_ms: int) -> None:
        self.transaction_state = TransactionPhase.COMMITTING
        self.committing.set()
        await self.answered.wait()

    async def abort_transaction(self) -> None:
        self.transaction_state = TransactionPhase.READY


async def written(error: KafkaError, count: int) -> RecordWriter:
    """A writer of so many lines in one batch that ended with an error."""
    producer: Any = OnePartition(error)
    writer = RecordWriter(producer, "t")
    await writer.add_values([b"x"] * count, LINES)
    await writer.flush()
    return writer


def late(*, maybe_written: bool) -> DeliveryTimedOut:
    error = DeliveryTimedOut("not acknowledged")
    error.maybe_written = maybe_written
    return error


@pytest.mark.parametrize(("maybe_written", "unknown", "failed"), [(True, 3, 0), (False, 0, 3)])
async def test_records_without_an_acknowledgement_may_be_written(
    *, maybe_written: bool, unknown: int, failed: int
) -> None:
    writer = await written(late(maybe_written=maybe_written), 3)
    assert (writer.written, writer.unknown, writer.failed) == (0, unknown, failed)
    assert writer.first_failure is not None
    assert writer.stopped is not None


async def test_a_divided_batch_that_was_partly_late_ends_the_input() -> None:
    writer = await written(PartlyWritten({0: RecordTooLarge("large"), 2: late(maybe_written=True)}, 3), 3)
    assert (writer.written, writer.unknown, writer.failed) == (1, 1, 1)
    assert writer.stopped is not None


async def test_only_records_that_are_too_large_do_not_end_the_input() -> None:
    writer = await written(PartlyWritten({0: RecordTooLarge("large")}, 3), 3)
    assert (writer.written, writer.unknown, writer.failed) == (2, 0, 1)
    assert writer.stopped is None


@pytest.mark.parametrize("answered", [False, True])
async def test_an_interrupted_commit_is_in_doubt_until_it_is_answered(*, answered: bool) -> None:
    producer: Any = OnePartition()
    writer = RecordWriter(producer, "t", transaction_size=0)
    await writer.add_values([b"x"] * 3, LINES)
    finishing = asyncio.create_task(writer.finish())
    await producer.committing.wait()
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    if answered:
        producer.transaction_state = TransactionPhase.READY
    await writer.abort()
    assert (writer.written, writer.transactions, writer.in_doubt) == ((3, 1, 0) if answered else (0, 0, 3))
