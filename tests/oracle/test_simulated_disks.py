"""What a simulated life of crashes leaves on the broker's disk: Kafka's tool reads every file, and Kafka serves from it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.ports import Disk
from barnabas.testing.simulation.world import World
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.oracle.real_kafka import KAFKA_UP, START_SECONDS_MAX, needs_java
from tests.support.oracle.tools import COMPLAINT, FIRST_OFFSET, TOOL
from tests.support.processes.ports import free_port_block
from tests.support.simulation.crashing_copy import crashes
from tests.support.simulation.workload import PARTITIONS, Journal

pytestmark = pytest.mark.oracle

FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)")
# And of logs that have been cleaned: there are gaps in them.
GAPS = re.compile(
    r"Non-consecutive offsets in \S+/__(?:transaction_state|consumer_offsets)-\d+/\d+\.log\n(?: +-?\d+ is followed by \d+\n)+"
)
SILENCE_S = 60.0  # without a message the reader gives up


def save(disk: Disk, folder: Path, path: str = "") -> None:
    """Copies a memory disk's tree into a real folder."""
    for name in disk.listdir(path):
        inner = f"{path}/{name}" if path else name
        try:
            data = disk.read(inner)
        except FileNotFoundError:
            (folder / inner).mkdir(parents=True)
            save(disk, folder, inner)
        else:
            (folder / inner).write_bytes(data)


def live(seed: int, folder: Path) -> Journal:
    """Lives a life of crashes that ends in one, and saves the broker's disk; returns the journal of its clients."""
    needs_java("no real Kafka to read it")
    journal = Journal()
    with World(seed) as world:
        world.run(crashes(world, journal), time_limit_s=3600)
        broker = world.machine("broker")
        if seed % 2 == 0:
            broker.lose_power()
        else:
            broker.kill()
        save(broker.disk, folder)
    return journal


def kafka_up(*arguments: str, log: Path) -> str:
    """Runs kafka-up; returns what it said. Its output goes to a file: a broker that it leaves behind inherits it."""
    with log.open("w") as output:
        command = ["bash", str(KAFKA_UP), *arguments]
        done = subprocess.run(command, stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=False)
    said = log.read_text()
    assert done.returncode == 0, said[-3000:]
    return said


@pytest.mark.parametrize("seed", [4, 9], ids=["power loss", "kill"])
def test_kafka_s_tool_finds_nothing_wrong(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    live(seed, folder)
    partitions = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    assert len(partitions) == 2 * PARTITIONS + 6 + 1
    files = [path for partition in partitions for path in sorted(partition.iterdir()) if FILE.fullmatch(path.name)]
    names = ",".join(map(str, files))
    said = kafka_up("tool", TOOL, "--deep-iteration", "--files", names, log=tmp_path / "log")
    assert said.count("Dumping ") == len(files) > 2 * len(partitions)
    said = GAPS.sub("", FIRST_OFFSET.sub("", said))
    assert not [line for line in said.splitlines() if COMPLAINT.search(line)]


def read(address: str, topic: str, isolation_level: str) -> dict[int, list[bytes]]:
    """Every value of the topic as librdkafka reads it."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    unread = set(found)
    while unread:
        message = consumer.poll(SILENCE_S)
        assert message is not None, f"nothing came for {SILENCE_S} s, partitions {unread} not read to their ends"
        if message.error():
            unread.discard(message.partition())
        else:
            found[place_of(message)[1]].append(value_of(message))
    consumer.close()
    return found


@pytest.mark.parametrize("seed", [4, 8], ids=["a power loss beside logs without records", "a power loss"])
def test_kafka_serves_what_was_promised(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    journal = live(seed, folder)
    port = free_port_block(2)
    kafka = tmp_path / "kafka"
    kafka.mkdir()
    open_it = ["open", "--data", str(folder), "--node-id", "1", "--port", str(port), "--dir", str(kafka)]
    try:
        kafka_up(*open_it, log=tmp_path / "open.log")
        source = read(f"127.0.0.1:{port}", "input", "read_uncommitted")
        assert read(f"127.0.0.1:{port}", "output", "read_committed") == source
        for partition, acknowledged in journal.acknowledged.items():
            assert [value for value in source[partition] if value in set(acknowledged)] == acknowledged
    finally:
        kafka_up("stop", "--dir", str(kafka), log=tmp_path / "stop.log")
