"""`encode_values` against the encoder of whole records: the same bytes for all lengths and numbers of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.errors import LocalProtocolError
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import encode_records
from barnabas.protocol.value_records import VALUE_RECORD_OVERHEAD_MAX, encode_pairs, encode_values


def whole(values: list[bytes], timestamp: int) -> object:
    return encode_records([NewRecord(None, value, timestamp) for value in values])


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=300), st.integers(0, 2**62))
def test_the_bytes_are_those_of_whole_records(values: list[bytes], timestamp: int) -> None:
    encoded = encode_values(values, timestamp)
    assert encoded == whole(values, timestamp)
    assert len(encoded.data) <= sum(map(len, values)) + VALUE_RECORD_OVERHEAD_MAX * len(values)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_192, 8_193, 20_000])
def test_offset_deltas_of_every_size(count: int) -> None:
    values = [b"x" * (place % 7) for place in range(count)]
    assert encode_values(values, 5) == whole(values, 5)


@pytest.mark.parametrize("length", [0, 63, 64, 127, 128, 8_191, 8_192, 100_000, 1_048_570, 3_000_000])
def test_values_of_every_size(length: int) -> None:
    values = [b"y" * length, b"", b"z" * length]
    assert encode_values(values, 5) == whole(values, 5)


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), min_size=1, max_size=300))
def test_keys_and_values(pairs: list[tuple[bytes, bytes]]) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    assert encode_pairs(keys, values, 7) == encode_records([NewRecord(*pair, 7) for pair in pairs])


@pytest.mark.parametrize("count", [63, 64, 65, 8_192, 8_193])
def test_keys_with_offset_deltas_of_every_size(count: int) -> None:
    keys = [b"%d" % place for place in range(count)]
    values = [b"x" * (place % 131) for place in range(count)]
    expected = encode_records([NewRecord(key, value, 5) for key, value in zip(keys, values, strict=True)])
    assert encode_pairs(keys, values, 5) == expected


def test_no_values_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        encode_values([], 5)
    with pytest.raises(LocalProtocolError):
        encode_pairs([], [], 5)
