"""Tests of the application in worker.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker import process

from barnabas.client import KafkaError
from barnabas.testing import Cluster
from barnabas.testing.clients import KitProducer
from barnabas.testing.faults.handles import Faults


def test_a_failed_record_is_processed_again(
    kafka_topic: str, kafka_producer: KitProducer, kafka_aio_config: dict[str, Any]
) -> None:
    for value in (b"1", b"2", b"3"):
        kafka_producer.send(kafka_topic, value)
    seen: list[bytes] = []

    def fail_at_two(value: bytes) -> None:
        if value == b"2" and b"2" not in seen:
            seen.append(value)
            raise RuntimeError("the machine lost power")
        seen.append(value)

    with pytest.raises(RuntimeError, match="lost power"):
        asyncio.run(process(kafka_aio_config, kafka_topic, 3, fail_at_two))
    asyncio.run(asyncio.wait_for(process(kafka_aio_config, kafka_topic, 2, fail_at_two), 60))
    assert seen == [b"1", b"2", b"2", b"3"]


def test_the_place_of_the_group_survives_a_restart_of_kafka(
    kafka: Cluster, kafka_topic: str, kafka_producer: KitProducer, kafka_aio_config: dict[str, Any]
) -> None:
    for value in (b"1", b"2"):
        kafka_producer.send(kafka_topic, value)
    seen: list[bytes] = []
    asyncio.run(process(kafka_aio_config, kafka_topic, 1, seen.append))
    kafka.kill(1)
    kafka.restart(1)
    asyncio.run(process(kafka_aio_config, kafka_topic, 1, seen.append))
    assert seen == [b"1", b"2"]


def test_a_record_whose_commit_was_refused_is_processed_again(
    kafka_topic: str, kafka_producer: KitProducer, kafka_aio_config: dict[str, Any], kafka_faults: Faults
) -> None:
    kafka_producer.send(kafka_topic, b"1")
    seen: list[bytes] = []
    kafka_faults.on("OffsetCommit", group="worker").error("ILLEGAL_GENERATION")
    with pytest.raises(KafkaError):
        asyncio.run(process(kafka_aio_config, kafka_topic, 1, seen.append))
    asyncio.run(asyncio.wait_for(process(kafka_aio_config, kafka_topic, 1, seen.append), 60))
    assert seen == [b"1", b"1"]
