"""Kafka's own command line tools, and in them the Java consumer and admin client, against a served Barnabas."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from confluent_kafka import Producer

from .conftest import KAFKA_UP
from .wire import Wire

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        shutil.which("java") is None or shutil.which("mvn") is None, reason="Kafka's tools need Java and Maven"
    ),
]

TOPIC = "java-tools"
GROUP = "java-group"
GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def tool(name: str, address: str, *arguments: str) -> list[list[str]]:
    """Runs a tool; its output as words, line by line."""
    command = ["bash", str(KAFKA_UP), "tool", name, "--bootstrap-server", address, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_java_consumer_reads_in_a_group_and_java_admin_tends_it(barnabas: str) -> None:
    with Wire(barnabas) as wire:
        wire.create_topic(TOPIC, 2)
    producer = Producer({"bootstrap.servers": barnabas})
    values = [f"value-{number}" for number in range(10)]
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % 2)
    assert producer.flush(20) == 0

    console = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    read = tool(console, barnabas, "--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", "10")
    assert sorted(word for line in read for word in line if word.startswith("value-")) == sorted(values)

    described = tool(GROUPS_TOOL, barnabas, "--describe", "--group", GROUP)
    assert [line[:6] for line in described if line[:1] == [GROUP]] == [
        [GROUP, TOPIC, "0", "5", "5", "0"],
        [GROUP, TOPIC, "1", "5", "5", "0"],
    ]

    to_offset = ["--reset-offsets", "--to-offset", "2", "--topic", TOPIC, "--execute"]
    reset = tool(GROUPS_TOOL, barnabas, "--group", GROUP, *to_offset)
    assert sorted(line for line in reset if line[:1] == [GROUP]) == [[GROUP, TOPIC, "0", "2"], [GROUP, TOPIC, "1", "2"]]

    deleted = tool(GROUPS_TOOL, barnabas, "--delete", "--group", GROUP)
    assert any("successful" in " ".join(line) for line in deleted)
