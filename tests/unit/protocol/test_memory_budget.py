"""MemoryBudget: large frames take turns and all complete; unread answers make the others shorter."""

from __future__ import annotations

from barnabas.protocol.memory_budget import ANSWER_BYTES_LEAST, MemoryBudget

MEBIBYTE = 1024 * 1024


class Large:
    """A connection that reserves memory."""

    def __init__(self, reserved_bytes: int) -> None:
        self.reserved_bytes = reserved_bytes
        self.calls = 0

    def on_room(self) -> None:
        self.calls += 1


def test_an_ordinary_connection_always_has_room() -> None:
    budget = MemoryBudget(2 * MEBIBYTE, MEBIBYTE)
    assert budget.room_for(Large(50 * MEBIBYTE))
    assert budget.room_for(Large(MEBIBYTE))


def test_the_oldest_large_frame_always_continues() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    first, second = Large(4 * MEBIBYTE), Large(5 * MEBIBYTE)
    assert budget.room_for(first)
    assert budget.room_for(second)
    first.reserved_bytes = second.reserved_bytes = 20 * MEBIBYTE
    assert budget.room_for(first)
    assert not budget.room_for(second)


def test_the_refused_are_called_once_when_room_is_released() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    first, second, third = (Large(8 * MEBIBYTE) for _ in range(3))
    assert [budget.room_for(each) for each in (first, second, third)] == [True, False, False]
    first.reserved_bytes = 0
    assert budget.room_for(first)
    assert (second.calls, third.calls) == (1, 1)
    assert [budget.room_for(each) for each in (second, third)] == [True, False]
    budget.release(second)
    assert (second.calls, third.calls) == (1, 2)
    assert budget.room_for(third)


def test_a_connection_that_ended_is_not_called() -> None:
    budget = MemoryBudget(10 * MEBIBYTE, MEBIBYTE)
    first, second = Large(8 * MEBIBYTE), Large(8 * MEBIBYTE)
    assert budget.room_for(first)
    assert not budget.room_for(second)
    budget.release(second)
    budget.release(first)
    assert second.calls == 0


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
