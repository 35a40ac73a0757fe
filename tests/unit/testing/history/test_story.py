"""The story of a transactional id, from the coordinator's log and from a history."""

from __future__ import annotations

from typing import Any

from barnabas.testing.history.core.events import HistoryEvent, Produced, ProducerIdGiven, TransactionEnded
from barnabas.testing.history.core.final_state import TransactionStep
from barnabas.testing.history.story import Now, ids_of, story
from barnabas.testing.history.trace import HeldMarker

T = 1_700_000_000_000
ID = "orders-7"


def step(state: str, epoch: int, at: int, *, timeout_ms: int = 60_000, started: int = -1) -> TransactionStep:
    partitions = (("paid", 0),) if state in ("Ongoing", "PrepareCommit", "PrepareAbort") else ()
    return TransactionStep(ID, state, 9, epoch, partitions, T + at, T + started if started >= 0 else -1, timeout_ms)


def told(steps: list[TransactionStep], events: list[HistoryEvent] | None = None, now: Now | None = None) -> list[str]:
    found = story(ID, steps, events or [], [], now)
    return [line[25:] for line in found.lines] + list(found.advice)


def given(client: str, epoch: int, at: int, **fields: Any) -> ProducerIdGiven:
    address = f"127.0.0.1:{client[-1]}"
    return ProducerIdGiven(
        client=client, address=address, at_ms=T + at, transactional_id=ID, producer_id=9, producer_epoch=epoch, **fields
    )


def test_who_fenced_whom() -> None:
    ended = TransactionEnded(
        client="c1",
        address="127.0.0.1:1",
        at_ms=T + 3,
        transactional_id=ID,
        producer_id=9,
        producer_epoch=0,
        error="PRODUCER_FENCED",
    )
    lines = told([], [given("c1", 0, 0), given("c2", 1, 2), ended])
    assert lines == [
        "client 'c1' (127.0.0.1:1) got producer 9 epoch 0: it has started",
        "client 'c2' (127.0.0.1:2) got producer 9 epoch 1: it has started; this fences client 'c1' (127.0.0.1:1)",
        "client 'c1' (127.0.0.1:1) asked for the abort: PRODUCER_FENCED: it has epoch 0 and was fenced by client 'c2' "
        "(127.0.0.1:2) with epoch 1",
    ]


def test_a_producer_that_recovers_fences_its_own_epochs() -> None:
    lines = told([], [given("c1", 0, 0), given("c1", 1, 2, asked_id=9, asked_epoch=0)])
    assert lines[1].endswith("it recovers from an error in epoch 0 (KIP-360); this fences its own older epochs")


def test_a_timeout_is_told_as_one() -> None:
    steps = [step("Ongoing", 0, 0, timeout_ms=1_000, started=0), step("PrepareAbort", 1, 1_200)]
    assert told(steps)[1].endswith("abort of paid-0, 1200 ms after its begin: transaction.timeout.ms (1000) had passed")


def test_an_abort_by_the_producer_is_no_timeout() -> None:
    steps = [step("Ongoing", 0, 0, started=0), step("PrepareAbort", 1, 1_200)]
    assert told(steps)[1].endswith("the coordinator has decided: abort of paid-0")


def test_an_id_that_was_removed_begins_anew() -> None:
    lines = told([step("Empty", 0, 0), step("Dead", -1, 5), step("Empty", 0, 9)])
    assert "removed the id" in lines[1]
    assert lines[2].endswith("for the first time")


def test_what_happens_in_one_millisecond_keeps_its_order() -> None:
    steps = [
        step("Ongoing", 0, 1, started=1),
        step("PrepareCommit", 1, 1),
        step("CompleteCommit", 1, 1),
        step("Ongoing", 1, 1),
    ]
    wrote = Produced(
        client="c1", address="a:1", at_ms=T + 1, topic="paid", partition=0, base_offset=0, count=1, producer_id=9
    )
    markers = [HeldMarker("paid", 0, 1, 9, 1, "commit", T + 1)]
    words = [line[25:].split(":")[0] for line in story(ID, steps, [wrote], markers, None).lines]
    assert words[:4] == [
        "producer 9 epoch 0",
        "client 'c1' (a",
        "producer 9 epoch 1",
        "marker commit in paid-0 at offset 1",
    ]


def test_what_to_do() -> None:
    places = ("paid-0",)
    ongoing = Now("Ongoing", 9, 3, 60_000, T, places, ("paid-0 at offset 4",), T + 20_000)
    assert told([], [], ongoing) == [
        "readers under read_committed stand still in paid-0 at offset 4",
        "it has been open for 20 s; the coordinator aborts it in 40 s",
        "if its producer is gone: barnabas txn abort orders-7 --only 9:3; that fences the producer",
    ]
    two_phase = Now("Ongoing", 9, 3, 2**31 - 1, T, places, (), T + 20_000)
    assert "another system decides" in told([], [], two_phase)[0]
    deciding = Now("PrepareCommit", 9, 3, 60_000, T, places)
    assert told([], [], deciding)[1] == "partitions: paid-0"
    assert told([], [], Now("CompleteCommit", 9, 3, 60_000, -1, ())) == ["nothing: no transaction is open"]


def test_the_ids_of_a_history() -> None:
    assert ids_of(
        [step("Empty", 0, 0)], [given("c1", 0, 0), ProducerIdGiven(transactional_id="other"), HistoryEvent()]
    ) == [ID, "other"]
