"""The exactly-once protocol under random schedules of crashes, and its mutants, each of which must be caught."""

from __future__ import annotations

import os
from typing import Any

import pytest

from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import BatchDecision, Identity
from barnabas.pipeline.decisions import (
    AbortHandle,
    BatchStart,
    CommitResult,
    EndTransaction,
    Fence,
    ListOpen,
    ReadDecision,
    TaskName,
)
from tests.support.pipeline.sink_world import Protocol, SinkWorld, Wrong

SCHEDULES = int(os.environ.get("BARNABAS_SINK_SCHEDULES", "10000"))
MUTANT_SCHEDULES = 6_000


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("part", range(2))
def test_nothing_is_lost_or_doubled_under_two_phase_commit(version: int, part: int) -> None:
    for seed in range(part * SCHEDULES // 4, (part + 1) * SCHEDULES // 4):
        world = SinkWorld(seed, two_phase=True, version=version)
        try:
            world.run()
        except Wrong as error:
            pytest.fail(f"seed {seed}, version {version}: {error}; faults {world.trace}")
        assert world.half_committed == 0, f"seed {seed}"


@pytest.mark.parametrize("version", [1, 2])
def test_with_timeouts_it_is_exact_or_stops(version: int) -> None:
    stopped = finished = 0
    for seed in range(SCHEDULES // 4):
        world = SinkWorld(seed, two_phase=False, version=version)
        try:
            world.run()
        except Wrong as error:
            pytest.fail(f"seed {seed}, version {version}: {error}; faults {world.trace}")
        stopped += world.half_committed > 0
        finished += world.half_committed == 0
    assert 0 < stopped < finished


# -- mutants: protocols with one hole, each of which some schedule must fall into -----------------------------------------


def plain_task_id(sink_id: str, start: BatchStart, task: TaskName) -> str:
    """Without the driver's epoch in it: a zombie of a dead driver can fence off, and so abort, a decided transaction."""
    return f"{sink_id}.run.{task.partition}.{task.attempt}"


def fresh_epoch_commit(sink_id: str, batch: int, messages: Any, spent: int) -> Any:
    """The driver takes a new epoch when it decides: one that was replaced makes itself the newest again."""
    standing = yield ReadDecision()
    if not messages or (standing is not None and standing.next_batch > batch):
        return (yield from decisions.commit_batch(sink_id, batch, messages, spent))
    driver: Identity = yield Fence()
    renewed = [message._replace(start=BatchStart(driver, message.start.run)) for message in messages]
    return (yield from decisions.commit_batch(sink_id, batch, renewed, spent))


def blind_abort(batch: int, messages: Any, start: Any) -> Any:
    """Aborts without reading the decision, after a commit that has raised."""
    yield ReadDecision()
    for message in messages:
        for handle in message.handles:
            yield AbortHandle(handle)


def blind_commit(sink_id: str, batch: int, messages: Any, spent: int) -> Any:
    """Phase two without a decision: a driver that dies in it leaves a part of the batch, and its successor repeats all."""
    standing = yield ReadDecision()
    if standing is None or standing.next_batch <= batch:
        for message in messages:
            for handle in message.handles:
                yield decisions.CommitHandle(handle, batch + 1)
    return (yield from decisions.commit_batch(sink_id, batch, messages, spent))


def late_list(*, reuse: bool) -> Any:
    """Lists what is open after the fence: a slow driver aborts what a newer one has prepared."""
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    if decision is not None:
        yield from decisions.complete(decision)
    listed = yield ListOpen()
    yield from decisions.sweep(listed, decision)
    return BatchStart(driver, decisions.next_run(driver, decision) if reuse else "")


def no_sweep(*, reuse: bool) -> Any:
    """Leaves what dead drivers have opened: without a time-out it pins the output for ever."""
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    if decision is not None:
        yield from decisions.complete(decision)
    return BatchStart(driver, decisions.next_run(driver, decision) if reuse else "")


def no_recovery(*, reuse: bool) -> Any:
    """Does not complete the last decision: it is aborted with the rest."""
    listed = yield ListOpen()
    driver: Identity = yield Fence()
    yield ReadDecision()
    yield from decisions.sweep(listed, None)
    return BatchStart(driver)


def always_same_run(*, reuse: bool) -> Any:
    """Keeps the names of first attempts whatever has happened since."""
    start = yield from decisions.start_batch(reuse=reuse)
    return start._replace(run="kept")


def trusting_commit(transactional_id: str, identity: Identity, next_batch: int) -> Any:
    """Takes a refused EndTxn for one that happened before."""
    yield EndTransaction(transactional_id, identity)
    return CommitResult.COMMITTED


MUTANTS = {
    "names without the driver's epoch": Protocol(task_id=plain_task_id),
    "a fresh epoch at commit": Protocol(commit_batch=fresh_epoch_commit),
    "abort without reading": Protocol(abort_batch=blind_abort),
    "commit without deciding": Protocol(commit_batch=blind_commit),
    "listing after the fence": Protocol(start_batch=late_list),
    "no orphans aborted": Protocol(start_batch=no_sweep),
    "no recovery": Protocol(start_batch=no_recovery),
    "names kept for ever": Protocol(start_batch=always_same_run),
}


def caught(protocol: Protocol, *, two_phase: bool) -> str | None:
    for seed in range(MUTANT_SCHEDULES):
        world = SinkWorld(seed, two_phase=two_phase, protocol=protocol, faults=10)
        try:
            world.run()
        except Wrong as error:
            return f"seed {seed}: {error}"
        if two_phase and world.half_committed:
            return f"seed {seed}: half committed"
    return None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protocol_with_a_hole_is_caught(mutant: str) -> None:
    assert caught(MUTANTS[mutant], two_phase=True), "no schedule fell into the hole"


def test_a_commit_that_asks_for_no_proof_is_caught() -> None:
    assert caught(Protocol(commit_transaction=trusting_commit), two_phase=False), "no schedule fell into the hole"
