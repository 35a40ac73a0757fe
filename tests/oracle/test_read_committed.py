"""The same log, written by real producers to Kafka and to Barnabas: every Fetch tells the same, consumers deliver the same.

After each step of a script, and after Barnabas was stopped and killed: a Fetch from every offset at both isolation levels (high
watermark, last stable offset, log start, aborted transactions, batches and their bytes). Then what librdkafka and the bundled
client deliver. That the log is also the one that the script means is the business of tests/clients/test_read_committed.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.transactional_log import (
    INTERLEAVED,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Model,
    Player,
    Seen,
    made_up,
    read_bundled,
    read_librdkafka,
    scan,
    writers,
)
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker

pytestmark = [pytest.mark.oracle, pytest.mark.asyncio]

ONE_BATCH = 1  # bytes: a Fetch sends one batch at least


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """A Barnabas that may be stopped and killed."""
    broker = ServedBroker(tmp_path / "data").start()
    try:
        yield broker
        assert broker.stop() == 0, broker.log()
    finally:
        broker.kill()
    assert "Traceback" not in broker.log(), broker.log()


def everything(address: str, topic: str, model: Model) -> list[Seen]:
    with Wire(address) as wire:
        names = writers(wire, topic, model)
        return [seen for limit in (1 << 24, ONE_BATCH) for seen in scan(wire, topic, model, names, max_bytes=limit)]


async def delivered(address: str, topic: str, model: Model) -> list[object]:
    """What both clients read from several offsets; they must agree, which a comparison of brokers alone would not show."""
    found: list[object] = []
    for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
        end = (model.high_watermark, model.last_stable_offset)[isolation_level]
        offsets = range(model.log_start_offset, end, 7)
        by_librdkafka = read_librdkafka(address, topic, offsets, isolation_level)
        assert await read_bundled(address, topic, offsets, isolation_level) == by_librdkafka
        found.append(by_librdkafka)
    return found


async def play(
    address: str, topic: str, script: str, began_ms: int, *, size_bytes: int, step_by_step: bool, **configs: str
) -> tuple[Model, list[list[Seen]]]:
    """Writes the log; returns what it should be, and what was seen of it after each step."""
    model = Model(size_bytes)
    player = Player(address, topic, topic, model, began_ms)
    told: list[list[Seen]] = []

    def look() -> None:
        told.append(scan(player.wire, topic, model, writers(player.wire, topic, model)))

    try:
        player.wire.create_topic(topic, **configs)
        player.wire.await_coordinators()
        await player.play(script, look if step_by_step else None)
    finally:
        player.close()
    return model, told


SCRIPTS = {
    "interleaved": (INTERLEAVED, 10, True),
    "made up": (made_up(1, 45), 10, True),
    "several segments": (made_up(3, 60), 60_000, False),
}


@pytest.mark.parametrize(("script", "size_bytes", "step_by_step"), SCRIPTS.values(), ids=SCRIPTS)
async def test_fetches_tell_and_consumers_get_the_same(
    kafka: str, broker: ServedBroker, script: str, size_bytes: int, step_by_step: bool
) -> None:
    began_ms = time.time_ns() // 1_000_000
    topic = f"read-committed-{time.time_ns()}"
    (theirs, they_told), (ours, we_told) = [
        await play(
            address,
            topic,
            script,
            began_ms,
            size_bytes=size_bytes,
            step_by_step=step_by_step,
            **{"segment.bytes": "1048576"},
        )
        for address in (kafka, broker.address)
    ]
    assert ours.batches == theirs.batches
    assert we_told == they_told
    expected = everything(kafka, topic, theirs)
    assert everything(broker.address, topic, ours) == expected
    consumed = await delivered(kafka, topic, theirs)
    assert await delivered(broker.address, topic, ours) == consumed
    broker.restart()
    assert everything(broker.address, topic, ours) == expected
    broker.restart(kill=True)
    assert everything(broker.address, topic, ours) == expected
    assert await delivered(broker.address, topic, ours) == consumed
