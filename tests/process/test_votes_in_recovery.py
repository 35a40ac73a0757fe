"""Elections while a node reads its logs after a power loss."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from barnabas.storage import replay
from barnabas.testing import Cluster

pytestmark = pytest.mark.usefixtures("no_errors")

PARTITIONS = 12
READ_S = 0.1
READ_BYTES = 16 * 1024
LIMIT_S = 60.0
RECORD_BYTES = 64_000
RECORDS = 30  # of each partition: 1.9 MB, more than a start reads before it serves
READS = (
    PARTITIONS * RECORDS * 2
)  # for each batch, which is longer than READ_BYTES, the first of them and then the batch
RECOVERY_SECONDS_MIN = READS * READ_S


def fill(bootstrap: str, topic: str, partitions: int, records: int, size: int) -> None:
    """Writes records of that size to each partition; all are acknowledged when it returns."""
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 65_000,
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    for number in range(records):
        for partition in range(partitions):
            value = b"%d %d" % (partition, number)
            producer.produce(
                topic,
                value.ljust(size),
                partition=partition,
                on_delivery=lambda error, _message: errors.append(error) if error else None,
            )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors


def test_a_node_that_reads_its_logs_after_a_power_loss_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller is killed while another of three voters reads its logs: the third one needs its vote.

    The logs are read slowly until there is a new controller. That takes longer than anything is waited for.
    """
    assert RECOVERY_SECONDS_MIN > LIMIT_S
    monkeypatch.setattr(replay, "_SCAN_CHUNK", READ_BYTES)
    with Cluster(3, config={"min.insync.replicas": 1}, timeout=LIMIT_S) as kafka:
        kafka.create_topic("t", PARTITIONS, config={"flush.messages": 1})  # so nothing is lost, and all must be read
        fill(kafka.bootstrap_servers, "t", PARTITIONS, RECORDS, RECORD_BYTES)
        controller = kafka.controller()
        reading, other = (each.id for each in kafka.brokers if each.id != controller)
        kafka.kill(reading, lose="page_cache")
        disk = kafka.disk(reading)
        reads = disk.watch("read", path="t-*/*.log")
        disk.slow(READ_S, "read", path="t-*/*.log")
        kafka.restart(reading, wait=False)
        reads.wait(hits=2, timeout=LIMIT_S)
        kafka.kill(controller)
        deadline = time.monotonic() + LIMIT_S
        while kafka.controller() not in (reading, other):
            assert time.monotonic() < deadline, "there is no new controller"
            time.sleep(0.02)
        assert reads.hits < READS, "the recovery has ended before the election"
        disk.slow(0, "read")
        reads.wait(hits=READS, timeout=LIMIT_S)
        kafka.wait_until_ready(reading)
