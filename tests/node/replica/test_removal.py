"""Files of many segments and logs: removed off the loop, where a crash or a stop in between loses no record, and synced in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.replica import log_maintenance as upkeep
from barnabas.broker.replica.log_dir import DISCARDED_AT_ONCE, SYNCED_AT_ONCE
from barnabas.ports import File
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.disk import MemoryDisk
from tests.support.broker.nodes import Nodes
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import until

SHORT = {"retention_ms": "1", "file_delete_delay_ms": "0"}


def append(node: Node, count: int) -> None:
    """Records of a minute ago, each in a segment of its own."""
    replica = node.replicas.leader("t", 0)
    for number in range(count):
        replica.append(build_batch([NewRecord(None, b"v%d" % number * 20, node.reactor.clock.now_ms() - 60_000)]))
        replica.log.roll(node.reactor.clock.now_ms())


def deleted(disk: MemoryDisk, folder: str = "t-0") -> list[str]:
    return [name for name in disk.listdir(folder) if name.endswith(".deleted")]


async def retained(nodes: Nodes, disk: MemoryDisk, **settings: Any) -> Node:
    """A node that looks all the time for segments to delete, with a topic of twenty, all of them too old."""
    node = await nodes.start(disk, log_retention_check_interval_ms="5", **settings)
    peer = await nodes.peer(node)
    await peer.create("t", **SHORT)
    append(node, 20)
    return node


async def test_retention_removes_files_beside_the_loop(nodes: Nodes) -> None:
    disk = GatedDisk()
    disk.removals.clear()
    node = await retained(nodes, disk)
    await until(lambda: bool(disk.discarded))
    waiting = deleted(disk)
    assert waiting, "they are renamed before"
    append(node, 1)  # the loop and the log go on
    disk.removals.set()
    await until(lambda: not deleted(disk))
    assert len(disk.discarded) > 1
    assert all(len(paths) <= DISCARDED_AT_ONCE for paths in disk.discarded)


async def test_segments_of_one_log_are_deleted_a_few_a_turn(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "DELETED_AT_ONCE", 2)
    node = await retained(nodes, MemoryDisk())
    log = node.replicas.leader("t", 0).log
    counts = [len(log.segments)]

    def fewer() -> bool:
        if len(log.segments) < counts[-1]:
            counts.append(len(log.segments))
        return counts[-1] == 1

    await until(fewer)
    assert len(counts) > 5
    assert log.log_start_offset == log.log_end_offset == 20


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_what_was_not_removed_is_removed_after_the_next_start(nodes: Nodes, end: str) -> None:
    disk = GatedDisk()
    disk.removals.clear()
    node = await retained(nodes, disk)
    peer = await nodes.peer(node)
    await peer.create("gone", 3, file_delete_delay_ms="0")
    await until(lambda: bool(disk.discarded))
    await peer.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5_000), 3)
    await until(lambda: sum(name.endswith("-delete") for name in disk.listdir("")) == 3)
    if end == "stop":
        await node.stop()
    else:
        node.kill()
        disk.kill()
    assert deleted(disk)
    disk.removals.set()
    node = await nodes.start(disk, log_retention_check_interval_ms="3600000")
    await until(lambda: not deleted(disk) and not [name for name in disk.listdir("") if name.endswith("-delete")])
    assert node.replicas.leader("t", 0).log.log_end_offset == 20


async def test_a_follower_that_begins_anew_renames_its_segments_first(nodes: Nodes) -> None:
    disk = GatedDisk()
    disk.removals.clear()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    append(node, 20)
    log = node.replicas.leader("t", 0).log
    count = len(log.segments)
    log.truncate_to(10)
    cut = [name for name in deleted(disk) if name.endswith(".log.deleted")]
    assert cut
    log.truncate_fully_and_start_at(50)
    assert len([name for name in deleted(disk) if name.endswith(".log.deleted")]) == count
    assert [segment.base_offset for segment in log.segments] == [50]


class NotingDisk(MemoryDisk):
    """Notes how many folders each sync covers."""

    def __init__(self) -> None:
        super().__init__()
        self.covered: list[int] = []

    async def sync(self, files: Sequence[File]) -> None:
        self.covered.append(len({file.path.rpartition("/")[0] for file in files}))
        await super().sync(files)


async def test_very_many_logs_are_synced_some_at_once(nodes: Nodes) -> None:
    disk = NotingDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    count = 2 * SYNCED_AT_ONCE + 10
    await peer.create("t", count)
    await until(lambda: not any(replica.log.unnamed for replica in node.replicas.all()))
    for partition in range(count):
        node.replicas.leader("t", partition).append(build_batch([NewRecord(None, b"x", node.reactor.clock.now_ms())]))
    disk.covered.clear()
    for replica in node.replicas.all():
        node.replicas.request_sync(replica)
    await until(lambda: all(replica.log.recovery_point == 1 for replica in node.replicas.all()))
    assert sorted(disk.covered, reverse=True)[:3] == [SYNCED_AT_ONCE, SYNCED_AT_ONCE, 10]
