"""Truncation as its readers see it: a leader that was alone dies, one that had fallen behind is elected, and the log forks.

What was acknowledged by the lone leader is gone, as `unclean.leader.election.enable` allows. Nobody may miss that: readers beyond
the fork are told by Fetch and by OffsetForLeaderEpoch where the logs part, librdkafka turns that into an error or goes back, and
the former leader gives up its own branch.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.records import decode_records, iter_batches
from tests.support.clients.librdkafka import Debugged, value_of
from tests.support.processes.cluster import Cluster

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, TopicPartition  # noqa: E402  # after the check that it is there

from tests.support.processes.forked_log import AFTER, BEFORE, LOST, TOPIC, produce  # noqa: E402  # after the check that it is there
from tests.support.processes.kit_cluster import cluster, start_cluster  # noqa: E402  # as above

__all__ = ["cluster", "start_cluster"]

pytestmark = pytest.mark.process

REWRITTEN = AFTER[:5]  # fewer than were lost: the position of a reader stays beyond the end


def fetch(cluster: Cluster, node_id: int, offset: int, last_fetched_epoch: int) -> Any:
    """One fetch of version 12, as of a reader that has fetched up to there in that epoch."""
    part = FetchPartition(partition=0, fetch_offset=offset, last_fetched_epoch=last_fetched_epoch)
    part.partition_max_bytes = 1 << 20
    request = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=0, session_epoch=-1)
    request.topics = [FetchTopic(topic=TOPIC, partitions=[part])]
    return cluster.ask(request, 12, of=node_id).responses[0].partitions[0]


def values_and_epoch(cluster: Cluster, node_id: int) -> tuple[list[bytes], int]:
    """Everything that the leader gives out, and the epoch of the last batch."""
    part = fetch(cluster, node_id, 0, -1)
    assert part.error_code == 0, part
    values, epoch = [], -1
    for at, header in iter_batches(part.records or b""):
        values += [bytes(record.value or b"") for record in decode_records(part.records, at, header)]
        epoch = header.leader_epoch
    return values, epoch


def end_of_epoch(cluster: Cluster, node_id: int, epoch: int) -> Any:
    asked = OffsetForLeaderTopic(topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=epoch)])
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked])
    return cluster.ask(request, 4, of=node_id).topics[0].partitions[0]


class Reader:
    """A consumer of librdkafka that reads the topic from its beginning."""

    def __init__(self, cluster: Cluster, reset: str) -> None:
        self._debugged = Debugged(f"reader-{reset}")
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"reader-{reset}",
                "auto.offset.reset": reset,
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "debug": "topic,fetch,broker,metadata",
            },
            logger=self._debugged.logger,
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def close(self) -> None:
        self._consumer.close()

    def read_until(self, last: bytes | None, seconds: float = 60) -> list[bytes | str]:
        """Values, and texts of errors that are no connection's, up to `last`, or to the first such error where it is None."""
        seen: list[bytes | str] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                seen.append(value_of(message))
                if message.value() == last:
                    return seen
            elif not error.retriable() and error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                seen.append(error.str())
                if last is None:
                    return seen
        raise AssertionError(f"{last!r} was not read, but {seen}; librdkafka:\n{self._debugged}")


def test_readers_beyond_the_fork_learn_where_the_logs_part(cluster: Cluster) -> None:
    cluster.create_topic(
        TOPIC, 1, replication_factor=2, min__insync__replicas="1", unclean__leader__election__enable="true"
    )
    behind = cluster.leader(TOPIC, 0)
    (first,) = (node_id for node_id in cluster.partitions(TOPIC)[0].replica_nodes if node_id != behind)
    produce(cluster, BEFORE)
    strict, lenient = Reader(cluster, "error"), Reader(cluster, "earliest")
    try:
        assert strict.read_until(BEFORE[-1]) == lenient.read_until(BEFORE[-1]) == BEFORE
        cluster.kill(behind)
        cluster.wait_until(
            lambda: cluster.partitions(TOPIC)[0].isr_nodes == [first], "the other one is alone in sync", 60
        )
        produce(cluster, LOST)
        values, epoch = values_and_epoch(cluster, first)
        assert values == BEFORE + LOST
        assert strict.read_until(LOST[-1]) == lenient.read_until(LOST[-1]) == LOST
        cluster.kill(first)
        cluster.start_node(behind)
        cluster.wait_until(lambda: cluster.leader(TOPIC, 0) == behind, "who had fallen behind leads", 60)
        produce(cluster, REWRITTEN)
        # Said by the protocol, to a consumer that has read everything the former leader gave out:
        told = fetch(cluster, behind, len(values), epoch)
        assert (told.error_code, told.diverging_epoch.end_offset) == (0, len(BEFORE))
        assert told.diverging_epoch.epoch <= epoch
        assert not told.records
        end = end_of_epoch(cluster, behind, epoch)
        assert (end.error_code, end.end_offset) == (0, len(BEFORE))
        # And in a client: one is told, the other one goes on where the logs part. librdkafka compares the logs only where it
        # knows the broker's versions at that moment; else it learns by its next fetch that its position is out of range.
        (error,) = strict.read_until(None)
        assert "log truncation" in str(error).lower() or "offset out of range" in str(error).lower(), error
        assert lenient.read_until(REWRITTEN[-1]) in (REWRITTEN, BEFORE + REWRITTEN)
    finally:
        strict.close()
        lenient.close()
    cluster.start_node(first)
    cluster.wait_in_sync(TOPIC)
    cluster.kill(behind)  # so that the former leader shows what it holds
    cluster.wait_until(lambda: cluster.leader(TOPIC, 0) == first, "the former leader leads", 60)
    assert values_and_epoch(cluster, first)[0] == BEFORE + REWRITTEN
