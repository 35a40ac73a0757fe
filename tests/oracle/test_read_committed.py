"""The same log, written by real producers to Kafka and to Barnabas: every Fetch tells the same.

After each step of a script: a Fetch from every offset at both isolation levels (high watermark, last stable offset, log start,
aborted transactions, batches and their bytes). tests/clients/test_read_committed.py holds the log, what consumers deliver and
restarts against a model of the script.
"""

from __future__ import annotations

import time

import pytest

from tests.support.clients.transactional_log import (
    INTERLEAVED,
    Model,
    Player,
    Seen,
    made_up,
    scan,
    writers,
)
from tests.support.oracle.wire import Wire

pytestmark = [pytest.mark.oracle, pytest.mark.asyncio]

ONE_BATCH = 1  # bytes: a Fetch sends one batch at least


def everything(address: str, topic: str, model: Model) -> list[Seen]:
    with Wire(address) as wire:
        names = writers(wire, topic, model)
        return [seen for limit in (1 << 24, ONE_BATCH) for seen in scan(wire, topic, model, names, max_bytes=limit)]


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
async def test_fetches_tell_the_same(
    kafka: str, barnabas: str, script: str, size_bytes: int, step_by_step: bool
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
        for address in (kafka, barnabas)
    ]
    assert ours.batches == theirs.batches
    assert we_told == they_told
    assert everything(barnabas, topic, ours) == everything(kafka, topic, theirs)
