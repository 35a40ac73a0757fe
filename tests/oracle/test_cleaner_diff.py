"""Kafka's cleaner and ours on the same batches: the same records stay, and Kafka's tool finds nothing wrong with what we leave."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from barnabas.protocol.records import decode_records, iter_batches, read_control
from barnabas.runtime.files import FileDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.elsewhere import wait_until
from tests.support.oracle.real_kafka import SETTINGS
from tests.support.oracle.tools import dumped
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker
from tests.support.storage.histories import clean

pytestmark = pytest.mark.oracle

OURS = LogConfig(
    segment_bytes=1048576,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=0,
)
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    # No cleaning before we say so: the lag is lifted when everything is written.
    "min.compaction.lag.ms": "3600000",
    "delete.retention.ms": "0",
}
Batch = tuple[int, int, int, int, bool, bool, bool, tuple[object, ...]]


def write(bootstrap: str, topic: str, turn: int) -> None:
    """Keys that come again, tombstones, aborted and committed transactions, a transaction over segments, several codecs."""
    for number, codec in enumerate(("none", "gzip", "lz4", "zstd")):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{topic}-{number}-{turn}",
                "linger.ms": 5,
                "batch.num.messages": 20,
                "compression.type": codec,
            }
        )
        producer.init_transactions(60)
        for n in range(8):
            producer.begin_transaction()
            for m in range(40 if n % 3 else 400):
                key = b"key %d" % ((m * 7 + n) % 60)
                value = None if (m + n) % 11 == 0 else bytes((m * k + n) % 251 for k in range(1_500))
                producer.produce(topic, key=key, value=value, partition=0)
            if n % 4 == 1:
                producer.flush(60)
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": 10})
    for m in range(1_500):
        plain.produce(topic, key=b"key %d" % (30 + m % 80), value=b"v%d" % m * 200, partition=0)
        plain.poll(0)
    assert plain.flush(60) == 0


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def batches(folder: Path, end_offset: int) -> list[Batch]:
    """Batches with what is left in them, but for those that are left empty: which these are may differ."""
    found: list[Batch] = []
    for base in bases(folder):
        data = (folder / f"{base:020d}.log").read_bytes()
        for position, header in iter_batches(data):
            if header.base_offset >= end_offset or not header.record_count:
                continue
            records = decode_records(data, position, header)
            kept: tuple[object, ...] = (
                tuple(read_control(record) for record in records)
                if header.is_control
                else tuple((record.offset, record.timestamp, record.key, record.value) for record in records)
            )
            found.append(
                (
                    header.base_offset,
                    header.last_offset,
                    header.base_sequence,
                    header.producer_id,
                    header.is_transactional,
                    header.is_control,
                    header.has_delete_horizon,
                    (header.compression, header.max_timestamp, *kept),
                )
            )
    return found


def complaints(folder: Path, end_offset: int) -> set[tuple[str, str]]:
    """(file, complaint) of Kafka's tool about the segments below an offset; gaps are no reason for one."""
    files = [path for path in sorted(folder.iterdir()) if path.stem.isdigit() and int(path.stem) < end_offset]
    said = dumped(files, "--deep-iteration")
    assert not re.search(r"isvalid: false|exception", said, re.IGNORECASE)
    found = re.findall(rf"^(.*?){re.escape(str(folder))}/(\d+\.\w+)", said, re.MULTILINE)
    return {(name, words) for words, name in found if not words.startswith(("Dumping", "Non-consecutive offsets"))}


def configure(admin: AdminClient, whose: ConfigResource, key: str, value: str | None) -> None:
    """Sets a key; None deletes it."""
    resource = ConfigResource(whose.restype, whose.name)
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=operation))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


@pytest.fixture
def admin(kafka_data: tuple[str, Path]) -> Iterator[AdminClient]:
    """An admin client of the shared Kafka. The log cleaner checks the logs every 100 ms until the test ends."""
    admin = AdminClient({"bootstrap.servers": kafka_data[0]})
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    configure(admin, broker, "log.cleaner.backoff.ms", "100")
    yield admin
    configure(admin, broker, "log.cleaner.backoff.ms", None)


