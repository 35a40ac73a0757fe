"""Batches of thousands of metadata records on a whole node: replayed and published in slices, one whole image after the other."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.broker.coordinator.groups import offsets
from barnabas.broker.coordinator.groups.records import CommittedOffset, OffsetRecord
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.storage.disk import MemoryDisk
from tests.support.broker.nodes import Nodes
from tests.support.processes.huge.request import commit_of
from tests.support.requests import codes_in, request_of
from tests.support.waiting import until

MANY = 1_000  # topics: dozens of slices


def creation(names: list[str], partitions: int = 1) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=30_000)


def deletion(names: list[str]) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=30_000)


class Watch:
    """Looks at a node in every turn of the loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.counts = [0]  # of topics, at each change
        self.turns = 0  # in which a batch was on its way from the log to the image
        self.unknown: list[str] = []  # topics of the node's image of which its replicas knew nothing

    async def run(self) -> None:
        image = self.node.image
        while True:
            await asyncio.sleep(0)
            self.turns += self.node.quorum._delivery.held
            if self.node.image is image:
                continue
            created = self.node.image.topics_by_id.keys() - image.topics_by_id.keys()
            self.unknown += [topic_id.hex() for topic_id in created if self.node.replicas.topic_name(topic_id) is None]
            image = self.node.image
            if len(image.topics_by_name) != self.counts[-1]:
                self.counts.append(len(image.topics_by_name))


async def test_images_are_published_whole_and_one_after_the_other(nodes: Nodes) -> None:
    node = await nodes.start()
    watch = Watch(node)
    task = asyncio.create_task(watch.run())
    first, second = [f"a{n}" for n in range(MANY)], [f"b{n}" for n in range(MANY)]
    requests = [(creation(first), 7), (creation(second), 7), (deletion(first), 6), (creation(first), 7)]
    peers = [await nodes.peer(node) for _ in requests]
    calls = [peer.call(*each) for peer, each in zip(peers, requests, strict=True)]
    answers = await asyncio.gather(*calls[:2])  # requests of different connections are served in any order
    answers += [await calls[2], await calls[3]]
    task.cancel()
    codes = [{each.error_code for each in getattr(a, "topics", None) or a.responses} for a in answers]
    assert codes == [{ErrorCode.NONE}] * 4
    assert watch.counts == [0, MANY, 2 * MANY, MANY, 2 * MANY]
    assert watch.unknown == []
    assert watch.turns > 150  # the loop had its turn after every slice
    assert node.replicas.leader("a0", 0).topic_id == node.image.topic_id("a0")


async def test_a_topic_is_deleted_while_its_folders_are_opened(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk, log_segment_delete_delay_ms="1")
    peer = await nodes.peer(node)
    for _ in range(2):
        assert (await peer.call(creation(["wide"], 600), 7)).topics[0].error_code == 0
        assert (await peer.call(deletion(["wide"]), 6)).responses[0].error_code == 0
        assert list(node.replicas.all()) == []
        assert node.replicas.absence("wide", 599) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await until(lambda: not [name for name in disk.listdir("") if name.startswith("wide")])


async def test_a_node_stops_in_the_middle_of_a_batch(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    peer.send(creation([f"a{n}" for n in range(MANY)]), 7)
    await until(lambda: node.quorum._delivery.held)
    await node.stop()
    again = await nodes.start(disk)
    assert len(again.image.topics_by_name) == MANY
    assert again.replicas.leader("a999", 0).is_leader


async def test_offsets_of_a_deleted_topic_go_in_slices_and_those_of_the_next_one_stay(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "CHUNK", 16)
    node = await nodes.start()
    peer = await nodes.peer(node)
    assert (await peer.call(creation(["wide"], MANY), 7)).topics[0].error_code == 0
    found = await peer.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["huge-group"]), 4)
    assert found.coordinators[0].error_code == 0
    committed = await peer.call(request_of("OffsetCommit", **commit_of(MANY, "wide")), 8)
    assert codes_in(committed) == {ErrorCode.NONE}
    shard = node.groups.shard_for("huge-group")
    assert (await peer.call(deletion(["wide"]), 6)).responses[0].error_code == 0
    assert node.slices.busy, "tombstones are still written when the deletion is answered"
    assert (await peer.call(creation(["wide"], MANY), 7)).topics[0].error_code == 0
    shard.stage([OffsetRecord("huge-group", "wide", MANY - 1, CommittedOffset(7, -1, "", 0))], None)
    await until(lambda: not node.slices.busy)
    assert {n: each.offset for n, each in shard.offsets.topics("huge-group")["wide"].items()} == {MANY - 1: 7}
