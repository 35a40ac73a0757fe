"""The read–process–write loop: consume, transform, produce, and commit what was read with what was written.

Driven by: the records of a consumer. Emits: one transaction a poll, holding the records made of it and the consumer's offsets.

Invariants: the position moves on only with a committed transaction, so that each input record is reflected exactly once in
what read_committed consumers see, whichever process crashes at whatever point; a transaction that is aborted, for any reason,
takes the consumer back to where it began, so that the same consumer can go on. Only this loop commits the consumer's offsets:
settings that commit them otherwise are refused.
Follows KIP-98 and KIP-447 (one producer a process; the group fences members that lost their partitions).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.client.consumer import Consumer
from barnabas.client.errors import IllegalState, KafkaError
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
    """Copies until `on_transaction` says that it is enough, or an error ends it.

    Args:
        consumer: started, with a group_id, `enable_auto_commit=False` and `isolation_level="read_committed"`. Partitions that
            were assigned by hand will do; then only the producer's transactional_id keeps others from copying them, too.
            With `auto_offset_reset="latest"` the copy begins at the end that the log has when the consumer first gets a
            partition, again at each start until the first transaction is committed: "earliest" leaves nothing out.
        producer: started, with a transactional_id, without `two_phase_commit`.
        transform: makes any number of records of one; if it raises, the transaction is aborted and the error comes out.
        transaction_records_max: input records of one transaction.
        poll_timeout_ms: how long a poll without records lasts.
        on_transaction: called after each commit and each empty poll; returning True ends the loop.
        vetoes: asked when a transaction is complete: True aborts it and does it again. For tests and demonstrations.

    Returns:
        What was done.

    Raises:
        IllegalState: a setting of the consumer or the producer would lose or repeat records; the text says what to set.
        ProducerFenced: a newer producer with the same transactional id has taken over; this process must end.
        KafkaError: any other failure that aborting and reading again cannot cure.
    """
    _check(consumer, producer)
    progress = CopyProgress()
    while True:
        polled = await consumer.getmany(timeout_ms=poll_timeout_ms, max_records=transaction_records_max)
        if polled:
            begun = committing = False
            try:
                await producer.begin_transaction()
                begun = True
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
                    await _start_over(consumer, producer, polled, progress)
                    continue
                committing = True
                await producer.commit_transaction()
            except BaseException as error:
                known = error if isinstance(error, KafkaError) else None
                if committing:  # it may be committed: the coordinator gives out offsets when the transaction has ended
                    await consumer.seek_to_committed(*_held(consumer, polled))
                else:
                    _go_back(consumer, polled)
                if not begun or (committing if known is None else known.fatal):
                    raise  # a commit whose caller is cancelled goes on, and the producer waits for it before anything else
                await _start_over(consumer, producer, polled, progress)
                if known is not None and (known.txn_requires_abort or known.retriable):
                    continue
                raise
            progress.records_in += sum(map(len, polled.values()))
            progress.records_out += made
            progress.committed += 1
        if on_transaction is not None and await on_transaction(progress):
            return progress


def _check(consumer: Consumer, producer: Producer) -> None:
    """Refuses settings under which records would be lost or repeated."""
    if consumer.group_id is None:
        raise IllegalState(
            "exactly_once needs Consumer(group_id=...): the group's offsets, committed with each transaction, say where to go on"
        )
    if consumer.enable_auto_commit:
        raise IllegalState(
            "exactly_once needs Consumer(enable_auto_commit=False): it commits the offsets within its transactions, and automatic "
            "commits would skip records whose transaction was aborted"
        )
    if consumer.isolation_level != "read_committed":
        raise IllegalState(
            'exactly_once needs Consumer(isolation_level="read_committed"): it would copy records of aborted transactions, too'
        )
    if producer.transactional_id is None:
        raise IllegalState(
            "exactly_once needs Producer(transactional_id=...), one that only this process uses: it writes in transactions"
        )
    if producer.two_phase_commit:
        raise IllegalState(
            "exactly_once needs Producer(two_phase_commit=False): it decides alone, and a transaction without a timeout would stay "
            "open after a crash"
        )


def _next_offsets(polled: dict[TopicPartition, list[Record]]) -> dict[TopicPartition, OffsetAndMetadata | int]:
    return {
        tp: OffsetAndMetadata(records[-1].offset + 1, "", records[-1].leader_epoch) for tp, records in polled.items()
    }


def _held(consumer: Consumer, polled: dict[TopicPartition, list[Record]]) -> list[TopicPartition]:
    """The partitions of a poll that are still the consumer's."""
    held = consumer.assignment()
    return [tp for tp in polled if tp in held]


def _go_back(consumer: Consumer, polled: dict[TopicPartition, list[Record]]) -> None:
    """The next poll begins with these records again."""
    for tp in _held(consumer, polled):
        consumer.seek(tp, polled[tp][0].offset)


async def _start_over(
    consumer: Consumer, producer: Producer, polled: dict[TopicPartition, list[Record]], progress: CopyProgress
) -> None:
    """Aborts, and takes the consumer back to where the transaction began."""
    _go_back(consumer, polled)
    await producer.abort_transaction()
    progress.aborted += 1
