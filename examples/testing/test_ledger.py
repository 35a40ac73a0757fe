"""Tests of the application in ledger.py, whose processes are killed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import ledger
import pytest

from barnabas.testing.clients import KitConsumer
from barnabas.testing.faults.handles import Faults


@pytest.fixture
def command(kafka_bootstrap_servers: str, kafka_topic: str, tmp_path: Path) -> list[str]:
    """Starts the application; payments follow as arguments."""
    return [sys.executable, ledger.__file__, kafka_bootstrap_servers, str(tmp_path / "ledger.db"), kafka_topic]


@pytest.fixture
def payments(command: list[str], make_kafka_consumer: Callable[..., KitConsumer]) -> Callable[[], list[str]]:
    """Reads the payments, which must be the same in Kafka and in the database."""

    def read() -> list[str]:
        rows = ledger.open_database(command[3]).execute("SELECT value FROM payments").fetchall()
        reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
        reader.assign((command[4], 0))
        assert [(each.value.decode(),) for each in reader.take(len(rows))] == rows
        return [value for (value,) in rows]

    return read


@pytest.mark.parametrize(("api", "expected"), [("Produce", ["2 EUR"]), ("EndTxn", ["1 EUR", "2 EUR"])])
def test_killed_before_and_after_the_decision(
    command: list[str], payments: Callable[[], list[str]], kafka_faults: Faults, api: str, expected: list[str]
) -> None:
    held = kafka_faults.on(api, txn="ledger").hold()
    with subprocess.Popen([*command, "1 EUR"]) as first:
        try:
            held.wait(timeout=60)
        finally:
            first.kill()
    subprocess.run([*command, "2 EUR"], check=True, timeout=60)
    assert payments() == expected


def test_a_process_that_was_replaced_between_its_two_phases_cannot_decide(
    command: list[str], payments: Callable[[], list[str]]
) -> None:
    class Slow(sqlite3.Connection):
        def __enter__(self) -> Slow:
            if self.execute("SELECT owner FROM decision").fetchone() == (1,):  # the first process is about to decide
                subprocess.run([*command, "2 EUR"], check=True, timeout=60)
            return super().__enter__()

    _, _, servers, path, topic = command
    ledger.open_database(path).close()
    with closing(sqlite3.connect(path, factory=Slow)) as database, pytest.raises(RuntimeError, match="has taken over"):
        asyncio.run(ledger.pay(servers, database, topic, ["1 EUR"]))
    assert payments() == ["2 EUR"]
