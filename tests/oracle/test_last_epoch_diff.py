"""Producer epochs that run out, on Kafka and on Barnabas."""

from __future__ import annotations

import time

import pytest

from barnabas.protocol.messages.transactions import (
    InitProducerIdRequest,
)
from tests.support.oracle.transaction_script import Script, play

pytestmark = pytest.mark.oracle


def epochs_run_out(script: Script) -> None:
    """Takes 33,000 requests on each side, so it is not in the suite."""
    labels = ("init", "end", "fence", "empty-abort", "tv1")
    producers = [script.producer(f"last-epoch-{label}") for label in labels]
    while any(p.epoch < 32_766 for p in producers):
        sent = [
            (
                p,
                script.wire.send(
                    InitProducerIdRequest(transactional_id=p.transactional_id, transaction_timeout_ms=60_000), 4
                ),
            )
            for p in producers
            if p.epoch < 32_766
        ]
        for p, correlation in sent:
            answer = script.wire.receive(InitProducerIdRequest.API_KEY, 4, correlation)
            if answer.error_code == 0:
                p.producer_id, p.epoch = answer.producer_id, answer.producer_epoch
    init, end, fence, empty, tv1 = producers
    for p in producers:
        p.describe()
    old = (init.producer_id, init.epoch)
    for _ in range(2):
        init.init(producer_id=old[0], epoch=old[1])
    init.init()
    init.init(producer_id=old[0], epoch=old[1])

    old = (end.producer_id, end.epoch)
    start = script.next_offset(0)
    end.produce(0, version=12)
    end.end("commit", 5, adopt=False)
    end.settled()
    end.end("abort", 5, *old, adopt=False)
    end.end("commit", 5, *old)
    end.produce(0, version=12)
    for outcome in ("commit", "abort"):
        end.end(outcome, 5, *old, adopt=False)
    end.end("commit", 5)
    end.settled()
    end.end("commit", 5, *old)
    script.note_log(0, start)

    old = (fence.producer_id, fence.epoch)
    start = script.next_offset(0)
    fence.produce(0, version=12)
    assert fence.init() == "CONCURRENT_TRANSACTIONS"
    fence.settled()
    fence.end("abort", 5, *old, adopt=False)
    fence.end("commit", 5, *old, adopt=False)
    fence.init(producer_id=old[0], epoch=old[1])
    fence.init()
    fence.init(producer_id=old[0], epoch=old[1])
    script.note_log(0, start)

    empty.end("abort", 5)
    empty.settled()
    empty.end("abort", 5)
    empty.settled()

    for outcome in ("commit", "abort"):
        tv1.add(0)
        tv1.produce(0)
        tv1.end(outcome, 3)
        tv1.settled()
    tv1.init()
    tv1.describe()


@pytest.mark.soak
def test_the_last_epoch_as_kafka(kafka: str, barnabas: str) -> None:
    run = str(time.time_ns())
    assert play(barnabas, epochs_run_out, run) == play(kafka, epochs_run_out, run)
