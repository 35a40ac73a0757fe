"""Exactly-once protocol of the sink: generators that start, decide, commit and abort micro-batches. Pure.

The caller performs the yielded effects: `two_phase_commit`, or the simulation. Why no row is lost or doubled:
- One transaction of `S.driver` decides a batch, under the producer epoch with which the batch began: a replaced driver
  cannot decide. No part is visible before the decision; none is aborted after it.
- The driver lists open parts BEFORE it fences earlier drivers (or decides), and then aborts those in no decision: a
  slow driver never aborts parts of a newer one.
- Transactional ids of tasks contain their driver's epoch: a task of a dead driver cannot abort, by InitProducerId, the
  transaction of a later driver's task. For the exception see `next_run`.
- If a commit is rejected, the slot mark in the same transaction proves whether it was committed earlier.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from barnabas.errors import BarnabasError
from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart, SlotMark
from barnabas.pipeline.errors import PipelineError

T = TypeVar("T")
EffectSteps = Generator[Any, Any, T]

NO_QUERY = ""  # the query in a decision about a batch without tasks
_SINK_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class DriverReplaced(BarnabasError):
    """A newer driver has taken over the sink id. This one can no longer decide: its query must end."""


class HalfCommitted(BarnabasError):
    """Another process aborted a part of a decided batch. The sink writes nothing until the user follows the text."""


class CommitResult(Enum):
    """Result of the commit of a decided part."""

    COMMITTED = "committed"  # by this call or earlier
    LOST = "lost"  # aborted by another process


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOpen:
    """Lists open and prepared parts of this sink id at every participant; with `start` only those of its tasks.

    Result: their handles.
    """

    start: BatchStart | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """Fences earlier drivers by InitProducerId. Result: the new Identity."""


@dataclass(frozen=True, slots=True)
class ReadDecision:
    """Reads the last decision; waits for one being committed. Result: the BatchDecision or None."""


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """Commits `decision` in one transaction under the identity `decision.driver`.

    Result: True, or False if that identity is fenced. Any other failure raises; the outcome is then unknown.
    """

    decision: BatchDecision


@dataclass(frozen=True, slots=True)
class CommitHandle:
    """Makes a prepared part visible; repeats until the outcome is certain. Result: a CommitResult."""

    handle: PreparedPart
    next_batch: int


@dataclass(frozen=True, slots=True)
class AbortHandle:
    """Drops an open or prepared part, unless it has ended or its name was reused (by a later batch). Result: None."""

    handle: PreparedPart


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Sends EndTxn(commit). Result: whether this or an earlier request has committed."""

    transactional_id: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """Reads a partition's last committed SlotMark; ignores open transactions. Result: the mark or None."""

    partition: int


# -- names -------------------------------------------------------------------------------------------------------------


def check_sink_id(sink_id: str) -> None:
    """Raises PipelineError unless the names below differ from those of every other sink."""
    if not _SINK_ID.fullmatch(sink_id):
        raise PipelineError("sink.id", sink_id, "use 1 to 120 letters, digits, '_' and '-'", "is not a sink id")


def driver_id(sink_id: str) -> str:
    """Transactional id of the driver."""
    return f"{sink_id}.driver"


def group_id(sink_id: str, chunk: int = 0) -> str:
    """Group with the decision, or with one of its further chunks."""
    return f"eos-{sink_id}.{chunk}" if chunk else f"eos-{sink_id}"


def slot_group_id(sink_id: str, partition: int) -> str:
    """Group with the slot mark of one partition."""
    return f"eos-{sink_id}.slot.{partition}"


class TaskName(NamedTuple):
    """One attempt at a Spark task."""

    partition: int
    attempt: int  # number of the attempt within its stage attempt; 0 is the first
    unique: int  # Spark's taskAttemptId, unique within one Spark application

    @property
    def first(self) -> bool:
        return self.attempt == 0


class BatchStart(NamedTuple):
    """What tasks and the end of a batch need of its start."""

    driver: Identity
    run: str = ""  # part of the names of first attempts; "" if names are not reused


def task_id(sink_id: str, start: BatchStart, task: TaskName) -> str:
    """Transactional id of a task. Later batches reuse only the ids of first attempts in a run."""
    if start.run and task.first:
        return f"{sink_id}.{start.run}.{task.partition}"
    return f"{sink_id}.{start.driver}.{task.partition}.{task.unique}"


def is_own_id(sink_id: str, transactional_id: str) -> bool:
    """Whether this id belongs to a task of this sink."""
    return transactional_id.startswith(f"{sink_id}.") and transactional_id != driver_id(sink_id)


def is_of_start(sink_id: str, start: BatchStart, transactional_id: str) -> bool:
    """Whether this id belongs to a task of this batch start, and so to no later one (see `next_run`)."""
    runs = [str(start.driver), *([start.run] if start.run else [])]
    return any(transactional_id.startswith(f"{sink_id}.{run}.") for run in runs)


