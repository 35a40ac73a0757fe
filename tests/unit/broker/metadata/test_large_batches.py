"""Batches of thousands of metadata records on a whole node: replayed and published in slices, one whole image after the other."""

from __future__ import annotations

import asyncio

from barnabas.broker.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from barnabas.storage.disk import MemoryDisk
from tests.unit.broker.conftest import Nodes, until

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
            self.turns += self.node.quorum._held
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
    answers = await asyncio.gather(*(peer.call(*each) for peer, each in zip(peers, requests, strict=True)))
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
    await until(lambda: node.quorum._held)
    await node.stop()
    again = await nodes.start(disk)
    assert len(again.image.topics_by_name) == MANY
    assert again.replicas.leader("a999", 0).is_leader
