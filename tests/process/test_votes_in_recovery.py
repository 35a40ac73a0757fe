"""Elections while a node reads its logs after a power loss."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from tests.support.processes.cluster import (  # not the kit: a main program of its own
    READY_SECONDS_MAX,
    Cluster,
    barnabas_nodes,
)
from tests.support.processes.served import ServedBroker  # not the kit: a main program of its own
from tests.support.processes.slow_disk import READ_BYTES, READ_S, fast_from_now_on

PARTITIONS = 12
RECORD_BYTES = 64_000
RECORDS = 30  # of each partition: 1.9 MB, more than a start reads before it serves
RECOVERY_SECONDS_MIN = PARTITIONS * RECORDS * RECORD_BYTES / READ_BYTES * READ_S


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


def test_a_node_that_reads_its_logs_after_a_power_loss_votes(tmp_path: Path) -> None:
    """The controller is killed while another of three voters reads its logs: the third one needs its vote.

    The logs are read slowly until there is a new controller. That takes longer than anything is waited for.
    """
    assert RECOVERY_SECONDS_MIN > READY_SECONDS_MAX
    with Cluster(barnabas_nodes(tmp_path)) as cluster:
        cluster.create_topic("t", PARTITIONS, min__insync__replicas="1")
        fill(cluster.bootstrap, "t", PARTITIONS, RECORDS, RECORD_BYTES)
        cluster.wait_in_sync("t")
        controller = cluster.controller()
        reading, other = (node_id for node_id in cluster.nodes if node_id != controller)
        cluster.kill(reading)
        node = cluster.nodes[reading]
        assert isinstance(node, ServedBroker)
        node.module = "tests.support.processes.slow_disk"
        begins = {node_id: len(cluster.nodes[node_id].log()) for node_id in (reading, other)}

        def said(what: str, *node_ids: int) -> list[str]:
            """Lines of the logs since the kill."""
            return [
                line
                for each in node_ids
                for line in cluster.nodes[each].log()[begins[each] :].splitlines()
                if what in line
            ]

        node.launch()
        cluster.wait_until(lambda: bool(said("Recovery goes on", reading)), "the beginning of the recovery")
        cluster.kill(controller)
        cluster.wait_until(lambda: bool(said("leads the metadata quorum", reading, other)), "an election")
        done = f"recovered={PARTITIONS} partitions={PARTITIONS}"
        assert not said(done, reading)
        fast_from_now_on(node.data).touch()
        cluster.wait_until(lambda: bool(said(done, reading)), "the end of the recovery")
