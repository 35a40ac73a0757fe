"""Whose directory it is, and how a broker comes and goes."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.controller.core.features import UnsupportedFeatures
from barnabas.broker.image.image import PartitionImage
from barnabas.broker.image.records import ConfigRecord, FeatureLevelRecord, MetadataRecord, encode_record
from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.identity import WrongDirectory
from barnabas.errors import DirectoryInUse
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.checkpoints import LOG_START_OFFSET_CHECKPOINT, decode_uuid, read_meta_properties
from barnabas.storage.disk import MemoryDisk
from tests.support.broker.nodes import Nodes
from tests.support.waiting import until

METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


def contents(disk: MemoryDisk, folder: str = "") -> dict[str, bytes]:
    """Every file, by its path."""
    found = {}
    for name in disk.listdir(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            found[path] = disk.read(path)
        except FileNotFoundError:
            found |= contents(disk, path)
    return found


async def created(node: Node, name: str) -> PartitionImage:
    done: list[Any] = []
    node.controller.ensure_topic(name, done.append)
    await until(lambda: done)
    partition = node.image.partition(name, 0)
    assert partition is not None
    return partition


async def test_a_new_directory_gets_an_identity_and_keeps_it(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    meta = read_meta_properties(disk)
    assert meta is not None
    assert (meta.node_id, len(meta.cluster_id), len(decode_uuid(meta.cluster_id))) == (1, 22, 16)
    assert (node.cluster_id, node.directory_id) == (meta.cluster_id, decode_uuid(meta.directory_id))
    await node.stop()
    again = await nodes.start(disk)
    assert (again.cluster_id, again.directory_id) == (node.cluster_id, node.directory_id)


async def test_every_start_registers_anew_and_every_leadership_begins_anew(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    partition = await created(node, "a")
    assert (partition.leader, partition.leader_epoch) == (1, 0)
    epochs, incarnations = [node.lifecycle.broker_epoch], {node.lifecycle.incarnation_id}
    for clean in (True, False, True):
        if clean:
            await node.stop()
        else:
            node.kill()
        node = await nodes.start(disk)
        registered = node.image.brokers[1]
        assert registered.epoch == node.lifecycle.broker_epoch
        assert not registered.fenced
        epochs.append(registered.epoch)
        incarnations.add(registered.incarnation_id)
        before, partition = partition, node.image.topics_by_name["a"].partitions[0]
        assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1,), ())
        assert partition.leader_epoch == before.leader_epoch + 2  # it ended, and it began
        # Kafka marks a leader recovering that may have lost unsynced data.
        assert partition.leader_recovery_state == (0 if len(epochs) == 2 else 1)  # until its ISR changes next
        assert node.replicas.leader("a", 0).leader_epoch == partition.leader_epoch
    assert epochs == sorted(set(epochs))
    assert len(incarnations) == 4


async def test_a_clean_stop_leaves_its_mark_with_the_broker_epoch(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    await created(node, "a")
    assert not disk.exists(".kafka_cleanshutdown")
    await node.stop()
    assert disk.read(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":%d}' % node.lifecycle.broker_epoch
    node = await nodes.start(disk)
    assert node.clean_start
    assert not disk.exists(".kafka_cleanshutdown")
    node.kill()
    disk.crash(node.reactor.rng)
    assert not (await nodes.start(disk)).clean_start


async def test_a_clean_stop_ends_fenced_and_leads_nothing(nodes: Nodes) -> None:
    node = await nodes.start()
    await created(node, "a")
    await node.stop()
    broker, partition = node.image.brokers[1], node.image.topics_by_name["a"].partitions[0]
    assert (broker.fenced, broker.in_controlled_shutdown) == (True, True)
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (-1, (), (1,))


async def test_a_directory_in_use_is_refused_and_left_alone(nodes: Nodes) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    with pytest.raises(DirectoryInUse):
        await nodes.start(disk)
    nodes.nodes.pop()
    await created(node, "still-served")


async def test_another_nodes_directory_is_refused(nodes: Nodes) -> None:
    disk = MemoryDisk()
    await (await nodes.start(disk)).stop()
    with pytest.raises(WrongDirectory, match=r"belongs to node 1 .* start with node\.id=1"):
        await nodes.start(disk, node_id="2")
    await nodes.start(disk)


async def test_another_clusters_directory_is_refused(nodes: Nodes) -> None:
    disk = MemoryDisk()
    mine, other = "5L6g3nShT-eMCtKaX86swQ", "AAAAAAAAAAAAAAAAAAAAAQ"
    node = await nodes.start(disk, cluster_id=mine)
    assert node.cluster_id == mine
    await node.stop()
    files = disk.listdir("")
    with pytest.raises(WrongDirectory, match=f"belongs to cluster {mine} .* not to {other}"):
        await nodes.start(disk, cluster_id=other)
    assert disk.listdir("") == files  # the clean-shutdown file among them


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"version=0\nbroker.id=1\n", "version 0"),
        (b"version=1\nnode.id=1\ncluster.id=x\n", "directory.id"),
        (b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n", "directory.id"),
        (b"", "version None"),
    ],
)
async def test_a_damaged_identity_is_refused(nodes: Nodes, text: bytes, wrong: str) -> None:
    disk = MemoryDisk()
    disk.replace("meta.properties", text)
    with pytest.raises(WrongDirectory, match=wrong):
        await nodes.start(disk)


async def test_a_log_without_identity_is_refused(nodes: Nodes) -> None:
    disk = MemoryDisk()
    await (await nodes.start(disk)).stop()
    disk.remove("meta.properties")
    with pytest.raises(WrongDirectory, match=r"no meta\.properties: restore that file"):
        await nodes.start(disk)


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (FeatureLevelRecord(name="metadata.version", feature_level=31), "metadata.version is finalized at 31"),
        (FeatureLevelRecord(name="tiered.something", feature_level=1), "tiered.something is finalized at 1"),
        (
            ConfigRecord(resource_type=2, resource_name="t", name="remote.storage.enable", value="true"),
            "topic 't' has remote.storage.enable=true, and tiered storage is not served here",
        ),
    ],
    ids=["a level", "a feature", "a topic with tiered storage"],
)
async def test_what_only_kafka_serves_is_refused_by_name(nodes: Nodes, record: MetadataRecord, wrong: str) -> None:
    disk = MemoryDisk()
    node = await nodes.start(disk)
    await (await nodes.peer(node)).create("t")
    await node.stop()
    end_offset = node.quorum.log_end_offset
    batch = build_batch([NewRecord(None, encode_record(record), 0)], base_offset=end_offset, leader_epoch=1)
    file = disk.open(METADATA_LOG)
    file.pwrite(batch, file.size())
    disk.sync_now([file])
    file.close()
    disk.rename(*(f"__cluster_metadata-0/{offset:020d}.snapshot" for offset in (end_offset, end_offset + 1)))
    before = contents(disk)
    assert {".kafka_cleanshutdown", METADATA_LOG, LOG_START_OFFSET_CHECKPOINT, "t-0/00000000000000000000.log"} <= set(
        before
    )
    for _ in range(2):
        with pytest.raises(UnsupportedFeatures, match=wrong):
            await nodes.start(disk)
        # Whoever wrote it finds it as it was.
        assert contents(disk) == before


async def test_a_topic_that_gets_tiered_storage_stops_the_node(nodes: Nodes) -> None:
    """Only a controller of Kafka writes this."""
    node = await nodes.start()
    await (await nodes.peer(node)).create("t")
    record = ConfigRecord(resource_type=2, resource_name="t", name="remote.storage.enable", value="true")
    assert node.quorum_controller is not None
    node.quorum_controller.submit(lambda _: MetadataDecision(None, [record]))
    await until(lambda: nodes.failures)
    assert isinstance(nodes.failures.pop(), UnsupportedFeatures)


async def test_what_is_advertised(nodes: Nodes) -> None:
    node = await nodes.start(
        listeners="PLAINTEXT://0.0.0.0:0", advertised_listeners="PLAINTEXT://broker.example:443", broker_rack="r7"
    )
    broker = node.image.brokers[1]
    (endpoint,) = broker.end_points
    assert (endpoint.name, endpoint.host, endpoint.port, broker.rack) == ("PLAINTEXT", "broker.example", 443, "r7")
    node = await nodes.start(listeners="PLAINTEXT://0.0.0.0:0")
    (endpoint,) = node.image.brokers[1].end_points
    assert endpoint.host == "127.0.0.1"
    assert endpoint.port > 0
