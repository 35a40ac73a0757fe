"""Framing: frames come out whole however the bytes come in, hostile lengths cost nothing."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.protocol.framing import CUT, FrameReader

PRODUCE = 0
MEBIBYTE = 1024 * 1024


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def limit_of(api_key: int) -> int:
    return 100 * MEBIBYTE if api_key == PRODUCE else 8 * MEBIBYTE


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The stream in pieces of the given sizes, over and over."""
    pieces, position, turn = [], 0, 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        pieces.append(stream[position : position + size])
        position += size
        turn += 1
    return pieces


@settings(max_examples=200)
@given(
    bodies=st.lists(st.binary(min_size=4, max_size=300), max_size=20),
    sizes=st.lists(st.integers(min_value=1, max_value=500), min_size=1, max_size=8),
)
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], sizes: list[int]) -> None:
    reader = FrameReader(limit_of=limit_of)
    frames: list[memoryview] = []
    for piece in cut(b"".join(map(framed, bodies)), sizes):
        frames += reader.feed(piece)
    assert [bytes(view) for view in frames] == bodies  # views taken early still hold what they held
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize("chunk", [1, 7, 65_536, 3_000_000])
def test_large_and_small_frames_mixed(chunk: int) -> None:
    bodies = [
        bytes([0, 0, number]) + bytes([number]) * size
        for number, size in enumerate([5, 70_000, 5, 65_530, 9, 200_000, 1])
    ]
    reader = FrameReader(limit_of=limit_of)
    frames: list[memoryview] = []
    for piece in cut(b"".join(map(framed, bodies)), [chunk]):
        frames += reader.feed(piece)
    assert [bytes(view) for view in frames] == bodies
    assert reader.allocated_bytes <= 2 * 200_004


def test_one_read_may_fill_the_whole_room() -> None:
    reader = FrameReader()
    body = bytes(range(256)) * 16
    stream = framed(body) * 100
    frames: list[memoryview] = []
    while stream:
        room = reader.get_buffer(65_536)
        count = min(len(room), len(stream))
        assert count > 0
        room[:count] = stream[:count]
        frames += reader.received(count)
        stream = stream[count:]
    assert [bytes(view) for view in frames] == [body] * 100


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3, 100 * MEBIBYTE + 1, 2**31 - 1])
def test_a_length_out_of_bounds_ends_the_connection_at_its_fourth_byte(size: int) -> None:
    reader = FrameReader(limit_of=limit_of)
    reader.get_buffer()
    before = reader.allocated_bytes
    with pytest.raises(RemoteProtocolError, match=str(size)):
        reader.feed(struct.pack(">i", size))
    assert reader.allocated_bytes == before


def test_only_produce_may_be_large() -> None:
    reader = FrameReader(limit_of=limit_of)
    assert reader.feed(struct.pack(">ih", 50 * MEBIBYTE, PRODUCE)) == []
    assert len(reader.get_buffer()) > 0
    assert reader.allocated_bytes <= 65_536, "8 bytes have arrived"
    other = FrameReader(limit_of=limit_of)
    other.feed(struct.pack(">i", 50 * MEBIBYTE))
    other.get_buffer()
    assert other.allocated_bytes <= 65_536  # nothing is allocated before the API key is seen
    assert other.feed(struct.pack(">h", 3)) == []
    assert len(other.get_buffer()) > 0
    assert other.allocated_bytes <= 65_536


