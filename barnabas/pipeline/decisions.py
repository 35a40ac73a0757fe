"""Exactly-once protocol of the sink: generators that start, decide, commit and abort micro-batches. Pure.

The caller performs the yielded effects: `two_phase_commit`, or the simulation. Why no row is lost or doubled:
- One transaction of `S.driver` decides a batch, under the producer epoch with which the batch began: a replaced driver
  cannot decide. No part is visible before the decision; none is aborted after it.
- The driver lists open parts BEFORE it fences earlier drivers (or decides), and then aborts those in no decision: a
  slow driver never aborts parts of a newer one.
- Only the attempt that made up a transactional id sends InitProducerId for it, so no task can abort the transaction of
  another one. Later batches reuse an id without InitProducerId, under the epoch that the last commit has raised
  (KIP-890): an earlier user of the id can neither write nor end anything. Each attempt takes a ticket of its partition,
  by InitProducerId of an id without transactions; only the ticket that follows the last decided one allows the reuse,
  so of twins, zombies and repeated stages at most one attempt ever has an epoch. The others make up new ids.
- If a commit is rejected, the slot mark in the same transaction proves whether it was committed earlier.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from barnabas.errors import BarnabasError
from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart, SlotMark, TransactionSlot
from barnabas.pipeline.errors import PipelineError

T = TypeVar("T")
EffectSteps = Generator[Any, Any, T]

NO_QUERY = ""  # the query in a decision about a batch without tasks
_SINK_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_OF_SINK = re.compile(rf"({_SINK_ID.pattern})\.(\d+-\d+\.\d+(\.\d+)?|ticket\.\d+)")
_EPOCH_MAX = 32_765  # a coordinator replaces the producer id at the end of the epochs


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
class IsNewest:
    """Whether no other driver has fenced this one. Result: bool."""

    driver: Identity


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
    """Makes a prepared part of `decision` visible; repeats until the outcome is certain. Result: a CommitResult."""

    handle: PreparedPart
    decision: BatchDecision


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


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Reads the newest version of a table. Result: its TableState."""


class TableState(NamedTuple):
    """A version of a table."""

    next_batch: int  # of the last append by this sink; 0 before the first
    version: Any  # only the participant interprets it


@dataclass(frozen=True, slots=True)
class AppendFiles:
    """Appends files to this version of a table, and stores `next_batch` in the same commit.

    Result: a CommitResult, LOST if a file is missing; None if another commit has made a newer version.
    """

    state: TableState
    parts: tuple[PreparedPart, ...]
    next_batch: int


# -- names -------------------------------------------------------------------------------------------------------------


def check_sink_id(sink_id: str) -> None:
    """Raises PipelineError unless the names below differ from those of every other sink."""
    if not _SINK_ID.fullmatch(sink_id):
        raise PipelineError("sink.id", sink_id, "use 1 to 120 letters, digits, '_' and '-'", "is not a sink id")


def driver_id(sink_id: str) -> str:
    """Transactional id of the driver."""
    return f"{sink_id}.driver"


def ticket_id(sink_id: str, partition: int) -> str:
    """Transactional id whose epochs are the tickets of a partition. It has no transactions."""
    return f"{sink_id}.ticket.{partition}"


def group_id(sink_id: str, chunk: int = 0) -> str:
    """Group with the decision, or with one of its further chunks."""
    return f"eos-{sink_id}.{chunk}" if chunk else f"eos-{sink_id}"


def slot_group_id(sink_id: str, partition: int) -> str:
    """Group with the slot mark of one partition."""
    return f"eos-{sink_id}.slot.{partition}"


class TaskName(NamedTuple):
    """One attempt at a Spark task."""

    partition: int
    unique: int  # Spark's taskAttemptId, unique within one Spark application


class BatchStart(NamedTuple):
    """What tasks need of the start of their batch."""

    driver: Identity
    decision: BatchDecision | None = None  # the last one, without its parts
    slots: tuple[TransactionSlot, ...] | None = None  # None: no id is reused


def task_id(sink_id: str, start: BatchStart, task: TaskName) -> str:
    """New transactional id of an attempt."""
    return f"{sink_id}.{start.driver}.{task.partition}.{task.unique}"


