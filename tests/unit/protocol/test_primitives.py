"""Varints: by hand at the edges of each width, there and back on random numbers, and malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.errors import RemoteProtocolError
from barnabas.protocol.primitives import (
    encode_uvarint,
    encode_varint,
    read_uvarint,
    read_uvarint_rest,
    read_varint,
    read_varlong,
    uvarint_size,
    varint_size,
)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**21, "80808001"),
        (2**28, "8080808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_by_hand(value: int, encoded: str) -> None:
    assert encode_uvarint(value).hex() == encoded
    assert read_uvarint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_zigzag_by_hand(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


def test_varlong_by_hand() -> None:
    assert encode_varint(2**63 - 1).hex() == "feffffffffffffffff01"
    assert encode_varint(-(2**63)).hex() == "ffffffffffffffffff01"
    assert read_varlong(encode_varint(-(2**63)), 0) == (-(2**63), 10)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_unsigned_there_and_back(value: int, before: bytes) -> None:
    data = before + encode_uvarint(value)
    assert read_uvarint(memoryview(data), len(before)) == (value, len(data))
    assert uvarint_size(value) == len(data) - len(before)
    first = data[len(before)]
    if first > 127:
        assert read_uvarint_rest(data, len(before) + 1, first) == (value, len(data))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_zigzag_there_and_back(value: int, before: bytes) -> None:
    data = before + encode_varint(value)
    assert read_varlong(data, len(before)) == (value, len(data))
    assert varint_size(value) == len(data) - len(before)
    if -(2**31) <= value < 2**31:
        assert read_varint(data, len(before)) == (value, len(data))


@pytest.mark.parametrize("encoded", ["", "80", "ffffffff", "ffffffff1f", "8080808080", "808080808000"])
def test_malformed_32_bit_numbers_are_refused(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    for read in (read_uvarint, read_varint):
        with pytest.raises(RemoteProtocolError):
            read(data, 0)
    if data:
        with pytest.raises(RemoteProtocolError):
            read_uvarint_rest(data, 1, data[0])


@pytest.mark.parametrize("encoded", ["", "ff" * 9, "ff" * 9 + "02", "80" * 10 + "00"])
def test_malformed_64_bit_numbers_are_refused(encoded: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_varlong(bytes.fromhex(encoded), 0)


def test_a_position_behind_the_buffer_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        read_uvarint(b"\1", 2**40)
