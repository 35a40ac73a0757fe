"""Two-phase commit for micro-batches: interface of a participant, and the coordinator (protocol in `decisions`).
The methods are those of Flink's TwoPhaseCommitSinkFunction: begin, pre_commit, commit, abort.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from barnabas.errors import InvariantViolated
from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart, TransactionSlot
from barnabas.pipeline.decisions import (
    AbortHandle,
    BatchStart,
    CommitDecision,
    CommitHandle,
    CommitResult,
    EffectSteps,
    Fence,
    IsNewest,
    ListOpen,
    ReadDecision,
    TaskMessage,
    TaskName,
)
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.transaction_requests import TransactionRequests

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("barnabas.pipeline")

T = TypeVar("T")

_DRIVER_TIMEOUT_MS = 60_000  # timeout of the decision's own transaction, which takes two requests


class Task(NamedTuple):
    """One attempt at writing one partition of one batch."""

    sink_id: str
    start: BatchStart
    name: TaskName
    batch: int
    query: str


class Part(ABC):
    """Output of one task at one participant. `handle` is complete once the part is prepared."""

    handle: PreparedPart
    slot: TransactionSlot | None = None  # of a prepared part: the name that the next batch may reuse

    @abstractmethod
    async def write(self, batch: pa.RecordBatch) -> None:
        """Writes rows. They are durable only after `pre_commit`."""

    @abstractmethod
    async def close(self) -> None:
        """Releases the part's resources in this process. A prepared part stays prepared."""


class TwoPhaseCommitSink(ABC):
    """A participant: writes data that stay invisible until a commit.

    Other processes than the writer call `commit` and `abort`, more than once and in any order: both must be idempotent,
    and a later call must not undo an earlier one.
    """

    name: str  # name of the participant in handles; unique within one sink

    @abstractmethod
    async def begin(self, task: Task) -> Part:
        """Begins a new part for this attempt. Called with the first rows."""

    @abstractmethod
    async def pre_commit(self, part: Part) -> PreparedPart:
        """Phase one: makes the written rows durable, also if this process dies, and keeps them invisible."""

    @abstractmethod
    async def commit(self, handle: PreparedPart, decision: BatchDecision) -> CommitResult:
        """Phase two: makes a prepared part of the decision visible; repeats until the outcome is certain.

        LOST: another process has dropped the part.
        """

    @abstractmethod
    async def abort(self, handle: PreparedPart) -> None:
        """Drops an open or prepared part; no effect if it is committed or missing."""

    async def list_open(self, start: BatchStart | None = None) -> Sequence[PreparedPart]:
        """Lists open and prepared parts of all tasks of this sink id, or of one batch start."""
        return ()


