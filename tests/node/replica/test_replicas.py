"""Replicas and their upkeep in a whole node: folders that come and go, crashes, failing disks, retention, checkpoints."""

from __future__ import annotations

import asyncio
import errno
import gc
import re
import time
import weakref
from dataclasses import replace

import pytest

from barnabas.broker.image.image import TOPIC_RESOURCE, MetadataDelta
from barnabas.broker.node.node import Node
from barnabas.broker.replica import recovery, replicas
from barnabas.broker.replica.core import follower_log
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Disk
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage import checkpoints
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.saved_state import SavedState
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import finished
from tests.support.broker.nodes import Nodes, Peer
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import elapsed, until


def append(node: Node, topic: str = "t", partition: int = 0, *, at_ms: int | None = None, size: int = 10) -> int:
    when = int(time.time() * 1000) if at_ms is None else at_ms
    info = node.replicas.leader(topic, partition).append(build_batch([NewRecord(None, bytes(size), when)]))
    return info.base_offset


async def alter(peer: Peer, topic: str, **settings: str) -> None:
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)]
    )
    answer = await peer.call(request, 1)
    assert answer.responses[0].error_code == 0


def folders(disk: Disk) -> list[str]:
    return [
        name
        for name in disk.listdir("")
        if "-" in name and not name.startswith(("__", ".")) and "checkpoint" not in name
    ]


async def test_a_deleted_topic_is_renamed_at_once_and_removed_later(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", 2, file_delete_delay_ms="50")
    append(node)
    old = node.replicas.leader("t", 0)
    await peer.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 3)
    assert node.replicas.get("t", 0) is None
    assert node.replicas.absence("t", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.replicas.topic_name(old.topic_id) is None
    assert all(name.startswith("t-") and name.endswith("-delete") for name in folders(disk))
    with pytest.raises(BrokerError):
        old.append(build_batch([NewRecord(None, b"late", 0)]))
    await peer.create("t")  # at once again: another topic, with nothing of the old one in it
    assert node.replicas.leader("t", 0).topic_id != old.topic_id
    assert node.replicas.leader("t", 0).log.log_end_offset == 0
    await until(lambda: folders(disk) == ["t-0"])


async def test_a_topic_with_the_longest_name_is_deleted_and_made_anew(nodes: Nodes) -> None:
    """Its folder's name has no room for a suffix."""
    disk = GatedDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    name = "t" * 249
    for _ in range(2):
        disk.removals.clear()
        await peer.create(name, file_delete_delay_ms="0")
        assert node.replicas.leader(name, 0).log.log_end_offset == 0
        await peer.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000), 3)
        (aside,) = folders(disk)
        assert (len(aside), aside[:5], aside[-7:]) == (255, "ttttt", "-delete")
        disk.removals.set()
        await until(lambda: not folders(disk))


