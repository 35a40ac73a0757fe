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
    reused = 0
    for seed in range(part * SCHEDULES // 4, (part + 1) * SCHEDULES // 4):
        world = SinkWorld(seed, two_phase=True, version=version)
        try:
            world.run()
        except Wrong as error:
            pytest.fail(f"seed {seed}, version {version}: {error}; faults {world.trace}")
        assert world.half_committed == 0, f"seed {seed}"
        reused += world.reused
    assert (reused > SCHEDULES // 4) == (version == 2), "transactional ids are reused in about every schedule"


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
    return f"{sink_id}.0-0.{task.partition}.0"


def fresh_epoch_commit(sink_id: str, batch: int, messages: Any) -> Any:
    """The driver takes a new epoch when it decides: one that was replaced makes itself the newest again."""
    standing = yield ReadDecision()
    if not messages or (standing is not None and standing.next_batch > batch):
        return (yield from decisions.commit_batch(sink_id, batch, messages))
    driver: Identity = yield Fence()
    renewed = [message._replace(driver=driver) for message in messages]
    return (yield from decisions.commit_batch(sink_id, batch, renewed))


def blind_abort(batch: int, messages: Any, driver: Any) -> Any:
    """Aborts without reading the decision, after a commit that has raised."""
    yield ReadDecision()
    for message in messages:
        for handle in message.handles:
            yield AbortHandle(handle)


def blind_commit(sink_id: str, batch: int, messages: Any) -> Any:
    """Phase two without a decision: a driver that dies in it leaves a part of the batch, and its successor repeats all."""
    standing = yield ReadDecision()
    if standing is None or standing.next_batch <= batch:
        for message in messages:
            for handle in message.handles:
                yield decisions.CommitHandle(handle, BatchDecision(batch + 1, "q", message.driver, message.handles))
    return (yield from decisions.commit_batch(sink_id, batch, messages))


def late_list(*, slot_timeout_ms: int | None) -> Any:
    """Lists what is open after the fence: a slow driver aborts what a newer one has prepared."""
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    if decision is not None:
        yield from decisions.complete(decision)
    listed = yield ListOpen()
    yield from decisions.sweep(listed, decision)
    return BatchStart(driver, decision)


def no_sweep(*, slot_timeout_ms: int | None) -> Any:
    """Leaves what dead drivers have opened: without a time-out it pins the output for ever."""
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    if decision is not None:
        yield from decisions.complete(decision)
    return BatchStart(driver, decision)


def no_recovery(*, slot_timeout_ms: int | None) -> Any:
    """Does not complete the last decision: it is aborted with the rest."""
    listed = yield ListOpen()
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    yield from decisions.sweep(listed, None)
    return BatchStart(driver, decision)


def any_ticket(start: BatchStart, partition: int, ticket: Identity) -> Any:
    """Every attempt takes the slot: twins, and zombies of a driver before, write under one identity."""
    return next((slot for slot in start.slots or () if decisions.partition_of(slot.key) == partition), None)


def abort_without_asking(batch: int, messages: Any, driver: Identity | None) -> Any:
    """Takes what is open in the slots for its own, though a newer driver's tasks may have begun it."""
    steps = decisions.abort_batch(batch, messages, driver)
    answer: Any = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration:
            return
        answer = True if isinstance(effect, decisions.IsNewest) else (yield effect)


def early_slots(*, slot_timeout_ms: int | None) -> Any:
    """Hands out the slots of a decision whose phase two it has not completed."""
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    return BatchStart(driver, decision, decision.slots if decision is not None else ())


def trusting_commit(transactional_id: str, identity: Identity, next_batch: int) -> Any:
    """Takes a refused EndTxn for one that happened before."""
    yield EndTransaction(transactional_id, identity)
    return CommitResult.COMMITTED


def append_without_reading(parts: Any, next_batch: int) -> Any:
    """Phase two appends again what a driver that died in it has appended."""
    while True:
        state = yield decisions.ReadTable()
        result = yield decisions.AppendFiles(state, parts, next_batch)
        if result is not None:
            return result


def append_blindly(parts: Any, next_batch: int) -> Any:
    """After a faster commit it tries again on top of that one, whatever it was."""
    state = yield decisions.ReadTable()
    if state.next_batch >= next_batch:
        return CommitResult.COMMITTED
    while True:
        result = yield decisions.AppendFiles(state, parts, next_batch)
        if result is not None:
            return result
        state = yield decisions.ReadTable()


MUTANTS = {
    "append without reading": Protocol(append_once=append_without_reading),
    "append repeated without reading": Protocol(append_once=append_blindly),
    "names without the driver's epoch": Protocol(task_id=plain_task_id),
    "a fresh epoch at commit": Protocol(commit_batch=fresh_epoch_commit),
    "abort without reading": Protocol(abort_batch=blind_abort),
    "commit without deciding": Protocol(commit_batch=blind_commit),
    "listing after the fence": Protocol(start_batch=late_list),
    "no orphans aborted": Protocol(start_batch=no_sweep),
    "no recovery": Protocol(start_batch=no_recovery),
    "slots without tickets": Protocol(slot_for=any_ticket),
    "slots aborted without asking who is newest": Protocol(abort_batch=abort_without_asking),
    "slots before phase two is complete": Protocol(start_batch=early_slots),
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
