from __future__ import annotations

from barnabas.storage.tail import TAIL_BATCH_BYTES_MAX, TAIL_BYTES_MAX, Tail


def filled() -> Tail:
    tail = Tail(0)
    for base, last in ((0, 9), (10, 10), (11, 20)):
        tail.append(base, b"%02d" % base * 5, last + 1)
    return tail


def test_reads_begin_with_the_batch_that_holds_the_offset() -> None:
    tail = filled()
    assert tail.read(5, 10, 21, True) == (b"00" * 5, 0, 10)
    assert tail.read(10, 100, 21, True) == (b"10" * 5 + b"11" * 5, 10, 21)
    assert tail.read(20, 1, 21, True) == (b"11" * 5, 11, 21)


def test_an_offset_that_nothing_stands_at_is_passed_over() -> None:
    """In a follower of a compacted log batches do not go on where the one before ends."""
    tail = Tail(0)
    tail.append(5, b"five", 7)
    tail.append(20, b"twenty", 30)
    assert tail.read(6, 5, 40, True) == (b"five", 5, 7)
    assert tail.read(7, 5, 40, True) == (b"twenty", 20, 30)
    assert tail.read(19, 100, 40, True) == (b"twenty", 20, 30)
    assert tail.read(10, 100, 20, True) == (b"", 10, 10)


def test_bounds_hold() -> None:
    tail = filled()
    assert tail.read(0, 25, 21, True) == (b"00" * 5 + b"10" * 5, 0, 11)
    assert tail.read(0, 100, 11, True) == (b"00" * 5 + b"10" * 5, 0, 11)
    assert tail.read(0, 9, 21, False) == (b"", 0, 0)
    assert tail.read(10, 100, 10, True) == (b"", 10, 10)


def test_it_copies_what_it_takes() -> None:
    tail = Tail(0)
    buffer = bytearray(b"abc")
    tail.append(0, memoryview(buffer), 1)
    buffer[:] = b"xyz"
    assert tail.read(0, 10, 1, True).records == b"abc"


def test_it_forgets_the_oldest_above_its_bound_and_everything_below_a_large_batch() -> None:
    tail = Tail(0)
    for base in range(1000):
        tail.append(base, bytes(1000), base + 1)
        held = base + 1 - tail.start_offset
        assert held * 1000 <= TAIL_BYTES_MAX
    assert held * 1000 >= TAIL_BYTES_MAX // 2
    assert tail.read(tail.start_offset, 10**9, 10**9, True).next_offset == 1000
    tail.append(1000, bytes(TAIL_BATCH_BYTES_MAX + 1), 1001)
    assert tail.start_offset == 1001
    tail.append(1001, b"x", 1002)
    assert tail.start_offset == 1001
    tail.clear(5)
    assert tail.start_offset == 5
