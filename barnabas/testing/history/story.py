"""Timeline of a transactional id: epoch bumps and their causes, writes, endings, fencing. Pure. Without a history it shows only what the log proves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from typing import Final

from barnabas.testing.history.core.events import (
    HistoryEvent,
    MarkersWritten,
    OffsetsCommitted,
    PartitionsAdded,
    Produced,
    ProducerIdGiven,
    TransactionEnded,
)
from barnabas.testing.history.core.evidence import offsets, who
from barnabas.testing.history.core.final_state import TransactionStep
from barnabas.testing.history.trace import HeldMarker

FENCED: Final = frozenset(
    {"INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING", "TRANSACTION_TIMED_OUT"}
)
NO_TIMEOUT_MS: Final = 2**31 - 1
# The order within one millisecond.
_RANKS: Final = {"Empty": 0, "Ongoing": 2, "Prepare": 5, "Complet": 7}
MARKER_RANK: Final = 6
LINES_MAX: Final = 400
PLACES_SHOWN: Final = 8


@dataclass(frozen=True)
class Now:
    """What the coordinator and the partitions say now. `holds` names partitions whose readers the transaction holds back."""

    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[str, ...]
    holds: tuple[str, ...] = ()
    at_ms: int = 0


@dataclass(frozen=True)
class TransactionStory:
    """The lines, and what to do now."""

    lines: tuple[str, ...]
    advice: tuple[str, ...]


def ids_of(steps: Iterable[TransactionStep], events: Iterable[HistoryEvent]) -> list[str]:
    """The transactional ids that a log or a history names."""
    named = {each.transactional_id for each in steps}
    named |= {getattr(each, "transactional_id", "") for each in events}
    return sorted(named - {""})


def story(
    transactional_id: str,
    steps: Sequence[TransactionStep],
    events: Sequence[HistoryEvent],
    markers: Sequence[HeldMarker],
    now: Now | None,
) -> TransactionStory:
    """Tells what happened to one id, the oldest first."""
    own = [each for each in steps if each.transactional_id == transactional_id]
    producer_ids = {each.producer_id for each in own} | {
        each.producer_id
        for each in events
        if isinstance(each, ProducerIdGiven) and each.transactional_id == transactional_id
    }
    steps_told = [(each.at_ms, _RANKS.get(each.state[:7], 0), line) for each, line in _steps(own)]
    events_told = [
        (each.at_ms, _rank(each), line) for each, line in _events(transactional_id, producer_ids - {-1}, events)
    ]
    markers_told = [
        (each.at_ms, MARKER_RANK, f"marker {each.outcome} in {each.topic}-{each.partition} at offset {each.offset}")
        for each in markers
        if each.producer_id in producer_ids and each.producer_id >= 0
    ]
    told = merge(steps_told, events_told, markers_told, key=lambda each: each[:2])
    lines = [f"{_time(at_ms)}  {line}" for at_ms, _, line in told]
    if len(lines) > LINES_MAX:
        lines = [f"({len(lines) - LINES_MAX} earlier lines left out)", *lines[-LINES_MAX:]]
    return TransactionStory(tuple(lines), tuple(_advice(transactional_id, own, now)))


def _rank(event: HistoryEvent) -> int:
    return 1 if isinstance(event, ProducerIdGiven) else 4 if isinstance(event, TransactionEnded) else 3


def _time(at_ms: int) -> str:
    if at_ms < 0:
        return "(time unknown)         "
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# -- the coordinator's log


def _steps(own: list[TransactionStep]) -> Iterable[tuple[TransactionStep, str]]:
    before: TransactionStep | None = None
    for step in own:
        yield step, _step(step, before)
        before = None if step.state == "Dead" else step


def _step(step: TransactionStep, before: TransactionStep | None) -> str:
    identity = f"producer {step.producer_id} epoch {step.producer_epoch}"
    places = [f"{topic}-{partition}" for topic, partition in step.partitions]
    match step.state:
        case "Dead":
            return "the coordinator has removed the id: it was not used for transactional.id.expiration.ms"
        case "Empty":
            return f"{identity}: {_why_bumped(step, before)}"
        case "Ongoing":
            known = set() if before is None or before.state != "Ongoing" else set(before.partitions)
            new = [f"{topic}-{partition}" for topic, partition in step.partitions if (topic, partition) not in known]
            begun = "a transaction has begun, with" if not known else "the transaction has also"
            return f"{identity}: {begun} {_some(new) or 'no partition'}"
        case "PrepareCommit":
            return f"{identity}: the coordinator has decided: commit of {_some(places)}"
        case "PrepareAbort":
            return f"{identity}: the coordinator has decided: abort of {_some(places) or 'no partition'}{_why_aborted(step, before)}"
        case "CompleteCommit":
            return f"{identity}: committed; every partition has its marker"
        case "CompleteAbort":
            return f"{identity}: aborted; every partition has its marker"
    return f"{identity}: {step.state}"


def _why_bumped(step: TransactionStep, before: TransactionStep | None) -> str:
    if before is None or before.producer_id < 0:
        return "a producer has initialized the id for the first time"
    if step.producer_id != before.producer_id:
        return f"a producer has initialized the id; the epochs of producer {before.producer_id} were used up"
    fenced = f"; epoch {before.producer_epoch} and older ones are fenced"
    return f"a producer has initialized the id (InitProducerId) and bumped the epoch{fenced}"


def _why_aborted(step: TransactionStep, before: TransactionStep | None) -> str:
    """What the log proves about an abort: an epoch that is two above, or the timeout, is not the producer's own."""
    if before is None or before.state != "Ongoing" or before.started_ms < 0:
        return ""
    age_ms = step.at_ms - before.started_ms
    if step.producer_epoch > before.producer_epoch and 0 < before.timeout_ms <= age_ms:
        return f", {age_ms} ms after its begin: transaction.timeout.ms ({before.timeout_ms}) had passed"
    return ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:PLACES_SHOWN]) + (
        f" and {len(names) - PLACES_SHOWN} more" if len(names) > PLACES_SHOWN else ""
    )


