"""Election: when a round of votes is won, lost or still open."""

from __future__ import annotations

from barnabas.broker.quorum.core.election import PATIENCE_MS, Election


def test_a_tie_does_not_wait_for_a_voter_that_does_not_answer() -> None:
    """Connecting to an address that has vanished takes seconds: the vote of a dead voter neither comes nor fails."""
    election = Election(1, (1, 2, 3), now_ms=0, deadline_ms=1_000)
    assert election.take_due(0) == [2, 3]
    assert not election.lost(PATIENCE_MS)  # no voter refused: those that still answer decide
    election.answered(2, granted=False)
    assert not election.lost(PATIENCE_MS - 1)
    assert election.wake_at_ms() == PATIENCE_MS
    assert election.lost(PATIENCE_MS)
    election.answered(3, granted=True)  # late, and it counts
    assert election.won
    assert not election.lost(PATIENCE_MS)


def test_a_tie_does_not_wait_for_a_voter_that_cannot_be_reached() -> None:
    election = Election(1, (1, 2, 3), now_ms=0, deadline_ms=1_000)
    election.failed(3, ask_at_ms=50)
    assert not election.lost(0)
    election.answered(2, granted=False)
    assert election.lost(0)


def test_of_five_voters_two_may_refuse() -> None:
    election = Election(1, (1, 2, 3, 4, 5), now_ms=0, deadline_ms=1_000)
    election.answered(2, granted=False)
    election.answered(3, granted=True)
    election.answered(4, granted=False)
    assert not election.lost(PATIENCE_MS - 1)
    election.answered(5, granted=True)
    assert election.won
    assert not election.lost(PATIENCE_MS)
