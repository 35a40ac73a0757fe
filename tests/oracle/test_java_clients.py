"""Kafka's own Java clients against a served Barnabas: topic ids, fetch sessions and TV2 transactions as the newest client speaks them."""

from __future__ import annotations

import uuid

import pytest

from barnabas.protocol.records import iter_batches
from tests.support.oracle.tools import tool
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

ROWS = 2_000


def test_an_exactly_once_copy_by_java(barnabas: str) -> None:
    """Console producer, transactional copier with random aborts, console consumer under read_committed."""
    source, target = "j" + uuid.uuid4().hex[:8], "j" + uuid.uuid4().hex[:8]
    lines = "".join(f"row {n}\n" for n in range(ROWS))
    tool("ConsoleProducer", "--bootstrap-server", barnabas, "--topic", source, stdin=lines)
    copier = ["--broker-list", barnabas, "--input-topic", source, "--input-partition", "0", "--output-topic", target]
    copier += ["--consumer-group", f"g-{source}", "--transactional-id", f"tx-{source}", "--transaction-size", "150"]
    said = tool("TransactionalMessageCopier", *copier, "--enable-random-aborts")
    assert f'"totalProcessed":{ROWS},"consumed":{ROWS},"remaining":0' in said
    consumer = ["--bootstrap-server", barnabas, "--topic", target, "--from-beginning", "--timeout-ms", "20000"]
    consumer += ["--isolation-level", "read_committed", "--max-messages", str(ROWS)]
    assert tool("consumer.ConsoleConsumer", *consumer) == lines
    with Wire(barnabas) as wire:
        data = wire.fetch(target, 0, 0, isolation_level=1)
        batches = [header for _, header in iter_batches(data.records)]
    assert data.last_stable_offset == data.high_watermark, "no transaction is left open"
    epochs = [header.producer_epoch for header in batches if not header.is_control]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > ROWS // 150, "a new epoch each transaction: TV2"
