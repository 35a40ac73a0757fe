"""`__consumer_offsets` between Barnabas and Kafka: either takes over the other's groups from the files alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.protocol.messages.groups import (
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.support.oracle.consumer_group_script import go_on, leave_behind, look_again, play_on, unordered
from tests.support.oracle.group_script import Script, play, simple_offsets, transactional_offsets
from tests.support.oracle.real_kafka import SETTINGS, copy_of_running
from tests.support.oracle.tools import dumped
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle


GROUPS = ("living", "simple-left", "static-left", "txn")


def leave_something(script: Script) -> None:
    """A living member with an assignment and a commit, an emptied static group, a simple group."""
    a = script.enter("a", "living")
    script.joined("a")
    script.sync("a", "living", a, 1, assignments={a: b"mine"})
    script.commit("a", "living", {0: (5, "x")}, member_id=a, generation_id_or_member_epoch=1)
    script.commit("s", "simple-left", {0: (9, "meta"), 1: (10, None)})
    one = script.join("b", "static-left", group_instance_id="one").member_id
    script.sync("b", "static-left", one, 1, assignments={one: b"all"}, group_instance_id="one")
    again = script.join("b2", "static-left", group_instance_id="one").member_id
    script.commit(
        "b2", "static-left", {1: (3, "")}, member_id=again, generation_id_or_member_epoch=1, group_instance_id="one"
    )


def fill(address: str) -> None:
    for script in (leave_something, simple_offsets, transactional_offsets):
        play(address, script)
    play_on(address, leave_behind)


def groups(address: str) -> list[Any]:
    """The groups that `fill` leaves, with their members and offsets."""
    deadline = time.monotonic() + 60
    while True:
        try:
            wire = Wire(address)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with wire:
        wire.await_coordinators()
        # A broker that has just started lists what it has loaded so far.
        while not set(GROUPS) <= {group.group_id for group in wire.call(ListGroupsRequest(), 5).groups}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        found = []
        for name in GROUPS:
            offsets = wire.call(
                OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None)], require_stable=True), 9
            )
            topics = sorted(offsets.groups[0].topics, key=lambda topic: topic.name)
            found.append([name, topics, wire.call(DescribeGroupsRequest(groups=[name]), 6).groups])
    return found


def test_kafka_reads_our_groups(tmp_path: Path, kafka_on: Callable[[Path], str]) -> None:
    broker = ServedBroker(tmp_path / "data", *SETTINGS, "offsets.topic.num.partitions=2").start()
    try:
        fill(broker.address)
        expected = groups(broker.address)
        expected_consumers = play_on(broker.address, look_again)
        assert broker.stop() == 0
    finally:
        broker.kill()
    logs = sorted(path for path in broker.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    dump = dumped(logs, "--offsets-decoder", "--print-data-log")
    records = [line for line in dump.splitlines() if line.startswith("| offset")]
    assert len(records) > 20
    assert not [line for line in records if " key: {" not in line and "endTxnMarker" not in line]
    assert "isvalid: false" not in dump
    kafka = kafka_on(broker.data)
    assert groups(kafka) == expected
    assert unordered(play_on(kafka, look_again)) == unordered(expected_consumers)
    play_on(kafka, go_on)


def test_we_read_kafkas_groups(tmp_path: Path, kafka_data: tuple[str, Path]) -> None:
    address, folder = kafka_data
    fill(address)
    expected = groups(address)
    expected_consumers = play_on(address, look_again)
    # Of a running Kafka: as after a crash. Its indexes are preallocated: 10 MB each, mostly holes.
    copy_of_running(folder / "node-1" / "data", tmp_path / "data")
    (tmp_path / "data" / ".lock").unlink(missing_ok=True)
    broker = ServedBroker(tmp_path / "data", *SETTINGS).start()
    try:
        assert groups(broker.address) == expected
        assert unordered(play_on(broker.address, look_again)) == unordered(expected_consumers)
        play_on(broker.address, go_on)
        assert broker.stop() == 0
    finally:
        broker.kill()
    assert "Traceback" not in broker.log(), broker.log()
