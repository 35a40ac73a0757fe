"""compression.{gzip,lz4,zstd}.level, of topics and brokers, where a batch is brought under the topic's codec."""

from __future__ import annotations

import random

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.topic_config import log_config
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records, read_header
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.inspection import Inspection
from tests.support.storage.batches import NOW, open_log


def words() -> bytes:
    drawn = random.Random(7)
    return b" ".join(
        b"%s-%d" % (drawn.choice([b"order", b"flight", b"tea"]), drawn.randrange(10**6)) for _ in range(4000)
    )


VALUE = words()


def stored(config: BrokerConfig, overrides: dict[str, str]) -> bytes:
    """What a log with these settings stores of an uncompressed batch."""
    log = open_log(MemoryDisk(), log_config(config, overrides))
    inspection = Inspection(build_batch([NewRecord(None, VALUE, NOW)]), log.config, NOW)
    inspection.run()
    log.append_as_leader(inspection, leader_epoch=0, now_ms=NOW)
    return bytes(log.read(0, 1 << 20, end_offset=1).records)


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", "1", "9"), ("lz4", "1", "17"), ("zstd", "-50", "19")])
def test_the_level_decides_the_size(codec: str, low: str, high: str) -> None:
    sizes = []
    for level in (low, high):
        of_topic = stored(BrokerConfig(), {"compression.type": codec, f"compression.{codec}.level": level})
        of_broker = stored(BrokerConfig({"compression.type": codec, f"compression.{codec}.level": level}), {})
        assert of_topic == of_broker
        header = read_header(of_topic)
        assert header.compression == Compression[codec.upper()]
        assert [record.value for record in decode_records(of_topic, 0, header)] == [VALUE]
        sizes.append(len(of_topic))
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize(("codec", "level"), [(Compression.GZIP, -1), (Compression.LZ4, 9), (Compression.ZSTD, 3)])
def test_kafkas_default_levels_are_the_codecs_own(codec: Compression, level: int) -> None:
    assert compress(codec, VALUE, level) == compress(codec, VALUE)


def test_high_levels_of_zstd_take_no_more_memory_than_18_for_many_records() -> None:
    """22 takes 400 MB for 20 MB of records."""
    short, long = VALUE, VALUE * (5 * 1024 * 1024 // len(VALUE))
    assert compress(Compression.ZSTD, short, 22) != compress(Compression.ZSTD, short, 18)
    assert compress(Compression.ZSTD, long, 22) == compress(Compression.ZSTD, long, 18)
    assert compress(Compression.ZSTD, long, 1) != compress(Compression.ZSTD, long, 18)
