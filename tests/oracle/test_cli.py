"""The client commands on Kafka print what they print on Barnabas; Kafka's tools agree on topic ids and on the CSV of offsets."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from barnabas.client import Consumer, Producer
from tests.support.oracle.tools import tool
from tests.support.processes.cli import called

pytestmark = pytest.mark.oracle

SCRIPT = """
topic create cli-orders --partitions 2 --config retention.ms=3600000
topic create cli-orders --if-not-exists
topic create cli-orders
topic create cli-assigned --replica-assignment 1,1
topic describe cli-orders cli-missing
topic describe cli-orders --json
topic alter cli-orders --partitions 3 --unset retention.ms
topic alter cli-orders --partitions 1
topic alter cli-missing --partitions 3
topic delete cli-assigned cli-missing
topic describe --unavailable
txn list --state CompleteCommit
txn describe cli-till
txn describe cli-missing
txn describe-producers cli-orders --partition 0
txn find-hanging --topic cli-orders
txn abort cli-till
group list --state Empty
group describe cli-kitchen
group describe cli-kitchen cli-missing --state
group describe cli-kitchen --json
group reset-offsets cli-kitchen --to earliest
group reset-offsets cli-kitchen --by -1 --partition 0 --execute
group reset-offsets cli-kitchen --ago 1h --json
group reset-offsets cli-kitchen --to current --export
group delete-offsets cli-kitchen --topic cli-orders --partition 1
group delete cli-kitchen cli-missing
cluster health
"""
VARIES = (
    (re.compile(r"id [\w-]{22}"), "id ID"),
    (re.compile(r'"topic_id": "[\w-]{22}"'), "topic_id"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"producer \d+"), "producer N"),
    (re.compile(r" +"), " "),
)


async def filled(servers: str) -> None:
    """Two records of a transaction in partition 0, one in partition 1; a group has read all."""
    async with Producer(bootstrap_servers=servers, transactional_id="cli-till") as producer, producer.transaction():
        for partition, value in ((0, b"a"), (0, b"b"), (1, b"c")):
            await producer.send("cli-orders", value, partition=partition)
    consumer = Consumer(
        "cli-orders",
        bootstrap_servers=servers,
        group_id="cli-kitchen",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with consumer:
        for _ in range(3):
            await consumer.getone()
        await consumer.commit()


def printed(servers: str) -> list[str]:
    """What the script prints, without ids and times; the producers' rows without their ids."""
    lines: list[str] = []
    for number, words in enumerate(SCRIPT.strip().splitlines()):
        if number == 1:
            asyncio.run(filled(servers))
        done = called(*words.split(), "-b", servers)
        shown = done.shown
        for pattern, text in VARIES:
            shown = pattern.sub(text, shown)
        rows = shown.splitlines()
        if words.startswith("txn"):
            rows = [re.sub(r"\b\d+ (?=Complete|1 - TIME|0 \d+ TIME)", "N ", row) for row in rows]
        if words.startswith(("group list", "topic describe --unavailable", "txn list")):  # others' groups and topics
            rows = [row for row in rows if "cli-" in row]
        lines += [f"$ {words}", *rows, f"$? {done.returncode}"]
    return lines


def test_the_commands_print_the_same(kafka: str, barnabas: str) -> None:
    ours, theirs = printed(barnabas), printed(kafka)
    assert ours == theirs


def test_kafkas_tools_agree_on_ids_and_csv(kafka: str, tmp_path: Path) -> None:
    called("topic", "create", "cli-csv", "--partitions", "2", "-b", kafka)
    shown = tool("TopicCommand", "--bootstrap-server", kafka, "--describe", "--topic", "cli-csv")
    topic_id = re.search(r"TopicId: (\S+)", shown)
    assert topic_id is not None
    assert topic_id.group(1) in called("topic", "describe", "cli-csv", "-b", kafka).stdout

    reset = ("--bootstrap-server", kafka, "--group", "cli-csv-group", "--reset-offsets", "--topic", "cli-csv")
    theirs = tool("consumer.group.ConsumerGroupCommand", *reset, "--to-latest", "--export")
    file = tmp_path / "offsets.csv"
    file.write_text("".join(f"{line}\n" for line in theirs.splitlines() if "cli-csv" in line))
    done = called("group", "reset-offsets", "cli-csv-group", "--file", str(file), "--execute", "-b", kafka)
    assert (done.returncode, done.stdout) == (0, "cli-csv-0  - → 0\ncli-csv-1  - → 0\n"), done
    ours = called("group", "reset-offsets", "cli-csv-group", "--to", "current", "--export", "-b", kafka).stdout
    assert sorted(ours.splitlines()) == sorted(line.replace('"', "") for line in file.read_text().splitlines())
    file.write_text(ours)
    again = tool("consumer.group.ConsumerGroupCommand", *reset, "--from-file", str(file), "--dry-run")
    assert "cli-csv" in again
