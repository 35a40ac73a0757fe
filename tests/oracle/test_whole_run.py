"""A whole run, three clients at once, and then Kafka's own tool over every file of every partition folder that it leaves.

The broker is killed twice and then ended by SIGTERM. The run has every codec, idempotent and transactional
producers (committed, aborted, left open), groups with offsets, a compacted topic, one with LogAppendTime, a deleted one,
DeleteRecords and several segments. The tool must find nothing wrong, and decode every record.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from barnabas.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from barnabas.client.types import CompressionType
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import COMPLAINT, FIRST_OFFSET, dumped
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle

CODECS: tuple[CompressionType, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
# Few partitions of the internal topics, so that each has something in it; what is deleted leaves at once.
SETTINGS = (
    "transaction.state.log.num.partitions=3",
    "offsets.topic.num.partitions=3",
    "group.initial.rebalance.delay.ms=0",
    "log.retention.check.interval.ms=300",
    "log.segment.delete.delay.ms=0",
)
TOPICS = {
    "segmented": {"segment.bytes": "1048576", "file.delete.delay.ms": "0"},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "gone": {},
    "trimmed": {},
}
DECODERS = {
    "__transaction_state": "--transaction-log-decoder",
    "__consumer_offsets": "--offsets-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}
DUMPED = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)|\d{20}-\d{10}\.checkpoint")
DECODED = re.compile(
    r"payload: \{.*\}$|key: \{.*\} payload: (\{.*\}|<DELETE>)$"
    r"|endTxnMarker: (COMMIT|ABORT) coordinatorEpoch: \d+$|(LeaderChange|SnapshotHeader|SnapshotFooter|KRaftVersion):? \{.*\}$"
)
# Files of a partition or a quorum in formats that the tool does not know; the saved states of a log are Barnabas' own.
OTHER = {
    "partition.metadata",
    "leader-epoch-checkpoint",
    "quorum-state",
    "synced-state-checkpoint",
    "lost-producers",
}
WAIT_S = 90.0


async def live(address: str, part: str) -> None:
    """What clients do. `part` keeps the transactional ids and groups of two parts apart."""
    rng = random.Random(part)
    async with Admin(bootstrap_servers=address) as admin:
        present = await admin.list_topics()
        await admin.create_topics(
            [NewTopic(name, PARTITIONS, 1, configs) for name, configs in TOPICS.items() if name not in present]
        )
        librdkafka(address, part, rng)
        await asyncio.gather(aiokafka(address, part, rng), bundled(address, part, rng))
        await admin.delete_records({TopicPartition("segmented", 0): 150, TopicPartition("trimmed", 1): 7})
        await admin.delete_topics(["gone"])


def play(broker: ServedBroker, part: str) -> None:
    """A part of a run, until what it deleted is gone: whole segments below the log start, folders of a deleted topic."""
    asyncio.run(live(broker.address, part))
    old = [broker.data / "segmented-0" / f"{0:020d}.log", *broker.data.glob("gone-*")]
    deadline = time.monotonic() + WAIT_S
    while any(path.exists() for path in old):
        assert time.monotonic() < deadline, old
        time.sleep(0.02)


def librdkafka(address: str, part: str, rng: random.Random) -> None:
    """Every codec over several segments; transactions of each outcome; a group."""
    settings: dict[str, Any] = {"bootstrap.servers": address, "linger.ms": 2, "retry.backoff.ms": 10}
    for codec in CODECS:
        producer = LibrdkafkaProducer({**settings, "compression.type": codec, "enable.idempotence": True})
        for n in range(60):
            for topic in TOPICS:
                producer.produce(
                    topic, rng.randbytes(10) * 20, b"%d" % n, partition=n % PARTITIONS, headers={"n": b"%d" % n}
                )
            producer.produce("segmented", rng.randbytes(20_000), partition=n % 2)
        assert producer.flush(WAIT_S) == 0
    consumer = LibrdkafkaConsumer(
        {
            "bootstrap.servers": address,
            "group.id": f"lib-{part}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["stamped"])
    assert consumer.consume(10, WAIT_S)
    consumer.commit(asynchronous=False)
    committed, aborted, undecided = (
        LibrdkafkaProducer({**settings, "transactional.id": f"lib-{n}-{part}"}) for n in range(3)
    )
    for producer in (committed, aborted, undecided):
        producer.init_transactions(WAIT_S)
    undecided.begin_transaction()
    for partition in range(PARTITIONS):
        undecided.produce("trimmed", b"left open", partition=partition)
    assert undecided.flush(WAIT_S) == 0
    for n in range(12):
        for producer in (committed, aborted):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("segmented", rng.randbytes(25_000), partition=partition)
            assert producer.flush(WAIT_S) == 0
        position = [LibrdkafkaPartition("stamped", 0, n)]
        committed.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), WAIT_S)
        committed.commit_transaction(WAIT_S)
        aborted.abort_transaction(WAIT_S)
    consumer.close()


async def aiokafka(address: str, part: str, rng: random.Random) -> None:
    """Every codec, transactions of both outcomes with offsets, a group."""
    for codec in CODECS:
        async with AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            transactional_id=f"aio-{codec}-{part}",
        ) as producer:
            for n in range(4):
                await producer.begin_transaction()
                for topic in ("compacted", "stamped", "segmented"):
                    await producer.send_and_wait(topic, rng.randbytes(10) * 30, key=b"%d" % n)
                await producer.send_offsets_to_transaction({AiokafkaPartition("stamped", 1): n}, f"aio-txn-{part}")
                await (producer.abort_transaction() if n % 2 else producer.commit_transaction())
    async with AIOKafkaConsumer(
        "stamped",
        bootstrap_servers=address,
        group_id=f"aio-{part}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            await consumer.getone()
        await consumer.commit()


async def bundled(address: str, part: str, rng: random.Random) -> None:
    """Every codec, TV2 transactions of both outcomes, a group whose offsets go with them."""
    async with Consumer(
        "compacted",
        bootstrap_servers=address,
        group_id=f"own-{part}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            while not await consumer.getmany(timeout_ms=200):
                pass
        for codec in CODECS:
            async with Producer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                transactional_id=f"own-{codec}-{part}",
            ) as producer:
                for n in range(4):
                    await producer.begin_transaction()
                    for topic in ("compacted", "trimmed", "segmented"):
                        await producer.send(topic, rng.randbytes(10) * 30, b"%d" % n)
                    await producer.send_offsets({TopicPartition("compacted", 0): n}, consumer.group_metadata())
                    await (producer.abort_transaction() if n % 2 else producer.commit_transaction())
        await consumer.commit()


def ends(address: str) -> dict[str, tuple[int, int]]:
    """First and next offset of every partition that clients made, by folder."""
    consumer = LibrdkafkaConsumer(
        {"bootstrap.servers": address, "group.id": "none", "isolation.level": "read_uncommitted"}
    )
    try:
        return {
            f"{topic}-{partition}": consumer.get_watermark_offsets(LibrdkafkaPartition(topic, partition), WAIT_S)
            for topic in sorted(TOPICS.keys() - {"gone"})
            for partition in range(PARTITIONS)
        }
    finally:
        consumer.close()


def dump(files: list[Path], *options: str) -> dict[Path, list[str]]:
    """The lines that Kafka's tool says of each file; it must have nothing to complain of."""
    said = FIRST_OFFSET.sub("", dumped(files, "--deep-iteration", *options))
    found: dict[Path, list[str]] = {}
    lines: list[str] = []
    for line in said.splitlines():
        if line.startswith("Dumping "):
            lines = found[Path(line.removeprefix("Dumping "))] = []
        else:
            lines.append(line)
            assert line.startswith("| offset") or not COMPLAINT.search(line), line
    assert sorted(found) == sorted(files)
    return found