async def drive(steps: EffectSteps[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Runs a generator of the protocol: performs each effect and sends the result back."""
    answer: Any = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = await perform(effect)


class CommitCoordinator:
    """The driver's side: performs the effects of the protocol.

    Args:
        sink_id: prefix of all names of the sink.
        requests: sends requests to the cluster that stores the decisions.
        participants: the participants of each decision.
        forgotten, slot_timeout_ms: see `decisions.start_batch`.
    """

    def __init__(
        self,
        sink_id: str,
        requests: TransactionRequests,
        participants: Sequence[TwoPhaseCommitSink],
        *,
        forgotten: int | None = None,
        slot_timeout_ms: int | None = None,
    ) -> None:
        decisions.check_sink_id(sink_id)
        self.sink_id = sink_id
        self.requests = requests
        self.participants = {participant.name: participant for participant in participants}
        self.forgotten = forgotten
        self.slot_timeout_ms = slot_timeout_ms
        self.aborted = 0  # parts that this coordinator has aborted
        self.decided_ms: int | None = None  # monotonic time of its decision

    async def start_batch(self) -> BatchStart:
        """Starts a batch, on the driver before its tasks. Raises HalfCommitted for a lost part of the last batch."""
        reuses = await self.requests.version() >= 2
        slot_timeout_ms = self.slot_timeout_ms if reuses else None
        return await self.run(decisions.start_batch(slot_timeout_ms=slot_timeout_ms, forgotten=self.forgotten))

    async def commit_batch(self, batch: int, messages: Sequence[TaskMessage]) -> BatchDecision:
        """Decides and commits a batch with all its messages; repeats the commit of a decided batch.

        Raises DriverReplaced, or HalfCommitted if a part of the batch is lost.
        """
        return await self.run(decisions.commit_batch(self.sink_id, batch, messages, self.forgotten))

    async def abort_batch(
        self, batch: int, messages: Sequence[TaskMessage | None], driver: Identity | None = None
    ) -> None:
        """Drops the parts of a failed batch, unless it was decided."""
        await self.run(decisions.abort_batch(batch, messages, driver))

    async def read_decision(self, *, stable: bool = True) -> BatchDecision | None:
        """The last decision; `stable` waits for one being committed."""
        while True:
            first = await self.requests.read_offset(decisions.group_id(self.sink_id), stable=stable)
            if first is None:
                return None
            next_batch, text = first
            try:
                chunks = [text]
                for number in range(1, BatchDecision.chunk_count(text)):
                    chunk = await self.requests.read_offset(decisions.group_id(self.sink_id, number), stable=stable)
                    chunks.append(chunk[1] if chunk is not None else "")
                decision = BatchDecision.decode(next_batch, chunks)
            except ValueError as error:
                group = decisions.group_id(self.sink_id)
                remedy = f"the group {group!r} is the sink's own: no consumer may commit in it; choose another sink id"
                raise PipelineError(
                    "sink.id", self.sink_id, remedy, f"has a decision that cannot be read ({error})"
                ) from error
            if decision is not None:
                return decision

    async def run(self, steps: EffectSteps[T]) -> T:
        return await drive(steps, self.perform)

    async def perform(self, effect: Any) -> Any:
        if isinstance(effect, CommitHandle):
            return await self._of(effect.handle).commit(effect.handle, effect.decision)
        if isinstance(effect, AbortHandle):
            log.info("sink %s: abort %s", self.sink_id, effect.handle.key)
            self.aborted += 1
            return await self._of(effect.handle).abort(effect.handle)
        if isinstance(effect, ReadDecision):
            return await self.read_decision()
        if isinstance(effect, CommitDecision):
            return await self._decide(effect.decision)
        if isinstance(effect, Fence):
            name = decisions.driver_id(self.sink_id)
            return await self.requests.fence(name, transaction_timeout_ms=_DRIVER_TIMEOUT_MS)
        if isinstance(effect, IsNewest):
            return await self.requests.identity_of(decisions.driver_id(self.sink_id)) == effect.driver
        if isinstance(effect, ListOpen):
            return [handle for p in self.participants.values() for handle in await p.list_open(effect.start)]
        raise InvariantViolated(f"no code performs the effect {effect!r} of the protocol")

    async def _decide(self, decision: BatchDecision) -> bool:
        name = decisions.driver_id(self.sink_id)
        for number, text in reversed(list(enumerate(decision.encode()))):
            group = decisions.group_id(self.sink_id, number)
            if not await self.requests.commit_offset(name, decision.driver, group, decision.next_batch, text):
                return False
        decided = await self.requests.end(name, decision.driver, commit=True)
        self.decided_ms = self.requests.cluster.clock.monotonic_ms()
        return decided

    def _of(self, handle: PreparedPart) -> TwoPhaseCommitSink:
        found = self.participants.get(handle.participant)
        if found is None:
            remedy = "start the query once with the options it had; they can be changed when its last batch is complete"
            problem = f"has an unfinished batch with a part of {handle.participant!r}, which these options do not name"
            raise PipelineError("sink.id", self.sink_id, remedy, problem)
        return found
