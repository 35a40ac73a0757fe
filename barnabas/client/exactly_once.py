"""The read–process–write loop: consume, transform, produce, and commit what was read with what was written.

Driven by: the records of a consumer. Emits: one transaction a poll, holding the records made of it and the consumer's offsets.

Invariants: the position moves on only with a committed transaction, so that each input record is reflected exactly once in
what read_committed consumers see, whichever process crashes at whatever point; after an aborted transaction the consumer goes
back to its committed offsets before it reads on.
Follows KIP-98 and KIP-447 (one producer a process; the group fences members that lost their partitions).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.client.consumer import Consumer
from barnabas.client.errors import KafkaError
from barnabas.client.producer import Producer
from barnabas.client.types import Headers, OffsetAndMetadata, Record, TopicPartition

__all__ = ["CopyProgress", "NewMessage", "exactly_once"]


class NewMessage(NamedTuple):
    """A record to write: what a transform makes of one it was given."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


@dataclass(slots=True)
class CopyProgress:
    """What one `exactly_once` loop has done so far. Records count when their transaction is committed."""

    records_in: int = 0
    records_out: int = 0
    committed: int = 0  # transactions
    aborted: int = 0  # transactions


async def exactly_once(
    consumer: Consumer,
    producer: Producer,
    transform: Callable[[Record], Iterable[NewMessage]],
    *,
    transaction_records_max: int = 750,
    poll_timeout_ms: int = 500,
    on_transaction: Callable[[CopyProgress], Awaitable[bool]] | None = None,
    vetoes: Callable[[CopyProgress], bool] | None = None,
) -> CopyProgress:
    """Copies until `on_transaction` says that it is enough, or for ever.

    Args:
        consumer: started, with a group_id, `enable_auto_commit=False` and `isolation_level="read_committed"`.
        producer: started, with a transactional_id.
        transform: makes any number of records of one; if it raises, the transaction is aborted and the error comes out.
        transaction_records_max: input records of one transaction.
        poll_timeout_ms: how long a poll without records lasts.
        on_transaction: called after each commit and each empty poll; returning True ends the loop.
        vetoes: asked when a transaction is complete: True aborts it and does it again. For tests and demonstrations.

    Returns:
        What was done.

    Raises:
        ProducerFenced: a newer producer with the same transactional id has taken over; this process must end.
        KafkaError: any other failure that cannot be mended by aborting and reading again.
    """
    progress = CopyProgress()
    while True:
        polled = await consumer.getmany(timeout_ms=poll_timeout_ms, max_records=transaction_records_max)
        if polled:
            await producer.begin_transaction()
            committing = False
            try:
                made = 0
                for records in polled.values():
                    for record in records:
                        for message in transform(record):
                            await producer.send(
                                message.topic,
                                message.value,
                                key=message.key,
                                headers=message.headers,
                                partition=message.partition,
                            )
                            made += 1
                await producer.send_offsets(_next_offsets(polled), consumer.group_metadata())
                if vetoes is not None and vetoes(progress):
                    await _start_over(consumer, producer, progress)
                    continue
                committing = True
                await producer.commit_transaction()
            except KafkaError as error:
                if error.fatal or not (error.txn_requires_abort or error.retriable):
                    raise
                await _start_over(consumer, producer, progress)
                continue
            except BaseException:
                if not committing:  # else the commit goes on by itself, and its producer's `stop` waits for it
                    await producer.abort_transaction()
                raise
            progress.records_in += sum(map(len, polled.values()))
            progress.records_out += made
            progress.committed += 1
        if on_transaction is not None and await on_transaction(progress):
            return progress


def _next_offsets(polled: dict[TopicPartition, list[Record]]) -> dict[TopicPartition, OffsetAndMetadata | int]:
    return {
        tp: OffsetAndMetadata(records[-1].offset + 1, "", records[-1].leader_epoch) for tp, records in polled.items()
    }


async def _start_over(consumer: Consumer, producer: Producer, progress: CopyProgress) -> None:
    """Aborts, and takes the consumer back to where the last committed transaction ended."""
    await producer.abort_transaction()
    progress.aborted += 1
    await consumer.seek_to_committed()