def partition_of(transactional_id: str) -> int:
    return int(transactional_id.split(".")[2])


# -- a batch's start, on the driver ------------------------------------------------------------------------------------


def start_batch(*, reuse: bool = False, forgotten: int | None = None) -> EffectSteps[BatchStart]:
    """Starts a batch: fences earlier drivers, completes the last decision, aborts undecided parts.

    Args:
        reuse: allows reuse of the ids of first attempts (see `next_run`). Valid only if Spark repeats no stages: a
            repeated stage numbers its attempts from 0 again.
        forgotten: `next_batch` of a decision whose lost parts the user has accepted.
    """
    listed: Sequence[PreparedPart] = yield ListOpen()
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    if decision is not None:
        yield from complete(decision, forgotten)
    yield from sweep(listed, decision)
    return BatchStart(driver, next_run(driver, decision) if reuse else "")


def next_run(driver: Identity, decision: BatchDecision | None) -> str:
    """The run, a part of the names of this batch's first attempts.

    The decision's run is reused if no batch was begun in between (the driver's epoch follows directly) and all its
    tasks were first attempts, so that no running task has their names. Reuse saves a new transactional id and a new
    producer in every partition, for each task of each batch.
    """
    if decision is not None and decision.run and decision.reusable:
        expected = decision.driver.epoch + decision.epochs_spent + 1
        if driver == Identity(decision.driver.producer_id, expected):
            return decision.run
    return str(driver)


def complete(decision: BatchDecision, forgotten: int | None = None) -> EffectSteps[None]:
    """Phase two of a decision; may be repeated. Raises HalfCommitted, DriverReplaced."""
    lost = []
    for handle in decision.handles:
        outcome: CommitResult = yield CommitHandle(handle, decision.next_batch)
        if outcome is CommitResult.LOST:
            lost.append(handle)
    if not lost or decision.next_batch == forgotten:
        return
    latest: BatchDecision | None = yield ReadDecision()
    if latest != decision:
        raise DriverReplaced("a newer driver of this sink id has decided the next batch")
    raise HalfCommitted(_instructions(decision, lost))


def sweep(listed: Iterable[PreparedPart], decision: BatchDecision | None) -> EffectSteps[None]:
    """Aborts parts listed before the fence that are in no decision."""
    decided = _keys(decision.handles) if decision is not None else frozenset()
    for handle in listed:
        if (handle.participant, handle.key) not in decided:
            yield AbortHandle(handle)


def _keys(handles: Iterable[PreparedPart]) -> frozenset[tuple[str, str]]:
    return frozenset((handle.participant, handle.key) for handle in handles)


def _instructions(decision: BatchDecision, lost: Sequence[PreparedPart]) -> str:
    batch = decision.next_batch - 1
    rows = sum(handle.rows for handle in lost)
    names = ", ".join(f"{handle.key} ({handle.rows} rows)" for handle in lost[:8])
    more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
    return (
        f"batch {batch} was decided, but {len(lost)} of its {len(decision.handles)} parts ({rows} rows) were aborted before they "
        f"could be committed: {names}{more}. A transaction without two-phase commit is aborted by its coordinator after "
        "transaction.timeout.ms, and the driver was down for longer (or an operator aborted it). The other parts are "
        f"visible, so running the batch again would double them. To continue: write the missing rows of batch {batch} to the "
        "output by other means (their source offsets are in the checkpoint, offsets/"
        f"{batch}), then start the query once with the option sink.forget = {decision.next_batch}, which accepts the batch as it "
        "is. To prevent this: set a larger transaction.timeout.ms, or use a cluster with two-phase commit (KIP-939)"
    )


# -- tasks -------------------------------------------------------------------------------------------------------------


def admitted(decision: BatchDecision | None, batch: int, query: str, sink_id: str, *, adopt: bool = False) -> bool:
    """Whether a task of `batch` must write; if it is decided, the task skips its input. Raises PipelineError.

    `adopt`: earlier batches unknown to the sink count as done.
    """
    if decision is None:
        if batch > 0 and not adopt:
            remedy = (
                f"if another sink wrote the query's batches so far, set sink.adopt = true once; else the group {group_id(sink_id)!r} "
                "was lost (deleted, or older than offsets.retention.minutes): compare the output with the source first"
            )
            raise PipelineError(
                "sink.id", sink_id, remedy, f"has decided nothing yet, but the checkpoint is at batch {batch}"
            )
        return True
    check_owner(decision, query, sink_id)
    if decision.next_batch > batch + 1:
        raise _older_checkpoint(decision.next_batch, batch)
    return decision.next_batch <= batch


def check_owner(decision: BatchDecision | None, query: str, sink_id: str) -> None:
    """Raises PipelineError if the sink id belongs to another query."""
    if decision is None or decision.query in (query, NO_QUERY):
        return
    remedy = (
        "give each query a sink id of its own, and a query whose checkpoint was removed a new one (deleting the group "
        f"{group_id(sink_id)!r} frees the old one, but existing records are then written again)"
    )
    problem = (
        f"belongs to query {decision.query}, which has written {decision.next_batch} batches; this is query {query}"
    )
    raise PipelineError("sink.id", sink_id, remedy, problem)


