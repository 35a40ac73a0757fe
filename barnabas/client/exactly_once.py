"""The read–process–write loop: consume, transform, produce, and commit the offsets in the same transaction as the results.

Invariants: the committed position advances only with a committed transaction, so read_committed consumers see the result of each
input record exactly once, whichever process crashes at whatever point. An aborted transaction takes the consumer back to the
first record of that transaction, so the same consumer can continue. Only this loop commits the consumer's offsets: settings that
commit them elsewhere are refused.
Follows KIP-98 and KIP-447 (one producer per process; the group fences members that lost their partitions).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from barnabas.client.errors import IllegalState, KafkaError, RequestTimedOut
from barnabas.client.types import (
    HeadersToSend,
    OffsetAndMetadata,
    ReadKeyT,
    ReadValueT,
    Record,
    SentKeyT,
    SentValueT,
    TopicPartition,
)

if TYPE_CHECKING:
    from barnabas.client.consumer import Consumer
    from barnabas.client.producer import Producer

log = logging.getLogger("barnabas.client.exactly_once")

_Polled = dict[TopicPartition, list[Record[Any, Any]]]


class NewMessage(NamedTuple, Generic[SentKeyT, SentValueT]):
    """A record to write, one result of a transform: `NewMessage[K, V]` for a `Producer[K, V]`. Fields as in `Producer.send`."""

    topic: str
    value: SentValueT | None
    key: SentKeyT | None = None
    headers: HeadersToSend = ()
    partition: int | None = None


@dataclass(slots=True)
class CopyProgress:
    """The work of one `exactly_once` call so far. Records count once their transaction is committed."""

    records_in: int = 0
    records_out: int = 0
    committed: int = 0  # transactions
    aborted: int = 0  # transactions


async def exactly_once(
    consumer: Consumer[ReadKeyT, ReadValueT],
    producer: Producer[SentKeyT, SentValueT],
    transform: Callable[[Record[ReadKeyT | None, ReadValueT | None]], Iterable[NewMessage[SentKeyT, SentValueT]]],
    *,
    transaction_records_max: int = 750,
    poll_timeout_ms: int = 500,
    on_transaction: Callable[[CopyProgress], Awaitable[bool]] | None = None,
    vetoes: Callable[[CopyProgress], bool] | None = None,
) -> CopyProgress:
    """Copies records from topics to topics, each exactly once, in transactions (KIP-98, KIP-447).

    Ends when `on_transaction` returns True, or with an error.

    Args:
        consumer: started, with a group_id, `enable_auto_commit=False` and `isolation_level="read_committed"`. Partitions may be
            assigned by hand; then only the producer's transactional_id keeps other processes from copying them as well.
            With `auto_offset_reset="latest"` the copy begins at the end of the log at the time of the first assignment, and again
            at each start until the first transaction is committed. "earliest" copies every record.
        producer: started, with a transactional_id, without `two_phase_commit`.
        transform: returns any number of records for one. If it raises, the transaction is aborted and the error is raised.
        transaction_records_max: the largest number of input records in a transaction.
        poll_timeout_ms: how long a poll waits for records, in milliseconds.
        on_transaction: called after each commit and each empty poll; True ends the loop.
        vetoes: called before each commit; True aborts the transaction and repeats it. For tests and demonstrations.

    Returns:
        What was copied.

    Raises:
        IllegalState: a setting of the consumer or the producer would lose or repeat records; the text names the right value.
        ProducerFenced: a newer producer with the same transactional id exists; this process must end.
        KafkaError: any other failure that an abort and another attempt cannot cure.
    """
    _check(consumer, producer)
    copy = _Copy(consumer, producer, transform, vetoes)
    while True:
        polled = await consumer.getmany(timeout_ms=poll_timeout_ms, max_records=transaction_records_max)
        if polled and not await copy.transaction(polled):
            continue
        if on_transaction is not None and await on_transaction(copy.progress):
            return copy.progress


class _Copy:
    """One running copy: carries out one transaction after another."""

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        producer: Producer[Any, Any],
        transform: Callable[[Record[Any, Any]], Iterable[NewMessage[Any, Any]]],
        vetoes: Callable[[CopyProgress], bool] | None,
    ) -> None:
        self.progress = CopyProgress()
        self._consumer = consumer
        self._producer = producer
        self._transform = transform
        self._vetoes = vetoes

    async def transaction(self, polled: _Polled) -> bool:
        """Copies the polled records in one transaction; False if it was aborted and the records are to be polled again."""
        producer = self._producer
        begun = committing = False
        try:
            await self._until_answered(producer.begin_transaction)
            begun = True
            sent = await self._send(polled)
            await producer.send_offsets(_next_offsets(polled), self._consumer.group_metadata())
            if self._vetoes is not None and self._vetoes(self.progress):
                await self._start_over(polled)
                return False
            committing = True
            await self._until_answered(producer.commit_transaction)
        except BaseException as error:
            known = error if isinstance(error, KafkaError) else None
            if committing:  # the commit may succeed: the coordinator returns the offsets once the transaction has ended
                await self._consumer.seek_to_committed(*self._still_assigned(polled))
            else:
                self._go_back(polled)
            if not begun or (committing if known is None else known.fatal):
                raise  # a commit whose caller is cancelled continues, and the producer waits for its end before anything else
            await self._start_over(polled)
            if known is not None and (known.txn_requires_abort or known.retriable):
                return False
            raise
        self.progress.records_in += sum(map(len, polled.values()))
        self.progress.records_out += sent
        self.progress.committed += 1
        return True

    async def _until_answered(self, call: Callable[[], Awaitable[None]]) -> None:
        """Makes a call of the producer again while the transaction is ending: longer than `max_block_ms`, if need be."""
        from barnabas.client.producer.transaction_state import TransactionPhase

        ending = (TransactionPhase.COMMITTING, TransactionPhase.ABORTING, TransactionPhase.INITIALIZING)
        while True:
            try:
                return await call()
            except RequestTimedOut as error:
                if self._producer.transaction_state not in ending:
                    raise
                log.warning("the copy waits for the end of a transaction: %s", error)

    async def _send(self, polled: _Polled) -> int:
        """Sends the results of the transform; returns their number."""
        sent = 0
        for records in polled.values():
            for record in records:
                for message in self._transform(record):
                    await self._producer.send(
                        message.topic,
                        message.value,
                        key=message.key,
                        headers=message.headers,
                        partition=message.partition,
                    )
                    sent += 1
        return sent

    async def _start_over(self, polled: _Polled) -> None:
        """Aborts the transaction and takes the consumer back to its first records."""
        self._go_back(polled)
        await self._until_answered(self._producer.abort_transaction)
        self.progress.aborted += 1

    def _go_back(self, polled: _Polled) -> None:
        """Makes the next poll return these records again."""
        for tp in self._still_assigned(polled):
            self._consumer.seek(tp, polled[tp][0].offset)

    def _still_assigned(self, polled: _Polled) -> list[TopicPartition]:
        assigned = self._consumer.assignment()
        return [tp for tp in polled if tp in assigned]


def _check(consumer: Consumer[Any, Any], producer: Producer[Any, Any]) -> None:
    """Refuses settings with which records would be lost or repeated."""
    if consumer.group_id is None:
        raise IllegalState(
            "exactly_once needs Consumer(group_id=...): the copy continues from the group's committed offsets"
        )
    if consumer.enable_auto_commit:
        raise IllegalState(
            "exactly_once needs Consumer(enable_auto_commit=False): it commits the offsets in its transactions, and automatic "
            "commits would skip records whose transaction was aborted"
        )
    if consumer.isolation_level != "read_committed":
        raise IllegalState(
            'exactly_once needs Consumer(isolation_level="read_committed"): else it would copy records of aborted transactions'
        )
    if producer.transactional_id is None:
        raise IllegalState(
            "exactly_once needs Producer(transactional_id=...), an id that only this process uses: it writes in transactions"
        )
    if producer.two_phase_commit:
        raise IllegalState(
            "exactly_once needs Producer(two_phase_commit=False): no other system decides here, and after a crash a transaction "
            "without a timeout would stay open"
        )


def _next_offsets(polled: _Polled) -> dict[TopicPartition, OffsetAndMetadata | int]:
    return {
        tp: OffsetAndMetadata(records[-1].offset + 1, "", records[-1].leader_epoch) for tp, records in polled.items()
    }
