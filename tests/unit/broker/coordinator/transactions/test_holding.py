"""Held requests: released, superseded, timed out, dropped; several of one transactional id."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.coordinator.transactions.holding import HeldRequests
from tests.support.loop import ManualLoop


class HoldingBench(ManualLoop):
    """Held requests, and what came of each."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.held = HeldRequests(self.soon, self.call_later)

    def hold(self, transactional_id: str, name: str, partition: int = 0) -> Callable[[], None]:
        return self.held.hold(
            transactional_id,
            partition,
            100,
            lambda: self.said.append(f"again {name}"),
            lambda: self.said.append(f"refused {name}"),
        )


def test_the_requests_of_one_id_are_released_together_in_their_order() -> None:
    bench = HoldingBench()
    bench.hold("x", "1")
    bench.hold("y", "2")
    bench.hold("x", "3")
    assert len(bench.held) == 3
    bench.held.release("x")
    assert bench.said == []  # not within the settling of the completion
    bench.wake()
    assert bench.said == ["again 1", "again 3"]
    bench.run_timers()
    assert bench.said == ["again 1", "again 3", "refused 2"]
    assert len(bench.held) == 0


def test_a_producer_that_goes_on_supersedes_all_of_them() -> None:
    bench = HoldingBench()
    bench.hold("x", "1")
    bench.hold("x", "2")
    bench.held.supersede("x")
    bench.held.release("x")
    bench.wake()
    bench.run_timers()
    assert bench.said == ["refused 1", "refused 2"]


def test_what_is_dropped_is_not_heard_of_again() -> None:
    bench = HoldingBench()
    drop = bench.hold("x", "1")
    bench.hold("x", "2")
    drop()
    drop()
    bench.held.release("x")
    bench.wake()
    bench.run_timers()
    assert bench.said == ["again 2"]


def test_a_moved_coordinator_releases_its_own() -> None:
    bench = HoldingBench()
    bench.hold("x", "1", partition=4)
    bench.hold("y", "2", partition=5)
    bench.held.release_partition(4)
    bench.wake()
    assert bench.said == ["again 1"]
