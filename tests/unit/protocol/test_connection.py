"""ServerConnection without a loop: order of answers, held requests, fair turns, and what peers leave unread."""

from __future__ import annotations

import random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.errors import LocalProtocolError
from barnabas.limits import INFLIGHT_REQUESTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.connection import (
    HELD_BYTES_MAX,
    LARGE_ANSWER_BYTES,
    REQUESTS_PER_TURN,
    WRITE_BUFFER_HIGH,
    ServerConnection,
    Slot,
)
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.memory_budget import MemoryBudget

MEBIBYTE = 1024 * 1024
FRAME = memoryview(b"request")


def connection(budget: MemoryBudget | None = None) -> ServerConnection:
    return ServerConnection(FrameReader(), budget or MemoryBudget(64 * MEBIBYTE, 64 * MEBIBYTE), lambda: None)


def slot_of(core: ServerConnection) -> Slot:
    slot = Slot()
    core.open(slot)
    return slot


@given(order=st.permutations(range(8)))
def test_answers_leave_in_the_order_of_their_requests(order: list[int]) -> None:
    core = connection()
    slots = [slot_of(core) for _ in range(8)]
    written: list[Buffer] = []
    filled: set[int] = set()
    for number in order:
        core.fill(slots[number], [b"%d" % number, b"!"])
        filled.add(number)
        written += core.end_turn()
        ready = next((n for n in range(8) if n not in filled), 8)
        assert len(written) == 2 * ready, "all answers up to the first that is missing"
    assert written == [part for number in range(8) for part in (b"%d" % number, b"!")]
    assert not core.waits


def test_an_answer_made_at_once_leaves_after_the_earlier_ones() -> None:
    core = connection()
    first = slot_of(core)
    core.answer([b"second"])
    assert core.end_turn() == []
    core.fill(first, [b"first"])
    core.answer([b"third"])
    assert core.end_turn() == [b"first", b"second", b"third"]


def test_a_request_without_answer_writes_nothing_but_keeps_its_place() -> None:
    core = connection()
    first, second = slot_of(core), slot_of(core)
    core.fill(second, [b"two"])
    assert core.end_turn() == []
    core.fill(first, [])
    assert core.end_turn() == [b"two"]


def test_no_request_is_answered_twice() -> None:
    core = connection()
    slot = slot_of(core)
    core.fill(slot, [b"once"])
    with pytest.raises(LocalProtocolError, match="twice"):
        core.fill(slot, [b"again"])


def test_a_blocking_request_holds_the_later_ones_in_their_order() -> None:
    core = connection()
    assert core.admits(FRAME)
    core.block()
    held = bytearray(b"second")
    assert not core.admits(memoryview(held))
    assert not core.admits(memoryview(b"third"))
    held[:] = b"______"  # the buffer is used again
    core.end_turn()
    assert core.limited
    assert not core.may_serve_held
    assert core.next_held() is None
    core.unblock()
    assert core.may_serve_held
    assert not core.admits(memoryview(b"fourth")), "held requests come first"
    assert [bytes(core.next_held() or b"") for _ in range(3)] == [b"second", b"third", b"fourth"]
    assert core.next_held() is None
    assert core.admits(FRAME)


def test_a_turn_serves_a_limited_number_of_requests() -> None:
    core = connection()
    served = sum(core.admits(FRAME) for _ in range(3 * REQUESTS_PER_TURN))
    assert served == REQUESTS_PER_TURN
    core.end_turn()
    turns = 0
    while core.may_serve_held:
        number = 0
        while core.next_held() is not None:
            number += 1
        assert number <= REQUESTS_PER_TURN
        turns += 1
        core.end_turn()
    assert turns == 2
    assert not core.limited


def test_a_long_request_counts_as_several() -> None:
    core = connection()
    assert core.admits(FRAME)
    core.count_long(REQUESTS_PER_TURN)
    assert not core.admits(FRAME)
    core.end_turn()
    assert core.next_held() is not None


def test_only_a_connection_that_is_read_stalls() -> None:
    core = connection()
    assert [core.stalls(), core.stalls()] == [False, True]
    core.silent = False  # bytes have arrived
    assert [core.stalls(), core.stalls()] == [False, True]
    core.reading = False
    assert [core.stalls(), core.stalls()] == [False, False]
    core.reading = True
    assert [core.stalls(), core.stalls()] == [False, True]


