"""Writes the records of `produce` in large batches; `written` counts acknowledged (or committed) records only. A full producer buffer blocks, so memory is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from barnabas.client.errors import DeliveryTimedOut, KafkaError, PartlyWritten, RecordTooLarge
from barnabas.client.producer.core.batching import BATCH_OVERHEAD, record_size_max
from barnabas.client.producer.core.murmur2 import partition_for_key
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.client.producer.producer import Producer
from barnabas.client.types import RecordMetadata
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import EncodedRecords, encode_records
from barnabas.protocol.value_records import VALUE_RECORD_OVERHEAD_MAX, encode_pairs, encode_values

BATCH_BYTES: Final = 512 * 1024  # at this size a batch is sent
NO_TIMESTAMP: Final = -2  # the record gets the present time
PAIR_RECORD_OVERHEAD_MAX: Final = VALUE_RECORD_OVERHEAD_MAX + 4  # the length of the key has up to 5 bytes
KEYS_REMEMBERED_MAX: Final = 50_000
WAITING_BYTES_MAX: Final = 8 * 1024 * 1024  # of records that wait for more of their partition, over all partitions


class InputPlace(NamedTuple):
    """Where a record comes from: the place of its file among the files, and its line, from 1."""

    file: int
    line: int


PlaceOf = Callable[[int], InputPlace]  # where each record of a batch comes from


def _lines_from(place: InputPlace) -> PlaceOf:
    return lambda index: InputPlace(place.file, place.line + index)


def _chosen_line(place: InputPlace, numbers: Sequence[int], index: int) -> InputPlace:
    return InputPlace(place.file, place.line + numbers[index])


class FailedLine(NamedTuple):
    """A record that was not written."""

    place: InputPlace
    error: BaseException


class _Group:
    """Records of one partition that wait to be sent."""

    __slots__ = ("bytes_held", "places", "records")

    def __init__(self) -> None:
        self.records: list[NewRecord] = []
        self.places: list[InputPlace] = []
        self.bytes_held = 0


class RecordWriter:
    """Writes records to one topic.

    Attributes:
        written: acknowledged records; with transactions those of committed ones.
        failed: refused records.
        unknown: records that were sent and have no outcome yet, or were not acknowledged in time.
        in_doubt: records of a transaction whose commit was not answered.
        transactions: committed transactions.
        first_failure: of the first line among the failures.
        stopped: an error after which no further record can be written; the input ends.

    Args:
        record_bytes_max: the largest record, as `max.request.size` limits it.
        partition: of the records that have none of their own; None chooses by the key.
        transaction_size: records of a transaction; 0 puts all into one. None: no transactions.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        batch_bytes: int = BATCH_BYTES,
        record_bytes_max: int = 1_048_576,
        partition: int | None = None,
        timestamp: int | None = None,
        transaction_size: int | None = None,
    ) -> None:
        self.written = 0
        self.failed = 0
        self.unknown = 0
        self.in_doubt = 0
        self.transactions = 0
        self.first_failure: FailedLine | None = None
        self.stopped: BaseException | None = None
        self._producer = producer
        self._topic = topic
        self._batch_bytes = max(1, min(batch_bytes, record_bytes_max))
        self._record_bytes_max = record_bytes_max
        self._partition = partition
        self._timestamp = timestamp
        self._transaction_size = transaction_size
        self._in_transaction = 0
        self._values: list[bytes] = []
        self._values_from = InputPlace(0, 1)
        self._values_bytes = 0
        self._groups: dict[int | None, _Group] = {}
        self._groups_bytes = 0
        self._partitions = 0
        self._remembered: dict[bytes, int] = {}

    @property
    def waiting(self) -> bool:
        """Whether records wait to be sent."""
        return bool(self._values or self._groups)

    # -- input ---------------------------------------------------------------------------------------------------------

    async def add_values(self, values: list[bytes], place: InputPlace) -> None:
        """Takes consecutive lines that are values, the first of them from `place`."""
        while values:
            room = await self._room()
            if self.stopped is not None:
                return
            now, values = (values, []) if room is None else (values[:room], values[room:])
            await self._add_values(now, place)
            place = InputPlace(place.file, place.line + len(now))

    async def add_pairs(self, keys: Sequence[bytes], values: Sequence[bytes], place: InputPlace) -> None:
        """Takes consecutive lines that are keys and values, the first of them from `place`."""
        size = sum(map(len, keys)) + sum(map(len, values)) + PAIR_RECORD_OVERHEAD_MAX * len(keys)
        if self._transaction_size is not None or size > self._batch_bytes:
            for number, pair in enumerate(zip(keys, values, strict=True), start=place.line):
                await self.add_record(NewRecord(*pair, NO_TIMESTAMP), None, InputPlace(place.file, number))
            return
        await self.send_waiting()
        partition = self._partition
        if partition is None and await self._partition_count() == 1:
            partition = 0
        if partition is not None:
            await self._send(partition, encode_pairs(keys, values, self._now()), _lines_from(place))
            return
        chosen = [self._partition_of(key) for key in keys]
        for each in dict.fromkeys(chosen):
            mine = [number for number, partition in enumerate(chosen) if partition == each]
            encoded = encode_pairs([keys[n] for n in mine], [values[n] for n in mine], self._now())
            await self._send(each, encoded, partial(_chosen_line, place, mine))

    async def add_record(self, record: NewRecord, partition: int | None, place: InputPlace) -> None:
        """Takes one record. Its timestamp is the present time if it is NO_TIMESTAMP."""
        await self._room()
        if self.stopped is not None:
            return
        size = record_size_max(record.key, record.value, record.headers)
        if size + BATCH_OVERHEAD > self._record_bytes_max:
            self.refuse(place, self._too_large(size))
            return
        if partition is None:
            partition = self._partition
        if partition is None and record.key is not None:
            await self._partition_count()
            partition = self._partition_of(record.key)
        if record.timestamp == NO_TIMESTAMP:
            record = record._replace(timestamp=self._now())
        group = self._groups.get(partition)
        if group is None:
            group = self._groups[partition] = _Group()
        elif group.bytes_held + size > self._batch_bytes:
            await self._send_group(partition, group)
            group = self._groups[partition] = _Group()
        group.records.append(record)
        group.places.append(place)
        group.bytes_held += size
        self._groups_bytes += size
        self._count_in(1)
        if self._groups_bytes > WAITING_BYTES_MAX:
            await self.send_waiting()

    def refuse(self, place: InputPlace, error: BaseException) -> None:
        """Counts a record that cannot be written."""
        self.failed += 1
        if self.first_failure is None or place < self.first_failure.place:
            self.first_failure = FailedLine(place, error)
        if self._transaction_size is not None and self.stopped is None:
            self.stopped = error  # a transaction is written whole or not at all

    async def send_waiting(self) -> None:
        """Sends the records that wait for more."""
        await self._send_values()
        for partition in list(self._groups):
            await self._send_group(partition, self._groups.pop(partition))

    # -- the end -------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Sends what waits, and returns when every record has an outcome."""
        await self.send_waiting()
        await self._producer.flush()
        await asyncio.sleep(0)  # the callbacks of the last futures run

    async def finish(self) -> None:
        """Writes what waits and commits the open transaction. After a failure the transaction is aborted."""
        await self.flush()
        await self._end_transaction()

    async def abort(self) -> None:
        """Aborts the open transaction; its records count as not written."""
        self._values.clear()
        self._groups.clear()
        state = self._producer.transaction_state
        if state is TransactionPhase.COMMITTING:
            self.in_doubt = self._in_transaction
        elif state is TransactionPhase.READY and self._in_transaction and self.stopped is None:
            self._count_commit()  # it was answered as its caller was cancelled
        elif state in (TransactionPhase.IN_TRANSACTION, TransactionPhase.ABORTABLE_ERROR):
            await self._producer.abort_transaction()
        self._in_transaction = 0

    # -- internal ------------------------------------------------------------------------------------------------------

    async def _partition_count(self) -> int:
        if not self._partitions:
            self._partitions = max(1, len(await self._producer.partitions_for(self._topic)))
        return self._partitions

    def _partition_of(self, key: bytes) -> int:
        """The partition of a key; keys that return often are remembered."""
        partition = self._remembered.get(key)
        if partition is None:
            partition = partition_for_key(key, self._partitions)
            if len(self._remembered) < KEYS_REMEMBERED_MAX:
                self._remembered[key] = partition
        return partition

    def _now(self) -> int:
        return time.time_ns() // 1_000_000 if self._timestamp is None else self._timestamp

    def _too_large(self, size: int) -> RecordTooLarge:
        return RecordTooLarge(
            f"a record of {size} bytes exceeds max.request.size={self._record_bytes_max}; "
            f"raise it by `-X max.request.size=N` if the topic's max.message.bytes allows it"
        )

    async def _room(self) -> int | None:
        """How many records the open transaction takes; begins one if there is none. None: no limit."""
        if self._transaction_size is None:
            return None
        if self._transaction_size and self._in_transaction >= self._transaction_size:
            await self.finish()
            if self.stopped is not None:
                return None
        if self._producer.transaction_state is TransactionPhase.READY:
            await self._producer.begin_transaction()
        return self._transaction_size - self._in_transaction if self._transaction_size else None

    def _count_in(self, count: int) -> None:
        if self._transaction_size is not None:
            self._in_transaction += count

    def _count_commit(self) -> None:
        self.transactions += 1
        self.written += self._in_transaction
        self._in_transaction = 0

    async def _end_transaction(self) -> None:
        if self._transaction_size is None or not self._in_transaction:
            return
        if self.stopped is None:
            try:
                await self._producer.commit_transaction(self._producer.config.delivery_timeout_ms)
                self._count_commit()
                return
            except KafkaError as error:
                self.stopped = error
        await self.abort()

    async def _add_values(self, values: list[bytes], place: InputPlace) -> None:
        size = sum(map(len, values)) + VALUE_RECORD_OVERHEAD_MAX * len(values)
        if size > self._batch_bytes:
            if len(values) == 1:
                await self._send_values()
                if size + BATCH_OVERHEAD > self._record_bytes_max:
                    self.refuse(place, self._too_large(size))
                    return
            else:
                middle = len(values) // 2
                await self._add_values(values[:middle], place)
                await self._add_values(values[middle:], InputPlace(place.file, place.line + middle))
                return
        follows = InputPlace(self._values_from.file, self._values_from.line + len(self._values)) == place
        if self._values and (not follows or self._values_bytes + size > self._batch_bytes):
            await self._send_values()
        if not self._values:
            self._values_from = place
        self._values += values
        self._values_bytes += size
        self._count_in(len(values))

    async def _send_values(self) -> None:
        values, place = self._values, self._values_from
        if not values:
            return
        self._values, self._values_bytes = [], 0
        await self._send(self._partition, encode_values(values, self._now()), _lines_from(place))

    async def _send_group(self, partition: int | None, group: _Group) -> None:
        self._groups_bytes -= group.bytes_held
        await self._send(partition, encode_records(group.records), group.places.__getitem__)

    async def _send(self, partition: int | None, records: EncodedRecords, place_of: PlaceOf) -> None:
        if isinstance(self.stopped, KafkaError):
            return  # they have no outcome
        count = records.record_count
        try:
            future = await self._producer.send_batch(self._topic, partition, records, divisible=True)
        except KafkaError as error:
            self._on_failed(count, place_of, error)
            return

        self.unknown += count

        def done(ended: asyncio.Future[RecordMetadata]) -> None:
            self.unknown -= count
            error = ended.exception()
            if error is not None:
                self._on_failed(count, place_of, error)
            elif self._transaction_size is None:
                self.written += count

        future.add_done_callback(done)

    def _on_failed(self, count: int, place_of: PlaceOf, error: BaseException) -> None:
        failed = error.failed if isinstance(error, PartlyWritten) else dict.fromkeys(range(count), error)
        if self._transaction_size is None:
            self.written += count - len(failed)
        late = sum(isinstance(each, DeliveryTimedOut) and each.maybe_written for each in failed.values())
        self.unknown += late
        self.failed += len(failed) - late
        index, first = next(iter(failed.items()))
        place = place_of(index)
        if self.first_failure is None or place < self.first_failure.place:
            self.first_failure = FailedLine(place, first)
        only_too_large = all(isinstance(each, RecordTooLarge) for each in failed.values())
        if self.stopped is None and (self._transaction_size is not None or not only_too_large):
            self.stopped = error