def superseded(decision: BatchDecision | None, batch: int) -> bool:
    """Whether the batch was decided without the task that has just prepared; it then aborts its parts."""
    return decision is not None and decision.next_batch > batch


def slot_state(mark: SlotMark | None, batch: int, query: str, sink_id: str) -> bool:
    """For delivery `per_partition`: whether the partition's part must be written. Raises PipelineError."""
    if mark is None:
        return True
    if mark.query != query:
        remedy = "give each query a sink id of its own, and a query whose checkpoint was removed a new one"
        raise PipelineError("sink.id", sink_id, remedy, f"belongs to query {mark.query}; this is query {query}")
    if mark.next_batch > batch + 1:
        raise _older_checkpoint(mark.next_batch, batch)
    return mark.next_batch <= batch


def _older_checkpoint(next_batch: int, batch: int) -> PipelineError:
    remedy = (
        "restore the newest checkpoint, or start with a new checkpoint, a new sink id and the right startingOffsets"
    )
    problem = f"is at batch {batch}, but the sink has written batches up to {next_batch - 1}: it is an older one"
    return PipelineError("checkpointLocation", None, remedy, problem)


class TaskMessage(NamedTuple):
    """Message of a task to its driver."""

    start: BatchStart
    task: TaskName
    query: str
    handles: tuple[PreparedPart, ...]  # empty if the task had no rows or skipped its input


# -- a batch's end, on the driver --------------------------------------------------------------------------------------


def commit_batch(
    sink_id: str, batch: int, messages: Sequence[TaskMessage], epochs_spent: int, forgotten: int | None = None
) -> EffectSteps[BatchDecision]:
    """Decides the batch, commits its parts, aborts other attempts. Returns the decision in force.

    Raises:
        DriverReplaced: another driver has taken over; this call decided nothing.
        HalfCommitted: see `complete`.
        PipelineError: see `admitted`.
    """
    standing: BatchDecision | None = yield ReadDecision()
    if not messages:  # a batch of no partitions
        if standing is not None:
            return standing
        driver: Identity = yield Fence()
        first = BatchDecision(batch + 1, NO_QUERY, driver, epochs_spent, "", False, ())
        if not (yield CommitDecision(first)):
            raise _replaced(sink_id)
        return first
    handles = tuple(handle for message in messages for handle in message.handles)
    start, query = messages[0].start, messages[0].query
    if standing is not None and not admitted(standing, batch, query, sink_id, adopt=True):
        yield from complete(standing, forgotten)
        yield from sweep(handles, standing)
        return standing
    if standing is not None and not handles:
        return standing  # nothing was written: the batch may be run again
    listed: Sequence[PreparedPart] = yield ListOpen()
    decision = BatchDecision(
        next_batch=batch + 1,
        query=query,
        driver=start.driver,
        epochs_spent=epochs_spent,
        run=start.run,
        reusable=all(message.task.first for message in messages),
        handles=handles,
    )
    if not (yield CommitDecision(decision)):
        raise _replaced(sink_id)
    yield from complete(decision)
    yield from sweep(listed, decision)
    return decision


def _replaced(sink_id: str) -> DriverReplaced:
    return DriverReplaced(
        f"sink id {sink_id!r}: another driver has begun a batch since this one did. Only the newest of two queries with one "
        "checkpoint or one sink id can continue: stop the other query, then start this one again"
    )


def abort_batch(
    batch: int, messages: Iterable[TaskMessage | None], start: BatchStart | None = None
) -> EffectSteps[None]:
    """Ends a failed batch: drops its parts, or commits them if it was decided.

    Spark also calls this after `commit` raised. Killed tasks have sent no message: `start`, if known, identifies their
    parts.
    """
    standing: BatchDecision | None = yield ReadDecision()
    arrived = [message for message in messages if message is not None]
    if standing is not None and standing.next_batch > batch:
        yield from complete(standing)
    yield from sweep([handle for message in arrived for handle in message.handles], standing)
    start = arrived[0].start if arrived else start
    if start is not None:
        listed: Sequence[PreparedPart] = yield ListOpen(start)
        yield from sweep(listed, standing)


# -- one transaction ---------------------------------------------------------------------------------------------------


def commit_transaction(transactional_id: str, identity: Identity, next_batch: int) -> EffectSteps[CommitResult]:
    """Commits a task's prepared transaction; succeeds also if another process has committed it."""
    if (yield EndTransaction(transactional_id, identity)):
        return CommitResult.COMMITTED
    mark: SlotMark | None = yield ReadSlot(partition_of(transactional_id))
    if mark is not None and mark.next_batch == next_batch and mark.identity == identity:
        return CommitResult.COMMITTED
    return CommitResult.LOST
