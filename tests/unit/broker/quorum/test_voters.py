"""Who votes: directories with static voters, directories with the voters in the log, and those of other quorums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.metadata.records import FeatureLevelRecord, encode_record
from barnabas.broker.quorum.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from barnabas.broker.quorum.raft_log import METADATA_DIRECTORY
from barnabas.broker.quorum.snapshots import decode_snapshot, encode_snapshot, list_snapshots, snapshot_name
from barnabas.broker.quorum.voters import NotTheSoleVoter, VotersDisagree, VoterSet, VotersRecord
from barnabas.protocol.records import CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS
from barnabas.protocol.schema import decode, encode
from barnabas.storage.checkpoints import MetaProperties, write_meta_properties
from barnabas.storage.disk import MemoryDisk
from tests.unit.broker.conftest import Nodes, until

GOLDEN = Path(__file__).parents[3] / "golden" / "metadata"
STANDALONE = (GOLDEN / "standalone-0-0.bin").read_bytes()
BOOTSTRAP = (GOLDEN / "bootstrap.bin").read_bytes()
DIRECTORY_ID = "bNruWBCzT3i3ur3EzCXXDg"  # of that voter


def kafkas_voters() -> VoterSet:
    voters = VoterSet()
    assert list(decode_snapshot(STANDALONE, voters.take)) == []
    return voters


def formatted(bootstrap: bytes = BOOTSTRAP) -> MemoryDisk:
    """What `StorageTool format --standalone` leaves."""
    disk = MemoryDisk()
    write_meta_properties(disk, MetaProperties("5L6g3nShT-eMCtKaX86swQ", 1, DIRECTORY_ID))
    disk.replace("bootstrap.checkpoint", bootstrap)
    disk.mkdir(METADATA_DIRECTORY)
    disk.replace(f"{METADATA_DIRECTORY}/00000000000000000000-0000000000.checkpoint", STANDALONE)
    return disk


def test_kafkas_voter_set_is_read_and_kept_byte_for_byte() -> None:
    voters = kafkas_voters()
    assert (voters.kraft_version, voters.voters) == (1, (1,))
    (version_type, _), (voters_type, value) = voters.control_records()
    assert (version_type, voters_type) == (CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS)
    assert encode(decode(VotersRecord, value, 0), 0) == value
    ours = encode_snapshot([], epoch=0, last_timestamp_ms=0, now_ms=0, control=voters.control_records())
    again = VoterSet()
    assert list(decode_snapshot(ours, again.take)) == []
    assert again.control_records() == voters.control_records()
    assert len(ours) == len(STANDALONE)


async def test_a_directory_that_kafka_formatted_is_led_on_as_it_is(nodes: Nodes) -> None:
    disk = formatted()
    node = await nodes.start(disk, metadata_log_max_record_bytes_between_snapshots="500")
    assert node.image.features["metadata.version"] == 30
    assert node.image.cluster_config == {"min.insync.replicas": "1"}
    done: list[Any] = []
    node.controller.ensure_topic("a", done.append)
    await until(lambda: done and len(list_snapshots(disk, METADATA_DIRECTORY)) > 1)
    await node.stop()
    assert read_quorum_state(disk, METADATA_DIRECTORY) == QuorumState(leader_epoch=1, leader_id=1, version=1)
    newest = list_snapshots(disk, METADATA_DIRECTORY)[-1]
    voters = VoterSet()
    assert list(decode_snapshot(disk.read(f"{METADATA_DIRECTORY}/{snapshot_name(newest)}"), voters.take))
    assert voters.control_records() == kafkas_voters().control_records()
    again = await nodes.start(disk)
    assert again.image.partition_count("a") == 1


async def test_the_levels_that_a_directory_was_formatted_with_are_taken(nodes: Nodes) -> None:
    levels = [FeatureLevelRecord(name="metadata.version", feature_level=25)]
    bootstrap = encode_snapshot(map(encode_record, levels), epoch=0, last_timestamp_ms=0, now_ms=0)
    node = await nodes.start(formatted(bootstrap))
    assert node.image.features == {"metadata.version": 25}
    assert node.image.cluster_config == {}  # no eligible leaders, no cluster-wide min ISR


@pytest.mark.parametrize("state", [QuorumState(leader_epoch=4, voters=(1, 2, 3)), QuorumState(voters=(1, 3))], ids=repr)
def test_a_directory_with_other_voters_is_refused(state: QuorumState) -> None:
    with pytest.raises(
        VotersDisagree, match=r"quorum-state names the voters 1, .*controller\.quorum\.voters 1, 2: give"
    ):
        VoterSet().check(1, state, (1, 2))
    VoterSet().check(4, state, (1, 2))  # it does not vote: whom it follows it learns from the voters


def test_voters_of_the_log_and_their_version() -> None:
    voters = kafkas_voters()
    voters.check(1, QuorumState(), (1,))
    for node_id, configured in ((2, (1,)), (1, (1, 2)), (2, (2,))):
        with pytest.raises(NotTheSoleVoter, match="the metadata log holds the voters 1"):
            voters.check(node_id, QuorumState(), configured)
    voters.kraft_version = 2
    with pytest.raises(NotTheSoleVoter, match=r"kraft\.version is finalized at 2"):
        voters.check(1, QuorumState(), (1,))


async def test_a_directory_of_a_larger_quorum_is_refused_and_left_alone(nodes: Nodes) -> None:
    disk = MemoryDisk()
    await (await nodes.start(disk)).stop()
    write_quorum_state(disk, METADATA_DIRECTORY, QuorumState(leader_epoch=4, leader_id=2, voters=(1, 2, 3)))
    paths = (".kafka_cleanshutdown", f"{METADATA_DIRECTORY}/quorum-state")
    before = [disk.read(path) for path in paths]
    with pytest.raises(VotersDisagree, match=r"quorum-state in .* names the voters 1, 2, 3"):
        await nodes.start(disk)
    assert [disk.read(path) for path in paths] == before