def test_reading_pauses_while_too_many_bytes_are_held() -> None:
    core = connection()
    core.block()
    frame = memoryview(bytes(HELD_BYTES_MAX // 4))
    for number in range(4):
        assert core.may_read(), number
        core.admits(frame)
    assert not core.may_read()
    core.unblock()
    core.next_held()
    assert core.may_read()


def test_a_large_request_counts_as_held_until_it_is_answered() -> None:
    core = connection()
    core.block(HELD_BYTES_MAX)
    assert not core.may_read()
    core.unblock(HELD_BYTES_MAX)
    assert core.may_read()
    assert core.reserved_bytes == 0


def test_room_for_held_requests_ends_when_they_are_served() -> None:
    """Room that is never given back would keep all frames above the budget waiting, and all large frames behind them."""
    budget = MemoryBudget(MEBIBYTE, MEBIBYTE)
    core = connection(budget)
    core.reader.feed(bytes([0, 0, 0, 100, 0, 0]))
    core.reader.feed(bytes(98))
    core.hold(memoryview(bytes(budget.ordinary_bytes)))
    core.end_turn()
    core.may_read()
    assert budget.frame_bytes > budget.ordinary_bytes
    assert core.next_held() is not None
    core.end_turn()
    assert core.limited
    assert core.may_read()
    assert budget.frame_bytes == 0


def test_the_arrived_part_of_a_large_frame() -> None:
    """A throttled client is not read, so its frame counts as complete."""
    core = connection()
    assert core.arrived == 1
    core.reader.feed(pack(">ih", 999_996, 0) + bytes(249_994))
    assert core.arrived == 0.25
    core.mute()
    assert core.arrived == 1
    core.unmute()
    core.reader.feed(bytes(750_000))
    assert core.arrived == 1


def test_reading_pauses_while_too_many_requests_wait() -> None:
    core = connection()
    slots = [slot_of(core) for _ in range(INFLIGHT_REQUESTS_MAX)]
    core.end_turn()
    assert core.limited
    assert not core.may_read()
    core.fill(slots[0], [])
    assert core.may_read()


def test_nothing_is_served_while_the_peer_reads_no_answers() -> None:
    budget = MemoryBudget(64 * MEBIBYTE, 64 * MEBIBYTE)
    core = connection(budget)
    core.pause_writing(5_000)
    assert budget.unread_bytes == 5_000
    assert not core.admits(FRAME)
    assert not core.may_read()
    assert not core.may_serve_held
    core.pause_writing(3_000)
    assert budget.unread_bytes == 3_000
    core.resume_writing()
    assert budget.unread_bytes == 0
    assert core.may_read()
    assert core.next_held() is not None


def test_nothing_is_served_while_too_many_answers_wait_for_an_earlier_one() -> None:
    budget = MemoryBudget(64 * MEBIBYTE, 64 * MEBIBYTE)
    core = connection(budget)
    first = slot_of(core)
    answer = bytes(WRITE_BUFFER_HIGH // 4)
    number = 0
    while core.admits(FRAME):
        core.answer([answer])
        number += 1
    assert number == 5
    assert budget.unread_bytes == 5 * len(answer)
    core.fill(first, [b"first"])
    assert core.end_turn() == [b"first", *[answer] * 5]
    assert budget.unread_bytes == 0
    assert core.may_serve_held


def test_a_large_answer_counts_as_unread_until_it_is_written() -> None:
    budget = MemoryBudget(64 * MEBIBYTE, 64 * MEBIBYTE)
    core = connection(budget)
    core.answer([b"small"])
    assert budget.unread_bytes == 0
    core.answer([b"head", bytes(LARGE_ANSWER_BYTES)])
    assert budget.unread_bytes == LARGE_ANSWER_BYTES + 4
    assert len(core.end_turn()) == 3
    assert budget.unread_bytes == 0


def test_a_connection_with_unwritten_answers_waits_while_all_together_have_used_the_budget() -> None:
    budget = MemoryBudget(64 * MEBIBYTE, 100_000)
    greedy, modest = connection(budget), connection(budget)
    slot_of(greedy)
    greedy.answer([bytes(100_001)])
    assert budget.is_crowded
    assert not greedy.admits(FRAME)
    assert modest.admits(FRAME)


def test_a_closed_connection_drops_everything() -> None:
    budget = MemoryBudget(64 * MEBIBYTE, 64 * MEBIBYTE)
    core = connection(budget)
    cancelled: list[str] = []
    waiting, answered = slot_of(core), slot_of(core)
    waiting.cancel = lambda: cancelled.append("waiting")
    answered.cancel = lambda: cancelled.append("answered")
    core.fill(answered, [bytes(LARGE_ANSWER_BYTES)])
    core.block()
    core.admits(FRAME)
    assert budget.unread_bytes > 0
    core.close()
    assert cancelled == ["waiting"]
    assert budget.unread_bytes == 0
    assert not core.waits
    assert not core.admits(FRAME)
    core.unblock()
    core.fill(waiting, [b"late"])
    assert core.end_turn() == []
    assert not core.may_serve_held
    assert core.reserved_bytes == 0


@pytest.mark.parametrize("seed", range(50))
def test_every_request_is_served_once_and_answered_in_order(seed: int) -> None:
    """Random reads, answers, blocks and pauses of the peer; a shell as simple as can be."""
    rng = random.Random(seed)
    core = connection()
    sent = served = 0
    waiting: list[tuple[Slot, int, bool]] = []
    written: list[Buffer] = []

    def serve(frame: memoryview) -> None:
        nonlocal served
        number = int(bytes(frame))
        assert number == served, "requests are served in their order"
        served += 1
        kind = rng.randrange(3)
        if kind == 0:
            core.answer([b"%d" % number])
        else:
            waiting.append((slot_of(core), number, kind == 1))
            if kind == 1:
                core.block()

    for _ in range(300):
        event = rng.randrange(5)
        if event == 0 and core.may_read():
            for _ in range(rng.randrange(1, 2 * REQUESTS_PER_TURN)):
                frame = memoryview(b"%d" % sent)
                sent += 1
                if core.admits(frame):
                    serve(frame)
        elif event == 1:
            while (held := core.next_held()) is not None:
                serve(held)
        elif event == 2 and waiting:
            slot, number, blocks = waiting.pop(rng.randrange(len(waiting)))
            core.fill(slot, [b"%d" % number])
            if blocks:
                core.unblock()
        elif event == 3:
            core.pause_writing(1)
        else:
            core.resume_writing()
        written += core.end_turn()
    core.resume_writing()
    while waiting or core.may_serve_held:
        while (held := core.next_held()) is not None:
            serve(held)
        for slot, number, blocks in waiting:
            core.fill(slot, [b"%d" % number])
            if blocks:
                core.unblock()
        waiting.clear()
        written += core.end_turn()
    assert written == [b"%d" % number for number in range(sent)]
    assert not core.waits
    assert core.reserved_bytes == 0


def test_a_muted_connection_serves_and_reads_nothing_and_is_not_idle() -> None:
    core = connection()
    assert core.admits(memoryview(b"first"))
    core.answer([b"answer"])
    core.mute()
    assert not core.admits(memoryview(b"second"))
    assert core.end_turn() == [b"answer"], "answers still leave"
    assert (core.limited, core.may_read(), core.may_serve_held, core.waits) == (True, False, False, True)
    core.block()
    core.unmute()
    assert not core.may_serve_held, "a request still waits before its effect"
    core.unblock()
    held = core.next_held()
    assert held is not None
    assert bytes(held) == b"second"
    assert core.may_read()


def test_requests_that_only_read_are_dropped_when_the_peer_ends() -> None:
    core = connection()
    reads, writes = slot_of(core), slot_of(core)
    dropped: list[str] = []
    reads.only_reads, reads.cancel, writes.cancel = (
        True,
        lambda: dropped.append("reads"),
        lambda: dropped.append("writes"),
    )
    core.block()
    frames = [memoryview(key.to_bytes(2) + b"...") for key in (3, 0, 1, 8)]  # Metadata, Produce, Fetch, OffsetCommit
    for frame in frames:
        assert not core.admits(frame)
    core.end()
    assert dropped == ["reads"]
    assert core.reserved_bytes - core.reader.allocated_bytes == sum(len(frames[at]) for at in (1, 3))
    core.unblock()
    assert [core.next_held() for _ in range(3)] == [frames[1], frames[3], None]
    core.fill(writes, [b"answer"])
    assert core.end_turn() == [b"answer"]
