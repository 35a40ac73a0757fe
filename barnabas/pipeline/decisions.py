"""The exactly-once protocol of the sink: who may write, what is decided, what is committed, aborted, repeated, refused.

Driven by: a batch's start, its tasks, its end, each as a generator that yields what is to be done and is sent what came of
it. Whoever drives one performs the effects (`two_phase_commit`, or the simulation that runs these same functions).
Emits: the effects below.

Why nothing is lost or doubled:
- A batch is decided by one transaction of `S.driver`, under the producer epoch that the batch began with: a driver that was
  replaced cannot decide any more. Before it nothing of the batch may become visible, after it nothing may be aborted.
- Whatever is open is listed BEFORE the driver fences off its predecessors (or before it decides), and of that only what is in
  no decision is aborted, afterwards. So a slow driver never aborts what a newer one has prepared.
- The names of a task's transactions are of its driver's epoch, so that a task of a dead driver cannot abort a later one's by
  InitProducerId. First attempts keep the names of the batch before where nothing else has happened since: see `next_run`.
- Whether a refused commit had happened before is proven by the slot mark that lies in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from barnabas.errors import BarnabasError
from barnabas.pipeline.decision_record import Decision, Handle, Identity, SlotMark
from barnabas.pipeline.errors import PipelineError

__all__ = [
    "AbortHandle",
    "BatchStart",
    "CommitHandle",
    "Decide",
    "DriverReplaced",
    "EndTransaction",
    "Fence",
    "HalfCommitted",
    "ListOpen",
    "Outcome",
    "ReadDecision",
    "ReadSlot",
    "Steps",
    "TaskMessage",
    "TaskName",
    "abort_batch",
    "admitted",
    "check_owner",
    "check_sink_id",
    "commit_batch",
    "commit_transaction",
    "driver_id",
    "group_id",
    "is_of_start",
    "is_own_id",
    "next_run",
    "partition_of",
    "slot_group_id",
    "slot_state",
    "start_batch",
    "superseded",
    "task_id",
]

T = TypeVar("T")
Steps = Generator[Any, Any, T]

NO_QUERY = ""  # in a decision about a batch without tasks
_SINK_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class DriverReplaced(BarnabasError):
    """A newer driver has taken over the sink id: this one can decide nothing any more, and its query must end."""


class HalfCommitted(BarnabasError):
    """A part of a decided batch has been aborted by somebody else. The text says what to do; nothing is written until then."""


class Outcome(Enum):
    """What came of a commit that was decided upon."""

    COMMITTED = "committed"  # now or before
    LOST = "lost"  # aborted by somebody else


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOpen:
    """Answered with the handles of everything that is open or prepared under this sink id, at every participant; with `start`
    of what tasks of that start have begun."""

    start: BatchStart | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """InitProducerId of the driver's transactional id. Answered with its Identity; all drivers before it are fenced off."""


@dataclass(frozen=True, slots=True)
class ReadDecision:
    """Answered with the last Decision, None where there is none. One that is being committed is waited for."""


@dataclass(frozen=True, slots=True)
class Decide:
    """One transaction of the driver that commits `decision`, under the identity `decision.driver`. Answered with True, or with
    False where that identity is fenced off. Anything else that goes wrong is raised; the outcome is unknown then."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class CommitHandle:
    """Makes a prepared part visible; again and again until that is certain. Answered with an Outcome."""

    handle: Handle
    next_batch: int


@dataclass(frozen=True, slots=True)
class AbortHandle:
    """Drops an open or prepared part, unless it has been ended, or its name taken over, since the handle was made: a slow driver
    must not abort what is a later batch's by now. Answered with None."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """EndTxn(commit) in the name of a task. Answered with True where it is, or was, committed so, else False."""

    transactional_id: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """Answered with the last committed SlotMark of a partition, or None; nobody is waited for."""

    partition: int


# -- names -------------------------------------------------------------------------------------------------------------


def check_sink_id(sink_id: str) -> None:
    """Raises PipelineError unless `sink_id` can be part of the names below, none of which is then one of another sink."""
    if not _SINK_ID.fullmatch(sink_id):
        raise PipelineError("sink.id", sink_id, "use 1 to 120 letters, digits, '_' and '-'", "is no sink id")


def driver_id(sink_id: str) -> str:
    """Transactional id of the driver."""
    return f"{sink_id}.driver"


def group_id(sink_id: str, chunk: int = 0) -> str:
    """The group that holds the decision, or a further chunk of it."""
    return f"eos-{sink_id}.{chunk}" if chunk else f"eos-{sink_id}"


def slot_group_id(sink_id: str, partition: int) -> str:
    """The group that holds the slot mark of one partition."""
    return f"eos-{sink_id}.slot.{partition}"


