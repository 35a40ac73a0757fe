"""The same batches to Kafka and to Barnabas: what a partition leader takes, refuses, and tells of its log.

Each script writes raw batches to a topic of its own on both sides; its observations must be equal. Error codes stand by name.
Left out, as Barnabas answers better on purpose: codecs that do not exist (UNSUPPORTED_COMPRESSION_TYPE, Kafka says
UNKNOWN_SERVER_ERROR), a batch length of 2³¹−1 (likewise), a producer id without an epoch (INVALID_RECORD, Kafka writes it).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, build_end_txn_marker, iter_batches
from tests.support.oracle.wire import NOT_READY, Wire
from tests.support.storage.changed_fields import changed

pytestmark = pytest.mark.oracle

SEQUENCE_MAX = 2**31 - 1


class Script:
    """A run against one broker: a topic, and what was observed of it."""

    def __init__(self, address: str, topic: str) -> None:
        self.wire = Wire(address)
        self.topic = topic
        self.seen: list[Any] = []
        self.names: dict[int, str] = {}  # producer ids differ from broker to broker
        self.now_ms = int(topic.rsplit("-", 1)[1]) // 1_000_000

    def note(self, *observed: Any) -> None:
        self.seen.append(observed)

    def batch(
        self, count: int = 1, *, age_ms: int = 0, key: bytes | None = b"k", size: int = 5, **more: Any
    ) -> bytearray:
        """Records a millisecond apart."""
        first = self.now_ms - age_ms
        return build_batch([NewRecord(key, b"v" * size, first + n) for n in range(count)], **more)

    def send(
        self,
        records: bytes | bytearray | None,
        *,
        label: str = "",
        version: int = 9,
        transactional_id: str | None = None,
    ) -> Any:
        """One Produce request; notes and returns error, offset and record errors. A closed connection is noted and opened again."""
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=records)])
        request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[data])
        try:
            part = self.wire.call(request, version).responses[0].partition_responses[0]
        except ConnectionResetError:
            self.note(label, "closed")
            self.wire = Wire(self.wire.bootstrap)
            return None
        errors = [error.batch_index for error in part.record_errors]
        self.note(label, ErrorCode(part.error_code).name, part.base_offset, part.log_start_offset, errors)
        return part

    def marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool = True,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
    ) -> None:
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[TopicPartitionIndexes(name=self.topic, partition_indexes=[0])],
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        result = self.wire.call(WriteTxnMarkersRequest(markers=[marker]), 2 if transaction_version else 1).markers[0]
        code = ErrorCode(result.topics[0].partitions[0].error_code).name
        self.note("marker", epoch, commit, coordinator_epoch, transaction_version, code)

    def list_offset(self, timestamp: int, *, isolation_level: int = 0) -> None:
        asked = ListOffsetsTopic(
            name=self.topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        )
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked])
        part = self.wire.call(request, 7).topics[0].partitions[0]
        name = timestamp if timestamp < 0 else timestamp - self.now_ms
        self.note("offset", name, isolation_level, part.error_code, part.offset, part.timestamp)

    def delete_before(self, offset: int) -> None:
        asked = DeleteRecordsTopic(
            name=self.topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
        )
        part = self.wire.call(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), 2).topics[0].partitions[0]
        self.note("delete", offset, ErrorCode(part.error_code).name, part.low_watermark)

    def fetch(self, offset: int, *, isolation_level: int = 1) -> None:
        """What a Fetch from this offset tells besides the records."""
        part = self.wire.fetch(self.topic, 0, offset, isolation_level=isolation_level)
        # Kafka looks for them up to the next entry of its index, so it may name some that begin after what it sends.
        end = max((header.next_offset for _, header in iter_batches(part.records or b"")), default=0)
        aborted = sorted(
            (self.names.get(one.producer_id, "?"), one.first_offset)
            for one in part.aborted_transactions or []
            if one.first_offset < end
        )
        self.note(
            "fetch", offset, isolation_level, ErrorCode(part.error_code).name, part.high_watermark, part.last_stable_offset,
            part.log_start_offset, aborted if isolation_level else None, len(part.records or b""),
        )  # fmt: skip


def refused_batches(s: Script) -> None:
    good = s.batch(2)
    whole = bytes(good)
    s.send(good, label="good")
    s.send(b"", label="empty")
    s.send(b"x" * 30, label="short")
    s.send(whole[:-1], label="cut off")
    s.send(whole + whole, label="two batches")
    s.send(whole + whole[:-1], label="a batch and a part")
    s.send(whole + b"xyz", label="a batch and three bytes")
    s.send(whole[:-1] + b"!", label="wrong checksum")
    s.send(changed(s.batch(), base_offset=7), label="base offset")
    s.send(changed(s.batch(), leader_epoch=77), label="leader epoch")
    s.send(changed(s.batch(2), record_count=1), label="count below delta")
    s.send(changed(s.batch(2), last_offset_delta=5), label="delta above count")
    s.send(changed(s.batch(), last_offset_delta=-1, record_count=0), label="no records")
    s.send(changed(s.batch(), last_offset_delta=-1), label="negative delta")
    s.send(changed(s.batch(), attributes=0x20), label="control bit")
    s.send(build_end_txn_marker(5, 0, commit=True, coordinator_epoch=0, timestamp=s.now_ms), label="a marker")
    s.send(changed(s.batch(), attributes=0x08), label="LogAppendTime")
    s.send(s.batch(age_ms=-3_700_000), label="an hour ahead")
    s.send(s.batch(age_ms=-3_000_000), label="less than an hour ahead")
    s.send(s.batch(age_ms=s.now_ms), label="of 1970")
    s.send(changed(s.batch(), base_timestamp=-1, max_timestamp=-1), label="no timestamp")
    s.send(s.batch(size=1_048_588), label="too large")
    s.fetch(0)


def refused_lengths(s: Script) -> None:
    for length in (0, 13, 14, 48, 49, -1, 10**6):
        batch = s.batch()
        struct.pack_into(">i", batch, 8, length)
        s.send(batch, label=f"length {length}")
    for magic in (0, 1, 3, 127, -1):
        s.send(changed(s.batch(), magic=magic), label=f"magic {magic}")


def versions_and_codecs(s: Script) -> None:
    for version in range(3, 13):
        for codec in range(5):
            s.send(s.batch(2, compression=codec), label=f"v{version} codec {codec}", version=version)


def compacted(s: Script) -> None:
    for codec in range(5):
        s.send(s.batch(2, compression=codec), label="keys")
        s.send(s.batch(2, compression=codec, key=None), label="no keys")
    mixed = [NewRecord(key, b"v", s.now_ms) for key in (b"k", None, b"", None)]
    s.send(build_batch(mixed), label="some keys")
    s.fetch(0)


def sequences(s: Script) -> None:
    def send(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 900_001) -> None:
        batch = s.batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        s.send(batch, label=f"{producer_id} epoch {epoch} sequence {sequence} x{count}")

    s.send(s.batch(), label="first")
    s.delete_before(1)  # from here on the log may have forgotten producers: an unknown one begins anywhere, as in Kafka
    send(5)
    send(6, 3)
    send(6, 3)  # repeated
    send(6, 2)  # partly repeated
    send(7, 2)
    send(10)
    send(9)
    for n in range(10, 18):
        send(n)
    for n in (17, 13, 12, 11, 5):  # five are remembered
        send(n)
    send(18, epoch=1)
    send(0, epoch=1)
    send(18)
    send(0, epoch=1)
    send(1, epoch=3)
    send(0, epoch=3)
    send(-1, producer_id=900_002)
    send(SEQUENCE_MAX - 1, 2, producer_id=900_003)
    send(1, producer_id=900_003)
    send(0, producer_id=900_003)
    send(1, producer_id=900_003)
    send(SEQUENCE_MAX - 1, 2, producer_id=900_003)
    send(SEQUENCE_MAX - 1, 5, producer_id=900_004)
    send(3, producer_id=900_004)
    send(4, producer_id=900_004)
    send(SEQUENCE_MAX - 1, 5, producer_id=900_004)
    send(SEQUENCE_MAX, producer_id=900_005)
    send(1, producer_id=900_005)
    send(0, producer_id=900_005)


def unverified(s: Script) -> None:
    batch = s.batch(producer_id=900_010, producer_epoch=0, base_sequence=0, transactional=True)
    s.send(changed(s.batch(), attributes=0x10), label="transactional without a producer")
    s.send(batch, label="transactional in a plain request")
    for version in (9, 11, 12):
        again = s.batch(producer_id=900_010, producer_epoch=0, base_sequence=0, transactional=True)
        s.send(again, label=f"unknown transactional id v{version}", version=version, transactional_id=f"none-{s.topic}")


def markers(s: Script) -> None:
    def data(epoch: int, sequence: int) -> None:
        batch = s.batch(producer_id=900_020, producer_epoch=epoch, base_sequence=sequence)
        s.send(batch, label=f"epoch {epoch} sequence {sequence}")

    s.marker(900_020, 5, coordinator_epoch=3)  # of an unknown producer
    data(4, 0)
    data(5, 1)
    data(5, 0)
    data(5, 1)
    s.marker(900_020, 5, coordinator_epoch=2)
    s.marker(900_020, 4, coordinator_epoch=3)
    s.marker(900_020, 5, coordinator_epoch=3)
    s.marker(900_020, 5, coordinator_epoch=3, commit=False)
    s.marker(900_020, 6, coordinator_epoch=4)
    data(5, 2)
    data(6, 2)
    data(6, 0)
    s.marker(900_020, 6, coordinator_epoch=4, transaction_version=2)
    s.marker(900_020, 5, coordinator_epoch=4, transaction_version=2)
    s.marker(900_020, 7, coordinator_epoch=4, transaction_version=2)
    s.marker(900_020, 7, coordinator_epoch=4, transaction_version=2)
    s.marker(900_020, 6, coordinator_epoch=4, transaction_version=2)
    s.marker(900_020, 7, coordinator_epoch=3, transaction_version=2)
    for offset in range(8):
        s.fetch(offset)


def offsets_by_time(s: Script) -> None:
    special = (-1, -2, -3, -4, -5, -6)
    for timestamp in special[:3]:
        s.list_offset(timestamp)
    for age_ms in (5000, 9000, 1000, 3000, 1000, 8000):
        s.send(s.batch(3, age_ms=age_ms))
    for isolation_level in (0, 1):
        for timestamp in special[:4]:
            s.list_offset(timestamp, isolation_level=isolation_level)
    for age_ms in (100_000, 9001, 9000, 8999, 5000, 4998, 4997, 3000, 1000, 999, 998, 997, 0):
        s.list_offset(s.now_ms - age_ms)
    s.list_offset(0)
    s.delete_before(4)
    for timestamp in (0, s.now_ms - 4998, -1, -2, -3):
        s.list_offset(timestamp)


def deletions(s: Script) -> None:
    s.delete_before(0)
    s.delete_before(1)
    s.delete_before(-1)
    for _ in range(4):
        s.send(s.batch(5))
    for offset in (3, 7, 5, 21, -2, 20):
        s.delete_before(offset)
        s.fetch(0)
        s.fetch(7)
        s.list_offset(-2)
    s.delete_before(-1)
    s.fetch(20)
    s.fetch(21)
    s.send(s.batch(5))
    s.fetch(20)


def append_times(s: Script) -> None:
    s.send(s.batch(3, age_ms=10**9))
    s.send(s.batch(3, age_ms=-(10**9)))
    s.send(changed(s.batch(), attributes=0x08), label="LogAppendTime asked for")
    s.fetch(0)


def recompressed(s: Script) -> None:
    for codec in range(5):
        s.send(s.batch(50, compression=codec, size=50), label=f"codec {codec}")
        batch = s.batch(3, compression=codec, producer_id=900_030, producer_epoch=0, base_sequence=codec * 3)
        s.send(batch, label=f"idempotent, codec {codec}")


class Producer:
    """A transactional producer of one partition; TV2 where `version` of Produce is 12, else TV1."""

    def __init__(self, s: Script, name: str) -> None:
        self.s = s
        self.name = f"{name}-{s.topic}"
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        deadline = time.monotonic() + 60
        while (answer := s.wire.call(request, 4)).error_code:
            assert answer.error_code in NOT_READY, answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequence = 0
        s.names[self.producer_id] = name

    def write(self, count: int = 1) -> None:
        batch = self.s.batch(
            count,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        part = self.s.send(batch, label="transactional", version=12, transactional_id=self.name)
        assert part.error_code == 0, part
        self.sequence += count

    def end(self, *, commit: bool) -> None:
        """Ends the transaction and waits for its marker, so that offsets are the same on both sides."""
        end = self.s.wire.fetch(self.s.topic, 0, 4).high_watermark
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        answer = self.s.wire.call(request, 5)
        assert answer.error_code == 0, answer
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        deadline = time.monotonic() + 60
        while self.s.wire.fetch(self.s.topic, 0, 4).high_watermark == end:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def read_committed(s: Script) -> None:
    a, b, c = (Producer(s, name) for name in "abc")
    s.send(s.batch(3))
    a.write(2)
    b.write()
    s.send(s.batch())
    c.write(3)
    s.fetch(0)
    b.end(commit=False)
    c.end(commit=True)
    for offset in range(12):
        s.fetch(offset)
    b.write()
    a.end(commit=False)
    s.fetch(0)
    b.end(commit=False)
    c.write()
    s.send(s.batch(2))
    s.delete_before(4)
    for isolation_level in (0, 1):
        for offset in range(20):
            s.fetch(offset, isolation_level=isolation_level)
        for timestamp in (
            -1,
            -2,
            0,
            s.now_ms,
            s.now_ms + 1,
        ):  # the largest is a marker's, so of another time on each side
            s.list_offset(timestamp, isolation_level=isolation_level)
    c.end(commit=False)
    for offset in range(4, 20):
        s.fetch(offset)


SCRIPTS: list[tuple[Callable[[Script], None], dict[str, str]]] = [
    (refused_batches, {}),
    (refused_lengths, {}),
    (versions_and_codecs, {}),
    (compacted, {"cleanup.policy": "compact"}),
    (sequences, {}),
    (unverified, {}),
    (markers, {}),
    (offsets_by_time, {}),
    (deletions, {}),
    (read_committed, {}),
    (append_times, {"message.timestamp.type": "LogAppendTime"}),
    (recompressed, {"compression.type": "lz4"}),
    (recompressed, {"compression.type": "uncompressed"}),
]


def play(address: str, script: Callable[[Script], None], topic: str, configs: dict[str, str]) -> list[Any]:
    played = Script(address, topic)
    try:
        played.wire.create_topic(topic, 1, **configs)
        played.wire.await_coordinators()
        script(played)
    finally:
        played.wire.close()
    return played.seen


@pytest.mark.parametrize(
    ("script", "configs"), SCRIPTS, ids=[f"{script.__name__}{'-'.join(c.values())}" for script, c in SCRIPTS]
)
def test_answers_as_kafka(kafka: str, barnabas: str, script: Callable[[Script], None], configs: dict[str, str]) -> None:
    topic = f"log-diff-{time.time_ns()}"
    assert play(barnabas, script, topic, configs) == play(kafka, script, topic, configs)
