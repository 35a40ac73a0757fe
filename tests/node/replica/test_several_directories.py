"""A node with several log directories: placement, restarts, and one that fails."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.identity import WrongDirectory
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BarnabasError, ErrorCode
from barnabas.protocol.messages.admin import DescribeLogDirsRequest
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.storage import checkpoints
from barnabas.storage.saved_state import SYNCED_STATE
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.waiting import turns, until


def three() -> list[FaultyMemoryDisk]:
    return [FaultyMemoryDisk(f"/{name}") for name in "abc"]


async def produce(peer: Peer, partition: int) -> int:
    data = PartitionProduceData(index=partition, records=batch(b"x"))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    return int((await peer.call(request, 9)).responses[0].partition_responses[0].error_code)


async def where(peer: Peer) -> dict[str, list[int] | int]:
    """Partitions of `t` by directory, the error code where it failed."""
    results = (await peer.call(DescribeLogDirsRequest(topics=None), 4)).results
    return {
        each.log_dir: each.error_code or [one.partition_index for topic in each.topics for one in topic.partitions]
        for each in results
    }


def folders(disk: FaultyMemoryDisk) -> list[str]:
    return [name for name in disk.listdir("") if name.startswith("t-")]


def told(node: Node) -> Sequence[bytes]:
    """The directory of each partition of `t`, as the metadata log says it."""
    topic = node.image.topic("t")
    assert topic is not None
    return [partition.directories[0] for partition in topic.partitions]


async def test_new_replicas_go_where_the_fewest_are_and_stay_there(nodes: Nodes) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    spread = {"/a": [0, 3], "/b": [1, 4], "/c": [2, 5]}
    assert await where(peer) == spread
    assert [await produce(peer, number) for number in range(6)] == [0] * 6
    ids = [directory.directory_id for directory in node.log_dirs]
    await until(lambda: told(node) == ids * 2)
    await node.stop()
    for disk in disks:
        assert disk.exists(".kafka_cleanshutdown")
        high_watermarks = checkpoints.read_offsets(disk, checkpoints.REPLICATION_OFFSET_CHECKPOINT)
        assert [f"{topic}-{number}" for topic, number in high_watermarks] == folders(disk)
    again = await nodes.start(*disks)
    peer = await nodes.peer(again)
    assert await where(peer) == spread
    assert [directory.directory_id for directory in again.log_dirs] == ids
    assert all(again.replicas.leader("t", number).log.log_end_offset == 1 for number in range(6))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_only_the_partitions_of_a_failed_directory_are_offline(nodes: Nodes, number: int) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    disks[1].fail("pwrite", times=None, number=number)
    assert await produce(peer, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert await where(peer) == {"/a": [0, 3], "/b": ErrorCode.KAFKA_STORAGE_ERROR, "/c": [2, 5]}
    codes = [await produce(peer, each) for each in range(6)]
    assert {each for each, code in enumerate(codes) if code == 0} == {0, 2, 3, 5}
    await until(lambda: node.image.brokers[1].directories == tuple(node.log_dirs.online_ids()))
    topic = node.image.topic("t")
    assert topic is not None
    assert [partition.leader for partition in topic.partitions] == [1, -1, 1, 1, -1, 1]
    assert nodes.failures == []
    await node.stop()
    assert [disk.exists(".kafka_cleanshutdown") for disk in disks] == [True, False, True]


async def test_it_comes_back_with_what_was_acknowledged(nodes: Nodes) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 3, flush_messages="1")
    assert await produce(peer, 1) == 0
    disks[1].fail("sync", times=None)
    assert await produce(peer, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    await node.stop()
    disks[1].heal()
    again = await nodes.start(*disks)
    peer = await nodes.peer(again)
    assert await where(peer) == {"/a": [0], "/b": [1], "/c": [2]}
    assert again.replicas.leader("t", 1).log.log_end_offset >= 1
    assert await produce(peer, 1) == 0


async def test_a_directory_that_is_offline_at_the_start(nodes: Nodes) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 3)
    await until(lambda: bytes(16) not in told(node))
    await node.stop()
    disks[2].fail("read", "open", "listdir", "pwrite", "replace", "create", times=None)
    again = await nodes.start(*disks)
    peer = await nodes.peer(again)
    assert await where(peer) == {"/a": [0], "/b": [1], "/c": ErrorCode.KAFKA_STORAGE_ERROR}
    assert [await produce(peer, each) for each in (0, 1)] == [0, 0]
    assert await produce(peer, 2) != 0
    disks[2].heal()
    assert folders(disks[2]) == ["t-2"], "it was not made anew elsewhere, nor touched"
    assert folders(disks[0]) == ["t-0"]


async def test_a_directory_that_is_added_later(nodes: Nodes) -> None:
    disks = three()
    node = await nodes.start(disks[0])
    peer = await nodes.peer(node)
    await peer.create("t", 2)
    await node.stop()
    again = await nodes.start(*disks)
    assert again.image.brokers[1].directories == tuple(again.log_dirs.online_ids())
    peer = await nodes.peer(again)
    assert await where(peer) == {"/a": [0, 1], "/b": [], "/c": []}
    await peer.create("u", 2)
    assert [len(directory.replicas) for directory in again.log_dirs] == [2, 1, 1]


async def test_a_directory_that_is_new_may_have_replaced_another(nodes: Nodes) -> None:
    """A disk that failed was exchanged: what the broker had is not all there, however clean its stop was."""
    first, second, third = three()
    node = await nodes.start(first, second)
    epoch = node.lifecycle.broker_epoch
    await node.stop()
    node = await nodes.start(first, second)
    assert node.log_dirs.main.identity is not None
    assert node.log_dirs.main.identity.previous_broker_epoch == epoch
    assert node.clean_start
    await node.stop()
    node = await nodes.start(first, third)
    assert not node.clean_start


async def test_directories_of_other_nodes_and_clusters_are_refused(nodes: Nodes) -> None:
    first, second, third = three()
    await (await nodes.start(first)).stop()
    await (await nodes.start(second)).stop()
    with pytest.raises(WrongDirectory, match="data directory /b belongs to cluster"):
        await nodes.start(first, second)
    await (await nodes.start(third, node_id="3")).stop()
    with pytest.raises(WrongDirectory, match="data directory /c belongs to node 3"):
        await nodes.start(first, third)
    with pytest.raises(BarnabasError, match="locked"):
        await nodes.start(first, first)
    node = await nodes.start(first)
    assert node.log_dirs.main.clean, "a refusal leaves it as it was"


async def test_a_node_that_cannot_tell_of_a_failed_directory_stops(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = three()
    node = await nodes.start(*disks, log_dir_failure_timeout_ms="300")
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    sent: list[Sequence[bytes]] = []
    ask = node.controller.request

    def unanswered(request: object, *more: object, **options: object) -> None:
        if isinstance(request, BrokerHeartbeatRequest) and request.offline_log_dirs:
            sent.append(request.offline_log_dirs)
        else:
            ask(request, *more, **options)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(node.controller, "request", unanswered)
    disks[1].fail("pwrite", times=None)
    assert await produce(peer, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    await until(lambda: bool(nodes.failures))
    assert sent == [[list(node.log_dirs)[1].directory_id]]
    nodes.failures.clear()


async def test_a_node_that_has_told_of_a_failed_directory_goes_on(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    looks: list[Callable[[], None]] = []
    call_later = node.reactor.call_later

    def noting(delay_ms: int, callback: Callable[[], None]) -> Timer:
        if delay_ms == node.config.get_int("log.dir.failure.timeout.ms"):
            looks.append(callback)
        return call_later(delay_ms, callback)

    monkeypatch.setattr(node.reactor, "call_later", noting)
    disks[1].fail("pwrite", times=None)
    assert await produce(peer, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    await until(lambda: node.image.brokers[1].directories == tuple(node.log_dirs.online_ids()))
    await turns()
    (look,) = looks
    look()  # the time is over
    assert nodes.failures == []
    assert await produce(peer, 0) == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR])
async def test_a_write_that_fails_for_a_passing_reason_fails_the_request_only(nodes: Nodes, number: int) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    disks[1].fail("pwrite", path="*t-1*", times=1, number=number, done="half")
    assert await produce(peer, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert await produce(peer, 1) == 0
    assert node.replicas.leader("t", 1).log.log_end_offset == 1


async def test_a_sync_without_a_descriptor_is_tried_again(nodes: Nodes) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6, flush_messages="1")
    disks[1].fail("sync", path="*t-1*", times=2, number=errno.EMFILE)
    assert await produce(peer, 1) == 0
    assert node.replicas.leader("t", 1).log.recovery_point == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_state_that_cannot_be_written_after_a_sync_fails_its_directory_only(nodes: Nodes, number: int) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    assert [await produce(peer, each) for each in (1, 2)] == [0, 0]
    replica = node.replicas.leader("t", 1)
    replica.log.save_state()
    disks[1].fail("pwrite", path=f"*{SYNCED_STATE}*", times=None, number=number)
    node.replicas.request_sync(replica)
    await until(lambda: replica.failed or nodes.failures)
    assert nodes.failures == []
    assert [await produce(peer, each) for each in (1, 2)] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]


async def test_a_state_that_finds_no_descriptor_does_not_delay_the_sync(nodes: Nodes) -> None:
    disks = three()
    node = await nodes.start(*disks)
    peer = await nodes.peer(node)
    await peer.create("t", 6)
    assert await produce(peer, 1) == 0
    replica = node.replicas.leader("t", 1)
    replica.log.save_state()
    disks[1].fail("open", "create", path=f"*{SYNCED_STATE}*", times=None, number=errno.EMFILE)
    node.replicas.request_sync(replica)
    await until(lambda: replica.log.recovery_point == 1 or replica.failed or nodes.failures)
    assert (replica.failed, nodes.failures) == (False, [])