class TaskName(NamedTuple):
    """One attempt at a task of Spark."""

    partition: int
    attempt: int  # of its stage attempt; 0 is the first
    unique: int  # among all attempts at all tasks of one Spark application: its taskAttemptId

    @property
    def first(self) -> bool:
        return self.attempt == 0


class BatchStart(NamedTuple):
    """What a batch's tasks and its end have to know of its start."""

    driver: Identity
    run: str = ""  # names first attempts; "" where no names are used twice


def task_id(sink_id: str, start: BatchStart, task: TaskName) -> str:
    """Transactional id of a task. Those of first attempts in a run are used again by later batches, others never."""
    if start.run and task.first:
        return f"{sink_id}.{start.run}.{task.partition}"
    return f"{sink_id}.{start.driver}.{task.partition}.{task.unique}"


def is_own_id(sink_id: str, transactional_id: str) -> bool:
    """Whether this is the transactional id of some task of this sink."""
    return transactional_id.startswith(f"{sink_id}.") and transactional_id != driver_id(sink_id)


def is_of_start(sink_id: str, start: BatchStart, transactional_id: str) -> bool:
    """Whether this is the transactional id of a task of this batch start. No later start has tasks of such names: it would have
    kept the run only as the very next one."""
    runs = [str(start.driver), *([start.run] if start.run else [])]
    return any(transactional_id.startswith(f"{sink_id}.{run}.") for run in runs)


def partition_of(transactional_id: str) -> int:
    """The partition of the task whose transactional id this is."""
    return int(transactional_id.split(".")[2])


# -- a batch's start, on the driver ------------------------------------------------------------------------------------


def start_batch(*, reuse: bool = False, forgotten: int | None = None) -> Steps[BatchStart]:
    """Fences off drivers before this one, completes the last decision, aborts what nobody can decide any more.

    Args:
        reuse: the ids of first attempts may be used again (see `next_run`): only where Spark repeats no stages, since a
            repeated stage begins its attempts at 0 again.
        forgotten: `next_batch` of a decision whose lost parts the user has accepted.
    """
    listed: Sequence[Handle] = yield ListOpen()
    driver: Identity = yield Fence()
    decision: Decision | None = yield ReadDecision()
    if decision is not None:
        yield from complete(decision, forgotten)
    yield from sweep(listed, decision)
    return BatchStart(driver, next_run(driver, decision) if reuse else "")


def next_run(driver: Identity, decision: Decision | None) -> str:
    """The run that names this batch's first attempts.

    That of the decision where this driver is the very next after the one that decided (its epoch says so: no batch was
    begun in between, by nobody) and all its tasks were first attempts: they have ended, so nobody else holds their names.
    It spares the coordinator a new transactional id and every partition a new producer for each task of each batch.
    """
    if decision is not None and decision.run and decision.reusable:
        expected = decision.driver.epoch + decision.epochs_spent + 1
        if driver == Identity(decision.driver.producer_id, expected):
            return decision.run
    return str(driver)


def complete(decision: Decision, forgotten: int | None = None) -> Steps[None]:
    """Phase two of a decision; harmless when it has been done before.

    Raises:
        HalfCommitted: parts of it were aborted by somebody else.
        DriverReplaced: a newer driver has decided meanwhile.
    """
    lost = []
    for handle in decision.handles:
        outcome: Outcome = yield CommitHandle(handle, decision.next_batch)
        if outcome is Outcome.LOST:
            lost.append(handle)
    if not lost or decision.next_batch == forgotten:
        return
    latest: Decision | None = yield ReadDecision()
    if latest != decision:
        raise DriverReplaced("a newer driver of this sink id has decided the next batch")
    raise HalfCommitted(_instructions(decision, lost))


def sweep(listed: Iterable[Handle], decision: Decision | None) -> Steps[None]:
    """Aborts what is in no decision, of what was open before the fence."""
    decided = _keys(decision.handles) if decision is not None else frozenset()
    for handle in listed:
        if (handle.participant, handle.key) not in decided:
            yield AbortHandle(handle)


def _keys(handles: Iterable[Handle]) -> frozenset[tuple[str, str]]:
    return frozenset((handle.participant, handle.key) for handle in handles)


def _instructions(decision: Decision, lost: Sequence[Handle]) -> str:
    batch = decision.next_batch - 1
    rows = sum(handle.rows for handle in lost)
    names = ", ".join(f"{handle.key} ({handle.rows} rows)" for handle in lost[:8])
    more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
    return (
        f"batch {batch} was decided, but {len(lost)} of its {len(decision.handles)} parts ({rows} rows) were aborted before they "
        f"could be committed: {names}{more}. A transaction without two-phase commit is aborted by its coordinator after "
        "transaction.timeout.ms, and the driver was down for longer (or somebody aborted it by hand). The other parts are "
        f"visible, so running the batch again would double them. To go on: write the missing rows of batch {batch} to the "
        "output by other means (their source offsets are in the checkpoint, offsets/"
        f"{batch}), then start the query once with the option sink.forget = {decision.next_batch}, which accepts the batch as it "
        "is. To be safe from this: a larger transaction.timeout.ms, or a cluster with two-phase commit (KIP-939)"
    )