def resident_bytes() -> int:
    """Memory of this process, in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_follows_what_was_sent_not_what_was_announced() -> None:
    reader = FrameReader(limit_of=limit_of)
    size = 90 * MEBIBYTE
    reader.feed(struct.pack(">ih", size, PRODUCE))
    assert reader.wanted_bytes == size + 4
    sent = 2
    chunk = bytes(256 * 1024)
    before = resident_bytes()
    while sent < 8 * MEBIBYTE:
        reader.feed(chunk)
        sent += len(chunk)
        assert resident_bytes() - before <= 4 * sent + MEBIBYTE
    while sent + len(chunk) < size:
        assert reader.feed(chunk) == []
        sent += len(chunk)
    (whole,) = reader.feed(bytes(size - sent))
    assert len(whole) == size
    reader.release()
    del whole
    assert resident_bytes() - before < 16 * MEBIBYTE, "its memory is free again"


@pytest.mark.parametrize("size", [MEBIBYTE - 100, 8 * MEBIBYTE - 100, 90 * MEBIBYTE])
def test_no_call_copies_or_reads_much(size: int) -> None:
    """Between two reads a server may find that its connections hold too much, and stop reading."""
    reader = FrameReader(limit_of=limit_of)
    reader.feed(struct.pack(">ih", size, PRODUCE))
    replaced: list[int] = []
    left = size - 2
    while left:
        before, pending = reader.allocated_bytes, reader.buffered_bytes
        room = reader.get_buffer()
        if reader.allocated_bytes != before:
            replaced.append(pending)
        assert len(room) <= 256 * 1024
        left -= min(len(room), left)
        reader.received(min(len(room), size))
    assert max(replaced) <= 256 * 1024


def test_a_small_limit_holds_for_frames_that_arrive_whole() -> None:
    with pytest.raises(RemoteProtocolError, match="allowed are 4 to 100"):
        FrameReader(size_bytes_max=100).feed(framed(bytes(101)))


@settings(max_examples=200)
@given(noise=st.binary(max_size=400), step=st.integers(min_value=1, max_value=64))
def test_random_bytes_raise_one_error_only(noise: bytes, step: int) -> None:
    reader = FrameReader(limit_of=limit_of)
    try:
        for piece in cut(noise, [step]):
            reader.feed(piece)
    except RemoteProtocolError:
        pass
    assert reader.allocated_bytes <= MEBIBYTE


def test_telling_of_more_bytes_than_there_was_room_for_is_our_bug() -> None:
    reader = FrameReader()
    with pytest.raises(LocalProtocolError):
        reader.received(len(reader.get_buffer()) + 1)


def test_a_silent_connection_costs_no_buffer() -> None:
    reader = FrameReader()
    assert reader.allocated_bytes == 0
    (frame,) = reader.feed(struct.pack(">i", 4) + b"abcd")
    reader.release()
    assert reader.allocated_bytes == 0
    assert bytes(frame) == b"abcd", "a frame's view keeps its buffer"
    assert reader.feed(struct.pack(">i", 8) + b"ef") == []
    reader.release()
    assert reader.buffered_bytes == 6, "what is under way stays"
    assert [bytes(one) for one in reader.feed(b"ghijkl")] == [b"efghijkl"]


@pytest.mark.parametrize(
    ("sent", "what"),
    [(b"GET / HTTP/1.1\r\n", "HTTP"), (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01", "TLS")],
)
def test_other_protocols_are_named(sent: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"it looks like {what}"):
        FrameReader().feed(sent)


@pytest.mark.parametrize("step", [1, 5, 4_096, 70_000, MEBIBYTE])
def test_of_a_frame_above_the_limit_of_its_api_only_the_beginning_is_kept(step: int) -> None:
    body = b"\0\3" + bytes(range(256)) * 40_000  # API key 3, about 10 MB
    large = framed(body) if step >= 4_096 else framed(body)[:20_000]
    reader = FrameReader(limit_of=limit_of)
    frames: list[memoryview] = []
    allocated = 0
    for piece in cut(framed(b"first") + large, [step]):
        frames += reader.feed(piece)
        allocated = max(allocated, reader.allocated_bytes)
    for piece in cut(bytes(len(framed(body)) - len(large)), [MEBIBYTE]):
        assert frames == [b"first"], "a frame is answered after all its bytes have arrived"
        frames += reader.feed(piece)
        allocated = max(allocated, reader.allocated_bytes)
    frames += reader.feed(framed(b"last"))
    first, cut_off, last = map(bytes, frames)
    assert (first, last) == (b"first", b"last")
    assert cut_off == bytes((CUT,)) + body[1:8_192]
    assert allocated <= 65_536
