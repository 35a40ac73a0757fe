"""Names, records, refusals of the sink's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import (
    CHUNK_LENGTH_MAX,
    BatchDecision,
    Identity,
    PreparedPart,
    SlotMark,
    TransactionSlot,
)
from barnabas.pipeline.decisions import BatchStart, TaskName, admitted, slot_state, superseded
from barnabas.pipeline.errors import PipelineError

IDENTITIES = st.builds(Identity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
HANDLES = st.builds(PreparedPart, st.sampled_from(["topics", "files"]), st.text(), st.text(), st.integers(0, 2**40))
DECISIONS = st.builds(
    BatchDecision,
    st.integers(1, 2**40),
    st.text(),
    IDENTITIES,
    st.lists(HANDLES, max_size=20).map(tuple),
    st.lists(st.builds(TransactionSlot, st.text(), IDENTITIES, IDENTITIES, st.integers(0, 2**31)), max_size=5).map(
        tuple
    ),
)


DRIVER = Identity(7, 4)


def decision(next_batch: int = 3, query: str = "q", driver: Identity = DRIVER, **changes: object) -> BatchDecision:
    made = BatchDecision(next_batch, query, driver, ())
    return made._replace(**changes)  # type: ignore[arg-type]  # fields by name


@given(DECISIONS, st.integers(100, 5_000))
def test_a_decision_comes_back_from_its_chunks(made: BatchDecision, length_max: int) -> None:
    chunks = made.encode(length_max)
    assert all(len(chunk) <= length_max for chunk in chunks)
    assert BatchDecision.chunk_count(chunks[0]) == len(chunks)
    assert BatchDecision.decode(made.next_batch, chunks) == made


def test_two_hundred_tasks_fit_into_one_offset_and_thousands_into_some() -> None:
    def of(tasks: int) -> list[str]:
        handles = tuple(
            PreparedPart("topics", f"orders.1000-12.{n}.{n + 4711}", f"{n + 2000}-3", 40_000) for n in range(tasks)
        )
        return decision(handles=handles).encode()

    assert len(of(200)) == 1
    assert all(len(chunk) <= CHUNK_LENGTH_MAX for chunk in of(5_000))
    assert BatchDecision.decode(3, of(5_000)) == decision(
        handles=tuple(
            PreparedPart("topics", f"orders.1000-12.{n}.{n + 4711}", f"{n + 2000}-3", 40_000) for n in range(5_000)
        )
    )


def test_chunks_of_two_decisions_are_no_decision() -> None:
    handles = tuple(PreparedPart("topics", f"s.{n * 7919}.{n}", f"{n * 104729}-1", n) for n in range(60))
    older = decision(handles=handles, driver=Identity(7, 3)).encode(200)
    newer = decision(handles=handles, driver=Identity(7, 4)).encode(200)
    assert len(older) > 1
    assert BatchDecision.decode(3, [newer[0], *older[1:]]) is None
    assert BatchDecision.decode(3, newer[:-1]) is None


@pytest.mark.parametrize(
    "text", ["", "x", "2 1-1 0 1 abc", "1 1-1 0 1 !!", "1 1-1 0 1 YWJj", "1 1 0 1 eJyLjgUAARUAuQ=="]
)
def test_what_is_no_decision_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is for people
        BatchDecision.decode(BatchDecision.chunk_count(text), [text])


@given(st.text(), IDENTITIES)
def test_a_slot_mark_comes_back_from_its_text(query: str, identity: Identity) -> None:
    mark = SlotMark(5, query, identity)
    assert SlotMark.decode(5, mark.encode()) == mark


def test_each_attempt_has_an_id_of_its_own() -> None:
    start = BatchStart(Identity(7, 9))
    found = [decisions.task_id("s", start, TaskName(3, unique)) for unique in (41, 42)]
    assert found == ["s.7-9.3.41", "s.7-9.3.42"]
    assert [decisions.partition_of(each) for each in found] == [3, 3]
    assert all(decisions.is_own_id("s", each) for each in found)
    assert decisions.is_own_id("s", "s.7-9.3"), "of releases before"
    assert not any(decisions.is_own_id("s", f"s.{other}") for other in ("driver", "receipts", "slot.3", "7-9.3.41.1"))
    assert not decisions.is_own_id("s2", found[0])


@pytest.mark.parametrize("sink_id", ["", "a.b", "a b", "x" * 121, "ü"])
def test_a_sink_id_that_could_be_a_part_of_anothers_names_is_refused(sink_id: str) -> None:
    with pytest.raises(PipelineError, match=r"sink\.id"):
        decisions.check_sink_id(sink_id)


SLOT = TransactionSlot("s.7-2.3.41", Identity(20, 5), Identity(30, 8), 0)
START = BatchStart(Identity(7, 9), None, (SLOT, SLOT._replace(key="s.7-2.1.40")))


@pytest.mark.parametrize(
    ("partition", "ticket", "found"),
    [
        (3, (30, 9), SLOT),  # the first attempt after the decision
        (3, (30, 10), None),  # a twin, or an attempt after a zombie
        (3, (30, 8), None),
        (3, (31, 9), None),  # the coordinator has forgotten the tickets before
        (2, (30, 9), None),
    ],
)
def test_only_the_next_ticket_of_the_partition_gives_its_slot(
    partition: int, ticket: tuple[int, int], found: TransactionSlot | None
) -> None:
    assert decisions.slot_for(START, partition, Identity(*ticket)) == found


def test_the_next_transaction_of_a_slot_has_the_epoch_after_the_commit() -> None:
    assert decisions.next_slot("k", Identity(20, 4), Identity(30, 9), 7) == TransactionSlot(
        "k", Identity(20, 5), Identity(30, 9), 7
    )
    assert decisions.next_slot("k", Identity(20, 32_765), Identity(30, 9), 7) is None, "the producer id changes"


def test_parts_of_a_start_have_its_drivers_name_or_an_identity_of_its_slots() -> None:
    def part(key: str, token: str) -> PreparedPart:
        return PreparedPart("topics", key, token, 0)

    assert decisions.is_of_start("s", START, part("s.7-9.3.50", "40-0"))
    assert decisions.is_of_start("s", START, part("s.7-2.3.41", "20-5"))
    assert not decisions.is_of_start("s", START, part("s.7-2.3.41", "20-4"))
    assert not decisions.is_of_start("s", START, part("s.7-8.3.50", "40-0"))


def test_slots_are_kept_unless_lost_or_of_another_timeout() -> None:
    """A partition without rows leaves its slot as it is."""
    lost = PreparedPart("topics", "s.7-2.0.9", "9-1", 2)
    slots = (SLOT, SLOT._replace(key=lost.key), SLOT._replace(key="s.7-2.4.3", timeout_ms=900))
    standing = decision(handles=(lost,), slots=slots)

    def performed(effect: object) -> object:
        if isinstance(effect, decisions.CommitHandle):
            return decisions.CommitResult.LOST
        return {decisions.ListOpen: (), decisions.Fence: DRIVER, decisions.ReadDecision: standing}[type(effect)]

    start = ended(decisions.start_batch(slot_timeout_ms=0, forgotten=3), performed)
    assert start == BatchStart(DRIVER, standing._replace(handles=(), slots=()), (SLOT,))
    assert ended(decisions.start_batch(forgotten=3), performed).slots is None

    new = SLOT._replace(key="s.7-9.4.51")
    messages = [decisions.TaskMessage(DRIVER, "q", (), None), decisions.TaskMessage(DRIVER, "q", (lost,), new)]
    standing = standing._replace(handles=())
    decided = ended(
        decisions.commit_batch("s", 3, messages),
        lambda effect: (
            True
            if isinstance(effect, decisions.CommitDecision)
            else decisions.CommitResult.COMMITTED
            if isinstance(effect, decisions.CommitHandle)
            else performed(effect)
        ),
    )
    assert decided.slots == (*slots[:2], new)


def test_what_a_zombie_began_in_a_decided_slot_is_aborted() -> None:
    prepared = PreparedPart("topics", "s.7-2.3.41", "20-4", 9)
    later = PreparedPart("topics", "s.7-2.3.41", "20-5", 0)
    swept = decisions.sweep([prepared._replace(rows=0), later], decision(handles=(prepared,)))
    assert list(swept) == [decisions.AbortHandle(later)]


def ended(steps: Any, performed: Callable[[object], object]) -> Any:
    """The result of a generator whose effects have these results."""
    answer: object = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = performed(effect)


def test_a_batch_is_written_once() -> None:
    assert admitted(None, 0, "q", "s")
    assert admitted(decision(3), 3, "q", "s")
    assert admitted(decision(3), 5, "q", "s"), "batches between were empty"
    assert not admitted(decision(3), 2, "q", "s")
    assert admitted(decision(3, decisions.NO_QUERY), 3, "q", "s")


@pytest.mark.parametrize(
    ("standing", "batch", "query", "words"),
    [
        (None, 4, "q", ["sink.id", "nothing", "batch 4", "sink.adopt"]),  # the group was lost
        (decision(3), 0, "other", ["sink.id", "belongs to query q", "other"]),  # a wiped checkpoint, a second query
        (decision(3), 3, "other", ["sink.id", "belongs to query q", "other"]),
        (decision(3), 1, "q", ["checkpointLocation", "batch 1", "older"]),  # an older checkpoint
    ],
)
def test_batches_that_do_not_follow_are_refused(
    standing: BatchDecision | None, batch: int, query: str, words: list[str]
) -> None:
    with pytest.raises(PipelineError) as refused:
        admitted(standing, batch, query, "s")
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_lost_group_can_be_accepted() -> None:
    assert admitted(None, 4, "q", "s", adopt=True)


def test_a_task_is_superseded_by_a_decision_about_its_batch() -> None:
    assert superseded(decision(3), 2)
    assert not superseded(decision(3), 3)
    assert not superseded(None, 0)


def test_a_slot_is_written_once_a_batch_and_by_one_query() -> None:
    mark = SlotMark(3, "q", Identity(1, 1))
    assert slot_state(None, 7, "q", "s")
    assert slot_state(mark, 3, "q", "s")
    assert not slot_state(mark, 2, "q", "s")
    with pytest.raises(PipelineError, match="older one"):
        slot_state(mark, 1, "q", "s")
    with pytest.raises(PipelineError, match="belongs to query q"):
        slot_state(mark, 3, "other", "s")


def test_the_stop_over_a_lost_part_says_what_to_do() -> None:
    steps = decisions.complete(
        decision(
            3, handles=(PreparedPart("topics", "s.7-4.0.1", "9-0", 40), PreparedPart("topics", "s.7-4.1.2", "10-0", 2))
        )
    )
    next(steps)
    steps.send(decisions.CommitResult.LOST)
    asked = steps.send(decisions.CommitResult.COMMITTED)
    assert asked == decisions.ReadDecision()
    with pytest.raises(decisions.HalfCommitted) as stopped:
        steps.send(
            decision(
                3,
                handles=(
                    PreparedPart("topics", "s.7-4.0.1", "9-0", 40),
                    PreparedPart("topics", "s.7-4.1.2", "10-0", 2),
                ),
            )
        )
    text = str(stopped.value)
    for word in ("batch 2", "1 of its 2 parts", "40 rows", "s.7-4.0.1", "transaction.timeout.ms", "sink.forget = 3"):
        assert word in text, word
