"""Two-phase commit over three brokers with SQLite as the other participant, through SIGKILLs: both always agree."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from barnabas.client import Admin, Consumer, Producer, TopicPartition
from barnabas.client.types import IsolationLevel
from barnabas.testing import Broker
from tests.support.processes.cli import called
from tests.support.processes.cluster import Cluster
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.raw_producer import is_stable
from tests.support.processes.two_phase_worker import PARTITIONS, decided, open_database, own, values_of

pytestmark = pytest.mark.process

KILLS = 10
BROKER_KILLS = 2
PROGRESS_SECONDS_MAX = 60.0
ID = "sink"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with KitCluster("transaction.state.log.num.partitions=4") as cluster:
        yield cluster


class Worker:
    """The sink's process, in its present life."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.command = [
            sys.executable,
            "-m",
            "tests.support.processes.two_phase_worker",
            cluster.bootstrap,
            str(path),
            "out",
            ID,
        ]
        self.stderr = path.with_suffix(".stderr").open("a")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.stderr, text=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def restart(self) -> None:
        self.kill()
        self.process = self._start()


async def committed(bootstrap: str, isolation_level: IsolationLevel = "read_committed") -> dict[int, list[bytes]]:
    partitions = [TopicPartition("out", number) for number in range(PARTITIONS)]
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    async with Consumer(
        bootstrap_servers=bootstrap, isolation_level=isolation_level, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                found[tp.partition] += [record.value or b"" for record in records]
    return found


@pytest.mark.soak  # in the suite: tests/simulation/test_two_phase.py, and pipeline/test_dead_broker.py for a coordinator that dies
def test_both_participants_agree_after_kills(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("out", PARTITIONS, min__insync__replicas="2")
    path = tmp_path / "decisions.sqlite"
    database = open_database(str(path))
    worker = Worker(cluster, path)

    def progressed(more: int) -> None:
        goal = len(decided(database)) + more
        deadline = time.monotonic() + PROGRESS_SECONDS_MAX
        while len(decided(database)) < goal:
            assert time.monotonic() < deadline, Path(worker.stderr.name).read_text()
            time.sleep(0.01)

    try:
        for kill in range(KILLS):
            progressed(random.randrange(1, 4))
            time.sleep(random.random() * 0.05)
            if kill % (KILLS // BROKER_KILLS) == 2:
                cluster.wait_in_sync("out", "__transaction_state")
                coordinator = cluster.coordinator(ID)
                cluster.kill(coordinator)
                if kill % 2:
                    worker.restart()  # both at once
                cluster.start_node(coordinator)
            else:
                worker.restart()
        progressed(3)
    finally:
        worker.kill()

    async def settle() -> None:
        own(database)
        async with Producer(
            bootstrap_servers=cluster.bootstrap, transactional_id=ID, two_phase_commit=True, keep_prepared=True
        ) as producer:
            await producer.complete(decided(database)[-1])

    asyncio.run(settle())
    for partition in range(PARTITIONS):  # the markers follow the answer
        cluster.wait_until(partial(is_stable, cluster, partition, "out"), "nothing is open", 30)
    found = asyncio.run(committed(cluster.bootstrap))
    rows = decided(database)
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for batch in range(len(rows)):
        for number, value in enumerate(values_of(batch)):
            expected[number % PARTITIONS].append(value)
    assert found == expected
    assert len(set(rows)) == len(rows) >= KILLS


def test_an_operator_ends_what_nobody_comes_back_for(served_broker: Broker) -> None:
    at = ("-b", served_broker.bootstrap_servers)

    async def prepare(transactional_id: str) -> str:
        async with Producer(
            bootstrap_servers=served_broker.bootstrap_servers, transactional_id=transactional_id, two_phase_commit=True
        ) as producer:
            await producer.begin_transaction()
            await producer.send("out", transactional_id.encode(), partition=0)
            return str(await producer.prepare())

    kept, dropped = asyncio.run(prepare("kept")), asyncio.run(prepare("dropped"))
    listed = called("txn", "list", "--state", "Ongoing", *at).stdout
    assert listed.count("none (two-phase commit)") == 2, listed
    assert "no timeout (two-phase commit)" in called("txn", "describe", "kept", *at).stdout

    refused = called("txn", "commit", "kept", "--only", dropped, *at)
    assert (refused.returncode, "nothing was ended" in refused.stderr) == (1, True), refused.stderr
    assert called("txn", "commit", "kept", "--only", kept, *at).stdout == f"committed kept {kept}\n"
    assert called("txn", "abort", "dropped", *at).stdout == f"aborted dropped {dropped}\n"
    again = called("txn", "commit", "kept", *at)
    assert (again.returncode, "has no open transaction" in again.stderr) == (1, True), again.stderr

    async def read() -> dict[int, list[bytes]]:
        async with Admin(bootstrap_servers=served_broker.bootstrap_servers) as admin:
            assert await admin.list_transactions(states=["Ongoing"]) == []
        async with Consumer(
            bootstrap_servers=served_broker.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.assign([TopicPartition("out", 0)])
            return {0: [r.value or b"" for rs in (await consumer.getmany(timeout_ms=5_000)).values() for r in rs]}

    assert asyncio.run(read()) == {0: [b"kept"]}
