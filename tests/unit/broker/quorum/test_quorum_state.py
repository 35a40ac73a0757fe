"""The quorum-state file."""

from __future__ import annotations

import pytest

from barnabas.broker.quorum.core.quorum_state import (
    MalformedQuorumState,
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from barnabas.storage.disk import MemoryDisk

# What Kafka 4.3.1 writes, byte for byte.
KAFKA = (
    b'{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
    b'"currentVoters":[{"voterId":1}],"data_version":0}'
)


def test_written_as_kafka_writes_it() -> None:
    disk = MemoryDisk()
    disk.mkdir("log")
    state = QuorumState(leader_epoch=3, leader_id=1, voters=(1,))
    write_quorum_state(disk, "log", state)
    assert disk.read("log/quorum-state") == KAFKA
    assert read_quorum_state(disk, "log") == state


def test_version_1_stays_version_1_and_a_missing_file_is_the_beginning() -> None:
    disk = MemoryDisk()
    disk.mkdir("log")
    assert read_quorum_state(disk, "log") == QuorumState()
    # What Kafka 4.3.1 writes where the voters are in the log.
    kafkas = b'{"leaderId":1,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    disk.replace("log/quorum-state", kafkas)
    state = read_quorum_state(disk, "log")
    assert state == QuorumState(leader_epoch=7, leader_id=1, version=1)
    write_quorum_state(disk, "log", state)
    assert disk.read("log/quorum-state") == kafkas


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        KAFKA[:-1],
        KAFKA.replace(b'"data_version":0', b'"data_version":2'),
        KAFKA.replace(b":3", b':"x"'),
    ],
)
def test_a_damaged_file_is_an_error_and_no_vote(data: bytes) -> None:
    disk = MemoryDisk()
    disk.mkdir("log")
    disk.replace("log/quorum-state", data)
    with pytest.raises(MalformedQuorumState):
        read_quorum_state(disk, "log")
