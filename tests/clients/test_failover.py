"""Three clients at once on three brokers that are killed, rolled and frozen: librdkafka, aiokafka and the bundled one, with defaults.

Each has an idempotent producer, transactions, a read_committed reader and a group member at work all the time (`surviving.py`).
What was acknowledged is there once and in order, transactions are whole or absent, readers saw what is there, and all go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.protocol.records import iter_batches
from barnabas.testing.simulation.invariants import check_acknowledged, check_live
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import GROUP, Cluster
from tests.support.processes.kit_cluster import KitCluster

pytest.importorskip("confluent_kafka")
pytest.importorskip("aiokafka")
from tests.support.processes.copying import read_all  # after the check that librdkafka is there

pytestmark = pytest.mark.clients

CLIENTS = ("librdkafka", "aiokafka", "barnabas")
KINDS = ("acknowledged", "committed", "read", "grouped")
PARTITIONS = 2
LOG_CHARACTERS_MAX = 100_000  # two debug logs of librdkafka and more
PROGRESS_SECONDS_MAX = 120.0  # after a fault; on a quiet machine it is one


class Survivor:
    """One client's process and what it told, each event with "what", "partition" and "value"."""

    def __init__(self, client: str, cluster: Cluster, folder: Path) -> None:
        self.client = client
        self.plain, self.transacted = f"{client}-plain", f"{client}-transacted"
        for topic in (self.plain, self.transacted):
            cluster.create_topic(topic, PARTITIONS, min__insync__replicas="2")
        self.events: list[dict[str, Any]] = []
        self._stderr = folder / f"{client}.stderr"
        command = [sys.executable, "-m", "tests.support.clients.surviving", client, cluster.bootstrap]
        command += [self.plain, self.transacted, self.transactional_id, self.group, str(PARTITIONS)]
        with self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def transactional_id(self) -> str:
        return f"{self.client}-id"

    @property
    def group(self) -> str:
        return f"{self.client}-group"

    def count(self, what: str) -> int:
        return sum(event["what"] == what for event in self.events)

    def values(self, what: str) -> dict[int, list[bytes]]:
        """By partition, in the order told."""
        found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        for event in self.events:
            if event["what"] == what:
                found[event["partition"]].append(event["value"].encode())
        return found

    def end(self) -> None:
        """Asks it to finish what is on its way."""
        self.process.terminate()

    def wait(self) -> None:
        assert self.process.wait(120) == 0, f"{self.client}: {self.log()}"
        self._thread.join()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._stderr.read_text()[-LOG_CHARACTERS_MAX:]

    def log_of_the_end(self) -> str:
        """Ends the process, which prints the debug logs of its consumers."""
        self.end()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            return "it does not end; " + self.log()
        return self.log()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
        self.process.stdout.close()

    def judge(self, cluster: Cluster) -> None:
        """Holds what it was told against what is there."""
        refused = [
            event for event in self.events if event["what"] == "refused" and not event["value"].startswith("commit")
        ]
        assert not refused, f"{self.client}: {refused[:3]}"
        plain = read_all(cluster, self.plain, PARTITIONS, isolation_level="read_uncommitted")
        for partition, acknowledged in self.values("acknowledged").items():
            check_acknowledged(acknowledged, plain[partition])
            assert plain[partition] == [b"%d" % number for number in range(len(plain[partition]))], self.client
        transacted = read_all(cluster, self.transacted, PARTITIONS, isolation_level="read_committed")
        for partition, values in transacted.items():
            assert values == transacted[0], (
                f"{self.client}: a transaction is there in part: {[len(each) for each in transacted.values()]}\n"
                f"0: {log_of(cluster, self.transacted, 0)}\n{partition}: {log_of(cluster, self.transacted, partition)}"
            )
            assert [int(value) for value in values] == sorted({int(value) for value in values}), self.client
        for partition, committed in self.values("committed").items():
            check_acknowledged(committed, transacted[partition])
        for partition, seen in self.values("read").items():
            check_live(seen, transacted[partition])


def log_of(cluster: Cluster, topic: str, partition: int) -> str:
    """What a read_committed reader is told of a partition: ends, aborted transactions, and the batches of the first fetch."""
    with Wire(cluster.nodes[cluster.leader(topic, partition)].address) as wire:
        found = wire.fetch(topic, partition, 0, isolation_level=1)
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions or []]
    batches = [
        f"{header.base_offset}{'c' if header.is_control else ''}:{header.producer_id}.{header.producer_epoch}"
        for _, header in iter_batches(found.records or b"")
    ]
    return f"{found.high_watermark=} {found.last_stable_offset=} {aborted=} {' '.join(batches)}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")
    with KitCluster(*settings, "group.initial.rebalance.delay.ms=0") as cluster:
        yield cluster


@pytest.fixture
def survivors(cluster: Cluster, tmp_path: Path) -> Iterator[list[Survivor]]:
    started: list[Survivor] = []
    try:
        for client in CLIENTS:
            started.append(Survivor(client, cluster, tmp_path))
        progress(survivors=started)
        yield started
    finally:
        for survivor in started:
            survivor.kill()


def progress(survivors: list[Survivor]) -> None:
    """Waits until every client has got on with everything."""
    waiting = {(s, what): s.count(what) for s in survivors for what in KINDS}
    deadline = time.monotonic() + PROGRESS_SECONDS_MAX
    while waiting:
        for (survivor, what), before in list(waiting.items()):
            if survivor.count(what) > before:
                del waiting[survivor, what]
        if waiting:
            stuck = [(s.client, what) for s, what in waiting]
            if time.monotonic() >= deadline:
                logs = "\n".join(s.log_of_the_end() for s in dict.fromkeys(s for s, _ in waiting))
                raise AssertionError(f"no progress: {stuck}\n{logs}")
            time.sleep(0.05)


def settle(cluster: Cluster, survivors: list[Survivor]) -> None:
    cluster.wait_in_sync(*(topic for s in survivors for topic in (s.plain, s.transacted)))
    cluster.wait_in_sync("__transaction_state", "__consumer_offsets")


def judge(cluster: Cluster, survivors: list[Survivor]) -> None:
    for survivor in survivors:
        survivor.end()
    for survivor in survivors:
        survivor.wait()
    for survivor in survivors:
        survivor.judge(cluster)


def test_clients_go_on_through_kills(cluster: Cluster, survivors: list[Survivor]) -> None:
    parts: list[Callable[[], int]] = [
        lambda: cluster.leader("librdkafka-plain", 0),
        lambda: cluster.coordinator("librdkafka-group", GROUP),
        cluster.controller,
    ]
    for part in parts:
        victim = cluster.wait_for(part, lambda node_id: node_id > 0, "somebody plays that part")
        cluster.kill(victim)
        progress(survivors)
        cluster.start_node(victim)
        settle(cluster, survivors)
    judge(cluster, survivors)


@pytest.mark.soak
def test_clients_go_on_through_a_rolling_restart_and_a_short_freeze(
    cluster: Cluster, survivors: list[Survivor]
) -> None:
    for node_id in cluster.nodes:
        cluster.stop(node_id)
        progress(survivors)
        cluster.start_node(node_id)
        settle(cluster, survivors)
    frozen = cluster.leader("librdkafka-plain", 0)
    cluster.pause(frozen)
    time.sleep(2)  # less than a session: the leader stays the leader, its clients wait
    cluster.resume(frozen)
    progress(survivors)
    judge(cluster, survivors)
