"""Two processes that run as the same voter, each on a directory of its own: between them there is one vote."""

from __future__ import annotations

import random

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.messages import BeginEpoch, EpochReply, LogPoint, Vote
from barnabas.broker.quorum.core.quorum_state import QuorumState
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.roles import Role, Timing
from barnabas.errors import ErrorCode
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.storage.disk import MemoryDisk
from tests.support.clock import ManualClock

ONE, OTHER = b"a" * 16, b"b" * 16


def voter(node_id: int) -> RaftMachine:
    config = BrokerConfig({"node.id": str(node_id)})
    raft_log = RaftLog(MemoryDisk(), config, ManualClock(), clean=False)
    machine = RaftMachine(
        node_id,
        (1, 2, 3),
        raft_log,
        QuorumState(),
        store=lambda _: None,
        random=random.Random(1).random,
        timing=Timing.from_config(config),
        limited_log=RateLimitedLogger(logger("kafka.raft"), lambda: 0),
    )
    machine.start(0)
    return machine


def ask(machine: RaftMachine, directory_id: bytes, epoch: int = 7) -> bool:
    return machine.on_vote(Vote(epoch, 3, LogPoint(0, 0), False, directory_id), 10).granted


def test_a_vote_goes_to_the_first_of_them() -> None:
    machine = voter(1)
    assert ask(machine, ONE)
    assert ask(machine, ONE), "the answer may have been lost"
    assert not ask(machine, OTHER)
    assert ask(machine, OTHER, epoch=8), "there is another vote in another epoch"
    assert not ask(machine, ONE, epoch=8)


def test_one_of_them_leads_and_the_other_says_so(caplog: pytest.LogCaptureFixture) -> None:
    machine = voter(3)
    request = BeginEpoch(4, 1)
    machine.on_reply(1, request, EpochReply(ErrorCode.NONE, 3, 5), 10)
    assert (machine.epoch, machine.leader_id, machine.epoch_state.role) == (5, -1, Role.UNATTACHED)
    assert "a directory of its own: node_id=3" in caplog.text
