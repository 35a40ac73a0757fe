"""Checks of transactions: client responses, coordinator decisions and markers. Pure. Under transactions V2 each transaction has its own epoch, which
identifies its batches; under V1 the steps in `__transaction_state` tell transactions apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from barnabas.testing.history.core.events import Produced, TransactionEnded
from barnabas.testing.history.core.evidence import Anomaly, Evidence, clock, who
from barnabas.testing.history.core.final_state import FinalState, HeldLog, TransactionStep
from barnabas.testing.history.core.write_checks import acknowledged

PREPARED = {"PrepareCommit": "commit", "PrepareAbort": "abort"}
EPOCH_MAX = 32_766
STORY_MAX = 6
Partition = tuple[str, int]


def transactions(evidence: Evidence, state: FinalState) -> Iterator[Anomaly]:
    """Every anomaly of transactions, one for each transaction."""
    told: set[tuple[int, int]] = set()  # producer id and epoch of transactions that were named already
    for each in evidence.ended:
        if each.error or (each.producer_id, each.producer_epoch) in told:
            continue
        found = next(_of_client(evidence, state, each), None)
        if found is not None:
            told.add((each.producer_id, each.producer_epoch))
            yield found
    named = {producer_id for producer_id, _ in told}
    for anomaly, producer_id in _of_coordinator(state):
        if producer_id not in named:
            yield anomaly


def _is_v2(ended: TransactionEnded) -> bool:
    return ended.next_epoch >= 0 and (ended.next_id, ended.next_epoch) != (ended.producer_id, ended.producer_epoch)


def _asked(ended: TransactionEnded) -> str:
    return "commit" if ended.committed else "abort"


def _of_client(evidence: Evidence, state: FinalState, ended: TransactionEnded) -> Iterator[Anomaly]:
    """What contradicts the answer to one EndTxn."""
    where = f"transactional id '{ended.transactional_id}'"
    word = "committed" if ended.committed else "aborted"
    answered = f"{clock(ended.at_ms)} broker {ended.broker} told {who(ended)} that the transaction is {word}"
    if _is_v2(ended):
        written = _written(evidence, ended)
        outcomes = {id(each): _outcome(state, each) for each in written}
        wrong = [each for each in written if outcomes[id(each)] not in ("", _asked(ended))]
        right = [each for each in written if outcomes[id(each)] == _asked(ended)]
        story = (
            *(acknowledged(each) for each in written[:STORY_MAX]),
            answered,
            *(f"{each.topic}-{each.partition} ends it with: {outcomes[id(each)]}" for each in written[:STORY_MAX]),
        )
        if wrong:
            yield _contradiction(where, ended.committed, bool(right), _places(wrong), story)
    decided = _decisions(state, ended)
    if decided is not None and _asked(ended) not in decided:
        found = " and ".join(sorted(decided)) or "neither commit nor abort"
        story = (
            answered,
            f"__transaction_state has {found} for producer {ended.producer_id} epoch {ended.producer_epoch}",
        )
        yield _contradiction(where, ended.committed, False, "its transaction", story)


def _contradiction(where: str, committed: bool, in_part: bool, places: str, story: tuple[str, ...]) -> Anomaly:
    if in_part:
        rest = "committed" if committed else "aborted"
        return Anomaly(
            "partial-transaction", where, f"{places} have another outcome than the rest, which is {rest}", story
        )
    if committed:
        return Anomaly("lost-write", where, f"the client was told that it is committed, and {places} are not", story)
    return Anomaly("aborted-read", where, f"the client was told that it is aborted, and readers get {places}", story)


def _written(evidence: Evidence, ended: TransactionEnded) -> list[Produced]:
    return [
        each
        for batches in evidence.produced.values()
        for each in batches
        if each.transactional
        and not each.error
        and each.base_offset >= 0
        and (each.producer_id, each.producer_epoch) == (ended.producer_id, ended.producer_epoch)
    ]


def _outcome(state: FinalState, event: Produced) -> str:
    """Of the transaction to which a batch belongs; "" if the log does not tell."""
    log = state.logs.get((event.topic, event.partition))
    batch = None if log is None else log.batch_at(event.base_offset)
    if log is None or batch is None or batch.producer_id != event.producer_id:
        return ""
    segment = log.segment_of(batch)
    return "" if segment is None else segment.outcome


def _places(events: list[Produced]) -> str:
    return ", ".join(sorted({f"{each.topic}-{each.partition}" for each in events}))


def _decisions(state: FinalState, ended: TransactionEnded) -> set[str] | None:
    """What the coordinator's log says about the transaction of an EndTxn; None if it says nothing about its producer."""
    own = [each for each in state.steps if each.transactional_id == ended.transactional_id]
    if not own or own[-1].state == "Dead" or ended.producer_epoch >= EPOCH_MAX:
        return None
    epoch = ended.producer_epoch + 1 if _is_v2(ended) else ended.producer_epoch
    identity = ended.producer_id, epoch
    return {
        PREPARED[each.state]
        for each in own
        if each.state in PREPARED and (each.producer_id, each.producer_epoch) == identity
    }


def _of_coordinator(state: FinalState) -> Iterator[tuple[Anomaly, int]]:
    """Decisions that the partitions have not followed, with the producer id."""
    expected: dict[tuple[int, Partition], list[TransactionStep]] = defaultdict(list)
    last: dict[str, TransactionStep] = {}
    for step in state.steps:
        last[step.transactional_id] = step
        if step.state in PREPARED:
            for partition in step.partitions:
                expected[step.producer_id, partition].append(step)
    outcomes: dict[TransactionStep, dict[Partition, str]] = defaultdict(dict)
    for (producer_id, partition), steps in expected.items():
        log = state.logs.get(partition)
        markers = None if log is None else _markers(log, producer_id)
        if markers is None or len(markers) > len(steps):
            continue  # it was not read, or an administrator has written markers, too
        for place, step in enumerate(steps):
            outcomes[step][partition] = markers[place] if place < len(markers) else "open"
    for step, found in outcomes.items():
        wanted = PREPARED[step.state]
        wrong = sorted(partition for partition, outcome in found.items() if outcome != wanted)
        if wrong:
            yield _not_followed(step, wrong, found, last[step.transactional_id] is step), step.producer_id


def _not_followed(step: TransactionStep, wrong: list[Partition], found: dict[Partition, str], is_last: bool) -> Anomaly:
    where = f"transactional id '{step.transactional_id}'"
    wanted = PREPARED[step.state]
    places = ", ".join(f"{topic}-{partition}" for topic, partition in wrong)
    story = (
        f"{clock(step.at_ms)} the coordinator decided: {wanted} (producer {step.producer_id} epoch {step.producer_epoch})",
        *(f"{topic}-{partition} ends it with: {found[topic, partition]}" for topic, partition in sorted(found)),
    )
    if len(wrong) == len(found) and is_last and set(found.values()) == {"open"}:
        return Anomaly("unfinished-transaction", where, f"{places} have no marker: readers stand still there", story)
    return _contradiction(where, wanted == "commit", len(wrong) < len(found), places, story)


def _markers(log: HeldLog, producer_id: int) -> list[str] | None:
    """The outcomes of a producer's transactions, in order; None if the beginning of the log is gone."""
    if log.start_offset > 0:
        return None
    return [each.outcome for each in log.segments if each.producer_id == producer_id and each.outcome != "open"]
