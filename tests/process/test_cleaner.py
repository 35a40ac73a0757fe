"""The log cleaner of a served broker: logs get small beside the work that fills them, over restarts, and nobody reads anything else."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.runtime.files import FileDisk
from barnabas.storage.checkpoints import CLEANER_OFFSET_CHECKPOINT, read_offsets
from tests.support.elsewhere import wait_until
from tests.support.oracle.wire import NOT_READY, Wire
from tests.support.processes.fixtures import Serve, restart

pytestmark = pytest.mark.process

confluent_kafka = pytest.importorskip("confluent_kafka")

EAGER = (
    "log.cleaner.backoff.ms=50",
    "log.cleaner.min.cleanable.ratio=0.01",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.segment.bytes=1048576",
    "offsets.topic.num.partitions=1",
    "offsets.topic.segment.bytes=1048576",
)
MIB = 1 << 20


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


class Transactions:
    """A transactional producer of one partition (TV2), a request at a time."""

    def __init__(self, wire: Wire, transactional_id: str) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        wire.find_coordinator(transactional_id, 1)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        begun = wire.patiently(request, 4)
        assert begun.error_code == 0
        self.producer_id, self.epoch = begun.producer_id, begun.producer_epoch

    def write(self, topic: str, records: list[NewRecord], sequence: int = 0) -> None:
        batch = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=9_000, topic_data=[data])
        assert self.wire.call(request, 12).responses[0].partition_responses[0].error_code == 0

    def end(self, *, commit: bool = True) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        ended = self.wire.patiently(request, 5)
        assert ended.error_code == 0
        self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch


def read_committed(address: str, topic: str) -> dict[bytes, bytes]:
    """The latest value of each key, as librdkafka reads the topic from its beginning."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: dict[bytes, bytes | None] = {}
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        found[message.key()] = message.value()
    consumer.close()
    return {key: value for key, value in found.items() if value is not None}


def test_a_compacted_topic_stays_small_and_complete(serve: Serve) -> None:
    rng = random.Random(1)
    broker = serve(*EAGER)
    folder = broker.broker(1).directory / "kept-0"
    expected: dict[bytes, bytes] = {}
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("kept", **{"cleanup.policy": "compact", "segment.bytes": str(MIB)})
    for life in range(4):
        with Wire(broker.bootstrap_servers) as wire:
            producer = Transactions(wire, "writer")
            for n in range(12):
                wave = {b"key %d" % rng.randrange(40): rng.randbytes(3_000) for _ in range(60)}
                commit = n % 4 != 1
                producer.write("kept", [NewRecord(key, value, 1_700_000_000_000) for key, value in wave.items()])
                producer.end(commit=commit)
                if commit:
                    expected.update(wave)
        restart(broker, kill=life % 2 == 0)
    assert read_committed(broker.bootstrap_servers, "kept") == expected
    wait_until(lambda: log_bytes(folder) < 1.5 * MIB, f"{folder} is cleaned; see {broker.broker(1).log}")
    assert read_committed(broker.bootstrap_servers, "kept") == expected
    with Wire(broker.bootstrap_servers) as wire:
        end_offset = wire.fetch("kept", 0, 0).high_watermark
        refused = wire.produce(9, "kept", 0, [b"without a key"])
    assert refused.error_code == 87  # INVALID_RECORD
    restart(broker, kill=True)
    assert read_committed(broker.bootstrap_servers, "kept") == expected
    broker.stop_broker()
    cleaned = read_offsets(FileDisk(str(broker.broker(1).directory)), CLEANER_OFFSET_CHECKPOINT)["kept", 0]
    assert 0.5 * end_offset < cleaned < end_offset
    assert not [path.name for path in folder.iterdir() if path.suffix in (".cleaned", ".swap")]
    assert "Cleaner run: " in broker.broker(1).log


# By few transactions, and by half a million.
@pytest.mark.parametrize(
    ("lives", "producers", "count"), [(3, 2, 150), pytest.param(10, 20, 2_500, marks=pytest.mark.soak)]
)
def test_the_coordinators_logs_stay_small(serve: Serve, lives: int, producers: int, count: int) -> None:
    """Names and metadata are long, so that few transactions and commits fill many segments."""
    broker = serve(*EAGER)
    ids = [f"t{n}" * 600 for n in range(producers)]
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic("t")
    for life in range(lives):
        with Wire(broker.bootstrap_servers) as wire:
            for transactional_id in ids:
                producer = Transactions(wire, transactional_id)
                for n in range(count):
                    producer.write("t", [NewRecord(b"k", b"v", 1_700_000_000_000)])
                    producer.end(commit=n % 3 != 0)
            for n in range(400):
                _commit(wire, 1_000 * life + n)
        restart(broker, kill=life != 1)
        for topic in ("__transaction_state-0", "__consumer_offsets-0"):
            folder = broker.broker(1).directory / topic
            wait_until(
                lambda folder=folder: log_bytes(folder) < 1.2 * MIB,  # type: ignore[misc]  # bound now
                f"{folder} is cleaned; see {broker.broker(1).log}",
            )
    with Wire(broker.bootstrap_servers) as wire:
        assert _committed(wire) == 1_000 * lives - 601
        found = [Transactions(wire, transactional_id) for transactional_id in ids]
        assert len({producer.producer_id for producer in found}) == producers
        assert min(producer.epoch for producer in found) > lives * count


def _commit(wire: Wire, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m" * 4_000)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    wire.find_coordinator("g", 0) if not offset % 1_000 else None
    deadline = time.monotonic() + 60
    while True:
        answer = wire.call(OffsetCommitRequest(group_id="g", topics=topics), 7)
        code = answer.topics[0].partitions[0].error_code
        if code == 0:
            return
        assert code in NOT_READY, answer
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _committed(wire: Wire) -> int:
    wire.find_coordinator("g", 0)
    request = OffsetFetchRequest(group_id="g", topics=[TopicPartitionIndexes(name="t", partition_indexes=[0])])
    answer = wire.patiently(request, 7)
    return int(answer.topics[0].partitions[0].committed_offset)