def slot_for(start: BatchStart, partition: int, ticket: Identity) -> TransactionSlot | None:
    """The slot that an attempt with this ticket may use."""
    for slot in start.slots or ():
        if partition_of(slot.key) == partition and ticket == _next(slot.ticket):
            return slot
    return None


def next_slot(key: str, used: Identity, ticket: Identity, timeout_ms: int) -> TransactionSlot | None:
    """The slot after the commit of a transaction, which raises the epoch; None if the epochs end."""
    return TransactionSlot(key, _next(used), ticket, timeout_ms) if used.epoch < _EPOCH_MAX else None


def _next(identity: Identity) -> Identity:
    return Identity(identity.producer_id, identity.epoch + 1)


def sink_of(transactional_id: str) -> str | None:
    """The sink whose task has this id; None if it is of other software."""
    found = _OF_SINK.fullmatch(transactional_id)
    return found[1] if found is not None else None


def sink_of_group(group: str) -> str | None:
    """The sink that may keep its decision in this group."""
    name = group.removeprefix("eos-")
    return name if name != group and _SINK_ID.fullmatch(name) else None


def is_own_id(sink_id: str, transactional_id: str) -> bool:
    """Whether this id belongs to a task of this sink."""
    return sink_of(transactional_id) == sink_id


def is_of_start(sink_id: str, start: BatchStart, handle: PreparedPart) -> bool:
    """Whether this transaction belongs to a task of this batch start, or is in one of its slots."""
    if handle.key.startswith(f"{sink_id}.{start.driver}."):
        return True
    return any((slot.key, str(slot.identity)) == (handle.key, handle.token) for slot in start.slots or ())


def partition_of(transactional_id: str) -> int:
    return int(transactional_id.split(".")[2])


# -- a batch's start, on the driver ------------------------------------------------------------------------------------


def start_batch(*, slot_timeout_ms: int | None = None, forgotten: int | None = None) -> EffectSteps[BatchStart]:
    """Starts a batch: fences earlier drivers, completes the last decision, aborts undecided parts.

    Args:
        slot_timeout_ms: reuses ids initialized with this timeout (0: two-phase commit); None reuses none. Needs
            transactions V2, whose commits raise the epoch.
        forgotten: `next_batch` of a decision whose lost parts the user has accepted.
    """
    listed: Sequence[PreparedPart] = yield ListOpen()
    driver: Identity = yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    lost = [] if decision is None else (yield from complete(decision, forgotten))
    yield from sweep(listed, decision)
    if decision is None:
        return BatchStart(driver, None, None if slot_timeout_ms is None else ())
    keys = {handle.key for handle in lost}
    usable = tuple(slot for slot in decision.slots if slot.timeout_ms == slot_timeout_ms and slot.key not in keys)
    known = decision._replace(handles=(), slots=())
    return BatchStart(driver, known, None if slot_timeout_ms is None else usable)


def complete(decision: BatchDecision, forgotten: int | None = None) -> EffectSteps[list[PreparedPart]]:
    """Phase two of a decision; may be repeated. Returns the lost parts that the user has accepted.

    Raises HalfCommitted, DriverReplaced.
    """
    lost = []
    for handle in decision.handles:
        outcome: CommitResult = yield CommitHandle(handle, decision)
        if outcome is CommitResult.LOST:
            lost.append(handle)
    if not lost or decision.next_batch == forgotten:
        return lost
    latest: BatchDecision | None = yield ReadDecision()
    if latest != decision:
        raise DriverReplaced("a newer driver of this sink id has decided the next batch")
    raise HalfCommitted(_instructions(decision, lost))


def sweep(listed: Iterable[PreparedPart], decision: BatchDecision | None) -> EffectSteps[None]:
    """Aborts parts listed before the fence that are in no decision."""
    decided = _decided(decision)
    for handle in listed:
        if handle[:3] not in decided:
            yield AbortHandle(handle)


def _decided(decision: BatchDecision | None) -> frozenset[tuple[str, str, str]]:
    """Participant, key and token of the decided parts."""
    return frozenset(part[:3] for part in decision.handles) if decision is not None else frozenset()


