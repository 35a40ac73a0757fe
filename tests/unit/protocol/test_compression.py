"""Codecs: round trips, foreign framings, malformed input, bombs."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import pytest
from aiokafka import codec as foreign
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.protocol.compression import Compression, compress, decompress

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
TEXT = b"The Castle hill was hidden, veiled in mist and darkness. " * 2_000


@pytest.mark.parametrize("codec", list(Compression))
@given(data=st.binary(max_size=5_000), repeats=st.integers(min_value=0, max_value=50))
def test_what_goes_in_comes_out(codec: Compression, data: bytes, repeats: int) -> None:
    assert decompress(codec, compress(codec, data * repeats), len(data) * repeats) == data * repeats


@pytest.mark.parametrize("codec", CODECS)
def test_it_compresses_and_takes_any_buffer(codec: Compression) -> None:
    packed = compress(codec, memoryview(TEXT))
    assert len(packed) < len(TEXT) / 10
    assert decompress(codec, memoryview(bytearray(packed))) == TEXT


def test_a_foreign_library_reads_ours() -> None:
    assert foreign.gzip_decode(compress(Compression.GZIP, TEXT)) == TEXT
    assert foreign.snappy_decode(compress(Compression.SNAPPY, TEXT)) == TEXT
    assert foreign.lz4_decode(compress(Compression.LZ4, TEXT)) == TEXT
    assert foreign.zstd_decode(compress(Compression.ZSTD, TEXT)) == TEXT


def test_ours_reads_a_foreign_library() -> None:
    assert decompress(Compression.GZIP, foreign.gzip_encode(TEXT)) == TEXT
    assert decompress(Compression.SNAPPY, foreign.snappy_encode(TEXT)) == TEXT
    assert decompress(Compression.LZ4, foreign.lz4_encode(TEXT)) == TEXT
    assert decompress(Compression.ZSTD, foreign.zstd_encode(TEXT)) == TEXT


def test_snappy_without_framing_is_read() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_is_written_in_the_java_library_s_framing() -> None:
    packed = compress(Compression.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (first,) = struct.unpack_from(">i", packed, 16)
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + first]) == 32 * 1024


def test_lz4_blocks_are_independent_as_the_java_client_demands() -> None:
    packed = compress(Compression.LZ4, TEXT)
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] >> 5 == 0b011  # version 01, block independence set


def test_gzip_members_follow_each_other() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_goes_off_within_its_bound(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * 1024 * 1024))
    bound = 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"{bound} bytes|claims"):
            decompress(codec, bomb, bound)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * bound


@pytest.mark.parametrize("codec", list(Compression))
def test_the_bound_is_exact(codec: Compression) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(RemoteProtocolError, match="exceed"):
        decompress(codec, packed, len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_anywhere_it_is_malformed(codec: Compression) -> None:
    packed = compress(codec, TEXT[:5_000])
    for end in range(len(packed)):
        if codec is Compression.SNAPPY and end == 16:
            continue  # the framing's header alone is no records at all, and valid
        with pytest.raises(RemoteProtocolError):
            decompress(codec, packed[:end])


@settings(max_examples=300)
@given(codec=st.sampled_from(CODECS), noise=st.binary(max_size=200))
def test_noise_raises_one_error_only(codec: Compression, noise: bytes) -> None:
    try:
        decompress(codec, noise, 1_000_000)
    except RemoteProtocolError:
        pass


@settings(max_examples=300)
@given(codec=st.sampled_from(CODECS), data=st.data())
def test_flipped_bytes_raise_one_error_only(codec: Compression, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, TEXT[:3_000]))
    for position in data.draw(st.lists(st.integers(0, len(packed) - 1), min_size=1, max_size=4)):
        packed[position] ^= data.draw(st.integers(1, 255))
    try:
        decompress(codec, packed, 1_000_000)
    except RemoteProtocolError:
        pass


def test_snappy_lengths_are_checked_before_allocation() -> None:
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block_length in (-1, 5, 2**31 - 1):
        with pytest.raises(RemoteProtocolError, match="snappy block"):
            decompress(Compression.SNAPPY, header + struct.pack(">i", block_length) + b"abcd")
    with pytest.raises(RemoteProtocolError, match="claims"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\x3f" + b"\0" * 10)  # claims 134 MB in 14 bytes


def test_cramjam_still_says_that_an_output_is_too_small_in_the_words_we_know() -> None:
    for module in (cramjam.lz4, cramjam.zstd):
        with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
            module.decompress_into(module.compress(TEXT), bytearray(10))


def test_a_codec_that_does_not_exist() -> None:
    with pytest.raises(LocalProtocolError, match="codec 5"):
        compress(5, b"")
    with pytest.raises(RemoteProtocolError, match="codec 7"):
        decompress(7, b"")
