"""Kafka's own tool reads every file of a partition that Barnabas wrote, and finds nothing wrong; and Barnabas makes of
Kafka's segments the very index files that Kafka made."""

from __future__ import annotations

import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.protocol.compression import Compression
from barnabas.runtime.files import FileDisk
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.segment import Segment
from tests.support.oracle.tools import COMPLAINT, FIRST_OFFSET, dumped
from tests.support.oracle.wire import Wire
from tests.support.storage.batches import (
    NOW,
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
    plain,
    small_segments,
)

pytestmark = pytest.mark.oracle

FIELD = re.compile(r"(\w+): (\S+)")


def dump(folder: Path) -> dict[str, list[dict[str, str]]]:
    """What Kafka's tool says of each file: a dict of fields a line."""
    files = [path for path in sorted(folder.iterdir()) if path.name[0].isdigit()]
    output = FIRST_OFFSET.sub("", dumped(files, "--deep-iteration"))
    assert not [line for line in output.splitlines() if COMPLAINT.search(line)]
    found: dict[str, list[dict[str, str]]] = {}
    name = ""
    for line in output.splitlines():
        if line.startswith("Dumping "):
            name = Path(line.removeprefix("Dumping ")).name
            found[name] = []
        elif name and ": " in line and not line.startswith("Log starting offset"):
            found[name].append(dict(FIELD.findall(line)))
    assert set(found) == {path.name for path in files}
    return found


def write_a_life(disk: FileDisk | MemoryDisk, *, until: int = 12) -> PartitionLog:
    """Every kind of batch, codec and outcome, over several segments and epochs; a transaction is left open."""
    log = open_log(disk, small_segments(900))
    for n in range(until):
        epoch = n // 4
        append(log, plain(3, timestamp=NOW + n * 10, compression=Compression(n % 5)), leader_epoch=epoch)
        append(log, idempotent(4, n * 2, 2, timestamp=NOW + n * 10 - n % 3 * 100), leader_epoch=epoch)
        append_transactional(log, 5, n, leader_epoch=epoch)
        append_transactional(log, 6, n, leader_epoch=epoch)
        end_transaction(log, 5, commit=n % 2 == 0, leader_epoch=epoch, now_ms=NOW + n * 10)
        end_transaction(log, 6, commit=n % 3 == 0, leader_epoch=epoch, coordinator_epoch=n, now_ms=NOW + n * 10)
    append_transactional(log, 7, 0, 2, leader_epoch=until // 4)
    return log


def check_dump(found: dict[str, list[dict[str, str]]], log: PartitionLog) -> None:
    """The tool's numbers are ours."""
    batches = [line for name in sorted(found) if name.endswith(".log") for line in found[name] if "baseOffset" in line]
    assert [int(line["baseOffset"]) for line in batches] == sorted(int(line["baseOffset"]) for line in batches)
    assert int(batches[-1]["lastOffset"]) + 1 == log.log_end_offset
    aborted = [line for name in sorted(found) if name.endswith(".txnindex") for line in found[name]]
    assert [
        (int(e["producerId"]), int(e["firstOffset"]), int(e["lastOffset"]), int(e["lastStableOffset"])) for e in aborted
    ] == [tuple(entry) for entry in log.aborted_transactions(0, 10_000)]
    assert len(aborted) > 5
    producers = found[f"{log.log_end_offset:020d}.snapshot"]
    assert {int(line["producerId"]) for line in producers} == set(log.producers.entries)
    for line in producers:
        entry = log.producers.entries[int(line["producerId"])]
        assert int(line["lastSequence"]) == entry.last_sequence
        assert int(line["lastOffset"]) == entry.last_offset
        assert int(line["coordinatorEpoch"]) == entry.coordinator_epoch
        is_open = line["currentTxnFirstOffset"] != "OptionalLong.empty"
        assert is_open == (entry.transaction_first_offset >= 0)
    assert sum(len(lines) for name, lines in found.items() if name.endswith(".index")) > 10
    assert sum(len(lines) for name, lines in found.items() if name.endswith(".timeindex")) > 5


def test_a_cleanly_closed_partition(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    log = write_a_life(disk)
    log.close()
    disk.close()
    check_dump(dump(tmp_path / "t-0"), log)


def test_partitions_recovered_after_kills_truncated_and_rolled(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    write_a_life(disk)  # never closed: as after a kill
    log = open_log(disk, small_segments(900))
    log.truncate_to(log.log_end_offset - 5)
    for n in range(4):
        append(log, plain(3, timestamp=NOW + 1000 + n), leader_epoch=9)
    log.roll(NOW)
    append(log, plain(2, timestamp=NOW + 2000), leader_epoch=10)
    log.close()
    torn = sorted(path for path in (tmp_path / "t-0").iterdir() if path.suffix == ".log")[-1]
    torn.write_bytes(torn.read_bytes() + b"\0" * 100)
    log = open_log(disk, small_segments(900))
    assert log.truncated_bytes == 100
    log.close()
    disk.close()
    check_dump(dump(tmp_path / "t-0"), log)


def test_kafkas_segments_get_the_indexes_that_kafka_gave_them(kafka_data: tuple[str, Path], tmp_path: Path) -> None:
    bootstrap, folder = kafka_data
    topic = f"indexes-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"segment.bytes": "1048576", "index.interval.bytes": "2000"}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(30)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 5, "batch.num.messages": 20}
    )
    producer.init_transactions(60)
    for n in range(40):
        producer.begin_transaction()
        for m in range(100):
            producer.produce(topic, key=b"%d" % m, value=b"v" * 1000, timestamp=NOW + n * 1000 - m % 7, partition=0)
        if n % 3:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)

    with Wire(bootstrap) as wire:
        wire.await_markers()
    source = folder / "node-1" / "data" / f"{topic}-0"
    shutil.copytree(source, tmp_path / "t-0")
    names = sorted(path.name[:20] for path in source.glob("*.log"))
    assert len(names) > 3
    kafkas = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    for path in (tmp_path / "t-0").glob("*index"):
        path.unlink()
    disk = FileDisk(str(tmp_path))
    ours = LogConfig(segment_bytes=1048576, index_interval_bytes=2000)
    log = PartitionLog.open(disk, "t-0", ours, LogOpening(now_ms=NOW, topic_id=None, clean=False))
    assert log.truncated_bytes == 0
    for name in names[:-1]:  # the last one's indexes are preallocated by the running Kafka
        for suffix in (".index", ".timeindex", ".txnindex"):
            path = tmp_path / "t-0" / (name + suffix)
            assert (path.read_bytes() if path.exists() else b"") == kafkas.get(name + suffix, b""), path.name
    assert log.aborted_transactions(0, 10**9)
    assert log.epochs.entries == [(0, 0)]
    # Kafka's snapshot at a roll, against ours: what the log says up to there, replayed from its beginning.
    snapshot = PartitionProducers()
    snapshot.load_snapshot(kafkas[names[-1] + ".snapshot"], int(names[-1]), NOW, 86_400_000)
    log.truncate_to(int(names[-1]))
    assert sorted(snapshot.entries) == sorted(log.producers.entries)
    assert snapshot.to_snapshot() == log.producers.to_snapshot()
    disk.close()

    # And Kafka's own files, as they are, are taken without a recovery.
    clean = FileDisk(str(source.parent))
    segment = Segment(clean, source.name, int(names[1]), config=replace(ours), now_ms=NOW)
    segment.load()
    assert segment.fits_its_indexes()
    clean.close()
