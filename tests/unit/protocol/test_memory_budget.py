"""MemoryBudget: large frames wait for room and all complete; unread answers make the others shorter."""

from __future__ import annotations

import random

import pytest

from barnabas.protocol.memory_budget import (
    ANSWER_BYTES_LEAST,
    ORDINARY_BUFFER_BYTES,
    SMALL_FRAME_BYTES,
    SWEEPS_EXTRA,
    SWEEPS_MAX,
    MemoryBudget,
)

MEBIBYTE = 1024 * 1024


class Large:
    """A connection that reserves memory."""

    def __init__(self, reserved_bytes: int, budget: MemoryBudget | None = None) -> None:
        self.reserved_bytes = reserved_bytes
        self.arrived = 0.0
        self.budget = budget
        self.calls = 0
        self.evicted = False
        self.silent = False

    def stalls(self) -> bool:
        return self.silent

    def on_room(self) -> None:
        self.calls += 1
        if self.budget is not None:
            self.budget.room_for(self)

    def evict(self) -> None:
        self.evicted = True
        if self.budget is not None:
            self.budget.release(self)


def test_an_ordinary_connection_always_has_room() -> None:
    budget = MemoryBudget(2 * MEBIBYTE, MEBIBYTE)
    assert budget.room_for(Large(50 * MEBIBYTE)), "one frame alone may be larger"
    assert budget.room_for(Large(ORDINARY_BUFFER_BYTES))
    assert not budget.room_for(Large(ORDINARY_BUFFER_BYTES + 1))


def test_frames_get_room_in_the_order_of_their_requests() -> None:
    """A small frame does not overtake a large frame that waits: the large one would never get room."""
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    first, second, third = Large(8 * MEBIBYTE, budget), Large(5 * MEBIBYTE, budget), Large(MEBIBYTE, budget)
    assert [budget.room_for(each) for each in (first, second, third)] == [True, False, False]
    first.reserved_bytes = 0
    assert budget.room_for(first)
    assert budget.frame_bytes == 6 * MEBIBYTE
    assert (second.calls, third.calls) == (1, 1)


def test_the_next_is_asked_once_while_there_is_no_room_for_it() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    small, large, *others = (Large(size * MEBIBYTE, budget) for size in (1, 9, 10, 1, 1))
    assert budget.room_for(small)
    assert budget.room_for(large)
    assert not any(budget.room_for(each) for each in others)
    budget.release(small)
    assert [each.calls for each in others] == [1, 0, 0]
    budget.release(large)
    assert [each.calls for each in others] == [2, 1, 0]
    assert budget.frame_bytes == 10 * MEBIBYTE
    budget.release(others[1])
    assert others[2].calls == 1


def test_a_connection_that_ended_is_not_called() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    first, second = Large(8 * MEBIBYTE), Large(8 * MEBIBYTE)
    assert budget.room_for(first)
    assert not budget.room_for(second)
    budget.release(second)
    budget.release(first)
    assert second.calls == 0


def test_small_frames_do_not_wait_for_large_ones() -> None:
    budget = MemoryBudget(64 * MEBIBYTE, MEBIBYTE, small_bytes_max=32 * MEBIBYTE)
    assert [budget.room_for(Large(100 * MEBIBYTE)) for _ in range(3)] == [True, False, False]
    small = [Large(MEBIBYTE, budget) for _ in range(34)]
    assert [budget.room_for(each) for each in small] == [True] * 32 + [False] * 2
    assert not budget.room_for(Large(SMALL_FRAME_BYTES + 1)), "a large one"
    budget.release(small[0])
    assert [each.calls for each in small[32:]] == [1, 1]
    assert budget.frame_bytes == 132 * MEBIBYTE


