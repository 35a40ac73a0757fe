"""Compares events with the final state. Pure. Effects of compaction, retention, deletions and administrators are no anomalies; what could not be
checked is the anomaly "incomplete-history".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from barnabas.testing.history.core.events import HistoryEvent
from barnabas.testing.history.core.evidence import Anomaly, Evidence, first_and_count
from barnabas.testing.history.core.final_state import FinalState, HeldLog
from barnabas.testing.history.core.group_checks import commits_of, offset_commits, skipped, went_back
from barnabas.testing.history.core.read_checks import reads
from barnabas.testing.history.core.transaction_checks import transactions
from barnabas.testing.history.core.write_checks import duplicates, inversions, lost_writes

EACH_MAX: Final = 100  # anomalies of one name
STORY_MAX: Final = 20
NAMES: Final = (
    "lost-write",
    "duplicate",
    "order-inversion",
    "aborted-read",
    "precommitted-read",
    "phantom-read",
    "partial-transaction",
    "unfinished-transaction",
    "poll-skip",
    "nonmonotonic-poll",
    "lost-offset-commit",
    "aborted-offset-commit",
    "incomplete-history",
)


def check(events: Sequence[HistoryEvent], state: FinalState, forgotten: int = 0) -> list[Anomaly]:
    """Returns the anomalies, at most EACH_MAX of each name.

    Args:
        events: in order for each broker.
        forgotten: how many events are missing.
    """
    evidence = Evidence(events)
    return first_and_count(_found(evidence, state, forgotten), EACH_MAX)


def _found(evidence: Evidence, state: FinalState, forgotten: int) -> Iterator[Anomaly]:
    effective, aborted = commits_of(evidence)
    for partition in evidence.partitions:
        log = state.logs.get(partition)
        if log is None:
            continue
        yield from lost_writes(evidence, log)
        yield from duplicates(evidence, log)
        yield from inversions(evidence, log)
        yield from reads(evidence, log)
        if not forgotten:
            yield from skipped(evidence, effective, log)
            yield from went_back(evidence, effective, log)
    yield from transactions(evidence, state)
    yield from offset_commits(evidence, effective, aborted, state)
    yield from _incomplete(evidence, state, forgotten)


def _incomplete(evidence: Evidence, state: FinalState, forgotten: int) -> Iterator[Anomaly]:
    story = list(state.unread)
    if forgotten:
        story.append(f"{forgotten} events had no room any more")
    for partition in evidence.partitions:
        log = state.logs.get(partition)
        unknown = 0 if log is None else _unknown(evidence, log)
        if unknown:
            story.append(
                f"{log} has {unknown} batches whose Produce was not recorded: they were written before, or elsewhere"
            )
    if story:
        what = "the check has not seen everything, so it may have missed anomalies"
        yield Anomaly("incomplete-history", "the history", what, tuple(story[:STORY_MAX]))


def _unknown(evidence: Evidence, log: HeldLog) -> int:
    """Batches of which no event tells that they were written."""
    produced = evidence.produced.get((log.topic, log.partition), ())
    known = {each.base_offset for each in produced}
    unanswered = {(each.producer_id, each.crc) for each in produced if each.base_offset < 0}  # acks=0
    return sum(
        each.base_offset not in known and (each.producer_id, each.crc) not in unanswered and not each.marker
        for each in log.batches
    )
