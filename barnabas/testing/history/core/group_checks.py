"""Checks of groups. Pure. A commit beyond undelivered records is a poll-skip unless a member has used ListOffsets in between: consumers choose
their positions. Members are known by client id and host.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator

from barnabas.testing.history.core.events import Delivered, OffsetsCommitted
from barnabas.testing.history.core.evidence import Anomaly, Evidence, client_of, clock, offsets, who
from barnabas.testing.history.core.final_state import FinalState, HeldLog

GroupPartition = tuple[str, str, int]  # group, topic, partition
Accepted = tuple[OffsetsCommitted, int]  # the event and the offset


def committed(event: OffsetsCommitted, topic: str, partition: int, offset: int) -> str:
    """The sentence about a commit."""
    txn = f", in a transaction of '{event.transactional_id}'" if event.transactional_id else ""
    return f"{clock(event.at_ms)} {who(event)} committed offset {offset} of {topic}-{partition} for group '{event.group}'{txn}"


def _decided(evidence: Evidence) -> dict[tuple[int, int], list[tuple[int, bool]]]:
    """By producer id and epoch: where EndTxn came in the history, and whether it committed."""
    found: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
    for each in evidence.ended:
        if not each.error:
            found[each.producer_id, each.producer_epoch].append((evidence.places[id(each)], each.committed))
    return found


GroupCommits = dict[GroupPartition, list[Accepted]]


def commits_of(evidence: Evidence) -> tuple[GroupCommits, GroupCommits]:
    """GroupCommits that took effect, in order, and those of aborted transactions. Offset −1: it was deleted."""
    decided = _decided(evidence)
    effective: list[tuple[int, OffsetsCommitted]] = []
    aborted: dict[GroupPartition, list[Accepted]] = defaultdict(list)
    for each in evidence.commits:
        place = evidence.places[id(each)]
        if each.producer_id < 0:
            effective.append((place, each))
            continue
        ends = [end for end in decided.get((each.producer_id, each.producer_epoch), ()) if end[0] > place]
        if ends and ends[0][1]:
            effective.append((ends[0][0], each))
        elif ends:
            for topic, partition, offset in each.offsets:
                aborted[each.group, topic, partition].append((each, offset))
    found: dict[GroupPartition, list[Accepted]] = defaultdict(list)
    for _, each in sorted(effective, key=lambda one: one[0]):
        for topic, partition, offset in each.offsets:
            found[each.group, topic, partition].append((each, offset))
    return found, aborted


def offset_commits(
    evidence: Evidence, effective: GroupCommits, aborted: GroupCommits, state: FinalState
) -> Iterator[Anomaly]:
    """Acknowledged commits of offsets that are not what the group has at the end."""
    gone = {each.group for each in evidence.changes if each.api == "DeleteGroups" and not each.error}
    for place in sorted({*effective, *aborted}):
        group, topic, partition = place
        held = state.offsets.get(place)
        accepted = effective.get(place, [])
        last = accepted[-1] if accepted else None
        if (
            group in gone
            or held == -1
            or (last is not None and last[0].deleted)
            or (last is not None and held == last[1])
        ):
            continue
        undone = next((each for each in aborted.get(place, ()) if each[1] == held), None)
        where = f"group '{group}'"
        if undone is not None:
            story = (committed(undone[0], topic, partition, undone[1]), "its transaction was aborted")
            yield Anomaly("aborted-offset-commit", where, f"it has offset {held} of {topic}-{partition}", story)
        elif last is not None and (held is None or held in [offset for _, offset in accepted[:-1]]):
            has = "no offset" if held is None else f"offset {held}"
            told = tuple(committed(event, topic, partition, offset) for event, offset in accepted[-3:])
            yield Anomaly(
                "lost-offset-commit", where, f"it has {has} of {topic}-{partition} and was told {last[1]}", told
            )


def skipped(evidence: Evidence, effective: GroupCommits, log: HeldLog) -> Iterator[Anomaly]:
    """Records that a group has committed as read though no member got them."""
    for (group, topic, partition), accepted in effective.items():
        if (topic, partition) != (log.topic, log.partition):
            continue
        readers = evidence.readers(group)
        deliveries = [each for each in evidence.delivered.get((topic, partition), ()) if client_of(each) in readers]
        position = deliveries[0].first_offset if deliveries else None
        got = _Covered(deliveries)
        for event, offset in accepted:
            got.take_until(evidence, event)
            if position is not None and event.by_member and offset > position:
                missed = _missed(log, got, position, offset)
                if missed is not None and not _moved(evidence, log, event, readers, missed[0], offset):
                    story = (
                        *(
                            f"it was delivered {offsets(each.first_offset, each.last_offset)}"
                            for each in deliveries[:6]
                        ),
                        committed(event, topic, partition, offset),
                    )
                    what = f"it has committed offset {offset} of {log}, and no member was delivered {offsets(*missed)}"
                    yield Anomaly("poll-skip", f"group '{group}'", what, story)
            position = offset if position is not None else None


class _Covered:
    """Offsets that were delivered so far, as ranges that do not touch."""

    def __init__(self, deliveries: list[Delivered]) -> None:
        self._waiting = deque(deliveries)
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def take_until(self, evidence: Evidence, event: OffsetsCommitted) -> None:
        """Adds the deliveries before an event; those of another broker by the clock."""
        place = evidence.places[id(event)]
        while self._waiting:
            first = self._waiting[0]
            if evidence.places[id(first)] > place and first.at_ms > event.at_ms:
                return
            self._add(first.first_offset, first.last_offset + 1)
            self._waiting.popleft()

    def _add(self, start: int, end: int) -> None:
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def has(self, offset: int) -> bool:
        """Whether the offset is in one of the ranges."""
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]


def _missed(log: HeldLog, got: _Covered, start: int, end: int) -> tuple[int, int] | None:
    """The first visible batch between two offsets that was not delivered."""
    for batch in log.between(start, end):
        if batch.last_offset < end and log.visible(batch) and not got.has(batch.base_offset):
            return batch.base_offset, batch.last_offset
    return None


def _moved(
    evidence: Evidence, log: HeldLog, event: OffsetsCommitted, readers: set[tuple[str, str]], missed: int, end: int
) -> bool:
    """Whether a member asked for an offset behind what was missed: it may have moved there, as for seek_to_end."""
    return any(
        (topic, partition) == (log.topic, log.partition) and missed < offset <= end and client_of(each) in readers
        for each in evidence.looked
        if each.at_ms <= event.at_ms
        for topic, partition, offset in each.offsets
    )


def went_back(evidence: Evidence, effective: GroupCommits, log: HeldLog) -> Iterator[Anomaly]:
    """A group's only member reads again what it has committed, without a rebalance in between."""
    for (group, topic, partition), accepted in effective.items():
        readers = evidence.readers(group)
        if (topic, partition) != (log.topic, log.partition) or len(readers) != 1:
            continue
        [reader] = readers
        if evidence.groups_of_clients[reader] != {group} or len({each[0].member for each in accepted}) != 1:
            continue
        changes = [each.at_ms for each in evidence.changes if each.group == group]
        looked = [each.at_ms for each in evidence.looked if client_of(each) == reader]
        for each in evidence.delivered.get((topic, partition), ()):
            before = [one for one in accepted if one[0].at_ms < each.at_ms]
            if not before or client_of(each) != reader or not 0 <= each.fetch_offset < before[-1][1]:
                continue
            since = before[-1][0].at_ms
            if not any(since <= at <= each.at_ms for at in (*changes, *looked)):
                event, offset = before[-1]
                what = f"its member reads {log} again from offset {each.fetch_offset}, and it has committed offset {offset}"
                yield Anomaly(
                    "nonmonotonic-poll", f"group '{group}'", what, (committed(event, topic, partition, offset),)
                )
                break