def test_a_connection_whose_needs_change_changes_its_share() -> None:
    """It waits in one share only. The connections behind it in the share that it leaves get its place."""
    budget = MemoryBudget(20 * MEBIBYTE, MEBIBYTE, small_bytes_max=10 * MEBIBYTE)
    large, changing, behind = Large(9 * MEBIBYTE, budget), Large(MEBIBYTE), Large(2 * MEBIBYTE, budget)
    assert budget.room_for(large)
    assert budget.room_for(changing)
    changing.reserved_bytes = MEBIBYTE * 3 // 2
    assert [budget.room_for(each) for each in (changing, behind)] == [False, False]
    assert budget.frame_bytes == 10 * MEBIBYTE, "it keeps what it has"
    changing.reserved_bytes = MEBIBYTE
    assert budget.room_for(changing)
    assert behind.calls == 1, "it is the next now"
    large.reserved_bytes = MEBIBYTE
    assert budget.room_for(large)
    assert behind.calls == 2
    assert budget.frame_bytes == 4 * MEBIBYTE


def test_a_connection_that_waits_for_a_small_frame_waits_for_no_large_one() -> None:
    budget = MemoryBudget(20 * MEBIBYTE, MEBIBYTE, small_bytes_max=10 * MEBIBYTE)
    large, changing, behind = Large(10 * MEBIBYTE, budget), Large(2 * MEBIBYTE), Large(2 * MEBIBYTE, budget)
    assert budget.room_for(large)
    assert not budget.room_for(changing)
    assert all(budget.room_for(Large(MEBIBYTE)) for _ in range(10))
    changing.reserved_bytes = MEBIBYTE
    assert [budget.room_for(each) for each in (changing, behind)] == [False, False]
    budget.release(large)
    assert budget.frame_bytes == 12 * MEBIBYTE, "that behind it has room"


def test_a_small_frame_gets_the_room_of_a_connection_that_needs_more_now() -> None:
    budget = MemoryBudget(20 * MEBIBYTE, MEBIBYTE, small_bytes_max=MEBIBYTE)
    growing, behind = Large(MEBIBYTE, budget), Large(MEBIBYTE, budget)
    assert [budget.room_for(each) for each in (growing, behind)] == [True, False]
    growing.reserved_bytes = 2 * MEBIBYTE
    assert budget.room_for(growing)
    assert budget.frame_bytes == 3 * MEBIBYTE, "a frame of each share"


