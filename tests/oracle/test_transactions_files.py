"""`__transaction_state` between Barnabas and Kafka: either goes on with the other's transactions from the files alone.

Left behind in one broker's directory: ids in every state that lasts, an ongoing transaction of a TV1 and of a TV2 client, and a
change of producer ids whose EndTxn was not yet repeated. The other broker commits, aborts, fences and repeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Producer as TwoPhase
from tests.support.oracle.real_kafka import SETTINGS, needs_java, running_kafka
from tests.support.oracle.tools import dumped, records_in
from tests.support.oracle.transaction_script import TOPIC, Producer, Script
from tests.support.oracle.wire import Wire
from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle

Left = dict[str, tuple[int, int]]


def leave_something(address: str) -> Left:
    """Producer id and epoch by transactional id."""
    script = Script(address, "files")
    script.wire.create_topic(TOPIC, 3)
    script.wire.await_coordinators()
    made: dict[str, Producer] = {}

    def client(label: str) -> Producer:
        made[label] = script.producer(label)
        assert made[label].init() == "NONE"
        return made[label]

    client("empty")
    for label, outcome in (("committed", "commit"), ("aborted", "abort")):
        p = client(label)
        assert p.produce(0, version=12) == "NONE"
        p.end(outcome, 5)
        p.settled()
    tv2 = client("open-tv2")
    tv1 = client("open-tv1")
    fenced = client("fenced")
    for partition in (0, 1):
        assert tv2.produce(partition, version=12) == "NONE"
        tv1.add(partition)
        assert tv1.produce(partition, version=11) == "NONE"
    assert fenced.produce(2, version=12) == "NONE"
    script.wire.close()
    return {label: (p.producer_id, p.epoch) for label, p in made.items()}


def go_on(address: str, left: Left) -> None:
    """What the clients do with the other broker, and what they must be told."""
    deadline = time.monotonic() + 60
    while True:
        try:
            script = Script(address, "files")
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    script.wire.await_coordinators()
    clients = {label: script.producer(label) for label in left}
    for label, p in clients.items():
        p.producer_id, p.epoch = left[label]
    states = {label: p.state() for label, p in clients.items()}
    assert {label: state.transaction_state for label, state in states.items()} == {
        "empty": "Empty",
        "committed": "CompleteCommit",
        "aborted": "CompleteAbort",
        "open-tv2": "Ongoing",
        "open-tv1": "Ongoing",
        "fenced": "Ongoing",
    }
    for label, state in states.items():
        assert (state.producer_id, state.producer_epoch) == left[label], label
    stable(script.wire, 0, behind=True)

    def seen_last() -> tuple[object, ...]:
        return tuple(script.seen[-1])

    # Repeated after the move: the same answer, and no effect on another transaction.
    for label, outcome in (("committed", "commit"), ("aborted", "abort")):
        p = clients[label]
        p.end(outcome, 5, epoch=p.epoch - 1, adopt=False)
        assert (seen_last()[2], seen_last()[4]) == ("NONE", p.epoch)
    assert clients["open-tv2"].produce(2, version=12) == "NONE"
    clients["open-tv2"].end("commit", 5)
    assert seen_last()[2] == "NONE"
    clients["open-tv1"].end("abort", 3)
    assert seen_last()[2] == "NONE"
    old = left["fenced"]
    assert clients["fenced"].init() == "CONCURRENT_TRANSACTIONS"
    for label in ("open-tv2", "open-tv1", "fenced"):
        clients[label].settled("Ongoing", "PrepareCommit", "PrepareAbort")
    assert clients["fenced"].init() == "NONE"
    clients["fenced"].end("commit", 5, *old)
    assert seen_last()[2] == "PRODUCER_FENCED"
    for partition in range(3):
        stable(script.wire, partition, behind=False)
    # And a new transaction by everyone.
    for p in clients.values():
        if p is clients["open-tv1"]:
            assert p.init() == "NONE"
        p._sequences.clear()
        assert p.produce(1, version=12) == "NONE"
        p.end("commit", 5)
        assert seen_last()[2] == "NONE"
        p.settled()
    stable(script.wire, 1, behind=False)
    script.wire.close()


def stable(wire: Wire, partition: int, *, behind: bool) -> None:
    fetched = wire.fetch(TOPIC, partition, 0)
    assert (fetched.last_stable_offset < fetched.high_watermark) is behind


def test_kafka_goes_on_with_our_transactions(tmp_path: Path, kafka_on: Callable[[Path], str]) -> None:
    broker = ServedBroker(tmp_path / "data", *SETTINGS).start()
    try:
        left = leave_something(broker.address)
        assert broker.stop() == 0
    finally:
        broker.kill()
    go_on(kafka_on(broker.data), left)


def test_we_go_on_with_kafkas_transactions(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    port = free_port_block(2)
    with running_kafka(folder, port):
        left = leave_something(f"127.0.0.1:{port}")
    broker = ServedBroker(folder / "node-1" / "data", *SETTINGS).start()
    try:
        go_on(broker.address, left)
        assert broker.stop() == 0
    finally:
        broker.kill()
    assert "Traceback" not in broker.log(), broker.log()


def test_kafka_reads_the_record_of_a_transaction_that_was_kept(tmp_path: Path) -> None:
    """KIP-939: two producer identities in one record, in the fields that Kafka has for them."""
    needs_java("no DumpLogSegments")
    broker = ServedBroker(tmp_path / "data", *SETTINGS, "transaction.state.log.num.partitions=1").start()

    async def keep() -> None:
        how: dict[str, Any] = {
            "bootstrap_servers": broker.address,
            "transactional_id": "kept",
            "two_phase_commit": True,
        }
        async with TwoPhase(**how) as first:
            await first.begin_transaction()
            await first.send("out", b"1")
            await first.prepare()
        async with TwoPhase(**how, keep_prepared=True) as second:
            assert second.prepared is not None

    try:
        asyncio.run(keep())
        assert broker.stop() == 0
    finally:
        broker.kill()
    (log,) = broker.data.glob("__transaction_state-0/*.log")
    said = records_in(dumped([log], "--transaction-log-decoder"))[-1]["data"]
    assert [said[f] for f in ("producerId", "producerEpoch", "nextProducerId", "nextProducerEpoch")] == [0, 0, 0, 1]
    assert (said["transactionStatus"], said["transactionTimeoutMs"]) == (1, 2**31 - 1)
