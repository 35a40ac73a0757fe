"""A real Kafka 4.3.1 as a broker of our cluster: it observes our quorum, loads our snapshot, registers, leads and follows.

Nothing that the nodes say to each other and to the controller can be off by a byte here. Requests of administrators that Kafka's
broker passes on come in an Envelope.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.support.oracle.real_kafka import KAFKA_UP, needs_java
from tests.support.oracle.tools import tool
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster, KafkaNode, barnabas_nodes
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker

pytestmark = [pytest.mark.oracle, pytest.mark.soak]

KAFKA = 9  # its node id
TOPIC = "mixed"
PLACES = ([KAFKA, 1], [1, KAFKA], [2, 3], [3, KAFKA])
PROPERTIES = """
process.roles=broker
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
"""


class KafkaBroker(KafkaNode):
    """A broker without a vote, on a directory formatted for our cluster."""

    def __init__(self, folder: Path, port: int, voters: str, cluster_id: str) -> None:
        self.folder, self.node_id, self.port, self.data = folder, KAFKA, port, folder / "data"
        folder.mkdir()
        properties = folder / "server.properties"
        properties.write_text(PROPERTIES.format(node_id=KAFKA, voters=voters, port=port, data=self.data))
        run = ["bash", str(KAFKA_UP), "tool"]
        subprocess.run(
            [*run, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)],
            check=True,
            timeout=240,
            capture_output=True,
        )
        self._child = None
        self._pid = 0
        self._command = [*run, "kafka.Kafka", str(properties)]

    @property
    def pid(self) -> int:
        """Of java, below the shell."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return int(children[0]) if children else self._pid

    def stop(self, timeout: float = 60.0) -> int:
        self._signal(signal.SIGTERM, timeout)
        return 0

    def kill(self) -> None:
        if self._child is not None and self.alive:
            self._signal(signal.SIGKILL, 20)

    def _signal(self, number: int, timeout: float) -> None:
        os.kill(self.pid, number)
        assert self._child is not None
        self._child.wait(timeout)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three of ours, with a snapshot to be loaded, and Kafka."""
    needs_java("no real Kafka to take in")
    own = barnabas_nodes(
        tmp_path, "metadata.log.max.record.bytes.between.snapshots=2000", "metadata.max.retention.bytes=4000"
    )
    cluster = Cluster(own)
    try:
        cluster.start()
        for number in range(30):
            cluster.create_topic(f"before-{number}", 1)
        cluster_id = re.search(r"cluster\.id=(\S+)", (own[0].data / "meta.properties").read_text())
        assert cluster_id is not None
        kafka = KafkaBroker(tmp_path / "kafka", free_ports(1)[0], own[0].arguments[3], cluster_id[1])
        cluster.nodes[KAFKA] = kafka
        kafka.launch()
        cluster.wait_until(lambda: KAFKA in cluster.brokers(), "Kafka is unfenced", 120)
        yield cluster
    finally:
        cluster.kill_all()


def test_a_kafka_is_one_of_our_brokers(cluster: Cluster) -> None:
    kafka = cluster.nodes[KAFKA]
    assert list(kafka.data.glob("__cluster_metadata-0/*.checkpoint")), "it has fetched a snapshot"
    assignments = [CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in enumerate(PLACES)]
    topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    assert cluster.ask(request, 5, of=1).topics[0].error_code == 0
    forwarded = CreateTopicsRequest(topics=[CreatableTopic(name="by-kafka", num_partitions=1, replication_factor=1)])
    assert [each.error_code for each in cluster.ask(forwarded, 5, of=KAFKA).topics] == [0]
    cluster.wait_in_sync("by-kafka")
    cluster.wait_in_sync(TOPIC)
    expected = [0] * len(PLACES)

    def produce() -> None:
        """One record to the leader of each partition, acknowledged by all in sync."""
        for number in range(len(PLACES)):
            leader = cluster.leader(TOPIC, number)
            with Wire(cluster.nodes[leader].address) as wire:
                assert wire.produce(9, TOPIC, number, [b"x"]).error_code == 0
            expected[number] += 1

    produce()
    # A transaction whose partitions lie on both.
    bootstrap = cluster.nodes[1].address
    said = tool(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--num-records", "2000", "--record-size", "100"),
        *("--throughput", "1000", "--transactional-id", "mixed", "--transaction-duration-ms", "100"),
    )
    assert "2000 records sent" in said
    cluster.kill(KAFKA)
    cluster.wait_until(lambda: cluster.leader(TOPIC, 0) == 1, "ours leads", 15)
    produce()
    kafka.launch()
    cluster.wait_in_sync(TOPIC, seconds=120)
    produce()
    cluster.stop(KAFKA)
    assert KAFKA not in cluster.brokers()
    produce()
    del cluster.nodes[KAFKA]
    for node in cluster.nodes.values():
        assert isinstance(node, ServedBroker)
        assert "Traceback" not in node.log()
    cluster.end()
