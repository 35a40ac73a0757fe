"""Foreign clients over every security protocol and mechanism, on one broker with ACLs: a transaction, then a group that reads it.

Go and Node run all cells in one process, and are skipped where the language or its packages are missing. Java is in
tests/oracle/test_secured_java.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as RdkafkaPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from kafka.structs import OffsetAndMetadata

from barnabas.client import Admin, NewTopic
from barnabas.client.admin.types import ScramMechanism
from tests.support.clients.librdkafka import value_of
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.secured_world import (  # not the kit: a listener for each protocol
    CELLS,
    PASSWORD,
    Cell,
    SecuredWorld,
    served_world,
)

pytestmark = [pytest.mark.clients, pytest.mark.process]

ROOT: Final = Path(__file__).parents[2]
WAIT_S: Final = 120
SCRAM: Final[tuple[ScramMechanism, ...]] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FOREIGN: Final = ("librdkafka", "librdkafka-consumer", "aiokafka", "kafka-python", "kcat", "go", "node")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, ca: CertificateAuthority) -> Iterator[SecuredWorld]:
    with served_world(ca, tmp_path_factory.mktemp("matrix")) as found:
        asyncio.run(_prepare(found))
        yield found


async def _prepare(world: SecuredWorld) -> None:
    """Users, a topic for each client and cell, and the internal topics."""
    async with Admin(bootstrap_servers=world.address("PLAINTEXT")) as admin:
        for mechanism in SCRAM:
            await admin.set_scram_password("alice", PASSWORD, mechanism=mechanism)
        await admin.create_topics([NewTopic(f"{client}-{cell.name}", 1, 1) for client in FOREIGN for cell in CELLS])


def rdkafka_config(world: SecuredWorld, cell: Cell) -> dict[str, str]:
    found = {"bootstrap.servers": world.address(cell.listener), "security.protocol": cell.protocol}
    if cell.protocol.endswith("SSL"):
        found["ssl.ca.location"] = str(world.ca.certificate)
    if cell.listener == "MUTUAL":
        found |= {
            "ssl.certificate.location": str(world.client.certificate),
            "ssl.key.location": str(world.client.key),
        }
    if cell.mechanism is not None:
        found |= {"sasl.mechanism": cell.mechanism, "sasl.username": "alice", "sasl.password": PASSWORD}
    return found


def by_librdkafka(world: SecuredWorld, cell: Cell, *, protocol: str = "classic") -> int:
    topic = f"librdkafka{'' if protocol == 'classic' else '-consumer'}-{cell.name}"
    config: dict[str, Any] = rdkafka_config(world, cell)
    producer = Producer({**config, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(WAIT_S)
    consumer = Consumer({**config, "group.id": topic, "group.protocol": protocol, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        (record,) = consumer.consume(1, WAIT_S)
        assert value_of(record) == b"value"
        consumer.commit(asynchronous=False)
        return int(consumer.committed([RdkafkaPartition(topic, 0)], WAIT_S)[0].offset)
    finally:
        consumer.close()


def python_config(world: SecuredWorld, cell: Cell) -> dict[str, Any]:
    """Of aiokafka and kafka-python, whose names are the same."""
    found: dict[str, Any] = {"bootstrap_servers": world.address(cell.listener), "security_protocol": cell.protocol}
    if cell.protocol.endswith("SSL"):
        found["ssl_context"] = context = ssl.create_default_context(cafile=world.ca.certificate)
        if cell.listener == "MUTUAL":
            context.load_cert_chain(world.client.certificate, world.client.key)
    if cell.mechanism is not None:
        found |= {"sasl_mechanism": cell.mechanism, "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    return found


def by_aiokafka(world: SecuredWorld, cell: Cell) -> int:
    async def run() -> int:
        config, topic = python_config(world, cell), f"aiokafka-{cell.name}"
        async with AIOKafkaProducer(transactional_id=topic, **config) as producer, producer.transaction():
            await producer.send_and_wait(topic, b"value")
        reading = AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed", **config
        )
        async with reading as consumer:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"value"
            await consumer.commit()
            return int(await consumer.committed(TopicPartition(topic, 0)))

    return asyncio.run(run())


def by_kafka_python(world: SecuredWorld, cell: Cell) -> int:
    """Its consumer knows no transactions, so the offsets are committed in one."""
    config, topic = python_config(world, cell), f"kafka-python-{cell.name}"
    partition = KafkaPartition(topic, 0)
    producer = KafkaProducer(transactional_id=topic, **config)
    consumer = KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False, **config)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value").get(WAIT_S)
        producer.commit_transaction()
        assert next(consumer).value == b"value"
        producer.begin_transaction()
        producer.send_offsets_to_transaction({partition: OffsetAndMetadata(1, "", -1)}, consumer.group_metadata())
        producer.commit_transaction()
        committed = consumer.committed(partition)
        assert committed is not None
        return int(committed)
    finally:
        producer.close()
        consumer.close()


def by_librdkafka_consumer_protocol(world: SecuredWorld, cell: Cell) -> int:
    return by_librdkafka(world, cell, protocol="consumer")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: str(cell.name))
@pytest.mark.parametrize(
    "client",
    [by_librdkafka, by_librdkafka_consumer_protocol, by_aiokafka, by_kafka_python],
    ids=["librdkafka", "librdkafka-consumer", "aiokafka", "kafka-python"],
)
def test_a_transaction_and_a_group(
    world: SecuredWorld, client: Callable[[SecuredWorld, Cell], int], cell: Cell
) -> None:
    assert client(world, cell) >= 1  # the committed offset


# kcat has a librdkafka whose SCRAM Kafka refuses, too (docs/security.md).
@pytest.mark.parametrize(
    "cell", [each for each in CELLS if each.mechanism in (None, "PLAIN")], ids=lambda cell: str(cell.name)
)
def test_kcat(world: SecuredWorld, cell: Cell) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    options = [part for key, text in rdkafka_config(world, cell).items() for part in ("-X", f"{key}={text}")]
    topic = f"kcat-{cell.name}"
    subprocess.run(["kcat", *options, "-t", topic, "-P"], input=b"value", check=True, timeout=WAIT_S)
    reading = ["kcat", *options, "-X", "auto.offset.reset=earliest", "-q", "-c", "1", "-G", topic, topic]
    assert subprocess.run(reading, capture_output=True, check=True, timeout=WAIT_S).stdout == b"value\n"


def json_lines(world: SecuredWorld, client: str) -> str:
    """The cells for a program in another language, and one with a wrong password."""
    found: list[str] = []
    for cell in (*CELLS, Cell("SASL_SSL", "SCRAM-SHA-512")):
        tls, mutual = cell.protocol.endswith("SSL"), cell.listener == "MUTUAL"
        wrong = len(found) == len(CELLS)
        values = {
            "Name": f"wrong {cell.name}" if wrong else cell.name,
            "Topic": f"{client}-{cell.name}",
            "Address": world.address(cell.listener),
            "Authority": str(world.ca.certificate) if tls else "",
            "Certificate": str(world.client.certificate) if mutual else "",
            "Key": str(world.client.key) if mutual else "",
            "Mechanism": cell.mechanism or "",
            "User": "alice",
            "Password": "wrong" if wrong else PASSWORD,
        }
        found.append(json.dumps(values) + "\n")
    return "".join(found)


def check_answers(output: str, words: str) -> None:
    """Each cell works, and the wrong password is told in these words."""
    answers = dict(line.split(": ", 1) for line in output.splitlines())
    assert words in answers.pop("wrong sasl_ssl-scram-sha-512")
    assert answers == {cell.name: "ok" for cell in CELLS}


def test_go(world: SecuredWorld) -> None:
    """franz-go."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    folder, offline = Path(__file__).with_name("go"), {**os.environ, "GOPROXY": "off"}
    known = subprocess.run(["go", "list", "-deps", "."], cwd=folder, env=offline, capture_output=True, check=False)
    if known.returncode:
        pytest.skip("its packages are not here: run `go mod download` in tests/clients/go")
    done = subprocess.run(
        ["go", "run", "."],
        input=json_lines(world, "go"),
        cwd=folder,
        env=offline,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_answers(done.stdout, "SASL_AUTHENTICATION_FAILED")


def test_node(world: SecuredWorld, tmp_path: Path) -> None:
    """kafkajs, from the packages of the recipe."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    folder, program = ROOT / "examples" / "testing" / "node", Path(__file__).with_name("secured.mjs")
    node = ["node", "--input-type=module", "--eval"]
    if subprocess.run([*node, "import 'kafkajs'"], cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("its packages are not here: run `npm ci` in examples/testing/node")
    cells = tmp_path / "cells"
    cells.write_text(json_lines(world, "node"))
    done = subprocess.run(
        [*node, program.read_text()],
        cwd=folder,
        env={**os.environ, "CELLS": str(cells)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_answers(done.stdout, "SASL SCRAM SHA512 authentication failed")
