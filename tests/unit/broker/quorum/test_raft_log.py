"""The metadata log on disk: damage behind a clean stop, and what a voter that has it may do."""

from __future__ import annotations

import random

import pytest

from barnabas.broker.config import BrokerConfig
from barnabas.broker.quorum.complaints import Complaints
from barnabas.broker.quorum.machine import RaftMachine
from barnabas.broker.quorum.messages import Fetch, FetchReply, LogPoint, Vote
from barnabas.broker.quorum.quorum_state import QuorumState
from barnabas.broker.quorum.raft_log import METADATA_DIRECTORY, RaftLog
from barnabas.broker.quorum.roles import Role, Timing
from barnabas.errors import ErrorCode, InvariantViolated
from barnabas.storage.disk import MemoryDisk
from tests.unit.broker.quorum.members import VirtualClock

LOG = f"{METADATA_DIRECTORY}/00000000000000000000.log"
CONFIG = BrokerConfig({"node.id": "1"})
VOTERS = (1, 2, 3)


def open_log(disk: MemoryDisk, *, clean: bool = True, alone: bool = False) -> RaftLog:
    return RaftLog(disk, CONFIG, VirtualClock(), clean=clean, alone=alone)


def damaged() -> tuple[MemoryDisk, list[bytes]]:
    """The disk of a voter that stopped cleanly with two records, the second of them damaged since; and the batches as they were."""
    disk = MemoryDisk()
    raft_log = open_log(disk)
    batches, at = [], 0
    for value in (b"first", b"second"):
        raft_log.append([value], 1)
        batches.append(disk.read(LOG)[at:])
        at = disk.size(LOG)
    raft_log.close()
    file = disk.open(LOG)
    file.pwrite(b"#", at - 3)
    disk.sync_now([file])
    file.close()
    return disk, batches


def member(raft_log: RaftLog) -> RaftMachine:
    return RaftMachine(
        1,
        VOTERS,
        raft_log,
        QuorumState(leader_epoch=1, voters=VOTERS),
        store=lambda state: None,
        random=random.Random(1).random,
        timing=Timing(),
        complaints=Complaints(1),
    )


def test_a_voter_that_lost_what_it_acknowledged_gives_no_vote_until_it_has_it_again() -> None:
    disk, batches = damaged()
    raft_log = open_log(disk)
    assert (raft_log.end_offset, raft_log.lost_records) == (1, True)
    raft_log.close()
    machine = member(open_log(disk))
    assert machine.log.lost_records, "another start does not bring it back"
    machine.start(0)
    for now_ms in range(0, 20_000, 100):
        machine.on_timer(now_ms)
    assert machine.role is Role.UNATTACHED, "it does not stand for election"
    for pre_vote in (True, False):
        assert not machine.on_vote(Vote(2, 3, LogPoint(1, 1), pre_vote), 20_000).granted

    machine = member(open_log(disk))
    machine.start(0)
    machine.on_timer(100)
    (looks,) = machine.take_outgoing()
    machine.on_reply(looks.to, looks.request, FetchReply(ErrorCode.FENCED_LEADER_EPOCH, 2, 3), 100)
    (fetches,) = machine.take_outgoing()
    assert isinstance(fetches.request, Fetch)
    assert (fetches.to, fetches.request.log) == (2, LogPoint(1, 1))
    lost = FetchReply(ErrorCode.NONE, 2, 3, high_watermark=2, log_start_offset=0, records=batches[1])
    machine.on_reply(2, fetches.request, lost, 200)
    assert machine.log.lost_records, "the leader may have more"
    machine.log.sync_now()
    machine.on_synced(200)
    (fetches,) = machine.take_outgoing()
    nothing = FetchReply(ErrorCode.NONE, 2, 3, high_watermark=2, log_start_offset=0)
    machine.on_reply(2, fetches.request, nothing, 700)
    assert not machine.log.lost_records
    assert machine.is_voter
    machine.log.close()
    assert not open_log(disk).lost_records


def test_damage_that_nobody_can_mend_is_left_as_it_is() -> None:
    disk, _ = damaged()
    before = disk.read(LOG)
    with pytest.raises(InvariantViolated, match="restore it from a copy"):
        open_log(disk, alone=True)
    assert disk.read(LOG) == before