def test_the_same_records_stay(kafka_data: tuple[str, Path], admin: AdminClient, tmp_path: Path) -> None:
    """Of Kafka's log we clean a copy; then of the log that Kafka has cleaned, when the delete horizons have passed."""
    bootstrap, folder = kafka_data
    topic = f"cleaned-{uuid.uuid4().hex[:8]}"
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=CONFIG)]).values():
        future.result(30)
    settings = ConfigResource(ConfigResource.Type.TOPIC, topic)
    source = folder / "node-1" / "data" / f"{topic}-0"
    checkpoint = folder / "node-1" / "data" / "cleaner-offset-checkpoint"
    for turn in range(2):
        write(bootstrap, topic, turn)
        assert len(bases(source)) > 2
        active = bases(source)[-1]
        mine = tmp_path / str(turn)
        shutil.copytree(source, mine / f"{topic}-0")
        configure(admin, settings, "min.compaction.lag.ms", "0")
        wait_until(lambda active=active: f"{topic} 0 {active}\n" in checkpoint.read_text(), "Kafka has cleaned it", 240)  # type: ignore[misc]  # bound now
        configure(admin, settings, "min.compaction.lag.ms", "3600000")

        disk = FileDisk(str(mine))
        now_ms = int(time.time() * 1000)
        log = PartitionLog.open(disk, f"{topic}-0", OURS, LogOpening(now_ms=now_ms, topic_id=None, clean=False))
        before = log.size_bytes
        assert clean(disk, log, now_ms) is not None
        assert log.cleaned_to == active
        assert log.size_bytes < before / 2
        log.close()
        disk.close()
        kafkas, ours = batches(source, active), batches(mine / f"{topic}-0", active)
        assert len(kafkas) > 20
        assert [batch[:7] for batch in ours] == [batch[:7] for batch in kafkas]
        assert ours == kafkas
        assert any(batch[6] for batch in ours)  # delete horizons
        assert any(batch[5] for batch in ours)  # markers
        assert complaints(mine / f"{topic}-0", active) <= complaints(source, active)


def test_kafka_ends_a_swap_that_we_began(tmp_path: Path, kafka_on: Callable[[Path], str]) -> None:
    """And drops one whose files were not all renamed."""
    barnabas = ServedBroker(tmp_path / "data", *SETTINGS, "log.cleaner.enable=false").start()
    expected: dict[str, list[bytes]] = {}
    try:
        for topic in ("whole", "half"):
            with Wire(barnabas.address) as wire:
                later = {"min.compaction.lag.ms": "3600000"}  # Kafka's cleaner would take the first segment, too
                wire.create_topic(topic, **{"cleanup.policy": "compact", "segment.bytes": "1048576", **later})
            producer = Producer({"bootstrap.servers": barnabas.address, "batch.num.messages": 10})
            for m in range(2_500):
                producer.produce(topic, key=b"key %d" % (m % 50), value=b"v%d" % m * 200, partition=0)
                producer.poll(0)
            assert producer.flush(60) == 0
            expected[topic] = [b"v%d" % m * 200 for m in range(2_450, 2_500)]
        assert barnabas.stop() == 0
    finally:
        barnabas.kill()
    kinds = (".log", ".index", ".timeindex")
    for topic in expected:
        folder = barnabas.data / f"{topic}-0"
        assert len(bases(folder)) > 2
        shutil.copytree(folder, tmp_path / "aside" / f"{topic}-0")
        disk = FileDisk(str(tmp_path / "aside"))
        log = PartitionLog.open(disk, f"{topic}-0", OURS, LogOpening(now_ms=0, topic_id=None, clean=True))
        assert clean(disk, log, 0) is not None
        log.close()
        disk.close()
        for kind in kinds:
            suffix = ".cleaned" if topic == "half" and kind != ".log" else ".swap"
            shutil.copy(tmp_path / "aside" / f"{topic}-0" / f"{0:020d}{kind}", folder / f"{0:020d}{kind}{suffix}")
    before = (barnabas.data / "half-0" / f"{0:020d}.log").stat().st_size
    (barnabas.data / ".kafka_cleanshutdown").unlink()  # it was killed in the middle
    address = kafka_on(barnabas.data)
    for topic, values in expected.items():
        folder = barnabas.data / f"{topic}-0"
        assert not [path for path in folder.iterdir() if path.suffix in (".swap", ".cleaned")]
        assert read_latest(address, topic) == values
    assert (barnabas.data / "half-0" / f"{0:020d}.log").stat().st_size == before
    assert (barnabas.data / "whole-0" / f"{0:020d}.log").stat().st_size < 100_000


def read_latest(address: str, topic: str) -> list[bytes]:
    """The last value of each key, in the order of their offsets."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "r", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: dict[bytes, tuple[int, bytes]] = {}
    while True:
        message = reader.poll(60)
        assert message is not None
        if message.error():
            break
        found[message.key() or b""] = (place_of(message)[2], value_of(message))
    reader.close()
    return [value for _, value in sorted(found.values())]
