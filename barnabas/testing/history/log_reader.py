"""LogReader: reads batches, transaction steps and committed offsets over the Kafka protocol, as a read_uncommitted consumer of any Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinator.transactions.records import decode_record
from barnabas.client import Admin, KafkaError, TopicPartition
from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.internal import OffsetCommitKey, OffsetCommitValue
from barnabas.protocol.record_codec import Record
from barnabas.protocol.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
    decode_records,
    iter_batches,
    read_control,
)
from barnabas.protocol.schema import decode_versioned
from barnabas.testing.history.core.exactly_once import CommittedRecord
from barnabas.testing.history.core.final_state import FinalState, HeldLog, LoggedBatch, TransactionStep

BATCHES_MAX: Final = 500_000
RECORDS_MAX: Final = 1_000_000  # of one topic, for a comparison of records
FETCH_BYTES: Final = 4 * 1024 * 1024
MARKERS_S: Final = 10.0  # for transactions that are ending
POLL_S: Final = 0.01
SLICE: Final = 200  # batches between two turns of the loop
UNKNOWN_OFFSET: Final = -1
_OFFSET_KEYS: Final = (b"\x00\x00", b"\x00\x01")  # versions of OffsetCommitKey
_END_TYPES: Final = {CONTROL_ABORT: "abort", CONTROL_COMMIT: "commit"}


class FetchedBatch(NamedTuple):
    """A batch as it was fetched."""

    header: BatchHeader
    buffer: Buffer
    position: int

    def records(self) -> list[Record]:
        """Its records. Raises RemoteProtocolError."""
        return decode_records(self.buffer, self.position, self.header)


class LogReader(Admin):
    """An admin client that also reads logs; decodes records only in the coordinators' topics."""

    async def batches(self, tp: TopicPartition, start: int, end: int) -> AsyncIterator[FetchedBatch]:
        """The batches from one offset up to another, markers included. Raises KafkaError."""
        self._cluster.add_topics([tp.topic])
        while start < end:
            data = await self._fetch(tp, start)
            before = start
            records = data.records or b""
            for count, (position, header) in enumerate(iter_batches(records), 1):
                if header.next_offset > start:
                    start = header.next_offset
                    yield FetchedBatch(header, records, position)
                if not count % SLICE:
                    await asyncio.sleep(0)
            if start == before:
                raise KafkaError(f"{tp.topic}-{tp.partition} has no batch at offset {start}, and its end is {end}")

    async def _fetch(self, tp: TopicPartition, offset: int) -> Any:
        topic_id = self._cluster.metadata.topic_id(tp.topic)
        if not any(topic_id):
            await self._cluster.fresh_metadata()
            topic_id = self._cluster.metadata.topic_id(tp.topic)
        wanted = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=tp.topic, topic_id=topic_id, partitions=[wanted])],
        )
        answer = await self._ask(
            request,
            lambda answer: answer if answer.error_code else answer.responses[0].partitions[0],
            leader=tp,
        )
        return answer.responses[0].partitions[0]

    async def bounds(self, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset, and the one after the last, of each partition of the topics."""
        described = await self.describe_topics(topics)
        partitions = [
            TopicPartition(name, each.partition) for name, info in described.items() for each in info.partitions
        ]
        starts = await self.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = await self.list_offsets(dict.fromkeys(partitions, "latest"))
        return {each: (starts[each].offset, ends[each].offset) for each in partitions}

    async def committed_records(self, topic: str) -> list[CommittedRecord]:
        """What readers of a topic get under read_committed. Raises KafkaError; RemoteProtocolError for a damaged batch."""
        found: list[CommittedRecord] = []
        for tp, (start, end) in sorted((await self.bounds([topic])).items()):
            fetched = [each async for each in self.batches(tp, start, end)]
            log = HeldLog(tp.topic, tp.partition, start, end, tuple(map(logged, fetched)))
            for each, held in zip(fetched, log.batches, strict=True):
                if log.visible(held) and not each.header.is_control:
                    found += [
                        CommittedRecord(topic, tp.partition, one.offset, one.key, one.value, one.timestamp, one.headers)
                        for one in each.records()
                    ]
            if len(found) > RECORDS_MAX:
                raise KafkaError(f"topic '{topic}' has more than {RECORDS_MAX} records: too many to compare")
        return found

    # -- everything

    async def final_state(self, topics: Iterable[str]) -> FinalState:
        """What the brokers hold of some topics, of transactions and of groups. What cannot be read is named in it."""
        unread: list[str] = []
        try:
            known = set(await self.list_topics(include_internal=True))
            unread += await self._markers_written()
        except KafkaError as error:
            return FinalState(unread=(f"the brokers could not be asked: {error}",))
        logs: dict[tuple[str, int], HeldLog] = {}
        steps: list[TransactionStep] = []
        offsets = _Offsets()
        left = BATCHES_MAX
        for topic in sorted({*topics, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC} & known):
            try:
                exact = await self._is_exact(topic)
                for tp, (start, end) in sorted((await self.bounds([topic])).items()):
                    found = await self._log(tp, start, end, exact, steps, offsets, left)
                    left -= len(found.batches)
                    logs[tp.topic, tp.partition] = found
                    if found.end_offset < end:
                        unread.append(
                            f"{found} was read up to offset {found.end_offset - 1}: {BATCHES_MAX} batches are the most"
                        )
            except (KafkaError, RemoteProtocolError) as error:
                unread.append(f"topic '{topic}' could not be read: {error}")
        return FinalState(logs, tuple(steps), offsets.committed, tuple(unread))

    async def _markers_written(self) -> list[str]:
        """Waits until no transaction is ending; returns a sentence if some still are."""
        deadline = asyncio.get_running_loop().time() + MARKERS_S
        while True:
            ending = await self.list_transactions(states=["PrepareCommit", "PrepareAbort"])
            if not ending:
                return []
            if asyncio.get_running_loop().time() > deadline:
                names = ", ".join(f"'{each.transactional_id}'" for each in ending[:5])
                return [f"transactions of {names} were still ending after {MARKERS_S:g} s"]
            await asyncio.sleep(POLL_S)

    async def _is_exact(self, topic: str) -> bool:
        found = {name: each.value for name, each in (await self.describe_configs(topic=topic)).items()}
        return (
            "compact" not in (found.get("cleanup.policy") or "")
            and found.get("compression.type", "producer") == "producer"
            and found.get("message.timestamp.type", "CreateTime") == "CreateTime"
        )

    async def _log(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        exact: bool,
        steps: list[TransactionStep],
        offsets: _Offsets,
        batches_max: int,
    ) -> HeldLog:
        kept: list[LoggedBatch] = []
        async for each in self.batches(tp, start, end):
            if len(kept) >= batches_max:
                end = each.header.base_offset
                break
            kept.append(logged(each))
            if tp.topic == TRANSACTION_STATE_TOPIC:
                steps += transaction_steps(each)
            elif tp.topic == GROUP_METADATA_TOPIC:
                offsets.add(each, kept[-1])
        return HeldLog(tp.topic, tp.partition, start, end, tuple(kept), exact)


def logged(batch: FetchedBatch) -> LoggedBatch:
    """A batch's header as it is compared. Raises RemoteProtocolError for a marker that cannot be read."""
    header = batch.header
    marker = ""
    if header.is_control and header.record_count:
        marker = _END_TYPES.get(read_control(batch.records()[0]).type, "")
    return LoggedBatch(
        header.base_offset,
        header.last_offset,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional and not header.is_control,
        header.crc,
        marker,
        header.max_timestamp,
    )


def transaction_steps(batch: FetchedBatch) -> list[TransactionStep]:
    """The records of a batch of `__transaction_state`. Raises RemoteProtocolError."""
    found = []
    for each in batch.records():
        record = decode_record(each.key, each.value)
        if record is None:
            continue
        held = record.metadata
        if held is None:
            found.append(TransactionStep(record.transactional_id, "Dead", at_ms=each.timestamp))
        else:
            found.append(
                TransactionStep(
                    record.transactional_id,
                    held.state.label,
                    held.producer_id,
                    held.producer_epoch,
                    tuple(sorted(held.partitions)),
                    held.updated_ms,
                    held.started_ms,
                    held.timeout_ms,
                )
            )
    return found


class _Offsets:
    """Committed offsets, by the log of a group's coordinator."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, str, int], int] = {}
        self._pending: dict[int, list[tuple[tuple[str, str, int], int]]] = {}  # by producer id

    def add(self, batch: FetchedBatch, header: LoggedBatch) -> None:
        """Applies a batch. Raises RemoteProtocolError."""
        if batch.header.is_control:
            pending = self._pending.pop(header.producer_id, [])
            if header.marker == "commit":
                self.committed.update(pending)
            return
        found = []
        for each in batch.records():
            if each.key is None or each.key[:2] not in _OFFSET_KEYS:
                continue
            key = decode_versioned(OffsetCommitKey, each.key)
            offset = UNKNOWN_OFFSET if each.value is None else decode_versioned(OffsetCommitValue, each.value).offset
            found.append(((key.group, key.topic, key.partition), offset))
        if header.transactional:
            self._pending.setdefault(header.producer_id, []).extend(found)
        else:
            self.committed.update(found)
