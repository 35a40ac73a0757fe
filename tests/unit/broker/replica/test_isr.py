"""In-sync replicas: who counts as caught up, what is proposed, and what the controller's answers mean."""

from __future__ import annotations

import pytest

from barnabas.broker.replica.core.isr import Follower, InSyncReplicas, IsrAnswer, IsrProposal
from barnabas.errors import BrokerError, ErrorCode

LAG_MS = 100


class IsrBench:
    """Node 1 leads a partition of 1, 2 and 3 in epoch 5."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.alive = {2: 20, 3: 30}
        self.isr = InSyncReplicas(1, lambda broker, epoch: self.alive.get(broker) == epoch, LAG_MS)
        self.isr.on_metadata(isr, 0)
        self.isr.lead((1, 2, 3), 0)

    def fetch(self, broker_id: int, offset: int, *, now_ms: int = 0, end: int = 10) -> None:
        self.isr.followers[broker_id].on_fetch(offset, 0, broker_id * 10, now_ms, end)

    def expand(self, *, now_ms: int = 0) -> IsrProposal:
        proposal = self.isr.expansion(10, 5, now_ms)
        assert proposal is not None
        return proposal


def test_nothing_is_committed_before_every_in_sync_follower_has_fetched() -> None:
    bench = IsrBench()
    assert bench.isr.committed_end_offset(10, 10, 0) == -1
    bench.fetch(2, 10)
    assert bench.isr.committed_end_offset(10, 10, 0) == -1
    bench.fetch(3, 7)
    assert bench.isr.committed_end_offset(10, 10, 0) == 7
    assert bench.isr.committed_end_offset(5, 10, 0) == 5, "the leader's own end counts only once it is durable"


def test_a_busy_follower_is_caught_up_by_what_the_leader_had_at_its_fetch_before() -> None:
    follower = Follower(2, 0, in_sync=False)
    follower.on_fetch(5, 0, -1, 1_000, 10)
    assert not follower.is_caught_up(10, 1_000, LAG_MS)
    follower.on_fetch(10, 0, -1, 1_050, 20)
    assert follower.is_caught_up(20, 1_100, LAG_MS), "at 1,000 it asked for what it has now"
    assert not follower.is_caught_up(20, 1_101, LAG_MS)
    assert follower.is_caught_up(10, 9_999, LAG_MS), "who has everything is never late"


def test_who_lags_for_too_long_is_to_leave_and_counts_until_the_controller_agrees() -> None:
    bench = IsrBench()
    bench.fetch(2, 10, now_ms=50)
    bench.fetch(3, 4, now_ms=50)
    assert bench.isr.shrinkage(10, 5, LAG_MS) is None
    proposal = bench.isr.shrinkage(10, 5, LAG_MS + 1)
    assert proposal == IsrProposal(5, 0, ((1, -1), (2, 20)))
    assert bench.isr.committed_end_offset(10, 10, 200) == 4
    assert bench.isr.shrinkage(10, 5, 300) is None, "one proposal at a time"
    assert not bench.isr.on_answer(proposal, IsrAnswer(0, 5, 1, (1, 2)), 200)
    assert (bench.isr.committed, bench.isr.partition_epoch) == ((1, 2), 1)
    assert bench.isr.committed_end_offset(10, 10, 200) == 10


def test_who_is_about_to_join_holds_the_high_watermark_already() -> None:
    bench = IsrBench((1, 2))
    bench.fetch(2, 10)
    bench.fetch(3, 10)
    proposal = bench.expand()
    assert proposal.isr == ((1, -1), (2, 20), (3, 30))
    bench.fetch(2, 12)
    assert bench.isr.maximal == (1, 2, 3)
    assert bench.isr.committed_end_offset(12, 12, 5_000) == 10
    assert bench.isr.committed == (1, 2)


def test_nobody_joins_who_is_behind_or_fenced_or_was_fetching_in_a_former_life() -> None:
    bench = IsrBench((1, 2))
    bench.fetch(3, 9)
    assert bench.isr.expansion(10, 5, 0) is None
    bench.fetch(3, 10)
    bench.alive[3] = 31
    assert bench.isr.expansion(10, 5, 0) is None
    del bench.alive[3]
    assert bench.isr.expansion(10, 5, 0) is None
    bench.alive[3] = 30
    assert bench.isr.expansion(10, 5, 0) is not None


def test_a_follower_outside_the_isr_that_keeps_up_is_waited_for() -> None:
    bench = IsrBench((1, 2))
    bench.fetch(2, 20, now_ms=1_000, end=20)
    bench.fetch(3, 15, now_ms=1_000, end=15)
    assert bench.isr.committed_end_offset(20, 20, 1_000 + LAG_MS) == 15
    assert bench.isr.committed_end_offset(20, 20, 1_001 + LAG_MS) == 20, "until it is late"


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_proposal_is_dropped_and_made_again_after_a_pause(code: ErrorCode) -> None:
    bench = IsrBench((1, 2))
    bench.fetch(3, 10)
    proposal = bench.expand()
    assert not bench.isr.on_answer(proposal, IsrAnswer(code), 1_000)
    assert bench.isr.maximal == (1, 2)
    assert bench.isr.expansion(10, 5, 1_001) is None
    assert bench.isr.expansion(10, 5, 1_100) is not None


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_an_overtaken_proposal_stays_until_the_metadata_is_here(code: ErrorCode) -> None:
    bench = IsrBench((1, 2))
    bench.fetch(3, 10)
    proposal = bench.expand()
    assert not bench.isr.on_answer(proposal, IsrAnswer(code), 0)
    assert bench.isr.maximal == (1, 2, 3), "it may have been granted: 3 may be elected"
    bench.isr.on_metadata((1, 2), 4)
    assert tuple(bench.isr.maximal) == (1, 2)
    assert bench.isr.proposal is None
    assert not bench.isr.on_answer(proposal, IsrAnswer(0, 5, 9, (1, 2, 3)), 0)
    assert bench.isr.committed == (1, 2), "an answer to what was overtaken says nothing"


def test_a_controller_that_cannot_be_asked_is_asked_again() -> None:
    bench = IsrBench((1, 2))
    bench.fetch(3, 10)
    proposal = bench.expand()
    assert bench.isr.on_answer(proposal, BrokerError(ErrorCode.REQUEST_TIMED_OUT), 0)
    assert bench.isr.on_answer(proposal, IsrAnswer(ErrorCode.UNKNOWN_SERVER_ERROR), 0)
    assert bench.isr.proposal is proposal
