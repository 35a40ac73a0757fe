"""What the settings of a node become in the parts that use them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.key import ConfigType
from barnabas.broker.config.table import TOPIC_KEYS
from barnabas.broker.config.topic_config import log_config
from barnabas.broker.quorum.core.raft_log import log_config_of
from barnabas.broker.quorum.core.roles import Timing
from barnabas.broker.replica.core.fetch_plan import FetchLimits
from barnabas.broker.replica.fetcher import limits_of
from barnabas.storage.log_config import LogConfig

JITTER = {"log.roll.jitter.hours": "1"}


# -- what a log is told

OTHER = {
    ConfigType.INT: "1048577",
    ConfigType.LONG: "777",
    ConfigType.DOUBLE: "0.25",
    ConfigType.BOOLEAN: "true",
}
WORDS = {
    "log.cleanup.policy": "compact",
    "compression.type": "lz4",
    "log.message.timestamp.type": "LogAppendTime",
    "compression.gzip.level": "7",
    "compression.lz4.level": "7",
    "compression.zstd.level": "7",
}
CARRIED = [
    (name, synonym)
    for name, key in TOPIC_KEYS.items()
    for synonym in key.synonyms
    if hasattr(LogConfig(), name.replace(".", "_"))
]


@pytest.mark.parametrize(("topic_key", "server_key"), CARRIED)
def test_a_log_is_told_what_the_node_says_and_the_topic_above_it(topic_key: str, server_key: str) -> None:
    field = topic_key.replace(".", "_")
    text = WORDS.get(server_key) or ("3" if "hours" in server_key else OTHER[TOPIC_KEYS[topic_key].type])
    from_node = getattr(log_config(BrokerConfig({server_key: text}), {}), field)
    assert from_node != getattr(LogConfig(), field)
    own = TOPIC_KEYS[topic_key]
    assert getattr(log_config(BrokerConfig({server_key: text}), {topic_key: own.render(own.default) or ""}), field) == (
        getattr(LogConfig(), field)
    )


def test_a_coarser_unit_of_the_jitter_counts_where_the_finer_one_is_not_set() -> None:
    assert log_config(BrokerConfig(JITTER), {}).segment_jitter_ms == 3_600_000
    assert log_config(BrokerConfig({**JITTER, "log.roll.jitter.ms": "5"}), {}).segment_jitter_ms == 5


# -- what the quorum and the coordinators are told


@pytest.mark.parametrize(
    ("key", "read"),
    [
        ("controller.quorum.fetch.timeout.ms", lambda timing: timing.fetch_timeout_ms),
        ("controller.quorum.election.timeout.ms", lambda timing: timing.election_timeout_ms),
        ("controller.quorum.election.backoff.max.ms", lambda timing: timing.election_backoff_max_ms),
        ("controller.quorum.request.timeout.ms", lambda timing: timing.request_timeout_ms),
        ("controller.quorum.retry.backoff.ms", lambda timing: timing.retry_backoff_ms),
    ],
)
def test_timing_of_the_quorum(key: str, read: Callable[[Timing], int]) -> None:
    assert read(Timing.from_config(BrokerConfig({key: "77"}))) == 77


def test_limits_of_replication_and_of_the_metadata_log() -> None:
    config = BrokerConfig(
        {
            "replica.fetch.min.bytes": "3",
            "replica.fetch.wait.max.ms": "4",
            "replica.fetch.response.max.bytes": "5",
            "replica.fetch.max.bytes": "6",
            "replica.fetch.backoff.ms": "7",
        }
    )
    assert limits_of(config) == FetchLimits(
        wait_ms_max=4, bytes_min=3, response_bytes_max=5, partition_bytes_max=6, backoff_ms=7
    )
    metadata = log_config_of(BrokerConfig({"metadata.log.segment.ms": "8", "metadata.log.segment.bytes": "9000000"}))
    assert (metadata.segment_ms, metadata.segment_bytes) == (8, 9_000_000)