def abandon() -> EffectSteps[tuple[list[PreparedPart], list[PreparedPart]]]:
    """Ends a sink: fences its driver and aborts the undecided parts. Returns these, and the decided ones, which stay."""
    listed: Sequence[PreparedPart] = yield ListOpen()
    yield Fence()
    decision: BatchDecision | None = yield ReadDecision()
    yield from sweep(listed, decision)
    decided = _decided(decision)
    return [part for part in listed if part[:3] not in decided], [part for part in listed if part[:3] in decided]


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

    driver: Identity  # of the start of the batch
    query: str
    handles: tuple[PreparedPart, ...]  # empty if the task had no rows or skipped its input
    slot: TransactionSlot | None = None  # for the next batch


# -- a batch's end, on the driver --------------------------------------------------------------------------------------


def commit_batch(
    sink_id: str, batch: int, messages: Sequence[TaskMessage], forgotten: int | None = None
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
        first = BatchDecision(batch + 1, NO_QUERY, driver, ())
        if not (yield CommitDecision(first)):
            raise _replaced(sink_id)
        return first
    handles = tuple(handle for message in messages for handle in message.handles)
    driver, query = messages[0].driver, messages[0].query
    if standing is not None and not admitted(standing, batch, query, sink_id, adopt=True):
        yield from complete(standing, forgotten)
        yield from sweep(handles, standing)
        return standing
    if standing is not None and not handles:
        return standing  # nothing was written: the batch may be run again
    listed: Sequence[PreparedPart] = yield ListOpen()
    slots = {partition_of(slot.key): slot for slot in (standing.slots if standing is not None else ())}
    slots |= {partition_of(message.slot.key): message.slot for message in messages if message.slot is not None}
    decision = BatchDecision(batch + 1, query, driver, handles, tuple(slots.values()))
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
    batch: int, messages: Iterable[TaskMessage | None], driver: Identity | None = None
) -> EffectSteps[None]:
    """Ends a failed batch: drops its parts, or commits them if it was decided.

    Spark also calls this after `commit` raised. Killed tasks have sent no message: `driver`, if known, identifies their
    parts.
    """
    standing: BatchDecision | None = yield ReadDecision()
    arrived = [message for message in messages if message is not None]
    if standing is not None and standing.next_batch > batch:
        yield from complete(standing)
    yield from sweep([handle for message in arrived for handle in message.handles], standing)
    driver = arrived[0].driver if arrived else driver
    if driver is None:
        return
    start = BatchStart(driver, None, standing.slots if standing is not None else ())
    listed: Sequence[PreparedPart] = yield ListOpen(start)
    in_slots = {slot.key for slot in start.slots or ()}.intersection(handle.key for handle in listed)
    if in_slots and not (yield IsNewest(driver)):  # asked after the list: these may be of a newer driver's tasks
        listed = [handle for handle in listed if handle.key not in in_slots]
    yield from sweep(listed, standing)


# -- one participant ----------------------------------------------------------------------------------------------------


def commit_transaction(transactional_id: str, identity: Identity, next_batch: int) -> EffectSteps[CommitResult]:
    """Commits a task's prepared transaction; succeeds also if another process has committed it."""
    if (yield EndTransaction(transactional_id, identity)):
        return CommitResult.COMMITTED
    mark: SlotMark | None = yield ReadSlot(partition_of(transactional_id))
    if mark is not None and mark.next_batch == next_batch and mark.identity == identity:
        return CommitResult.COMMITTED
    return CommitResult.LOST


def append_once(parts: tuple[PreparedPart, ...], next_batch: int) -> EffectSteps[CommitResult]:
    """Appends the files of a decided batch to a table; succeeds also if another process has appended them.

    Two processes may do so at once. Only one makes the version after the one that both have read.
    """
    while True:
        state: TableState = yield ReadTable()
        if state.next_batch >= next_batch:
            return CommitResult.COMMITTED
        result: CommitResult | None = yield AppendFiles(state, parts, next_batch)
        if result is not None:
            return result
