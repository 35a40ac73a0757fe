"""The image and docker-compose.yml for real: build, up, transactions from this machine, a killed container, and back.

Runs where a Docker engine answers, with the base image `python-base:local` where there is one (BASE_IMAGE names another).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.protocol.messages.metadata import ApiVersionsRequest
from tests.support.kafka_variables import TESTCONTAINERS
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster
from tests.support.processes.composed import NEEDS_DOCKER, Composed, started_image
from tests.support.processes.kills import Killing, killed_copy
from tests.support.simulation.kill_schedule import schedule

TRANSACTIONS = 60
RECORDS_EACH = 20
PARTITIONS = 3
KILLS = 12
HELD_SECONDS = 0.9  # no broker takes as long from its first accepted connection until it serves
ANSWER_SECONDS_MAX = 30.0
GAP_SECONDS_MAX = 3.0  # with a majority alive and in sync
SEED = int(os.environ.get("BARNABAS_SEED", "1"))
# How testcontainers starts a node, and the line that it waits for. Python edits and calls the scripts of Confluent's image.
STARTS = {
    "Java": ("/etc/kafka/docker/run", "Transitioning from RECOVERY to RUNNING"),
    "Python": (
        "sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
        "echo 'kafka-storage format --ignore-formatted -t x -c /etc/kafka/kafka.properties' >> /etc/confluent/docker/configure\n"
        "set -e\n"
        ". /etc/confluent/docker/bash-config\n"
        "/etc/confluent/docker/configure\n"
        "/etc/confluent/docker/launch",
        "Kafka Server started",
    ),
}

pytestmark = [pytest.mark.process, *NEEDS_DOCKER]


@pytest.fixture
def composed() -> Iterator[Composed]:
    with Composed("docker-compose.yml").up() as cluster:
        yield cluster


class Container:
    """One node of a composed cluster, as `Cluster` wants it."""

    def __init__(self, composed: Composed, node_id: int) -> None:
        self.composed = composed
        self.node_id = node_id
        self.data = Path("/data")
        self.port = composed.ports[node_id - 1]
        self.alive = True

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        raise NotImplementedError("a container is killed by its name")

    def launch(self) -> None:
        self.composed("start", f"broker-{self.node_id}")
        self.alive = True

    def await_ready(self) -> None:
        self.composed.wait_for_brokers(len(self.composed.ports))

    def stop(self, timeout: float = 60.0) -> int:
        self.composed("stop", "--timeout", str(int(timeout)), f"broker-{self.node_id}")
        self.alive = False
        return 0

    def kill(self) -> None:
        self.composed("kill", f"broker-{self.node_id}")
        self.alive = False

    def pause(self) -> None:
        self.composed("pause", f"broker-{self.node_id}")

    def resume(self) -> None:
        self.composed("unpause", f"broker-{self.node_id}")

    def log(self) -> str:
        return self.composed("logs", f"broker-{self.node_id}")


class ComposedCluster(Cluster):
    """The containers as a cluster that a schedule of kills can be run against."""

    def __init__(self, composed: Composed) -> None:
        self.composed = composed
        self.containers = {n: Container(composed, n) for n in range(1, len(composed.ports) + 1)}
        super().__init__(list(self.containers.values()))

    def kill(self, *node_ids: int) -> None:
        self.composed("kill", *(f"broker-{node_id}" for node_id in node_ids))
        for node_id in node_ids:
            self.containers[node_id].alive = False


def _read_committed(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed", "log_level": 2}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[str] = []
    silent_until = time.monotonic() + 30
    try:
        # A second of silence after the expected count would show a record too many.
        while time.monotonic() < silent_until:
            for message in consumer.consume(500, timeout=0.25):
                assert message.error() is None, message.error()
                values.append((message.value() or b"").decode())
                silent_until = time.monotonic() + (30 if len(values) < count else 1)
    finally:
        consumer.close()
    return values


def test_transactions_survive_a_killed_container(composed: Composed) -> None:
    told = composed.wait_for_brokers(3)
    assert sorted(told.values()) == sorted(f"localhost:{port}" for port in composed.ports)

    admin = AdminClient({"bootstrap.servers": composed.bootstrap})
    admin.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(60)
    leader = admin.list_topics("orders", timeout=10).topics["orders"].partitions[0].leader

    producer = Producer(
        {
            "bootstrap.servers": composed.bootstrap,
            "transactional.id": "composed",
            "transaction.timeout.ms": 60_000,
            "log_level": 2,
        }
    )
    producer.init_transactions(60)
    committed: list[str] = []
    for number in range(TRANSACTIONS):
        if number == TRANSACTIONS // 3:
            composed("kill", f"broker-{leader}")
        if number == 2 * TRANSACTIONS // 3:
            composed("start", f"broker-{leader}")
        values = [f"{number}-{record}" for record in range(RECORDS_EACH)]
        producer.begin_transaction()
        for record, value in enumerate(values):
            producer.produce("orders", value, partition=record % PARTITIONS)
        if number % 5 == 4:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += values
    composed.wait_for_brokers(3)

    assert sorted(_read_committed(composed.bootstrap, "orders", len(committed))) == sorted(committed)

    everyone_runs_as = composed("exec", "-T", f"broker-{leader}", "id", "-u").strip()
    assert everyone_runs_as != "0"

    for number in (1, 2, 3):
        composed.wait_for(number, "{{.State.Health.Status}}", "healthy")
        assert composed.inspect(number, '{{(index .NetworkSettings.Ports "9092/tcp" 0).HostIp}}') == "127.0.0.1"
    composed("kill", "broker-2")
    before = composed.inspect(1, "{{.State.StartedAt}}")
    composed("exec", "-T", "broker-1", "bash", "-c", "kill -TERM 1")  # it ends by itself: started again
    composed.wait_for(1, "{{.RestartCount}}", "1")
    composed.wait_for(1, "{{.State.Health.Status}}", "healthy")
    assert composed.inspect(1, "{{.State.StartedAt}}") != before
    assert composed.inspect(2, "{{.State.Status}} {{.RestartCount}}") == "exited 0"  # killed by the user: it stays down


@pytest.mark.parametrize("library", STARTS)
def test_the_image_starts_as_testcontainers_starts_kafkas(library: str) -> None:
    """A shell waits for a script, which knows the mapped port, sets the advertised listeners and calls the image's start."""
    call, line = STARTS[library]
    variables = [f"--env={name}={value}" for name, value in TESTCONTAINERS.items()]
    wait = "while [ ! -f /tmp/start.sh ]; do sleep 0.1; done; /tmp/start.sh"
    with started_image("--publish=127.0.0.1::9092", *variables, "--entrypoint=sh", command=("-c", wait)) as container:
        address = container.port(9092)
        advertised = f"PLAINTEXT://{address},BROKER://localhost:9093"
        container.write("/tmp/start.sh", f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS={advertised}\n{call}\n")
        container.wait_for_line(line)
        admin = AdminClient({"bootstrap.servers": address})
        described = admin.describe_cluster(request_timeout=60).result(60)
        assert described.cluster_id == TESTCONTAINERS["CLUSTER_ID"]
        assert [f"{node.host}:{node.port}" for node in described.nodes] == [address]


class Forwarding(threading.Thread):
    """Finds out how long port forwarding held the first connection to a container that is being started.

    It accepts before the container's network is up, and the kernel repeats the connection request to the container after a second.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.held: tuple[float, float] | None = None
        self._address = address
        self._until = time.monotonic() + ANSWER_SECONDS_MAX
        self.start()

    def run(self) -> None:
        answered = False
        while not answered and self.held is None and time.monotonic() < self._until:
            began = time.monotonic()
            try:
                with Wire(self._address, timeout_s=ANSWER_SECONDS_MAX) as wire:
                    wire.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
                answered = True
            except OSError:  # nothing forwards yet, or the container was reached before its broker listened
                time.sleep(0.01)
            if time.monotonic() - began >= HELD_SECONDS:
                self.held = began, time.monotonic()


@pytest.mark.soak
@pytest.mark.parametrize("client", ["librdkafka", "barnabas"])
def test_twelve_kills_of_containers(composed: Composed, tmp_path: Path, client: str) -> None:
    """A killed container has no address any more: nothing refuses a connection there, and its name is unknown."""
    composed.wait_for_brokers(3)
    cluster = ComposedCluster(composed)
    watched: list[Forwarding] = []

    def start(node_id: int) -> None:
        watched.append(Forwarding(cluster.nodes[node_id].address))
        cluster.nodes[node_id].launch()

    with killed_copy(cluster, tmp_path, client) as run:
        killing = Killing(run, seed=SEED, start=start)
        gaps = killing.carry_out(
            schedule(SEED, KILLS, calm_seconds=4.0), excepted=lambda: [w.held for w in watched if w.held]
        )
        run.judge()
    assert gaps.seconds()[-1] < GAP_SECONDS_MAX, str(gaps)
    assert gaps.below(1.0) >= 0.95, str(gaps)
