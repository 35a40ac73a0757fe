"""RangeReader: reads offsets of one partition as batches, without decoding records, for bulk readers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from barnabas.client.consumer.core.fetch_session import VERSION_BY_NAME_MAX, VERSION_MAX
from barnabas.client.consumer.core.read_committed import AbortedFilter, is_delivered
from barnabas.client.errors import (
    BrokerUnreachable,
    CorruptRecords,
    KafkaError,
    LogTruncated,
    OffsetOutOfRange,
    error_for,
)
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.metadata import NO_ID
from barnabas.client.net.deadline import Deadline
from barnabas.client.net.transport import Connection
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import HEADER_SIZE, MAGIC
from barnabas.protocol.compression import decompress
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from barnabas.protocol.records import BatchHeader, iter_batches

OFFSET_MAX = 2**63 - 1
# What a small range asks for: a batch of producers' default size, and for each record this, unless larger ones have come.
_REQUEST_BYTES = 20 * 1024
_RECORD_BYTES = 1024


class DamagedBatch(RemoteProtocolError):
    """An unreadable batch. `position` is its start in the buffer; earlier batches are intact."""

    def __init__(self, position: int, why: str) -> None:
        self.position = position
        super().__init__(why)


class PlacedBatch(NamedTuple):
    """One batch of a chunk. Its records, encoded and uncompressed, are `data[start:end]`."""

    header: BatchHeader
    start: int
    end: int


class Chunk(NamedTuple):
    """Batches to deliver, in offset order, in one buffer."""

    data: bytes
    batches: list[PlacedBatch]
    next_offset: int  # after the last batch, delivered or not
    control: int = 0  # the number of control records, which are left out
    aborted: int = 0  # the number of records of aborted transactions, which are left out


def deliverable(
    buffer: Buffer,
    next_offset: int,
    aborted: AbortedFilter | None = None,
    *,
    start: int = 0,
    end: int = OFFSET_MAX,
    check_crcs: bool = True,
) -> Chunk:
    """The batches in `buffer` to deliver, decompressed, without control, aborted and incomplete ones.

    `next_offset` is the result's if no batch is whole. Records below `start` do not count as skipped. Batches from `end`
    on are not looked at. Raises DamagedBatch.
    """
    found: list[tuple[int, BatchHeader]] = []
    packed = False
    left_out = left_aborted = position = 0
    try:
        for position, header in iter_batches(buffer):
            if header.magic != MAGIC:
                raise RemoteProtocolError(f"batch of magic {header.magic}, only {MAGIC} is read")
            if header.base_offset >= end:
                break
            next_offset = max(next_offset, header.next_offset)
            if not is_delivered(buffer, position, header, aborted, check_crcs=check_crcs):
                if header.is_control:
                    left_out += _from(start, header)
                else:
                    left_aborted += _from(start, header)
            elif header.record_count > 0:
                found.append((position, header))
                packed = packed or header.compression != 0
            position += header.size_bytes  # start of the next batch: if its header is damaged, the iterator raises
    except RemoteProtocolError as error:
        raise DamagedBatch(position, str(error)) from error
    if not packed:
        return Chunk(
            bytes(buffer) if found else b"",
            [PlacedBatch(header, at + HEADER_SIZE, at + header.size_bytes) for at, header in found],
            next_offset,
            left_out,
            left_aborted,
        )
    parts: list[bytes] = []
    batches: list[PlacedBatch] = []
    place = 0
    with memoryview(buffer) as view:
        for at, header in found:
            try:
                records = decompress(header.compression, view[at + HEADER_SIZE : at + header.size_bytes])
            except RemoteProtocolError as error:
                raise DamagedBatch(at, str(error)) from error
            parts.append(records)
            batches.append(PlacedBatch(header, place, place + len(records)))
            place += len(records)
    return Chunk(b"".join(parts), batches, next_offset, left_out, left_aborted)


def _from(start: int, header: BatchHeader) -> int:
    """Number of records from an offset on; an upper bound for a compacted batch."""
    return max(0, min(header.record_count, header.next_offset - start))


class RangeReader:
    """Fetches the offsets from `start` (inclusive) to `end` (exclusive) of one partition.

    A batch that crosses an end of the range also brings records outside it.

    Args:
        cluster: a started cluster.
        read_committed: skips records of open and aborted transactions.
        fetch_bytes: size limit of a response, ≥ 1; a larger batch is still returned whole.
        max_wait_ms: how long a broker may delay an empty response.
        stall_timeout_ms: the reader fails if no records arrive for this time.
    """

    def __init__(
        self,
        cluster: NetworkClient,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        read_committed: bool = True,
        check_crcs: bool = True,
        fetch_bytes: int = 1024 * 1024,
        max_wait_ms: int = 500,
        stall_timeout_ms: int = 120_000,
    ) -> None:
        self.position = start  # the next offset to deliver
        self.control = 0  # control records left out so far
        self.aborted = 0  # records of aborted transactions left out so far
        self._cluster = cluster
        self._tp = tp
        self._start = start
        self._end = end
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._fetch_bytes = fetch_bytes
        self._max_wait_ms = max_wait_ms
        self._stall_timeout_ms = stall_timeout_ms
        self._answer: asyncio.Future[Any] | None = None  # to the request in flight
        self._asked = start  # the offset of that request
        self._epoch = -1  # leader epoch of the last batch before `position`; −1 if unknown
        self._record_bytes = _RECORD_BYTES  # the largest mean so far
        self._is_shared = False  # the request in flight is that of several readers
        cluster.add_topics([tp.topic])

    async def next(self) -> Chunk | None:
        """The next chunk; None at the end of the range. Batches before a damaged one are delivered before the error.

        Raises:
            OffsetOutOfRange: the log does not contain `position`. LogTruncated: it lacks delivered records (KIP-320).
            CorruptRecords: the next batch is damaged, also on the broker.
            KafkaError: the partition cannot be read, or no records arrived for `stall_timeout_ms`.
        """
        self._cluster.home.check("RangeReader.next")
        deadline = Deadline(self._cluster, self._stall_timeout_ms)
        while self.position < self._end:
            was_shared, self._is_shared = self._is_shared, False
            try:
                data = await self._fetched()
            except KafkaError as error:
                if isinstance(error, OffsetOutOfRange):
                    raise
                self._cluster.want_update()
                if not was_shared:  # else its own request comes first
                    await deadline.pause(error)
                continue
            records: Buffer = data.records or b""
            moved_to, epoch = self._peek(records)
            if moved_to == self.position and not records:
                stable = data.last_stable_offset if self._read_committed else data.high_watermark
                if was_shared and stable > self.position:
                    continue  # brokers return a batch above the limit of its partition only to the first one
                await deadline.pause(
                    error_for(
                        ErrorCode.OFFSET_NOT_AVAILABLE,
                        f"offset {self.position} cannot be read yet: the log is readable up to offset {stable}",
                        topic=self._tp.topic,
                        partition=self._tp.partition,
                    )
                )
                continue
            if moved_to > self.position:
                self._record_bytes = max(self._record_bytes, len(records) // (moved_to - self.position))
            if moved_to < self._end:
                self._send(moved_to, epoch)
                await asyncio.sleep(0)  # lets the request be written before the response is processed
            chunk: Chunk | None = None
            while chunk is None:
                try:
                    chunk = self._deliverable(records, data)
                except DamagedBatch as error:
                    # Deliver the batches before it; the next call fetches it again and raises.
                    records = memoryview(records)[: error.position]
                    moved_to, epoch = self._peek(records)
                    if moved_to == self.position:
                        raise self._corrupt(error) from error
            self.position, self._epoch = moved_to, epoch
            self.control += chunk.control
            self.aborted += chunk.aborted
            if chunk.batches:
                return chunk
            deadline = Deadline(self._cluster, self._stall_timeout_ms)
        return None

    def _deliverable(self, records: Buffer, data: PartitionData) -> Chunk:
        aborted = None
        if self._read_committed:
            aborted = AbortedFilter((t.producer_id, t.first_offset) for t in data.aborted_transactions or ())
        return deliverable(
            records, self.position, aborted, start=self._start, end=self._end, check_crcs=self._check_crcs
        )

    def _peek(self, records: Buffer) -> tuple[int, int]:
        """Offset after a response's whole batches, and the last one's leader epoch. Raises CorruptRecords."""
        reached = self.position, self._epoch
        why = f"{len(records)} bytes contain no whole batch with that offset"
        try:
            for _, header in iter_batches(records):
                if header.base_offset >= self._end:
                    return self._end, reached[1]
                reached = max(reached, (header.next_offset, header.leader_epoch))
        except RemoteProtocolError as error:
            why = str(error)
        if records and reached[0] == self.position:
            raise self._corrupt(RemoteProtocolError(why))
        return reached

    def _corrupt(self, error: RemoteProtocolError) -> CorruptRecords:
        return CorruptRecords(self._tp, self.position, str(error))

    async def _fetched(self) -> PartitionData:
        # A cancelled call may have requested a later offset.
        if self._answer is None or self._asked != self.position:
            self._send(self.position, self._epoch)
        answer = self._answer
        if answer is None:  # no connection yet, or no leader
            leader = self._cluster.metadata.leaders.get(self._tp)
            if leader is None:
                await self._cluster.fresh_metadata()
                leader = self._cluster.metadata.leaders.get(self._tp)
            if leader is None:
                raise self._cluster.metadata.no_leader(self._tp)
            await self._cluster.ready_connection(leader, Purpose.FETCH)
            self._send(self.position, self._epoch)
            answer = self._answer
            if answer is None:
                raise BrokerUnreachable("the connection to the leader was lost", broker=leader)
        self._answer = None
        outcome = await asyncio.shield(answer)  # others may wait for it, too
        if isinstance(outcome, KafkaError):
            raise outcome
        return self._partition_of(outcome)

    def _partition_of(self, response: FetchResponse) -> PartitionData:
        if response.error_code:
            raise error_for(response.error_code, topic=self._tp.topic, partition=self._tp.partition)
        self._cluster.metadata.hint_endpoints(response.node_endpoints)
        topic_id = self._cluster.metadata.topic_id(self._tp.topic)
        for topic in response.responses:
            for data in topic.partitions:
                # the names are absent in versions with topic ids
                if data.partition_index != self._tp.partition or (topic.topic or topic.topic_id) not in (
                    self._tp.topic,
                    topic_id,
                ):
                    continue
                if data.error_code:
                    leader = data.current_leader
                    self._cluster.metadata.hint(self._tp, leader.leader_id, leader.leader_epoch)
                    if data.error_code == ErrorCode.CORRUPT_MESSAGE:
                        raise self._corrupt(RemoteProtocolError("the broker reports that it is corrupt"))
                    raise error_for(data.error_code, topic=self._tp.topic, partition=self._tp.partition)
                if data.diverging_epoch.epoch >= 0:
                    raise LogTruncated(self._tp, self.position, min(data.diverging_epoch.end_offset, self.position))
                return data
        raise BrokerUnreachable("the Fetch answer lacks the requested partition")

    def _send(self, offset: int, epoch: int) -> None:
        self._asked = offset
        leader = self._cluster.metadata.leaders.get(self._tp)
        connection = None if leader is None else self._cluster.connection(leader, Purpose.FETCH)
        self._answer = None if connection is None else self._request(connection, [self._partition(offset, epoch)])

    def _partition(self, offset: int, epoch: int) -> tuple[str, FetchPartition]:
        wanted_bytes = _REQUEST_BYTES + (self._end - offset) * self._record_bytes
        return self._tp.topic, FetchPartition(
            partition=self._tp.partition,
            current_leader_epoch=self._cluster.metadata.leader_epochs.get(self._tp, -1),
            fetch_offset=offset,
            last_fetched_epoch=epoch,
            partition_max_bytes=min(self._fetch_bytes, wanted_bytes),
        )

    def _request(self, connection: Connection, partitions: Sequence[tuple[str, FetchPartition]]) -> asyncio.Future[Any]:
        topics: dict[str, FetchTopic] = {}
        for topic, partition in partitions:
            if topic not in topics:
                topics[topic] = FetchTopic(topic=topic, topic_id=self._cluster.metadata.topic_id(topic), partitions=[])
            topics[topic].partitions.append(partition)
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=sum(each.partition_max_bytes for _, each in partitions),
            isolation_level=1 if self._read_committed else 0,
            session_id=0,
            session_epoch=-1,
            topics=list(topics.values()),
        )
        by_name = any(topic.topic_id == NO_ID for topic in request.topics)
        try:
            return connection.send_soon(
                request,
                timeout_ms=self._cluster.request_timeout_ms + self._max_wait_ms,
                version_max=VERSION_BY_NAME_MAX if by_name else VERSION_MAX,
            )
        except KafkaError as error:
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(error)
            return answer


async def fetch_together(readers: Sequence[RangeReader]) -> None:
    """Sends one request to each leader for the first records of new readers of one cluster.

    A reader whose leader is not reachable sends its own later, as does a second reader of a partition: brokers return a
    partition once.
    """
    by_leader: dict[int | None, dict[TopicPartition, RangeReader]] = {}
    for reader in readers:
        by_leader.setdefault(reader._cluster.metadata.leaders.get(reader._tp), {}).setdefault(reader._tp, reader)
    for leader, partitions in by_leader.items():
        together = list(partitions.values())
        if leader is None or len(together) == 1:
            continue
        first = together[0]
        try:
            connection = await first._cluster.ready_connection(leader, Purpose.FETCH)
        except KafkaError:
            continue
        answer = first._request(connection, [each._partition(each.position, each._epoch) for each in together])
        for each in together:
            each._answer, each._is_shared = answer, True
