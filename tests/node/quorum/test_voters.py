"""Nodes that start on directories with voters in the log, and of other quorums."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.image.records import FeatureLevelRecord, encode_record
from barnabas.broker.quorum.core.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from barnabas.broker.quorum.core.snapshots import decode_snapshot, encode_snapshot, list_snapshots, snapshot_name
from barnabas.broker.quorum.core.voters import VotersDisagree, VoterSet
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.storage.checkpoints import MetaProperties, write_meta_properties
from barnabas.storage.disk import MemoryDisk
from tests.support.broker.nodes import Nodes
from tests.support.broker.standalone import GOLDEN, STANDALONE, kafkas_voters
from tests.support.waiting import until

BOOTSTRAP = (GOLDEN / "bootstrap.bin").read_bytes()
DIRECTORY_ID = "bNruWBCzT3i3ur3EzCXXDg"  # of that voter


def formatted(bootstrap: bytes = BOOTSTRAP) -> MemoryDisk:
    """What `StorageTool format --standalone` leaves."""
    disk = MemoryDisk()
    write_meta_properties(disk, MetaProperties("5L6g3nShT-eMCtKaX86swQ", 1, DIRECTORY_ID))
    disk.replace("bootstrap.checkpoint", bootstrap)
    disk.mkdir(CLUSTER_METADATA_FOLDER)
    disk.replace(f"{CLUSTER_METADATA_FOLDER}/00000000000000000000-0000000000.checkpoint", STANDALONE)
    return disk


async def test_a_directory_that_kafka_formatted_is_led_on_as_it_is(nodes: Nodes) -> None:
    disk = formatted()
    node = await nodes.start(disk, metadata_log_max_record_bytes_between_snapshots="500")
    assert node.image.features["metadata.version"] == 30
    assert node.image.cluster_config == {"min.insync.replicas": "1"}
    done: list[Any] = []
    node.controller.ensure_topic("a", done.append)
    await until(lambda: done and list_snapshots(disk, CLUSTER_METADATA_FOLDER)[-1].end_offset > 0)
    await node.stop()
    assert read_quorum_state(disk, CLUSTER_METADATA_FOLDER) == QuorumState(leader_epoch=1, leader_id=1, version=1)
    newest = list_snapshots(disk, CLUSTER_METADATA_FOLDER)[-1]
    voters = VoterSet()
    assert list(decode_snapshot(disk.read(f"{CLUSTER_METADATA_FOLDER}/{snapshot_name(newest)}"), voters.take))
    assert voters.control_records() == kafkas_voters().control_records()
    again = await nodes.start(disk)
    assert again.image.partition_count("a") == 1


async def test_the_levels_that_a_directory_was_formatted_with_are_taken(nodes: Nodes) -> None:
    levels = [FeatureLevelRecord(name="metadata.version", feature_level=25)]
    bootstrap = encode_snapshot(map(encode_record, levels), epoch=0, last_timestamp_ms=0, now_ms=0)
    node = await nodes.start(formatted(bootstrap))
    assert node.image.features == {"metadata.version": 25}
    assert node.image.cluster_config == {}  # no eligible leaders, no cluster-wide min ISR


async def test_a_directory_of_a_larger_quorum_is_refused_and_left_alone(nodes: Nodes) -> None:
    disk = MemoryDisk()
    await (await nodes.start(disk)).stop()
    write_quorum_state(disk, CLUSTER_METADATA_FOLDER, QuorumState(leader_epoch=4, leader_id=2, voters=(1, 2, 3)))
    paths = (".kafka_cleanshutdown", f"{CLUSTER_METADATA_FOLDER}/quorum-state")
    before = [disk.read(path) for path in paths]
    with pytest.raises(VotersDisagree, match=r"quorum-state in .* names the voters 1, 2, 3"):
        await nodes.start(disk)
    assert [disk.read(path) for path in paths] == before
