"""MemoryBudget: large frames wait for room and all complete; unread answers make the others shorter."""

from __future__ import annotations

from barnabas.protocol.memory_budget import ANSWER_BYTES_LEAST, ORDINARY_BUFFER_BYTES, SWEEPS_MAX, MemoryBudget

MEBIBYTE = 1024 * 1024


class Large:
    """A connection that reserves memory."""

    def __init__(self, reserved_bytes: int, budget: MemoryBudget | None = None) -> None:
        self.reserved_bytes = reserved_bytes
        self.receives = True
        self.budget = budget
        self.calls = 0
        self.evicted = False

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


def test_a_frame_that_does_not_arrive_loses_its_room_to_those_that_wait() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    silent, served = Large(8 * MEBIBYTE, budget), Large(2 * MEBIBYTE, budget)
    served.receives = False  # its frame is complete and waits for its turn
    assert budget.room_for(silent)
    assert budget.room_for(served)
    for _ in range(2 * SWEEPS_MAX):
        budget.sweep()
    assert not silent.evicted, "no one waits"
    waiting = Large(8 * MEBIBYTE, budget)
    assert not budget.room_for(waiting)
    for _ in range(SWEEPS_MAX):
        budget.sweep()
    assert not silent.evicted
    budget.sweep()
    assert (silent.evicted, served.evicted, waiting.calls) == (True, False, 1)


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
