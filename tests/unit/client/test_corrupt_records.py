"""Damaged batches and brokers that call a batch corrupt: one clear error a poll, no fetch loop, and a seek that leads on."""

from __future__ import annotations

import random

import pytest

from barnabas.client.errors import CorruptRecords, KafkaError
from barnabas.errors import ErrorCode
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.bench.fetcher import T0, T1, FetcherBench, batch, offsets


def fetches_within_a_second(bench: FetcherBench, records: bytes) -> int:
    """How often the consumer asks while there is no poll, and every answer holds these bytes."""
    count, until = 0, bench.now + 1_000
    while bench.now < until:
        fetches = bench.fetches()
        if not fetches:
            wake_at = bench.fetcher.wake_at()
            if wake_at is None:
                break
            bench.now = wake_at
            continue
        count += 1
        bench.answer(fetches[0], {0: records})
    return count


@pytest.mark.parametrize(
    "records",
    [
        batch(0, b"x" * 100)[:-1],
        batch(0, b"x")[:30],
        b"\x00",
        batch(0, b"x")[:8] + (1 << 30).to_bytes(4) + batch(0, b"x")[12:],
        batch(0, b"older") + batch(1, b"older, too"),
    ],
    ids=["cut off", "less than a header", "one byte", "a length beyond the answer", "below the position"],
)
def test_an_answer_that_does_not_lead_on_is_told_and_not_asked_for_in_a_loop(records: bytes) -> None:
    bench = FetcherBench({T0: 7})
    assert 1 <= fetches_within_a_second(bench, records) < 20
    with pytest.raises(CorruptRecords, match="after offset 7 cannot be read; seek past it") as told:
        bench.fetcher.take()
    assert (told.value.topic, told.value.partition, told.value.offset) == ("t", 0, 7)
    assert (told.value.code, told.value.retriable) == (ErrorCode.CORRUPT_MESSAGE, False)
    assert bench.values() == [], "once an attempt"
    bench.fetcher.seek(T0, 9)
    bench.answer(bench.fetch(), {0: batch(9, b"behind")})
    assert bench.values() == [b"behind"]


def test_an_answer_without_records_is_none_of_these() -> None:
    bench = FetcherBench({T0: 7})
    bench.answer(bench.fetch(), {0: b""})
    assert bench.values() == []
    assert offsets(bench.fetch().request) == {0: 7}


def test_a_broker_that_calls_a_batch_corrupt_is_told_and_asked_again_after_a_pause() -> None:
    bench = FetcherBench({T0: 7, T1: 0})
    bench.answer(bench.fetch(), {1: batch(0, b"fine")}, codes={0: ErrorCode.CORRUPT_MESSAGE})
    assert bench.values() == [b"fine"], "other partitions come first"
    with pytest.raises(CorruptRecords, match="broker 1 reports that it is corrupt") as told:
        bench.fetcher.take()
    assert (told.value.topic, told.value.partition, told.value.offset) == ("t", 0, 7)
    assert bench.values() == []
    bench.answer(bench.fetch())  # of the other partition alone
    wake_at = bench.fetcher.wake_at()
    assert wake_at is not None
    bench.now = wake_at
    bench.answer(bench.fetch(), {0: batch(7, b"another replica has it whole")})
    assert bench.values() == [b"another replica has it whole"]


def test_a_bad_batch_names_the_offset_of_the_one_behind_it() -> None:
    bench = FetcherBench({T0: 0})
    broken = bytearray(batch(0, b"a", b"b", b"c"))
    broken[-1] ^= 1
    bench.answer(bench.fetch(), {0: bytes(broken) + batch(3, b"behind")})
    with pytest.raises(CorruptRecords, match="seek past it to continue, to offset 3: ") as told:
        bench.fetcher.take()
    assert told.value.next_offset is not None
    bench.fetcher.seek(T0, told.value.next_offset)
    bench.answer(bench.fetch(), {0: batch(3, b"behind")})
    assert bench.values() == [b"behind"]


def test_a_header_that_lies_about_its_last_offset_does_not_say_where_to_go_on() -> None:
    bench = FetcherBench({T0: 0})
    broken = bytearray(batch(0, b"a"))
    broken[23:27] = (2**31 - 1).to_bytes(4)  # the offset delta of the last record
    bench.answer(bench.fetch(), {0: bytes(broken)})
    with pytest.raises(CorruptRecords) as told:
        bench.fetcher.take()
    assert told.value.next_offset == 1


@pytest.mark.parametrize("codec", range(5))
def test_damaged_bytes_are_records_or_an_error_and_never_a_loop(codec: int) -> None:
    """Without checksums, which would find all of it."""
    rng = random.Random(codec)
    whole = bytes(build_batch([NewRecord(b"key", b"value" * 9, n) for n in range(9)], base_offset=0, compression=codec))
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(8, len(damaged))] = rng.randrange(256)
        bench = FetcherBench({T0: 0}, check_crcs=False)
        told = 0
        for _ in range(20):
            for fetch in bench.fetches():
                bench.answer(fetch, {0: bytes(damaged)} if offsets(fetch.request).get(0) == 0 else {})
            try:
                bench.values()
            except KafkaError:
                told += 1
        assert told or (bench.fetcher.partitions[T0].position or 0) > 0, bytes(damaged)
