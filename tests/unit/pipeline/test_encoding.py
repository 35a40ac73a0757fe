"""Arrow columns to record batches, against the codec that makes them record by record."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

from hypothesis import given, settings  # noqa: E402 - after the skip
from hypothesis import strategies as st  # noqa: E402 - after the skip

from barnabas.client.producer.core.murmur2 import partition_for_key  # noqa: E402 - after the skip
from barnabas.pipeline.encoding import BATCH_BYTES_MAX, as_binary, encode_rows, partitions_of_keys  # noqa: E402 - ditto
from barnabas.protocol.record_codec import NewRecord, encode  # noqa: E402 - after the skip

TEXT = st.one_of(
    st.none(), st.binary(max_size=200), st.sampled_from([b"", b"x" * 63, b"x" * 64, b"y" * 8_191, b"y" * 8_192])
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@settings(max_examples=150)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=150), st.integers(0, 3), st.booleans())
def test_the_bytes_are_those_of_the_record_codec(
    rows: list[tuple[bytes | None, bytes | None]], cut: int, keyed: bool
) -> None:
    rows = rows if len(rows) > cut else rows * (cut + 1)
    keys = as_binary(pa.array([key for key, _ in rows], pa.binary())).slice(cut) if keyed else None
    values = as_binary(pa.array([value for _, value in rows], pa.binary())).slice(cut)
    at = cut
    for batch in encode_rows(keys, values, None, 1_700_000_000_000):
        part = rows[at : at + batch.record_count]
        expected, _ = encode(
            [NewRecord(k if keyed else None, v, 1_700_000_000_000) for k, v in part], 1_700_000_000_000
        )
        assert bytes(batch.data) == expected
        assert batch.record_count == 1 or len(expected) <= BATCH_BYTES_MAX
        at += batch.record_count
    assert at == len(rows)


def test_rows_are_cut_into_batches_of_bounded_size_and_a_giant_has_its_own() -> None:
    values = [b"v" * 100] * 9_000 + [b"g" * (2 * BATCH_BYTES_MAX)] + [b"w"] * 3
    batches = list(encode_rows(None, as_binary(pa.array(values, pa.binary())), None, 0))
    assert sum(batch.record_count for batch in batches) == len(values)
    assert [len(batch.data) > BATCH_BYTES_MAX for batch in batches].count(True) == 1
    assert max(batch.record_count for batch in batches if len(batch.data) > BATCH_BYTES_MAX) == 1


def test_rows_with_headers_carry_them_and_nulls_stay_nulls() -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, []]
    keys = as_binary(pa.array(["k", None, ""], pa.string()))
    values = as_binary(pa.array([b"v", b"", None], pa.binary()))
    (batch,) = encode_rows(keys, values, pa.array(headers, HEADERS), 5)
    records = [NewRecord(b"k", b"v", 5, [("a", b"1"), ("b", None)]), NewRecord(None, b"", 5), NewRecord(b"", None, 5)]
    assert bytes(batch.data) == encode(records, 5)[0]


@settings(max_examples=150)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60), st.integers(1, 50))
def test_keys_go_where_the_producer_puts_them(keys: list[bytes], count: int) -> None:
    found = partitions_of_keys(as_binary(pa.array(keys, pa.binary())), count)
    assert found.tolist() == [partition_for_key(key, count) for key in keys]