# -- the history


def _events(
    transactional_id: str, producer_ids: set[int], events: Sequence[HistoryEvent]
) -> Iterable[tuple[HistoryEvent, str]]:
    owner: dict[int, ProducerIdGiven] = {}  # by producer id: who has the newest epoch
    for each in events:
        if isinstance(each, ProducerIdGiven) and each.transactional_id == transactional_id:
            yield each, _initialized(each, owner.get(each.producer_id))
            if not each.error:
                owner[each.producer_id] = each
        elif getattr(each, "transactional_id", "") == transactional_id or (
            isinstance(each, (Produced, MarkersWritten)) and each.producer_id in producer_ids
        ):
            line = _request(each)
            if line:
                yield each, line + _fence(each, owner)


def _initialized(event: ProducerIdGiven, before: ProducerIdGiven | None) -> str:
    if event.error == "CONCURRENT_TRANSACTIONS":
        return f"{who(event)} asked for a new epoch; the coordinator first ends the transaction that is there"
    if event.error:
        return f"{who(event)}: InitProducerId failed: {event.error}"
    reason = (
        "it has started" if event.asked_id < 0 else f"it recovers from an error in epoch {event.asked_epoch} (KIP-360)"
    )
    fenced = ""
    if before is not None and before.producer_epoch < event.producer_epoch:
        same = (before.client, before.address) == (event.client, event.address)
        fenced = f"; this fences {'its own older epochs' if same else who(before)}"
    return f"{who(event)} got producer {event.producer_id} epoch {event.producer_epoch}: {reason}{fenced}"


def _request(event: HistoryEvent) -> str:
    name, result = who(event), f": {event.error}" if event.error else ""
    match event:
        case Produced():
            where = f"{event.topic}-{event.partition}"
            if event.error:
                return f"{name} produced to {where}, and it was refused{result}"
            return f"{name} wrote {offsets(event.base_offset, event.last_offset)} of {where}"
        case PartitionsAdded():
            places = [f"{topic}-{partition}" for topic, partition in event.partitions]
            what = f"group '{event.group}'" if event.group else _some(places)
            return f"{name} added {what}{result}"
        case OffsetsCommitted():
            places = [f"{offset} of {topic}-{partition}" for topic, partition, offset in event.offsets]
            return f"{name} committed for group '{event.group}' the offsets {_some(places) or 'none'}{result}"
        case TransactionEnded():
            return f"{name} asked for the {'commit' if event.committed else 'abort'}{result or ': accepted'}"
        case MarkersWritten():
            places = [f"{topic}-{partition}" for topic, partition in event.partitions]
            word = "commit" if event.committed else "abort"
            return f"{name} had markers written ({word}): {_some(places)}{result}"
    return ""


def _fence(event: HistoryEvent, owner: dict[int, ProducerIdGiven]) -> str:
    if event.error not in FENCED:
        return ""
    newest = owner.get(getattr(event, "producer_id", -1))
    epoch = getattr(event, "producer_epoch", -1)
    if newest is None or newest.producer_epoch <= epoch:
        return ""
    return f": it has epoch {epoch} and was fenced by {who(newest)} with epoch {newest.producer_epoch}"


# -- what to do


def _advice(transactional_id: str, own: list[TransactionStep], now: Now | None) -> Iterable[str]:
    if now is None:
        last = own[-1] if own else None
        if last is not None and last.state == "Ongoing":
            yield "the recording ends while the transaction is open"
        return
    identity = f"{now.producer_id}:{now.epoch}"
    for each in now.holds:
        yield f"readers under read_committed stand still in {each}"
    if now.state == "Ongoing":
        age_s = max(now.at_ms - now.started_ms, 0) / 1000
        if now.timeout_ms == NO_TIMEOUT_MS:
            yield f"it has been open for {age_s:.0f} s and has no timeout: it is prepared, and another system decides its outcome"
            yield f"as was decided there: barnabas txn commit {transactional_id} --only {identity}, or txn abort"
            return
        left_s = now.timeout_ms / 1000 - age_s
        yield f"it has been open for {age_s:.0f} s; the coordinator aborts it {f'in {left_s:.0f} s' if left_s > 0 else 'now'}"
        yield f"if its producer is gone: barnabas txn abort {transactional_id} --only {identity}; that fences the producer"
    elif now.state.startswith("Prepare"):
        yield "it is decided, and some partitions have no marker yet: are their leaders there?"
        yield f"partitions: {_some(now.partitions)}"
    else:
        yield "nothing: no transaction is open"
