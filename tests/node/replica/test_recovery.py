"""Logs that a start finds: the loop goes on while they are read, the most wanted come first, and the node serves before the last."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import time

import pytest

from barnabas.broker.replica import recovery
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.checkpoints import LOG_SIZE_CHECKPOINT
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.broker.nodes import Nodes
from tests.support.waiting import until

TOPICS = ("a", "b", "c", "d", "e")
BATCHES = 2_000


async def filled(nodes: Nodes, disk: FaultyMemoryDisk) -> None:
    """Five topics with two thousand batches each, synced with no state of theirs, and a machine that lost power."""
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    for topic in TOPICS:
        await peer.create(topic)
        replica = node.replicas.leader(topic, 0)
        for _ in range(BATCHES):
            replica.append(build_batch([NewRecord(None, bytes(20), int(time.time() * 1000))]))
        disk.sync_now(replica.log.unsynced_files())
    node.kill()
    disk.crash()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log waits until the node serves, and slices are short."""
    monkeypatch.setattr(recovery, "LIGHT_BYTES", 0)
    monkeypatch.setattr(recovery, "BEFORE_SERVING_MS", -1)
    monkeypatch.setattr(recovery, "SLICE_STEPS", 1)


@pytest.mark.usefixtures("slow")
async def test_the_node_serves_before_the_last_log_is_open(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyMemoryDisk()
    await filled(nodes, disk)
    with caplog.at_level(logging.INFO):
        node = await nodes.start(disk)
        with pytest.raises(BrokerError) as refused:
            node.replicas.leader("e", 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: node.replicas.get("e", 0) is not None)
        assert node.replicas.get("d", 0) is None, "the one that was asked for comes first"
        assert node.replicas.leader("e", 0).log.log_end_offset == BATCHES
        await until(lambda: all(node.replicas.get(topic, 0) is not None for topic in TOPICS))
        await until(lambda: "recovered=5 partitions=5" in caplog.text)
    lines = [message for message in caplog.messages if message.startswith("Recovery goes on")]
    assert re.fullmatch(r"Recovery goes on: recovered=\d partitions=5 read_gib=0\.0 planned_gib=0\.0", lines[0])
    assert lines[-1].startswith("Recovery goes on: recovered=5 partitions=5")
    for topic in TOPICS:
        assert node.replicas.leader(topic, 0).log.log_end_offset == BATCHES


@pytest.mark.usefixtures("slow")
async def test_the_end_of_a_recovery_that_took_less_than_a_second_is_logged(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "BEFORE_SERVING_MS", 3_600_000)
    disk = FaultyMemoryDisk()
    await filled(nodes, disk)
    with caplog.at_level(logging.INFO):
        await nodes.start(disk)
    lines = [message for message in caplog.messages if message.startswith("Recovery goes on")]
    assert lines[-1].startswith("Recovery goes on: recovered=5 partitions=5")


@pytest.mark.usefixtures("slow")
async def test_the_loop_has_its_turn_between_slices(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    await filled(nodes, disk)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    node = await nodes.start(disk)
    counting = asyncio.get_running_loop().create_task(count())
    await until(lambda: all(node.replicas.get(topic, 0) is not None for topic in TOPICS))
    counting.cancel()
    assert turns > len(TOPICS) * BATCHES // 128 // 2


@pytest.mark.usefixtures("slow")
async def test_a_topic_that_is_deleted_before_its_log_is_open(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    await filled(nodes, disk)
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.call(DeleteTopicsRequest(topic_names=["e"], timeout_ms=5_000), 3)
    assert not disk.exists("e-0")
    await peer.create("e")
    await until(lambda: all(node.replicas.get(topic, 0) is not None for topic in TOPICS))
    assert node.replicas.leader("e", 0).log.log_end_offset == 0


@pytest.mark.usefixtures("slow")
async def test_a_stop_before_the_last_log_is_open_forgets_nothing(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    await filled(nodes, disk)
    disk.fail("open", path="*e-0/*", times=None, number=errno.EMFILE)  # is tried again each second
    await (await nodes.start(disk)).stop()
    disk.heal()
    assert not disk.exists(".kafka_cleanshutdown"), "logs that were not opened were not checked"
    node = await nodes.start(disk)
    await until(lambda: all(node.replicas.get(topic, 0) is not None for topic in TOPICS))
    assert {node.replicas.leader(topic, 0).log.log_end_offset for topic in TOPICS} == {BATCHES}


async def test_after_a_kill_the_saved_states_are_gone_on_from(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk, log_flush_offset_checkpoint_interval_ms="10")
    await (await nodes.peer(node)).create("t")
    replica = node.replicas.leader("t", 0)
    for _ in range(BATCHES):
        replica.append(build_batch([NewRecord(None, bytes(20), int(time.time() * 1000))]))
    await until(lambda: replica.log.saved.end_offset == BATCHES)
    node.kill()
    disk.kill()
    disk.fail("pread", path="*t-0*", nth=21, times=None)  # a walk over all batches reads more often
    again = await nodes.start(disk)
    assert again.replicas.leader("t", 0).log.log_end_offset == BATCHES


async def test_a_log_that_lost_a_segment_after_a_clean_stop_is_not_opened_at_any_later_start(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk, log_segment_bytes=str(1024 * 1024))
    peer = await nodes.peer(node)
    await peer.create("t")
    for _ in range(8):
        node.replicas.leader("t", 0).append(build_batch([NewRecord(None, bytes(400_000), 1)]))
    await node.stop()
    kept = {name: disk.read(f"t-0/{name}") for name in disk.listdir("t-0")}
    gone = sorted(name for name in kept if name.endswith(".log"))[1]
    for name in kept:
        if name.startswith(gone[:20]):
            disk.remove(f"t-0/{name}")
    for _ in range(3):
        with pytest.raises(OSError, match=r"t-0 is damaged after a clean stop: its \.log files have"):
            await nodes.start(disk)
        nodes.failures.clear()

    for name, data in kept.items():
        disk.replace(f"t-0/{name}", data)
    node = await nodes.start(disk)
    assert node.replicas.leader("t", 0).log.log_end_offset == 8
    assert not disk.exists(f"t-0/{recovery.DAMAGE_NOTE}")
    await node.stop()


async def test_sizes_of_another_stop_are_not_compared(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    await node.stop()
    sizes = disk.read(LOG_SIZE_CHECKPOINT)
    node = await nodes.start(disk)
    node.replicas.leader("t", 0).append(build_batch([NewRecord(None, b"x", 1)]))
    await node.stop()
    disk.replace(LOG_SIZE_CHECKPOINT, sizes)  # as if Kafka had run in between: it leaves the file as it is
    node = await nodes.start(disk)
    assert node.replicas.leader("t", 0).log.log_end_offset == 1
    await node.stop()


async def test_a_log_that_is_damaged_after_a_clean_stop_is_not_cut_at_any_later_start(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    for _ in range(3):
        replica.append(build_batch([NewRecord(None, bytes(200_000), 1)]))
    position, header = replica.log.segments.active.last_batch()
    assert position
    await node.stop()
    file = disk.open("t-0/00000000000000000000.log")
    file.pwrite(bytes(4), position + 8)  # the length of its last batch
    before = disk.read(file.path)
    for _ in range(3):
        with pytest.raises(OSError, match="damaged after a clean stop: no whole batch begins at byte"):
            await nodes.start(disk)
        assert disk.read(file.path) == before
        assert len(nodes.failures) == 1, "it was the only directory"
        nodes.failures.clear()
    assert "note=t-0/damaged-after-clean-stop" in caplog.text

    file.pwrite(header, position)
    node = await nodes.start(disk)
    assert node.replicas.leader("t", 0).log.log_end_offset == 3
    assert not disk.exists(f"t-0/{recovery.DAMAGE_NOTE}"), "it was restored"
    await node.stop()

    file.pwrite(bytes(4), position + 8)
    with pytest.raises(OSError, match="damaged"):
        await nodes.start(disk)
    nodes.failures.clear()
    disk.remove(f"t-0/{recovery.DAMAGE_NOTE}")
    node = await nodes.start(disk)
    log = node.replicas.leader("t", 0).log
    assert log.log_end_offset == 2
    assert not log.producers.complete
    assert "acknowledged records may be lost: folder=t-0 log_end_offset=2 high_watermark=3" in caplog.text
