"""What a simulated life of crashes leaves on the broker's disk: Kafka's tool reads every file, and Kafka serves from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from barnabas.ports import Disk
from barnabas.testing.simulation.world import World
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import COMPLAINT, FIRST_OFFSET, dumped
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


@pytest.mark.parametrize("seed", [4, 9], ids=["a power loss beside logs without records", "a kill"])
def test_kafka_finds_nothing_wrong_and_serves_what_was_promised(
    seed: int, tmp_path: Path, kafka_on: Callable[[Path], str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    journal = live(seed, folder)
    partitions = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    assert len(partitions) == 2 * PARTITIONS + 6 + 1
    files = [path for partition in partitions for path in sorted(partition.iterdir()) if FILE.fullmatch(path.name)]
    said = dumped(files, "--deep-iteration")
    assert said.count("Dumping ") == len(files) > 2 * len(partitions)
    said = GAPS.sub("", FIRST_OFFSET.sub("", said))
    assert not [line for line in said.splitlines() if COMPLAINT.search(line)]
    address = kafka_on(folder)
    source = read(address, "input", "read_uncommitted")
    assert read(address, "output", "read_committed") == source
    for partition, acknowledged in journal.acknowledged.items():
        assert [value for value in source[partition] if value in set(acknowledged)] == acknowledged
