"""Logs with their markers, made by real producers, against a model: what Fetch tells from every offset, what consumers deliver.

`tests/oracle/test_read_committed.py` compares such logs with those of Kafka after each step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.testing import Broker
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import restart

pytest.importorskip("confluent_kafka")
from tests.support.clients.transactional_log import (  # after the check that librdkafka is there
    INTERLEAVED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Model,
    Player,
    made_up,
    read_bundled,
    read_librdkafka,
    scan,
    writers,
)

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

TOPIC = "log"
ONE_BATCH = 1  # bytes: a Fetch sends one batch at least


async def check(address: str, model: Model, step: int = 1, topic: str = TOPIC) -> None:
    """Every `step`-th fetch offset with two limits; both consumers from a third of them."""
    with Wire(address) as wire:
        # DeleteRecords is written down once a minute, as in Kafka: a kill may forget it.
        log_start_offset = wire.fetch(topic, 0, model.high_watermark).log_start_offset
        assert log_start_offset in (0, model.log_start_offset)
        model.log_start_offset = log_start_offset
        names = writers(wire, topic, model)
        for max_bytes in (1 << 24, ONE_BATCH):
            for seen in scan(wire, topic, model, names, range(0, model.high_watermark + 2, step), max_bytes):
                model.check(seen)
    for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
        end = (model.high_watermark, model.last_stable_offset)[isolation_level]
        offsets = range(model.log_start_offset, end, 3 * step)
        expected = [model.delivered(offset, isolation_level) for offset in offsets]
        assert await read_bundled(address, topic, offsets, isolation_level) == expected
        some = slice(None, None, 4)
        assert read_librdkafka(address, topic, offsets[some], isolation_level) == expected[some]


async def test_every_fetch_offset_over_restarts(serve: Callable[..., Broker]) -> None:
    broker = serve()
    model = Model()
    player = Player(broker.bootstrap_servers, TOPIC, "run", model)
    player.wire.create_topic(TOPIC)
    await player.play(INTERLEAVED)
    player.close()
    assert len(model.aborted) > 4
    assert model.last_stable_offset < model.high_watermark
    await check(broker.bootstrap_servers, model)
    for kill in (True, False):
        restart(broker, kill=kill)
        await check(broker.bootstrap_servers, model)


async def test_over_several_segments_and_restarts(serve: Callable[..., Broker]) -> None:
    broker = serve()
    model = Model(size_bytes=60_000)
    player = Player(broker.bootstrap_servers, TOPIC, "run", model)
    player.wire.create_topic(TOPIC, **{"segment.bytes": "1048576"})
    await player.play(made_up(3, 60))
    player.close()
    await check(broker.bootstrap_servers, model, step=5)
    for kill in (True, False):
        restart(broker, kill=kill)
        await check(broker.bootstrap_servers, model, step=5)
    indexes = [path for path in (broker.broker(1).directory / f"{TOPIC}-0").glob("*.txnindex") if path.stat().st_size]
    assert len(indexes) > 3
