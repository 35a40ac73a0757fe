"""murmur2 against Java's own vectors and aiokafka's implementation; the sticky choice by seed and by load."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as judge
from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.producer.core.murmur2 import murmur2, partition_for_key
from barnabas.client.producer.routing import StickyPartitioner
from tests.support.rng import SeededRng


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_javas_vectors(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_any_key_as_aiokafka_hashes_it(key: bytes) -> None:
    assert murmur2(key) & 0x7FFFFFFF == judge(key) & 0x7FFFFFFF


def test_the_sign_bit_is_cleared_before_the_modulo() -> None:
    assert partition_for_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_a_partition_is_kept_for_a_batch() -> None:
    sticky = StickyPartitioner(1_000, SeededRng())
    first = sticky.choose(range(10), [0] * 10)
    for _ in range(9):
        sticky.room_bytes -= 100
        assert sticky.room_bytes > 0
        assert sticky.choose(range(10), [0] * 10) == first
    sticky.room_bytes -= 100
    assert sticky.room_bytes <= 0
    drawn = {StickyPartitioner(1, SeededRng(seed)).choose(range(10), [0] * 10) for seed in range(200)}
    assert drawn == set(range(10))


def test_a_partition_without_leader_is_left() -> None:
    sticky = StickyPartitioner(1_000, SeededRng())
    first = sticky.choose([3, 4], [0, 0])
    other = 7 - first
    assert sticky.choose([other], [0]) == other


def test_longer_queues_are_drawn_less_often() -> None:
    """KIP-794: weights are longest + 1 − own: here 1, 10 and 6 of 17."""
    counts = [0, 0, 0]
    rng = SeededRng(7)
    for _ in range(17_000):
        counts[StickyPartitioner(1, rng).choose(range(3), [9, 0, 4])] += 1
    assert [round(c / 1_000) for c in counts] == [1, 10, 6]
