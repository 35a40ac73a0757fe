"""Three brokers with TLS on all listeners: an exactly-once copy goes on while a broker is killed and all certificates change."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.processes.copying import QUICK, SOURCE, TARGET, CopyWorker
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: the brokers' own listeners have TLS
from tests.support.security.certificates import CertificateAuthority

pytestmark = pytest.mark.process

RECORDS, PARTITIONS = 12_000, 3


def settings(
    ca: CertificateAuthority, node: int, client_port: int, controller_port: int, quorum: str
) -> dict[str, str]:
    return {
        "listeners": f"SSL://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": quorum,
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "required",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "group.initial.rebalance.delay.ms": "0",
        **ca.issue(f"cluster-{node}", hosts=("127.0.0.1",)).by_file(),
        **ca.truststore(),
    }


@pytest.fixture
def nodes(tmp_path: Path, ca: CertificateAuthority) -> Iterator[dict[int, ServedBroker]]:
    ports = free_ports(6)
    quorum = ",".join(f"{node}@127.0.0.1:{ports[node + 2]}" for node in (1, 2, 3))
    with ExitStack() as ends:
        found = {}
        for node in (1, 2, 3):
            values = settings(ca, node, ports[node - 1], ports[node + 2], quorum)
            texts = [f"{key}={text}" for key, text in values.items()]
            found[node] = ServedBroker(tmp_path / f"node-{node}", *texts, node_id=node, listens=False)
            ends.callback(found[node].kill)
            found[node].launch()
        for each in found.values():
            each.await_ready()
        yield found


def until(reached: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_copy_goes_on_while_certificates_change_and_a_broker_is_killed(
    nodes: dict[int, ServedBroker], ca: CertificateAuthority, tmp_path: Path
) -> None:
    client = ca.issue("cluster-client")
    secure: dict[str, Any] = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(ca.certificate),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
    }
    bootstrap = ",".join(each.address for each in nodes.values())
    quick: dict[str, Any] = {"bootstrap.servers": bootstrap, **QUICK, **secure}
    admin = AdminClient(quick)
    topics = [NewTopic(name, PARTITIONS, 3) for name in (SOURCE, TARGET)]
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = Producer(quick | {"enable.idempotence": True})
    values = [b"%d" % number for number in range(RECORDS)]
    for number, value in enumerate(values):
        producer.produce(SOURCE, value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0

    copier = CopyWorker("librdkafka", bootstrap, tmp_path, session_ms=6_000, settings=secure)
    try:
        until(lambda: copier.copied > 0)
        for node, each in nodes.items():  # new files for all, then one by its settings
            ca.issue(f"cluster-{node}", hosts=("127.0.0.1",))
            os.kill(each.pid, signal.SIGHUP)
        for each in nodes.values():
            until(lambda each=each: each.log().count("TLS stores are reloaded") == 2)  # type: ignore[misc]  # bound at once
        entries = [
            ConfigEntry(f"listener.name.ssl.{name}", text, incremental_operation=AlterConfigOpType.SET)
            for name, text in ca.issue("cluster-1-again", hosts=("127.0.0.1",)).by_file().items()
        ]
        for future in admin.incremental_alter_configs(
            [ConfigResource("broker", "1", incremental_configs=entries)]
        ).values():
            future.result(60)
        nodes[2].kill()
        nodes[2].start()  # its new connections meet the new certificates of all
        until(lambda: copier.copied >= RECORDS)
    finally:
        copier.end()

    consumer = Consumer(
        quick | {"group.id": "judge", "isolation.level": "read_committed", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
    found: list[bytes | None] = []

    def read() -> bool:
        found.extend(each.value() for each in consumer.consume(10_000, 0.2) if each.error() is None)
        return len(found) >= RECORDS

    until(read)
    found.extend(each.value() for each in consumer.consume(10_000, 1.0) if each.error() is None)
    consumer.close()
    assert sorted(each or b"" for each in found) == sorted(values)
    for each in nodes.values():
        assert each.stop() == 0
        assert "Traceback" not in each.log()
        assert "PRIVATE KEY" not in each.log()


def test_a_node_with_a_certificate_of_another_authority_stays_outside(tmp_path: Path, ca: CertificateAuthority) -> None:
    other = CertificateAuthority(tmp_path / "other", "Another CA")
    ports = free_ports(4)
    quorum = f"1@127.0.0.1:{ports[2]},2@127.0.0.1:{ports[3]}"
    started = []
    try:
        for node in (1, 2):
            values = settings(ca, node, ports[node - 1], ports[node + 1], quorum)
            if node == 2:
                trusted = tmp_path / "both.pem"  # a node must trust its own certificate
                trusted.write_bytes(ca.certificate.read_bytes() + other.certificate.read_bytes())
                values |= {
                    **other.issue("outside", hosts=("127.0.0.1",)).by_file(),
                    "ssl.truststore.location": str(trusted),
                }
            texts = [f"{key}={text}" for key, text in values.items()]
            started.append(ServedBroker(tmp_path / f"node-{node}", *texts, node_id=node, listens=False))
            started[-1].launch()
        until(lambda: "the certificate is refused: self-signed certificate" in started[0].log())
        until(lambda: "the other side refused: unknown ca" in started[1].log())
        assert not any("leads the metadata quorum" in each.log() for each in started)
    finally:
        for each in started:
            each.kill()