@pytest.mark.parametrize("seed", range(20))
def test_all_frames_get_room_in_the_end(seed: int) -> None:
    """Connections that hold a small frame and need room for a large one do not deadlock."""
    chance = random.Random(seed)
    budget = MemoryBudget(4 * MEBIBYTE, MEBIBYTE, small_bytes_max=2 * MEBIBYTE)
    connections = [Large(0, budget) for _ in range(20)]
    for _ in range(500):
        each = chance.choice(connections)
        waits = any(each in share.waiting for share in budget._shares)
        if each.reserved_bytes and (waits or chance.random() < 0.6):
            each.reserved_bytes = chance.choice([0, each.reserved_bytes // 2])
        else:
            each.reserved_bytes += chance.choice([100_000, MEBIBYTE, 3 * MEBIBYTE])
        budget.room_for(each)
        assert budget.frame_bytes == sum(budget._large.values()) == sum(each.used_bytes for each in budget._shares)
    for each in connections:
        each.reserved_bytes = 0
        budget.room_for(each)
    assert not any(share.waiting or share.used_bytes for share in budget._shares)
    assert budget.frame_bytes == 0


def test_a_frame_that_does_not_arrive_loses_its_room_to_those_that_wait() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    silent, served = Large(8 * MEBIBYTE, budget), Large(2 * MEBIBYTE, budget)
    served.arrived = 1.0  # its frame is complete and waits for its turn
    assert budget.room_for(silent)
    assert budget.room_for(served)
    for _ in range(2 * SWEEPS_MAX):
        budget.sweep()
    assert not silent.evicted, "no one waits"
    waiting = Large(8 * MEBIBYTE, budget)
    assert not budget.room_for(waiting)
    for _ in range(SWEEPS_EXTRA):
        budget.sweep()
    assert not silent.evicted
    budget.sweep()
    assert (silent.evicted, served.evicted, waiting.calls) == (True, False, 1)


def test_a_frame_that_stalls_for_a_sweep_loses_its_room_to_those_that_wait() -> None:
    """Also one that is almost complete."""
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    stalled, arriving = Large(5 * MEBIBYTE, budget), Large(5 * MEBIBYTE, budget)
    stalled.silent = True
    stalled.arrived = arriving.arrived = 0.99
    assert budget.room_for(stalled)
    assert budget.room_for(arriving)
    for _ in range(2 * SWEEPS_MAX):
        budget.sweep()
    assert not stalled.evicted, "no one waits"
    waiting = Large(MEBIBYTE, budget)
    assert not budget.room_for(waiting)
    budget.sweep()
    assert not stalled.evicted
    budget.sweep()
    assert (stalled.evicted, arriving.evicted, waiting.calls) == (True, False, 1)


def test_a_frame_that_has_no_room_yet_is_not_too_slow() -> None:
    """A whole small frame of its connection is held, and others wait for its room."""
    budget = MemoryBudget(20 * MEBIBYTE, MEBIBYTE, small_bytes_max=10 * MEBIBYTE)
    held, large = Large(MEBIBYTE), Large(10 * MEBIBYTE)
    large.arrived = 1.0
    small = [Large(MEBIBYTE) for _ in range(10)]
    assert budget.room_for(large)
    assert [budget.room_for(each) for each in (held, *small)] == [True] * 10 + [False]
    held.reserved_bytes = 5 * MEBIBYTE
    assert not budget.room_for(held)
    for _ in range(2 * SWEEPS_MAX):
        budget.sweep()
    assert not held.evicted
    assert all(each.evicted for each in small[:9])


@pytest.mark.parametrize(("pace", "sweeps"), [(0.5, 4), (1.0, SWEEPS_MAX), (1.1, SWEEPS_MAX)])
def test_a_frame_may_take_30_s_while_others_wait(pace: float, sweeps: int) -> None:
    """One that will take longer at its pace loses its room; one of large frames only if a large one waits."""
    budget = MemoryBudget(20 * MEBIBYTE, MEBIBYTE, small_bytes_max=10 * MEBIBYTE)
    slow, small = Large(10 * MEBIBYTE, budget), [Large(MEBIBYTE, budget) for _ in range(11)]
    assert budget.room_for(slow)
    assert [budget.room_for(each) for each in small] == [True] * 10 + [False]
    for each in small:
        each.arrived = 1.0
    for _ in range(2 * SWEEPS_MAX):
        budget.sweep()
    assert not slow.evicted
    assert not budget.room_for(Large(2 * MEBIBYTE))
    seen = 0
    while not slow.evicted and seen < SWEEPS_MAX:
        slow.arrived = pace * seen / SWEEPS_MAX
        budget.sweep()
        seen += 1
    assert (slow.evicted, seen) == (pace < 1, sweeps)


def test_strangers_lose_their_room_to_newer_ones() -> None:
    """So that no one of them keeps the others from their login."""
    budget = MemoryBudget(MEBIBYTE, MEBIBYTE, ordinary_bytes=4096, evicts=True)
    crowd = [Large(100_000, budget) for _ in range(100)]
    for each in crowd:
        assert budget.room_for(each)
        assert budget.frame_bytes <= MEBIBYTE
    assert [each.evicted for each in crowd] == [True] * 90 + [False] * 10
    assert budget.room_for(Large(4096, budget))
    assert not crowd[-10].evicted


def test_answers_get_shorter_while_peers_leave_answers_unread() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, 4 * MEBIBYTE)
    one, other = Large(0), Large(0)
    assert budget.answer_bytes_max(50 * MEBIBYTE) == 4 * MEBIBYTE
    budget.on_unread(one, 3 * MEBIBYTE)
    assert budget.answer_bytes_max(50 * MEBIBYTE) == MEBIBYTE
    assert not budget.is_crowded
    budget.on_unread(other, 2 * MEBIBYTE)
    assert budget.is_crowded
    assert budget.answer_bytes_max(50 * MEBIBYTE) == ANSWER_BYTES_LEAST
    assert budget.answer_bytes_max(1_000) == 1_000
    budget.on_unread(one, MEBIBYTE)
    budget.release(other)
    assert budget.unread_bytes == MEBIBYTE
