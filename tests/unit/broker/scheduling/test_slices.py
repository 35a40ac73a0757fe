"""Long work in slices: others are served between them, whatever it comes to, and a large request is answered like a small one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from barnabas.broker.front import large_requests
from barnabas.broker.scheduling.slices import (
    ARRIVALS_COUNTED,
    LOADS_AT_ONCE,
    LOGINS_PER_TURN,
    TURN_UNITS_MAX,
    UNITS_PER_ARRIVAL,
    Slices,
    WorkResult,
    advance,
)
from barnabas.errors import InvariantViolated
from barnabas.protocol import registry
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.work import UNITS_PER_SLICE, Work, finished
from tests.support.processes.huge import CATALOGUE
from tests.support.processes.huge.request import apis_with_lists


class Turns:
    """A loop of which each turn is asked for."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.busy: list[bool] = []
        self.fatal: list[InvariantViolated] = []
        self.slices = Slices(
            self.due.append,
            self.fatal.append,
            on_busy=lambda: self.busy.append(True),
            on_idle=lambda: self.busy.append(False),
        )

    def turn(self) -> None:
        due, self.due[:] = self.due[:], []
        for callback in due:
            callback()

    def run(self) -> int:
        """How many turns it took until nothing was left."""
        count = 0
        while self.due:
            self.turn()
            count += 1
        return count


def work(name: str, slices: int, story: list[str]) -> Work:
    for _ in range(slices):
        story.append(name)
        yield UNITS_PER_SLICE
    return name


def test_long_work_takes_turns() -> None:
    turns, story = Turns(), list[str]()
    for name in "ab":
        turns.slices.start(work(name, 3, story), story.append, story.append)  # type: ignore[arg-type]  # no errors here
    turns.run()
    assert story == ["a", "b", "a", "b", "a", "b", "a", "b"]


def test_the_owner_hears_once_that_work_has_begun_and_that_none_is_left() -> None:
    turns, story = Turns(), list[str]()
    for name in "ab":
        turns.slices.start(work(name, 3, story), story.append, print)
    assert turns.busy == [True]
    turns.run()
    assert turns.busy == [True, False]


def test_a_bounded_number_is_under_way() -> None:
    turns, story = Turns(), list[str]()
    assert LOADS_AT_ONCE == 2
    for name in "abc":
        turns.slices.start(work(name, 2, story), lambda _: None, print, line=turns.slices.loads)
    turns.run()
    assert story == ["a", "b", "a", "b", "c", "c"]  # the third begins when the first has ended


def test_cancelled_work_leaves_its_line() -> None:
    turns, story = Turns(), list[str]()
    line = turns.slices.loads
    first, _, waiting, _ = [
        turns.slices.start(work(name, 9, story), story.append, print, line=line) for name in ("a", "b", "c", "d")
    ]
    turns.turn()
    first.cancel()
    waiting.cancel()
    turns.run()
    assert [story.count(name) for name in ("a", "b", "c", "d")] == [1, 10, 0, 10]
    assert (line.running, len(line.waiting)) == (0, 0)


class Thread:
    """A thread that runs C code when it is told."""

    def __init__(self, turns: Turns) -> None:
        self.asked: list[tuple[Callable[[], None], Callable[[Exception | None], None]]] = []
        turns.slices.in_thread = lambda call, done: self.asked.append((call, done))

    def end(self) -> None:
        call, done = self.asked.pop(0)
        call()
        done(None)


def decompressing(name: str, story: list[str]) -> Work:
    yield UNITS_PER_SLICE
    yield lambda: story.append(f"C code of {name}")
    story.append(f"{name} searches")
    yield UNITS_PER_SLICE
    return f"{name} ends"


def test_c_code_runs_in_a_thread_and_one_buffer_is_searched_at_a_time() -> None:
    """Others have their turns meanwhile."""
    turns, story = Turns(), list[str]()
    thread = Thread(turns)
    for name in "ab":
        turns.slices.start(decompressing(name, story), story.append, print)
    turns.run()
    assert (len(thread.asked), story) == (1, [])
    turns.slices.start(work("c", 1, story), story.append, print)
    turns.run()
    assert story == ["c", "c"]
    thread.end()
    turns.run()
    assert story[2:] == ["C code of a", "a searches", "a ends"]
    assert turns.slices.busy
    thread.end()
    turns.run()
    assert story[5:] == ["C code of b", "b searches", "b ends"]
    assert not turns.slices.busy


