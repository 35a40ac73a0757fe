"""How tests start a real Kafka: the tool, what it needs, its settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

__all__ = ["KAFKA_UP", "MISSING", "SCRAM_MODULE", "SETTINGS", "START_SECONDS_MAX", "UNKNOWN_SETTING", "needs_java"]

KAFKA_UP = Path(__file__).parents[2] / "oracle" / "kafka-up"
MISSING = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]  # of what fetches and runs it
START_SECONDS_MAX = 240  # the first start on a machine downloads Kafka
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
UNKNOWN_SETTING = "of.a.plugin=secret"  # to Kafka and to Barnabas; the test kit refuses it
# On both sides of every comparison. Groups may be set to short sessions, else a test would wait for long ones.
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.min.session.timeout.ms=500",
    UNKNOWN_SETTING,
)


def needs_java(without: str = "no real Kafka to compare with") -> None:
    """Skips the test where Java or Maven is missing; `without` says what is left out then."""
    if MISSING:
        pytest.skip(f"{without}: {' and '.join(MISSING)} not installed")