# -- tasks -------------------------------------------------------------------------------------------------------------


def admitted(decision: Decision | None, batch: int, query: str, sink_id: str, *, adopt: bool = False) -> bool:
    """Whether a task of `batch` is to write: False where the batch has been decided already, its input is then passed over.

    Args:
        adopt: batches before this one that the sink knows nothing of are taken for done.

    Raises:
        PipelineError: the batch does not follow what this sink id has decided.
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


def check_owner(decision: Decision | None, query: str, sink_id: str) -> None:
    """Raises PipelineError where the sink id is another query's."""
    if decision is None or decision.query in (query, NO_QUERY):
        return
    remedy = (
        "give each query a sink id of its own, and a query whose checkpoint was removed a new one (deleting the group "
        f"{group_id(sink_id)!r} makes the old one new: records that are there already are then written again)"
    )
    problem = (
        f"belongs to query {decision.query}, which has written {decision.next_batch} batches; this is query {query}"
    )
    raise PipelineError("sink.id", sink_id, remedy, problem)


def superseded(decision: Decision | None, batch: int) -> bool:
    """Whether a task that has just prepared comes too late: its batch was decided without it, so it aborts what it has."""
    return decision is not None and decision.next_batch > batch


def slot_state(mark: SlotMark | None, batch: int, query: str, sink_id: str) -> bool:
    """Delivery `per_partition`: whether the partition's part of `batch` is to be written.

    Raises:
        PipelineError: another query has written under this sink id.
    """
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
    """What a task tells its driver."""

    start: BatchStart
    task: TaskName
    query: str
    handles: tuple[Handle, ...]  # empty where it had nothing to write, or passed its input over


# -- a batch's end, on the driver --------------------------------------------------------------------------------------


def commit_batch(
    sink_id: str, batch: int, messages: Sequence[TaskMessage], epochs_spent: int, forgotten: int | None = None
) -> Steps[Decision]:
    """Decides the batch, commits its parts, aborts what has lost against them. Returns the decision that stands.

    Raises:
        DriverReplaced: another driver has taken over; nothing was decided here.
        HalfCommitted: see `complete`.
        PipelineError: see `admitted`.
    """
    standing: Decision | None = yield ReadDecision()
    if not messages:  # a batch of no partitions
        if standing is not None:
            return standing
        driver: Identity = yield Fence()
        first = Decision(batch + 1, NO_QUERY, driver, epochs_spent, "", False, ())
        if not (yield Decide(first)):
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
    listed: Sequence[Handle] = yield ListOpen()
    decision = Decision(
        next_batch=batch + 1,
        query=query,
        driver=start.driver,
        epochs_spent=epochs_spent,
        run=start.run,
        reusable=all(message.task.first for message in messages),
        handles=handles,
    )
    if not (yield Decide(decision)):
        raise _replaced(sink_id)
    yield from complete(decision)
    yield from sweep(listed, decision)
    return decision


def _replaced(sink_id: str) -> DriverReplaced:
    return DriverReplaced(
        f"sink id {sink_id!r}: another driver has begun a batch since this one did; of two queries with one checkpoint or one "
        "sink id only the newest goes on: stop the other, then start this one again"
    )


def abort_batch(batch: int, messages: Iterable[TaskMessage | None], start: BatchStart | None = None) -> Steps[None]:
    """After a failed batch: drops its parts, unless the batch was decided; then commits them.

    The decision is read first: Spark calls this too when `commit` raised, whatever had been decided by then. Tasks that were
    killed have sent no message; what they have open is known by its name, which is of the batch's start.

    Args:
        start: of the batch, where it is known other than by a message.
    """
    standing: Decision | None = yield ReadDecision()
    arrived = [message for message in messages if message is not None]
    if standing is not None and standing.next_batch > batch:
        yield from complete(standing)
    yield from sweep([handle for message in arrived for handle in message.handles], standing)
    start = arrived[0].start if arrived else start
    if start is not None:
        listed: Sequence[Handle] = yield ListOpen(start)
        yield from sweep(listed, standing)


# -- one transaction ---------------------------------------------------------------------------------------------------


def commit_transaction(transactional_id: str, identity: Identity, next_batch: int) -> Steps[Outcome]:
    """Commits the prepared transaction of a task, whoever did so before."""
    if (yield EndTransaction(transactional_id, identity)):
        return Outcome.COMMITTED
    mark: SlotMark | None = yield ReadSlot(partition_of(transactional_id))
    if mark is not None and mark.next_batch == next_batch and mark.identity == identity:
        return Outcome.COMMITTED
    return Outcome.LOST
