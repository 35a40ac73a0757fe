"""One data directory, to and fro: Barnabas stops, Kafka starts on it, Barnabas again, with transactions open at every change."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.broker.image.records import ProducerIdsRecord, decode_record
from barnabas.broker.quorum.core.snapshots import decode_snapshot
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import OffsetFetchRequest
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from tests.support.oracle.group_script import RETRY, insist
from tests.support.oracle.real_kafka import (
    KAFKA_UP,
    SETTINGS,
    START_SECONDS_MAX,
    copy_of_running,
    needs_java,
    stop_kafka,
)
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle

TOPIC = "portable"


class OpenedKafka:
    """Kafka on a data directory that is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""

    def start(self, data: Path) -> None:
        port = free_port_block(2)
        command = ["bash", str(KAFKA_UP), "open", "--data", str(data), "--node-id", "1", "--port", str(port)]
        # A broker that was killed is fenced after its session only, and Kafka does not let it in again before.
        command += ["--set", "broker.session.timeout.ms=1500", "--set", "broker.heartbeat.interval.ms=300"]
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "open.log").open("w") as output:
            subprocess.run(
                [*command, "--dir", str(self.folder)],
                stdout=output,
                stderr=output,
                timeout=START_SECONDS_MAX,
                check=True,
            )
        self.address = f"127.0.0.1:{port}"
        self._await_coordinator()

    def _await_coordinator(self) -> None:
        """An open port is not yet a broker that has loaded its groups: librdkafka passes NOT_COORDINATOR on to its user."""
        deadline = time.monotonic() + START_SECONDS_MAX
        with Wire(self.address) as wire:
            wire.find_coordinator("group", 0)
            while (code := wire.call(OffsetFetchRequest(group_id="group", topics=None), 2).error_code) != 0:
                assert time.monotonic() < deadline, f"Kafka's group coordinator answers {ErrorCode(code).name}"
                time.sleep(0.1)

    def stop(self) -> None:
        stop_kafka(self.folder)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedKafka]:
    needs_java("Kafka cannot be started")
    kafka = OpenedKafka(tmp_path / "opened")
    yield kafka
    kafka.stop()


def consumer(address: str, isolation: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def read(address: str, isolation: str, count: int) -> list[bytes]:
    """All values of the partition: `count` are expected, and none comes after them."""
    reader = consumer(address, isolation, "reader")
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[Any] = []
    for _ in attempts(f"{count} values are read"):
        if len(values) >= count:
            break
        values += [message.value() for message in reader.consume(100, timeout=0.1) if message.error() is None]
    values += [message.value() for message in reader.consume(100, timeout=0.3) if message.error() is None]
    reader.close()
    return values


class Story:
    """What was written so far, and what every broker must therefore show."""

    def __init__(self) -> None:
        self.committed: list[bytes] = []
        self.all: list[bytes] = []
        self.offset = 0

    def check(self, address: str) -> None:
        assert read(address, "read_uncommitted", len(self.all)) == self.all
        assert read(address, "read_committed", len(self.committed)) == self.committed
        group = consumer(address, "read_committed", "group")
        (position,) = group.committed([TopicPartition(TOPIC, 0)], timeout=60)
        assert position.offset == (self.offset or -1001)
        group.close()

    def write(self, address: str, chapter: str) -> None:
        """A committed and an aborted transaction, committed offsets, and a transaction that nobody ends."""
        producer = Producer({"bootstrap.servers": address, "transactional.id": "author"})
        producer.init_transactions(60)  # aborts what the one before left open
        for end in ("commit", "abort", "open"):
            producer.begin_transaction()
            value = f"{chapter}-{end}".encode()
            producer.produce(TOPIC, value, b"key", partition=0)
            assert producer.flush(60) == 0
            self.all.append(value)
            if end == "commit":
                self.committed.append(value)
                self.offset += 1
                group = consumer(address, "read_committed", "group")
                position = [TopicPartition(TOPIC, 0, self.offset)]
                producer.send_offsets_to_transaction(position, group.consumer_group_metadata(), 60)
                producer.commit_transaction(60)
                group.close()
            elif end == "abort":
                producer.abort_transaction(60)


def test_to_and_fro(tmp_path: Path, opened: OpenedKafka) -> None:
    """Each side starts on what the other one left, after a clean stop and after a crash."""
    story = Story()
    barnabas = ServedBroker(tmp_path / "data", *SETTINGS).start()
    crashed = ServedBroker(tmp_path / "copy", *SETTINGS)
    try:
        with Wire(barnabas.address) as wire:
            wire.create_topic(TOPIC, 2, **{"segment.bytes": "1048576"})
        story.write(barnabas.address, "one")
        story.check(barnabas.address)
        assert barnabas.stop() == 0, barnabas.log()

        opened.start(barnabas.data)
        story.check(opened.address)
        story.write(opened.address, "two")
        story.check(opened.address)
        opened.stop()

        barnabas.start()
        story.check(barnabas.address)
        story.write(barnabas.address, "three")
        barnabas.restart(kill=True)
        story.check(barnabas.address)
        story.write(barnabas.address, "four")
        barnabas.kill()

        opened.start(barnabas.data)
        story.check(opened.address)
        story.write(opened.address, "five")
        story.check(opened.address)
        # A copy of a running Kafka's directory is what a crash leaves, preallocated indexes and all.
        copy_of_running(barnabas.data, crashed.data)

        crashed.start()
        story.check(crashed.address)
        story.write(crashed.address, "six")
        story.check(crashed.address)
        assert crashed.stop() == 0, crashed.log()
    finally:
        barnabas.kill()
        crashed.kill()
    assert "Traceback" not in barnabas.log() + crashed.log()
    assert len(story.committed) == 6


def test_kafka_loads_our_snapshot_with_the_ages_of_topics(tmp_path: Path, opened: OpenedKafka) -> None:
    """The snapshot has the next producer id before the topics that were created at it; the last one counts."""

    def new_producer_id(address: str) -> int:
        with Wire(address) as wire:
            return int(insist(lambda: wire.call(InitProducerIdRequest(transactional_id=None), 4), *RETRY).producer_id)

    barnabas = ServedBroker(tmp_path / "data", "metadata.log.max.record.bytes.between.snapshots=1000").start()
    taken = []
    try:
        for number in range(6):
            with Wire(barnabas.address) as wire:
                wire.create_topic(f"t{number}", 3)
            taken.append(new_producer_id(barnabas.address))
        assert barnabas.stop() == 0, barnabas.log()
        newest = max((barnabas.data / "__cluster_metadata-0").glob("*.checkpoint"))
        records = [decode_record(value) for value in decode_snapshot(newest.read_bytes())]
        assert sum(isinstance(record, ProducerIdsRecord) for record in records) > 2
        opened.start(barnabas.data)
        taken.append(new_producer_id(opened.address))
        opened.stop()
        barnabas.start()
        taken.append(new_producer_id(barnabas.address))
        assert barnabas.stop() == 0, barnabas.log()
    finally:
        barnabas.kill()
    assert taken == sorted(set(taken))