async def test_a_crash_loses_nothing_that_was_flushed(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("safe", flush_messages="1")
    await peer.create("fast")
    done: list[BrokerError | None] = []
    for _ in range(5):
        next_offset = append(node, "safe") + 1
        append(node, "fast")
        node.replicas.leader("safe", 0).when_committed(next_offset, done.append)
    await until(lambda: len(done) == 5)
    node.kill()
    disk.crash()
    again = await nodes.start(disk)
    assert again.replicas.leader("safe", 0).log.log_end_offset == 5
    assert again.replicas.leader("safe", 0).high_watermark == 5
    assert again.replicas.leader("fast", 0).log.log_end_offset <= 5


async def test_a_sync_that_is_asked_for_during_the_stop_is_left_to_the_closing(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    await (await nodes.peer(node)).create("t", flush_messages="1")
    replica = node.replicas.leader("t", 0)

    async def last_words() -> None:
        try:
            await asyncio.Event().wait()
        finally:  # the node's scope is stopping
            replica.log.append_as_leader(
                build_batch([NewRecord(None, b"x", 0)]), leader_epoch=replica.leader_epoch, now_ms=0
            )
            node.log_dirs.main.request_sync(replica)

    node.reactor.scope.start(last_words())
    await asyncio.sleep(0)
    await node.stop()
    assert not [record for record in caplog.records if record.exc_info]
    disk.crash()
    assert (await nodes.start(disk)).replicas.leader("t", 0).log.log_end_offset == 1


async def test_what_is_written_where_a_cut_was_is_not_taken_for_durable(nodes: Nodes) -> None:
    """The recovery point of before the cut would leave a hole in the log after a power loss: later segments follow a lost end."""
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    await (await nodes.peer(node)).create("t")
    for _ in range(3):
        append(node)
    await node.stop()
    node = await nodes.start(disk)
    replica = node.replicas.leader("t", 0)
    assert replica.log.recovery_point == 3
    epoch = replica.leader_epoch
    replica.follow(2, epoch + 1, (2, 1), replica.partition_epoch + 1)
    finished(follower_log.on_diverged(replica, epoch + 1, epoch, 1))
    finished(follower_log.on_diverged(replica, epoch + 1, 0, 1))
    assert replica.log.log_end_offset == 1
    await until(lambda: replica.durability.covers(1))
    replica.lead(epoch + 2, (1,), replica.partition_epoch + 1)
    for _ in range(2):
        append(node)
    replica.log.roll(0)
    append(node)
    disk.sync_now([file for file in replica.log.unsynced_files() if file.path.endswith("3.log")])
    node.kill()
    disk.crash()
    again = await nodes.start(disk)
    log = again.replicas.leader("t", 0).log
    assert log.log_end_offset == 1  # not 4, with nothing at 1 and 2


async def test_a_failing_sync_stops_the_node_and_acknowledges_nothing(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", flush_messages="1")
    disk.fail("sync", path="*t-0*", times=None)
    outcomes: list[BrokerError | None] = []
    node.replicas.leader("t", 0).when_committed(append(node) + 1, outcomes.append)
    await until(lambda: nodes.failures)
    assert [error.code for error in outcomes if error] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert isinstance(nodes.failures.pop(), OSError)
    assert await peer.is_closed()


async def test_a_folder_of_no_partition_is_set_aside(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    await node.stop()
    config = LogConfig()
    stray = PartitionLog.open(disk, "lost-3", config, LogOpening(now_ms=0, topic_id=bytes(range(16))))
    stray.close()
    disk.mkdir("gone-0.abc-delete")
    disk.open("gone-0.abc-delete/x.log", create=True)
    await nodes.start(disk)
    (name,) = folders(disk)
    assert name.startswith("lost-3.")
    assert name.endswith("-stray")


@pytest.mark.parametrize("topic", ["t", "t" * 249])
async def test_a_folder_of_a_former_topic_of_that_name_is_set_aside_with_its_offsets(nodes: Nodes, topic: str) -> None:
    """Deleted and created anew while this broker was down."""
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create(topic)
    for _ in range(3):
        append(node, topic)
    node.replicas.leader(topic, 0).delete_records_before(2)
    await node.stop()
    disk.replace(f"{topic}-0/partition.metadata", checkpoints.format_partition_metadata(bytes(range(16))))
    again = await nodes.start(disk)
    log = again.replicas.leader(topic, 0).log
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    present, aside = sorted(folders(disk), key=lambda name: name.endswith("-stray"))
    assert present == f"{topic}-0"
    assert re.fullmatch(r"t+-0\.[0-9a-f]{32}-stray", aside)


async def test_what_checkpoints_say_of_a_topic_that_is_gone_is_not_for_the_next_of_its_name(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    await node.stop()
    for name in (
        checkpoints.RECOVERY_POINT_CHECKPOINT,
        checkpoints.LOG_START_OFFSET_CHECKPOINT,
        checkpoints.REPLICATION_OFFSET_CHECKPOINT,
    ):
        checkpoints.write_offsets(disk, name, {("t", 0): 7})
    again = await nodes.start(disk)
    peer = await nodes.peer(again)
    await peer.create("t")
    replica = again.replicas.leader("t", 0)
    assert (replica.log.log_start_offset, replica.log.log_end_offset, replica.high_watermark) == (0, 0, 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR])
async def test_a_log_that_cannot_be_opened_for_a_passing_reason_is_tried_again(
    nodes: Nodes, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_MS", 20)
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", 2)
    for _ in range(3):
        append(node)
    node.replicas.leader("t", 0).delete_records_before(2)
    await node.stop()
    disk.fail("open", "listdir", path="*t-0*", times=None, number=number)
    again = await nodes.start(disk)
    assert again.replicas.leader("t", 1).log.log_end_offset == 0, "the rest goes on"
    assert again.replicas.get("t", 0) is None
    assert again.replicas.absence("t", 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await again.stop()
    assert not disk.exists(".kafka_cleanshutdown"), "a log that was not opened was not checked"
    once_more = await nodes.start(disk)
    disk.heal()
    await until(lambda: once_more.replicas.get("t", 0) is not None)
    log = once_more.replicas.leader("t", 0).log
    assert (log.log_start_offset, log.log_end_offset) == (2, 3), "and its offsets are not forgotten"


async def test_a_new_partition_that_cannot_be_made_for_a_passing_reason_is_tried_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_MS", 20)
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    disk.fail("create", path="*t-1/*", times=3, number=errno.EMFILE)
    await peer.create("t", 2)
    assert append(node) == 0
    await until(lambda: node.replicas.get("t", 1) is not None)
    assert append(node, partition=1) == 0


async def test_a_log_that_cannot_be_opened_for_good_fails_its_directory(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    await (await nodes.peer(node)).create("t", 2)
    await node.stop()
    disk.fail("open", "listdir", path="*t-0*", times=None)
    with pytest.raises(OSError, match="Input/output error"):
        await nodes.start(disk)
    assert len(nodes.failures) == 1, "it was the only directory"
    nodes.failures.clear()


async def test_settings_reach_the_log(peer: Peer, node: Node) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    assert (replica.log.config.max_message_bytes, replica.min_insync_replicas) == (1_048_588, 1)
    await alter(peer, "t", max_message_bytes="777", segment_bytes="2000000")
    assert (replica.log.config.max_message_bytes, replica.log.config.segment_bytes) == (777, 2_000_000)


async def test_each_partition_needs_in_sync_what_its_own_replicas_allow(peer: Peer, node: Node) -> None:
    """Of these partitions one has one replica and one has three, as after a reassignment of a single partition."""
    for narrow, wide in ((0, 1), (1, 0)):
        name = f"t{narrow}"
        await peer.create(name, 2, min_insync_replicas="3")
        topic = node.image.topics_by_name[name]
        moved = topic.partitions[wide]._replace(replicas=(node.config.node_id, 7, 8), partition_epoch=1)
        partitions = tuple(moved if number == wide else each for number, each in enumerate(topic.partitions))
        topic = topic._replace(partitions=partitions)
        image = replace(
            node.image,
            topics_by_name={**node.image.topics_by_name, name: topic},
            topics_by_id={**node.image.topics_by_id, topic.topic_id: topic},
        )
        for delta in (
            MetadataDelta(partitions={topic.topic_id: {wide: None}}),
            MetadataDelta(configs={(TOPIC_RESOURCE, name): None}),
        ):
            finished(node.replicas.apply(image, delta))
            assert node.replicas.leader(name, narrow).min_insync_replicas == 1
            assert node.replicas.leader(name, wide).min_insync_replicas == 3


async def test_checkpoints_say_where_the_logs_are(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    for _ in range(3):
        append(node)
    node.replicas.leader("t", 0).delete_records_before(2)
    await node.stop()
    assert checkpoints.read_offsets(disk, checkpoints.REPLICATION_OFFSET_CHECKPOINT)["t", 0] == 3
    assert checkpoints.read_offsets(disk, checkpoints.RECOVERY_POINT_CHECKPOINT)["t", 0] == 3
    assert checkpoints.read_offsets(disk, checkpoints.LOG_START_OFFSET_CHECKPOINT)["t", 0] == 2
    again = await nodes.start(disk)
    log = again.replicas.leader("t", 0).log
    assert (log.log_start_offset, log.log_end_offset, log.truncated_bytes) == (2, 3, 0)


async def test_retention_takes_old_segments(nodes: Nodes) -> None:
    node = await nodes.start(log_retention_check_interval_ms="10", log_segment_bytes="1048576")
    peer = await nodes.peer(node)
    await peer.create("t", retention_ms="60000")
    old_ms = int(time.time() * 1000) - 3_000_000
    for _ in range(4):
        append(node, at_ms=old_ms, size=900_000)
    append(node, size=900_000)
    replica = node.replicas.leader("t", 0)
    await until(lambda: replica.log.log_start_offset == 4)
    assert replica.log.log_end_offset == 5


async def test_the_state_of_many_producers_is_saved_in_several_turns(
    nodes: Nodes,
) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk, log_flush_offset_checkpoint_interval_ms="10")
    peer = await nodes.peer(node)
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    producers = replica.log.producers
    for producer_id in range(1, 20_001):
        producers.append_data(producer_id, 0, 0, 0, 0, int(time.time() * 1000), False)
    append(node)
    state = f"{replica.log.directory}/synced-state-checkpoint"
    await until(lambda: bool(producers._captures))
    assert not disk.exists(state)
    append(node)  # not in the state
    await until(lambda: disk.exists(state))
    found = SavedState.from_bytes(disk.read(state))
    assert found is not None
    assert (found.end_offset, found.producers) == (1, producers.to_snapshot())


async def test_flush_ms_syncs_in_time(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.replica.log_maintenance.FLUSH_LOOK_MS", 10)
    node = await nodes.start()
    peer = await nodes.peer(node)
    await peer.create("t", flush_ms="30")
    await peer.create("lazy")
    append(node)
    append(node, "lazy")
    assert node.replicas.leader("t", 0).high_watermark == 1, "nobody waits for it"
    await until(lambda: node.replicas.leader("t", 0).log.recovery_point == 1)
    assert node.replicas.leader("lazy", 0).log.recovery_point == 0


async def test_nothing_keeps_a_deleted_replica_in_memory(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.replica.log_maintenance.FLUSH_LOOK_MS", 10)
    node = await nodes.start()
    peer = await nodes.peer(node)
    await peer.create("t", flush_ms="1000000", file_delete_delay_ms="0")
    append(node)
    replica = weakref.ref(node.replicas.leader("t", 0))
    await elapsed(node.reactor.clock, 100)  # the upkeep has seen what is not synced
    await peer.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 3)

    def is_gone() -> bool:
        gc.collect()
        return replica() is None

    await until(is_gone)


async def test_syncs_that_come_while_one_runs_share_the_next(nodes: Nodes) -> None:
    class Counting(FaultyMemoryDisk):
        def __init__(self) -> None:
            super().__init__()
            self.gate = asyncio.Event()
            self.gate.set()
            self.syncs = 0

        async def sync(self, files: object) -> None:
            self.syncs += 1
            await self.gate.wait()
            await super().sync(files)  # type: ignore[arg-type]  # passed through

    disk = Counting()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", 10, flush_messages="1")
    disk.gate.clear()
    disk.syncs = 0
    done: list[BrokerError | None] = []
    for partition in range(10):
        node.replicas.leader("t", partition).when_committed(append(node, partition=partition) + 1, done.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert disk.syncs == 1
    disk.gate.set()
    await until(lambda: len(done) == 10)
    assert disk.syncs == 2
    assert done == [None] * 10


async def test_checkpoints_are_written_as_time_goes_by_and_forget_deleted_topics(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(
        disk,
        replica_high_watermark_checkpoint_interval_ms="10",
        log_flush_offset_checkpoint_interval_ms="10",
    )
    peer = await nodes.peer(node)
    await peer.create("t")
    append(node)
    append(node)

    def checkpoint(name: str) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(disk, name) if disk.exists(name) else {}

    await until(lambda: checkpoint(checkpoints.REPLICATION_OFFSET_CHECKPOINT).get(("t", 0)) == 2)
    await until(lambda: checkpoint(checkpoints.RECOVERY_POINT_CHECKPOINT).get(("t", 0)) == 2)
    node.replicas.leader("t", 0).delete_records_before(1)
    await until(lambda: checkpoint(checkpoints.LOG_START_OFFSET_CHECKPOINT).get(("t", 0)) == 1)
    await peer.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 3)
    await peer.create("t")
    await until(lambda: checkpoint(checkpoints.LOG_START_OFFSET_CHECKPOINT) == {})
    node.kill()
    disk.crash()
    again = await nodes.start(disk)
    log = again.replicas.leader("t", 0).log
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


async def test_a_start_without_writes_leaves_a_partition_as_it_was(nodes: Nodes) -> None:
    """Every start begins an epoch; a thousand idle partitions must not each be written and synced for it."""
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", 2)
    append(node)
    first_epoch = node.replicas.leader("t", 0).leader_epoch
    await node.stop()

    def contents() -> dict[str, bytes]:
        return {
            f"{folder}/{name}": disk.read(f"{folder}/{name}")
            for folder in folders(disk)
            for name in disk.listdir(folder)
        }

    before = contents()
    node = await nodes.start(disk)
    assert node.replicas.leader("t", 0).leader_epoch > first_epoch
    await node.stop()
    assert contents() == before
    node = await nodes.start(disk)
    append(node)
    last_epoch = node.replicas.leader("t", 0).leader_epoch
    await node.stop()
    epochs = checkpoints.parse_epochs(disk.read("t-0/leader-epoch-checkpoint"))
    assert epochs == [(first_epoch, 0), (last_epoch, 1)]


async def test_many_new_partitions_are_opened_by_and_by_or_when_written_to(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "OPENED_AT_ONCE", 2)
    monkeypatch.setattr(replicas, "OPENED_PER_TURN", 0)
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", 5)
    await peer.create("gone", 5, file_delete_delay_ms="0")
    assert [number for number in range(5) if node.replicas.get("t", number)] == [0, 1]
    assert node.replicas.absence("t", 4) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert append(node, "t", 4) == 0, "who writes does not wait"
    await alter(peer, "t", retention_bytes="77")
    await peer.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5_000), 3)
    monkeypatch.setattr(replicas, "OPENED_PER_TURN", 2)
    await until(lambda: all(node.replicas.get("t", number) for number in range(5)))
    assert {node.replicas.leader("t", number).log.config.retention_bytes for number in range(5)} == {77}
    await until(lambda: folders(disk) == [f"t-{number}" for number in range(5)])


async def test_segments_of_a_topic_with_jitter_close_apart_and_not_at_every_batch(nodes: Nodes) -> None:
    """200 batches made 200 segments when the whole jitter was taken off segment.ms."""
    node = await nodes.start(FaultyMemoryDisk())
    peer = await nodes.peer(node)
    await peer.create("t", 1, segment_ms="6000000", segment_jitter_ms="6000000")
    began_ms = node.reactor.clock.now_ms() - 200 * 60_000
    for minute in range(200):
        append(node, at_ms=began_ms + minute * 60_000)
    starts = [segment.base_offset for segment in node.replicas.leader("t", 0).log.segments]
    assert 2 <= len(starts) < 100
