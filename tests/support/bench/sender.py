"""The core of the producer's sender with leaders that the test answers for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from barnabas.client.errors import (
    BrokerUnreachable,
    KafkaError,
)
from barnabas.client.producer.core.batching import Accumulator, record_size_max
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.core.sender import Dispatch, Sender
from barnabas.client.producer.core.transactions import Transactions
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import crc_ok, decode_records, encode_records, read_header
from barnabas.protocol.schema import decode, encode
from tests.support.rng import SeededRng

TP = TopicPartition("t", 0)


class Leader:
    """One partition as its leader has it."""

    def __init__(self, size_bytes_max: int = 1 << 20) -> None:
        self.insists_on_zero = False  # of a producer that it does not know, as under TV2 (KIP-890)
        self.values: list[bytes] = []
        self.size_bytes_max = size_bytes_max
        self.epochs: dict[int, int] = {}
        self.recent: dict[int, deque[tuple[int, int, int]]] = {}  # producer id → (first, last sequence, offset)

    def restart(self) -> None:
        """What its snapshot holds of a producer is the last batch."""
        for recent in self.recent.values():
            while len(recent) > 1:
                recent.popleft()

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        assert crc_ok(batch, 0, header)
        assert header.size_bytes == len(batch)
        if len(batch) > self.size_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        records = decode_records(batch)
        offset = len(self.values)
        producer_id = header.producer_id
        if producer_id >= 0:
            epoch = self.epochs.get(producer_id, -1)
            recent = self.recent.setdefault(producer_id, deque(maxlen=5))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if header.base_sequence != 0 and (epoch >= 0 or self.insists_on_zero):
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                recent.clear()
            else:
                for first, last, at in recent:
                    if (first, last) == (header.base_sequence, header.last_sequence):
                        return ErrorCode.NONE, at
                if recent and header.base_sequence != (recent[-1][1] + 1) & 0x7FFFFFFF:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.epochs[producer_id] = header.producer_epoch
            recent.append((header.base_sequence, header.last_sequence, offset))
        self.values += [r.value for r in records]
        return ErrorCode.NONE, offset


class SenderBench:
    """A sender, its leaders, and a wire of Produce requests that were sent and not answered yet."""

    def __init__(self, *, partitions: int = 1, size_bytes_max: int = 1 << 20, **config: Any) -> None:
        self.now = 1_000
        self.accumulator = Accumulator(batch_size=400, linger_ms=0, delivery_timeout_ms=120_000)
        self.txn = Transactions(None, SeededRng())
        self.sender = Sender(ProducerConfig(**config), self.accumulator, self.txn, SeededRng())
        self.sender.adopt(7, 0)
        self.leaders = {TopicPartition("t", p): Leader(size_bytes_max) for p in range(partitions)}
        self.where = dict.fromkeys(self.leaders, 1)
        self.wire: deque[Dispatch] = deque()
        self.acked: dict[Any, int] = {}
        self.failed: dict[object, KafkaError] = {}
        self.packed: dict[object, Sequence[object]] = {}  # the handle of a batch encoded by the caller → its records

    def append(self, value: bytes, partition: int = 0) -> None:
        record = NewRecord(None, value, self.now)
        queue = self.accumulator.queue(TopicPartition("t", partition))
        self.accumulator.append(queue, record, record_size_max(None, value, ()), (partition, value), lambda: self.now)

    def append_packed(self, values: list[bytes], partition: int = 0) -> None:
        packed = encode_records([NewRecord(None, value, self.now) for value in values])
        handle = (partition, values[0])
        self.packed[handle] = [(partition, value) for value in values]
        queue = self.accumulator.queue(TopicPartition("t", partition))
        self.accumulator.append_packed(queue, packed, handle, self.now)

    def pump(self) -> None:
        self.sender.expire(self.now)
        self.wire += self.sender.drain(self.now, self.where, lambda _: True)
        self.collect()

    def collect(self) -> None:
        for batch, base_offset, _, error in self.sender.outcomes:
            handles: Sequence[object] = batch.handles
            if batch.packed is not None:
                (whole,) = batch.handles
                handles = self.packed[whole]
            for i, handle in enumerate(handles):
                assert handle not in self.acked, "a record has two outcomes"
                assert handle not in self.failed, "a record has two outcomes"
                if error is None:
                    self.acked[handle] = base_offset + i if base_offset >= 0 else -1
                else:
                    self.failed[handle] = error
        self.sender.outcomes.clear()

    def execute(self, dispatch: Dispatch, refusal: ErrorCode | None = None) -> ProduceResponse:
        """What the broker does with a request; as bytes there and back, as a broker would see it."""
        request = decode(type(dispatch.request), encode(dispatch.request, 12), 12)
        responses = []
        for topic in request.topic_data:
            results = []
            for data in topic.partition_data:
                assert data.records is not None
                if refusal is None:
                    code, offset = self.leaders[TopicPartition(topic.name, data.index)].append(bytes(data.records))
                else:
                    code, offset = refusal, -1
                results.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=responses)

    def answer(self, refusal: ErrorCode | None = None) -> None:
        """The oldest request is executed (or refused) and answered."""
        dispatch = self.wire.popleft()
        self.sender.on_answer(dispatch, self.execute(dispatch, refusal), self.now)
        self.collect()

    def break_connection(self, executed: int) -> None:
        """The connection is lost after the broker executed some of the requests on it, in their order."""
        for i, dispatch in enumerate(list(self.wire)):
            if i < executed:
                self.execute(dispatch)
            self.sender.on_failure(dispatch, BrokerUnreachable("lost"), self.now)
        self.wire.clear()
        self.collect()

    def settle(self) -> None:
        """No more faults: until nothing is left to send."""
        for _ in range(10_000):
            self.pump()
            if self.wire:
                self.answer()
            elif not self.accumulator.incomplete:
                return
            else:
                at = self.sender.wake_at()
                assert at is not None, "records wait and nothing would wake the sender"
                self.now = max(self.now + 1, at)
        raise AssertionError("does not settle")