def test_work_that_is_cancelled_in_its_c_code_frees_its_line_when_that_ends() -> None:
    turns, story = Turns(), list[str]()
    thread = Thread(turns)
    gone = turns.slices.start(decompressing("a", story), story.append, print)
    turns.slices.start(decompressing("b", story), story.append, print)
    turns.run()
    gone.cancel()
    turns.run()
    assert len(thread.asked) == 1, "its buffers are still in use"
    thread.end()
    turns.run()
    thread.end()
    turns.run()
    assert story == ["C code of a", "C code of b", "b searches", "b ends"]


def test_short_work_runs_at_once_until_the_turn_is_over() -> None:
    """Then it has its slices in later turns; the next turn has time again."""
    turns, story = Turns(), list[str]()
    for number in range(5):
        turns.slices.run(short(str(number), UNITS_PER_SLICE - 1, story), story.append, print)
    assert story == ["0", "1", "2", "3"]
    assert turns.slices.turn_is_over
    turns.turn()
    assert not turns.slices.turn_is_over
    turns.run()
    assert story[4:] == ["4"]


def test_what_waits_for_a_later_turn_finds_time_there_although_requests_fill_every_turn() -> None:
    """A Produce request with more batches continues only while the turn is not over, else it waits once more."""
    turns, over = Turns(), list[bool]()

    def go_on(_: object) -> None:
        over.append(turns.slices.turn_is_over)
        turns.slices.start(short("next", 1, []), go_on, print)

    turns.slices.start(short("first", 1, []), go_on, print)
    for _ in range(5):
        turns.slices.count(TURN_UNITS_MAX)
        assert turns.slices.turn_is_over
        turns.turn()
    assert over == [False] * 5


def test_what_waited_and_what_arrives_share_the_time_of_one_turn() -> None:
    turns = Turns()

    def go_on(_: object) -> None:
        turns.slices.count(TURN_UNITS_MAX)
        turns.slices.start(short("next", 1, []), go_on, print)

    turns.slices.start(short("first", 1, []), go_on, print)
    turns.slices.count(TURN_UNITS_MAX)
    for _ in range(5):
        turns.turn()
        assert turns.slices.turn_is_over, "nothing that arrives now is served in this turn, too"


