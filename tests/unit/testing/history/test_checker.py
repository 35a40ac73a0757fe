"""The checker against correct histories, and against each way to damage one: every mutation gets its own name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from barnabas.testing.history.core.checker import NAMES, check
from barnabas.testing.history.core.events import (
    Closed,
    Delivered,
    HistoryEvent,
    OffsetsCommitted,
    Produced,
    TransactionEnded,
)
from barnabas.testing.history.core.final_state import FinalState, HeldLog, LoggedBatch
from tests.support.broker.recorded import Recorded, recorded

SEEDS = range(80)
CHANGES_MIN = 10  # histories to which a mutation must apply


def names(made: Recorded, forgotten: int = 0) -> set[str]:
    return {each.name for each in check(made.events, made.state(), forgotten)}


def test_a_correct_history_has_no_anomaly() -> None:
    for seed in range(200):
        made = recorded(seed)
        assert check(made.events, made.state()) == [], seed


# -- mutations: each damages a history, or returns None where it does not apply


def _pick(rng: random.Random, found: list[HistoryEvent]) -> HistoryEvent | None:
    return rng.choice(found) if found else None


def _plain(made: Recorded) -> list[Produced]:
    return [each for each in made.events if isinstance(each, Produced) and not each.transactional]


def an_acknowledged_batch_is_gone(made: Recorded, rng: random.Random) -> str | None:
    if not _plain(made):
        return None
    each = rng.choice(_plain(made))
    log = made.logs[each.topic, each.partition]
    log[:] = [one for one in log if one.base_offset != each.base_offset]
    made.events = [one for one in made.events if not _delivers(one, each)]
    return "lost-write"


def _delivers(event: HistoryEvent, lost: Produced) -> bool:
    return (
        isinstance(event, Delivered)
        and (event.topic, event.partition) == (lost.topic, lost.partition)
        and event.first_offset <= lost.base_offset <= event.last_offset
    )


def a_log_is_cut_off(made: Recorded, rng: random.Random) -> str | None:
    logs = [each for each in made.logs.values() if each and not each[-1].marker]
    if not logs:
        return None
    rng.choice(logs).pop()
    made.events = [each for each in made.events if not isinstance(each, Delivered)]
    return "lost-write"


def another_batch_took_its_place(made: Recorded, rng: random.Random) -> str | None:
    if not _plain(made):
        return None
    each = rng.choice(_plain(made))
    _change(made, each, lambda batch: batch._replace(crc=batch.crc ^ 1, producer_id=-1, base_sequence=-1))
    return "lost-write"


def _change(made: Recorded, event: Produced, change: Callable[[LoggedBatch], LoggedBatch]) -> None:
    log = made.logs[event.topic, event.partition]
    log[:] = [change(one) if one.base_offset == event.base_offset else one for one in log]


def a_sequence_is_there_twice(made: Recorded, rng: random.Random) -> str | None:
    found = [each for each in made.logs.values() if any(one.base_sequence >= 0 and not one.marker for one in each)]
    if not found:
        return None
    log = rng.choice(found)
    again = rng.choice([one for one in log if one.base_sequence >= 0 and not one.marker])
    end = log[-1].last_offset + 1
    log.append(again._replace(base_offset=end, last_offset=end + again.last_offset - again.base_offset))
    return "duplicate"


def a_batch_is_sent_again_on_another_connection(made: Recorded, rng: random.Random) -> str | None:
    found = [each for each in _plain(made) if each.producer_id < 0]
    if not found:
        return None
    each = rng.choice(found)
    log = made.logs[each.topic, each.partition]
    end = log[-1].last_offset + 1
    log.append(LoggedBatch(end, end + each.count - 1, crc=each.crc))
    place = made.events.index(each)
    mine = replace(each, connection=7, address="127.0.0.1:7")
    made.events[place : place + 1] = [mine, Closed(number=0, broker=1, connection=7, address="127.0.0.1:7")]
    made.events.append(replace(each, base_offset=end, connection=8, address="127.0.0.1:8"))
    return "duplicate"


def two_batches_of_a_producer_change_places(made: Recorded, rng: random.Random) -> str | None:
    for partition in rng.sample(sorted(made.logs), len(made.logs)):
        log = made.logs[partition]
        own = [place for place, one in enumerate(log) if one.producer_id == 4000]
        for first, second in pairwise(own):
            one, two = log[first], log[second]
            log[first] = one._replace(base_sequence=two.base_sequence, crc=two.crc)
            log[second] = two._replace(base_sequence=one.base_sequence, crc=one.crc)
            return "order-inversion"
    return None


def a_refused_batch_is_overtaken(made: Recorded, rng: random.Random) -> str | None:
    found = [each for each in _plain(made) if each.producer_id < 0]
    if not found:
        return None
    each = rng.choice(found)
    log = made.logs[each.topic, each.partition]
    end = log[-1].last_offset + 1
    log.append(LoggedBatch(end, end + each.count - 1, crc=each.crc ^ 1))
    place = made.events.index(each)
    late = replace(each, crc=each.crc ^ 1)
    made.events.insert(place, replace(late, base_offset=-1, error="NOT_LEADER_OR_FOLLOWER"))
    made.events.append(replace(late, base_offset=end))
    return "order-inversion"


def _ended(made: Recorded, rng: random.Random, producer_id: int, *, committed: bool, several: bool) -> list[Produced]:
    """The batches of one transaction."""
    found = []
    for ended in made.events:
        if isinstance(ended, TransactionEnded) and ended.producer_id == producer_id and ended.committed == committed:
            place = made.events.index(ended)
            begin = max(
                (
                    n
                    for n in range(place)
                    if isinstance(one := made.events[n], TransactionEnded) and one.producer_id == producer_id
                ),
                default=0,
            )
            batches = [
                one for one in made.events[begin:place] if isinstance(one, Produced) and one.producer_id == producer_id
            ]
            if (len(batches) > 1) == several:
                found.append(batches)
    return rng.choice(found) if found else []


def _flip(made: Recorded, event: Produced, marker: str) -> None:
    """The first marker of the producer behind a batch becomes another one, or goes away."""
    log = made.logs[event.topic, event.partition]
    place = next(
        n
        for n, one in enumerate(log)
        if one.marker and one.producer_id == event.producer_id and one.base_offset > event.base_offset
    )
    if marker:
        log[place] = log[place]._replace(marker=marker)
    else:
        del log[place:]
        made.events = [each for each in made.events if not isinstance(each, (Delivered, OffsetsCommitted))]
        made.offsets.clear()
        made.events = [
            each
            for each in made.events
            if not (
                isinstance(each, Produced)
                and (each.topic, each.partition) == (event.topic, event.partition)
                and (not log or each.base_offset > log[-1].base_offset)
            )
        ]


def _without_deliveries(made: Recorded) -> None:
    made.events = [each for each in made.events if not isinstance(each, (Delivered, OffsetsCommitted))]
    made.offsets.clear()


def every_commit_marker_becomes_an_abort(made: Recorded, rng: random.Random) -> str | None:
    batches = _ended(made, rng, rng.choice((4001, 4002)), committed=True, several=True)
    for each in batches:
        _flip(made, each, "abort")
    _without_deliveries(made)
    return "lost-write" if batches else None


def one_commit_marker_becomes_an_abort(made: Recorded, rng: random.Random) -> str | None:
    batches = _ended(made, rng, rng.choice((4001, 4002)), committed=True, several=True)
    if batches:
        _flip(made, rng.choice(batches), "abort")
    _without_deliveries(made)
    return "partial-transaction" if batches else None


def every_abort_marker_becomes_a_commit(made: Recorded, rng: random.Random) -> str | None:
    batches = _ended(made, rng, rng.choice((4001, 4002)), committed=False, several=True)
    for each in batches:
        _flip(made, each, "commit")
    _without_deliveries(made)
    return "aborted-read" if batches else None


def the_last_transaction_has_no_marker(made: Recorded, rng: random.Random) -> str | None:
    last = next((each for each in reversed(made.events) if isinstance(each, TransactionEnded)), None)
    if last is None or not made.steps[-1].state.startswith("Complete"):
        return None
    markers = [made.logs[each] for each in made.steps[-2].partitions]
    if not all(log[-1].marker and log[-1].producer_id == last.producer_id for log in markers):
        return None
    made.steps.pop()
    for log in markers:
        log.pop()
    _without_deliveries(made)
    return "unfinished-transaction" if last.next_epoch < 0 else "lost-write" if last.committed else "aborted-read"


def _read(made: Recorded, rng: random.Random, wanted: Callable[[Delivered], bool]) -> Delivered | None:
    found = [each for each in made.events if isinstance(each, Delivered) and wanted(each)]
    return rng.choice(found) if found else None


def _put(made: Recorded, old: HistoryEvent, new: HistoryEvent) -> None:
    made.events[made.events.index(old)] = new


def an_aborted_batch_is_not_named(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: any(_aborted(made, one, batch[0]) for batch in one.batches))
    if each is None:
        return None
    _put(made, each, replace(each, aborted=()))
    return "aborted-read"


def _aborted(made: Recorded, event: Delivered, base: int) -> bool:
    log = made.state().logs[event.topic, event.partition]
    batch = log.batch_at(base)
    segment = None if batch is None else log.segment_of(batch)
    return segment is not None and segment.outcome == "abort"


def an_aborted_batch_reaches_a_reader_under_read_uncommitted(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: any(_aborted(made, one, batch[0]) for batch in one.batches))
    if each is None:
        return None
    _put(made, each, replace(each, aborted=(), isolation="read_uncommitted"))
    return "aborted-read"


def a_delivery_reaches_beyond_the_last_stable_offset(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: True)
    if each is None:
        return None
    _put(made, each, replace(each, last_stable_offset=each.last_offset))
    return "precommitted-read"


def a_transaction_is_delivered_before_its_marker(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: any(batch[4] and not _aborted(made, one, batch[0]) for batch in one.batches))
    if each is None:
        return None
    first = next(batch for batch in each.batches if batch[4] and not _aborted(made, each, batch[0]))
    log = made.state().logs[each.topic, each.partition]
    batch = log.batch_at(first[0])
    segment = None if batch is None else log.segment_of(batch)
    if segment is None:
        return None
    early = replace(each, high_watermark=segment.marker_offset, last_stable_offset=10**9)
    _put(made, each, early)
    return "precommitted-read"


def a_delivered_batch_is_in_no_log(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: True)
    if each is None:
        return None
    end = made.state().logs[each.topic, each.partition].end_offset
    beyond = (*each.batches, (end, end, -1, -1, False, False))
    _put(made, each, replace(each, batches=beyond, last_offset=end, last_stable_offset=end + 1, high_watermark=end + 1))
    return "phantom-read"


def a_batch_is_left_out_of_an_answer(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: len(one.batches) > 2)
    if each is None:
        return None
    left = (*each.batches[:1], *each.batches[2:])
    _put(made, each, replace(each, batches=left))
    return "poll-skip"


def an_answer_begins_too_late(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: len(one.batches) > 1)
    if each is None:
        return None
    _put(made, each, replace(each, batches=each.batches[1:], first_offset=each.batches[1][0]))
    return "poll-skip"


def an_answer_goes_back(made: Recorded, rng: random.Random) -> str | None:
    each = _read(made, rng, lambda one: len(one.batches) > 1)
    if each is None:
        return None
    _put(made, each, replace(each, batches=(*each.batches, each.batches[0])))
    return "nonmonotonic-poll"


def _no_offsets_in_transactions(made: Recorded) -> bool:
    return not any(isinstance(each, OffsetsCommitted) and each.transactional_id for each in made.events)


def a_group_commits_what_no_member_got(made: Recorded, rng: random.Random) -> str | None:
    for each in made.events if _no_offsets_in_transactions(made) else ():
        if isinstance(each, OffsetsCommitted):
            [(topic, partition, offset)] = each.offsets
            got = [
                one
                for one in made.events[: made.events.index(each)]
                if isinstance(one, Delivered) and (one.topic, one.partition) == (topic, partition)
            ]
            log = made.state().logs[topic, partition]
            if len(got) > 1 and any(log.visible(one) for one in log.between(got[-1].first_offset, offset)):
                made.events.remove(got[-1])
                return "poll-skip"
    return None


def the_member_reads_again_what_it_has_committed(made: Recorded, rng: random.Random) -> str | None:
    commits = [each for each in made.events if isinstance(each, OffsetsCommitted)]
    if not commits or not _no_offsets_in_transactions(made):
        return None
    [(topic, partition, _)] = commits[-1].offsets
    read = [
        each
        for each in made.events
        if isinstance(each, Delivered) and (each.topic, each.partition) == (topic, partition)
    ]
    made.events.append(replace(read[0], at_ms=commits[-1].at_ms + 5, number=10**6))
    return "nonmonotonic-poll"


def _last_commit(made: Recorded) -> tuple[str, str, int] | None:
    return next(iter(sorted(made.offsets)), None)


def a_committed_offset_is_gone(made: Recorded, rng: random.Random) -> str | None:
    place = _last_commit(made)
    if place is None:
        return None
    del made.offsets[place]
    return "lost-offset-commit"


def an_older_offset_is_back(made: Recorded, rng: random.Random) -> str | None:
    place = _last_commit(made)
    aborted = _aborted_offsets(made)
    if place is None:
        return None
    earlier = [
        offset
        for each in made.events
        if isinstance(each, OffsetsCommitted) and each.producer_id < 0
        for topic, partition, offset in each.offsets
        if (topic, partition) == place[1:] and offset != made.offsets[place] and offset not in aborted
    ]
    if not earlier:
        return None
    made.offsets[place] = earlier[0]
    return "lost-offset-commit"


def _aborted_offsets(made: Recorded) -> set[int]:
    found = set()
    for place, each in enumerate(made.events):
        if isinstance(each, OffsetsCommitted) and each.producer_id >= 0:
            end = next(
                one
                for one in made.events[place:]
                if isinstance(one, TransactionEnded) and one.producer_id == each.producer_id
            )
            if not end.committed:
                found.add(each.offsets[0][2])
    return found


def the_offset_of_an_aborted_transaction_holds(made: Recorded, rng: random.Random) -> str | None:
    for place, each in enumerate(made.events):
        if isinstance(each, OffsetsCommitted) and each.producer_id >= 0:
            end = next(
                one
                for one in made.events[place:]
                if isinstance(one, TransactionEnded) and one.producer_id == each.producer_id
            )
            [(topic, partition, offset)] = each.offsets
            if not end.committed and made.offsets.get((each.group, topic, partition)) != offset:
                made.offsets[each.group, topic, partition] = offset
                return "aborted-offset-commit"
    return None


MUTATIONS = [
    an_acknowledged_batch_is_gone,
    a_log_is_cut_off,
    another_batch_took_its_place,
    a_sequence_is_there_twice,
    a_batch_is_sent_again_on_another_connection,
    two_batches_of_a_producer_change_places,
    a_refused_batch_is_overtaken,
    every_commit_marker_becomes_an_abort,
    one_commit_marker_becomes_an_abort,
    every_abort_marker_becomes_a_commit,
    the_last_transaction_has_no_marker,
    an_aborted_batch_is_not_named,
    an_aborted_batch_reaches_a_reader_under_read_uncommitted,
    a_delivery_reaches_beyond_the_last_stable_offset,
    a_transaction_is_delivered_before_its_marker,
    a_delivered_batch_is_in_no_log,
    a_batch_is_left_out_of_an_answer,
    an_answer_begins_too_late,
    an_answer_goes_back,
    a_group_commits_what_no_member_got,
    the_member_reads_again_what_it_has_committed,
    a_committed_offset_is_gone,
    an_older_offset_is_back,
    the_offset_of_an_aborted_transaction_holds,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda one: one.__name__)
def test_every_damage_gets_its_name(mutate: Callable[[Recorded, random.Random], str | None]) -> None:
    changed = 0
    for seed in SEEDS:
        made = recorded(seed)
        expected = mutate(made, random.Random(seed))
        if expected is None:
            continue
        changed += 1
        assert expected in names(made), f"seed {seed}: {check(made.events, made.state())}"
    assert changed >= CHANGES_MIN


def test_every_name_is_given_to_some_damage() -> None:
    given = {"incomplete-history"}
    for mutate in MUTATIONS:
        given |= {found for seed in SEEDS if (found := mutate(recorded(seed), random.Random(seed)))}
    assert given == set(NAMES)


def test_a_history_with_gaps_says_so() -> None:
    made = recorded(1)
    [found] = check(made.events, made.state(), forgotten=3)
    assert found.name == "incomplete-history"
    assert "3 events" in str(found)


def test_what_was_written_before_the_history_began_is_named() -> None:
    made = recorded(1)
    first = next(each for each in made.events if isinstance(each, Produced))
    made.events.remove(first)
    assert names(made) == {"incomplete-history"}


def test_what_could_not_be_read_is_named() -> None:
    made = recorded(1)
    state = made.state()
    [found] = check(made.events, FinalState(state.logs, state.steps, state.offsets, ("topic 'x' could not be read",)))
    assert (found.name, found.story) == ("incomplete-history", ("topic 'x' could not be read",))


def test_what_compaction_and_retention_explain_is_no_anomaly() -> None:
    for seed in range(50):
        made = recorded(seed)
        state = made.state()
        logs = {}
        for partition, log in state.logs.items():
            start = log.batches[len(log.batches) // 2].base_offset if log.batches else 0
            kept = tuple(each for each in log.batches if each.base_offset >= start)
            logs[partition] = HeldLog(*partition, start, log.end_offset, kept, exact=False)
        found = check(made.events, FinalState(logs, state.steps, state.offsets))
        assert [each for each in found if each.name not in ("incomplete-history",)] == [], seed