def run(data: Path) -> dict[str, tuple[int, int]]:
    """A run; returns what the broker told of its offsets at last."""
    broker = ServedBroker(data, *SETTINGS).start()
    try:
        for part in ("first", "second"):
            play(broker, part)
            broker.restart(kill=True)
        offsets = ends(broker.address)
        assert broker.stop() == 0, broker.log()
    finally:
        broker.kill()
    assert "Traceback" not in broker.log(), broker.log()
    return offsets


def parse(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


class Dump:
    """What the tool said of every file of every partition folder, by one call a kind of topic."""

    def __init__(self, data: Path) -> None:
        kinds: dict[str, list[Path]] = defaultdict(list)
        for folder in sorted(path for path in data.iterdir() if path.is_dir()):
            for path in sorted(folder.iterdir()):
                if path.name in OTHER:
                    continue
                assert DUMPED.fullmatch(path.name), f"what is {path}?"
                kinds[topic_of(path)].append(path)
        ours = [path for topic, paths in kinds.items() if topic not in DECODERS for path in paths]
        self.lines = dump(ours)
        for topic, option in DECODERS.items():
            self.lines |= dump(kinds[topic], option)

    def files(self, topic: str, *suffixes: str) -> dict[Path, list[str]]:
        return {
            path: lines for path, lines in self.lines.items() if topic_of(path) == topic and path.suffix in suffixes
        }


def topic_of(path: Path) -> str:
    return path.parent.name.rsplit("-", 1)[0]


def test_kafkas_tool_reads_every_file(tmp_path: Path) -> None:
    needs_java("Kafka's tool cannot run")
    offsets = run(tmp_path / "data")
    dump = Dump(tmp_path / "data")
    check_files(dump)
    check_data(dump, offsets)
    for topic in DECODERS:
        check_decoded(dump, topic)
    aborted = {folder.name: check_aborted(dump, folder) for folder in {path.parent for path in dump.lines}}
    assert aborted["segmented-1"] > 10
    assert sum(count for folder, count in aborted.items() if folder.startswith("__consumer_offsets")) > 10
    starts = offsets["segmented-0"][0], offsets["trimmed-1"][0]
    # DeleteRecords is written down once a minute, as in Kafka; but a deleted segment does not come back.
    assert 0 < starts[0] <= 150
    assert starts[1] in (0, 7)


def check_files(dump: Dump) -> None:
    """There are files of every kind, and they hold something."""
    suffixes = Counter(path.suffix for path in dump.lines)
    assert min(suffixes[kind] for kind in (".log", ".index", ".timeindex", ".snapshot")) > 20, suffixes
    assert len(dump.files("segmented", ".txnindex")) >= 3
    assert len(dump.files("segmented", ".log")) > 8
    assert not dump.files("gone", ".log")
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        assert sum(map(len, dump.files("segmented", suffix).values())) > 5, suffix
    producers = [line for lines in dump.files("trimmed", ".snapshot").values() for line in lines]
    assert any("currentTxnFirstOffset: OptionalLong[" in line for line in producers)


def check_data(dump: Dump, offsets: dict[str, tuple[int, int]]) -> None:
    """Every offset up to the last one is there, and every codec."""
    codecs = set()
    for folder, (first, next_offset) in offsets.items():
        expected = -1
        logs = {path: lines for path, lines in dump.files(folder[:-2], ".log").items() if path.parent.name == folder}
        for path, lines in sorted(logs.items()):
            batches = [parse(line) for line in lines if line.startswith("baseOffset")]
            assert all(batch["isvalid"] == "true" for batch in batches)
            codecs |= {batch["compresscodec"] for batch in batches}
            records = [int(parse(line)["offset"]) for line in lines if line.startswith("| offset")]
            if expected < 0:
                expected = records[0]
                assert expected <= first
            assert records == list(range(expected, expected + len(records))), path
            expected += len(records)
        assert expected == next_offset, folder
    assert codecs == set(CODECS)


def check_aborted(dump: Dump, folder: Path) -> int:
    """The tool only prints aborted indexes: they name the transactions that abort markers of their segments end, in order."""
    undecided: dict[str, int] = {}
    first_offset = -1
    count = 0
    for path in sorted(path for path in dump.lines if path.parent == folder and path.suffix == ".log"):
        expected = []
        batch: dict[str, str] = {}
        for line in dump.lines[path]:
            if line.startswith("baseOffset"):
                batch = parse(line)
                if first_offset < 0:
                    first_offset = int(batch["baseOffset"])
                if batch["isTransactional"] == "true" and batch["isControl"] == "false":
                    undecided.setdefault(batch["producerId"], int(batch["baseOffset"]))
            elif "endTxnMarker" in line:
                began = undecided.pop(batch["producerId"], -1)
                if "endTxnMarker: ABORT" in line and began >= 0:
                    expected.append((batch["producerId"], began, int(batch["lastOffset"])))
        entries = map(parse, dump.lines.get(path.with_suffix(".txnindex"), []))
        found = [(each["producerId"], int(each["firstOffset"]), int(each["lastOffset"])) for each in entries]
        # What began in a segment that is gone cannot be seen any more.
        assert [each for each in found if each[1] >= first_offset] == expected, path
        count += len(expected)
    return count


def check_decoded(dump: Dump, topic: str) -> None:
    """Every record of an internal topic could be decoded."""
    found = [line for lines in dump.files(topic, ".log", ".checkpoint").values() for line in lines]
    records = [line for line in found if line.startswith("| offset")]
    assert len(records) == sum(int(parse(line)["count"]) for line in found if line.startswith("baseOffset")) > 20
    assert not [line for line in records if not DECODED.search(line)]
