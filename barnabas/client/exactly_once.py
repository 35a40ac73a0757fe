"""Read–process–write loop: results and consumed offsets commit in one transaction (KIP-98, KIP-447)."""

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
    """A result of a transform: `NewMessage[K, V]` for a `Producer[K, V]`. Fields as in `Producer.send`."""

    topic: str
    value: SentValueT | None
    key: SentKeyT | None = None
    headers: HeadersToSend = ()
    partition: int | None = None


@dataclass(slots=True)
class CopyProgress:
    """Progress of one `exactly_once` call. Records count once their transaction is committed."""

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

    Ends when `on_transaction` returns True, or with an error. After an abort the consumer seeks back to the first
    record of the transaction. Nothing else may commit the consumer's offsets.

    Args:
        consumer: started, with a group_id, `enable_auto_commit=False` and `isolation_level="read_committed"`. With
            manually assigned partitions only the producer's transactional_id keeps other processes from copying them as
            well. With `auto_offset_reset="latest"` each start begins at the end of the log until the first commit;
            "earliest" copies every record.
        producer: started, with a transactional_id, without `two_phase_commit`.
        transform: returns any number of records for one. Its error aborts the transaction and is raised.
        transaction_records_max: the largest number of input records in a transaction.
        poll_timeout_ms: how long a poll waits for records, in milliseconds.
        on_transaction: called after each commit and each empty poll; True ends the loop.
        vetoes: called before each commit; True aborts the transaction and repeats it. For tests and demonstrations.

    Raises:
        IllegalState: a setting of the consumer or the producer would lose or repeat records.
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
    """One running copy, one transaction after another."""

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
        """Copies the polled records in one transaction; False if it was aborted and they must be polled again."""
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
        """Repeats a producer call while the transaction is ending, even beyond `max_block_ms`."""
        from barnabas.client.producer.core.transaction_state import TransactionPhase

        ending = (TransactionPhase.COMMITTING, TransactionPhase.ABORTING, TransactionPhase.INITIALIZING)
        while True:
            try:
                return await call()
            except RequestTimedOut as error:
                if self._producer.transaction_state not in ending:
                    raise
                log.warning("the copy waits for the end of a transaction: %s", error)

    async def _send(self, polled: _Polled) -> int:
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
        self._go_back(polled)
        await self._until_answered(self._producer.abort_transaction)
        self.progress.aborted += 1

    def _go_back(self, polled: _Polled) -> None:
        for tp in self._still_assigned(polled):
            self._consumer.seek(tp, polled[tp][0].offset)

    def _still_assigned(self, polled: _Polled) -> list[TopicPartition]:
        assigned = self._consumer.assignment()
        return [tp for tp in polled if tp in assigned]


def _check(consumer: Consumer[Any, Any], producer: Producer[Any, Any]) -> None:
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