def test_what_is_left_for_later_is_called_in_order_and_as_much_as_a_turn_has_time_for() -> None:
    turns, story = Turns(), list[int]()

    def call(number: int) -> None:
        story.append(number)
        turns.slices.count(TURN_UNITS_MAX // 2)

    for number in range(5):
        turns.slices.later(partial(call, number))
    found = []
    for _ in range(3):
        turns.turn()
        found.append(len(story))
    assert found == [2, 4, 5]
    assert story == list(range(5))
    turns.run()
    assert not turns.slices.turn_is_over


def test_what_is_left_for_later_goes_on_beside_long_work_and_full_turns() -> None:
    turns, story = Turns(), list[str]()
    turns.slices.start(work("slice", 6, story), story.append, print)
    for _ in range(3):
        turns.slices.later(partial(story.append, "later"))
        turns.slices.count(TURN_UNITS_MAX)
        turns.turn()
    assert story == ["slice", "later"] * 3


def test_nothing_is_called_later_once_the_node_has_ended() -> None:
    turns = Turns()
    turns.slices.later(lambda: pytest.fail("called"))
    turns.slices.close()
    turns.slices.later(lambda: pytest.fail("called"))
    turns.run()


def test_many_requests_of_one_turn_end_it() -> None:
    """Requests that come a few in each turn are not counted, however many they are."""
    turns = Turns()
    for _ in range(10 * TURN_UNITS_MAX):
        turns.slices.count_arrivals()
        turns.run()
        assert not turns.slices.turn_is_over
    rounds = 0
    while not turns.slices.turn_is_over:
        turns.slices.count_arrivals()
        rounds += 1
    assert (rounds - 1) * ARRIVALS_COUNTED * UNITS_PER_ARRIVAL >= TURN_UNITS_MAX
    assert rounds * ARRIVALS_COUNTED < TURN_UNITS_MAX
    turns.turn()
    assert not turns.slices.turn_is_over


def short(name: str, units: int, story: list[str]) -> Work:
    yield units
    return name


def test_work_is_finished_at_once_with_its_c_code() -> None:
    story: list[str] = []
    assert finished(decompressing("a", story)) == "a ends"
    assert story == ["C code of a", "a searches"]


def test_the_rest_of_work_begins_with_its_c_code() -> None:
    story: list[str] = []
    rest = advance(decompressing("a", story))
    assert not isinstance(rest, WorkResult)
    after = advance(rest)
    assert not isinstance(after, WorkResult)
    assert story == []
    assert finished(after) == "a ends"
    assert story == ["C code of a", "a searches"]


def test_work_that_is_cancelled_goes_no_further() -> None:
    turns, story = Turns(), list[str]()
    slice_ = turns.slices.start(work("a", 5, story), story.append, print)
    turns.turn()
    slice_.cancel()
    turns.run()
    assert story == ["a"]


def test_an_error_goes_to_whoever_waits() -> None:
    def fails() -> Work:
        yield UNITS_PER_SLICE
        raise ValueError("no")

    turns = Turns()
    errors: list[Any] = []
    turns.slices.start(fails(), errors.append, errors.append)
    turns.run()
    assert [str(error) for error in errors] == ["no"]


def test_a_broken_invariant_of_a_callback_stops_the_node() -> None:
    def broken(_result: Any) -> None:
        raise InvariantViolated("broken")

    turns = Turns()
    turns.slices.start(work("a", 1, []), broken, print)
    turns.run()
    assert [str(error) for error in turns.fatal] == ["broken"]


def test_the_catalogue_has_a_request_for_every_api_with_a_list() -> None:
    """tests/process/test_stalls.py sends the first request of each API, bench/stalls.py all."""
    found = [(huge.name.partition(":")[0], huge) for huge in CATALOGUE]
    versions = {api.name: api.versions for api in registry.API.values()}
    assert {api.name for api in apis_with_lists()} - {name for name, _ in found} == set()
    assert {huge.listener for huge in CATALOGUE} == {"broker", "controller"}
    assert all(huge.version <= versions[name][1] for name, huge in found)


class Counted(MetadataRequestTopic):
    """A topic of a request that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def test_a_large_request_is_freed_but_not_changed() -> None:
    elements: list[MetadataRequestTopic] = [Counted(name=f"n{number}") for number in range(2_000)]
    shared = elements[:10]
    references = [weakref.ref(each) for each in elements]
    messages: list[Any] = [MetadataRequest(topics=elements)]
    del elements
    large_requests._free(messages)
    assert sum(reference() is not None for reference in references) == len(shared), "what others still use stays"


def test_a_node_that_has_ended_begins_no_more_work() -> None:
    turns, story = Turns(), list[str]()
    turns.slices.close()
    turns.slices.start(work("late", 1, story), story.append, print)
    assert turns.run() == 0
    assert story == []
    assert turns.busy == []


def test_logins_have_places_of_their_own_in_each_turn() -> None:
    """Neither kind keeps the other waiting, however much there is of it."""
    turns, story = Turns(), list[str]()

    def other() -> None:
        story.append("other")
        turns.slices.count(TURN_UNITS_MAX)

    for _ in range(2 * LOGINS_PER_TURN + 1):
        turns.slices.later_for_login(partial(story.append, "login"))
    for _ in range(4):
        turns.slices.later(other)
    turns.run()
    assert story == [
        *("other", *("login",) * LOGINS_PER_TURN),
        *("other", *("login",) * LOGINS_PER_TURN),
        *("other", "login"),
        "other",
    ]


def test_a_closed_node_serves_no_logins() -> None:
    turns, story = Turns(), list[str]()
    for _ in range(2):
        turns.slices.later_for_login(turns.slices.close)
        turns.slices.later_for_login(partial(story.append, "login"))
    turns.run()
    assert story == []
