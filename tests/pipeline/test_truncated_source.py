"""The source on a log that an unclean election truncates below what was read or planned: it fails, or warns, by `failOnDataLoss`.

The election is that of `tests/process/test_unclean_election.py`; afterwards the log grows beyond the offsets that were planned, so
that offsets alone tell nothing. A query that is started again has only what its checkpoint says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from barnabas.client.types import TopicPartition
from barnabas.pipeline.discovery import ask, plan_batch
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.planning import EPOCHS, OffsetRange, Pushdown, from_json
from barnabas.pipeline.reading import read_ranges
from barnabas.pipeline.stream import StreamReader
from tests.support.processes.cluster import Cluster
from tests.support.processes.forked_log import AFTER, BEFORE, LOST, TOPIC, produce
from tests.support.processes.kit_cluster import cluster, start_cluster

__all__ = ["cluster", "start_cluster"]

pytestmark = pytest.mark.process


def options_of(cluster: Cluster, *, streaming: bool, lenient: bool) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "failOnDataLoss": str(not lenient).lower(),
        "kafka.max.partition.fetch.bytes": "100",  # a batch an answer
    }
    return SourceOptions.parse(given, streaming=streaming)


def values(tables: Any) -> list[bytes]:
    return [value for table in tables for value in table["value"].to_pylist()]


def test_a_log_that_was_truncated_and_has_grown_again(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.create_topic(
        TOPIC, 1, replication_factor=2, min__insync__replicas="1", unclean__leader__election__enable="true"
    )
    first = cluster.leader(TOPIC, 0)
    (behind,) = (node_id for node_id in cluster.partitions(TOPIC)[0].replica_nodes if node_id != first)
    produce(cluster, BEFORE)
    cluster.kill(behind)
    cluster.wait_until(lambda: cluster.partitions(TOPIC)[0].isr_nodes == [first], "the leader is alone in sync")
    produce(cluster, LOST)

    kinds = {lenient: options_of(cluster, streaming=True, lenient=lenient) for lenient in (False, True)}
    streams = {lenient: StreamReader(options) for lenient, options in kinds.items()}
    ends = {lenient: stream.latestOffset({TOPIC: {"0": 0}}, ReadAllAvailable()) for lenient, stream in streams.items()}
    epochs = f'{EPOCHS} {{"":{{"0":1}},"{TOPIC}":{{"0":0}}}}'
    assert ends[False] == ends[True] == {TOPIC: {"0": 20}, epochs: {}}
    (planned,) = ask(kinds[False], lambda discovery: plan_batch(discovery, Pushdown()))
    assert planned[:4] == OffsetRange(TOPIC, 0, 0, 20)[:4]
    begun = {lenient: read_ranges(options, [planned]) for lenient, options in kinds.items()}
    for reading in begun.values():
        assert values([next(reading)]) == BEFORE

    cluster.kill(first)
    cluster.start_node(behind)
    cluster.wait_until(lambda: cluster.leader(TOPIC, 0) == behind, "who had fallen behind leads")
    for _ in range(2):
        produce(cluster, AFTER)

    strict = begun[False]
    assert isinstance(strict, Generator)
    strict.close()
    # In the middle of a task, whose next answer may have come before the election:
    assert values(begun[True]) in (LOST, AFTER), "one branch or the other, never a part of each"
    # Between the plan and its task:
    with pytest.raises(PipelineError, match=r"failOnDataLoss.*stops the query: the log was truncated.*offset 10 "):
        values(read_ranges(kinds[False], [planned]))
    assert values(read_ranges(kinds[True], [planned])) == BEFORE + AFTER
    # Between two batches:
    with pytest.raises(PipelineError, match=r"was truncated to offset 10, and offsets up to 19 were read or planned"):
        streams[False].partitions({TOPIC: {"0": 0}}, ends[False])
    with pytest.raises(PipelineError, match=r"was truncated to offset 10, and offsets up to 19 were read or planned"):
        streams[False].latestOffset(ends[False], ReadAllAvailable())
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert from_json(streams[True].latestOffset(ends[True], ReadAllAvailable())) == {TopicPartition(TOPIC, 0): 30}
    assert "was truncated to offset 10" in caplog.text
    _start_again(kinds, json.loads(json.dumps(ends[False])), caplog)


def _start_again(kinds: dict[bool, SourceOptions], end: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """New readers, as after a restart of the query, go on from a checkpoint that was written before the election."""
    truncated = r"was truncated to offset 10, and offsets up to 19 were read or planned"
    with pytest.raises(PipelineError, match=truncated):
        StreamReader(kinds[False]).latestOffset(end, ReadAllAvailable())
    with pytest.raises(PipelineError, match=truncated):  # the last batch was planned, and not done
        StreamReader(kinds[False]).partitions({TOPIC: {"0": 0}}, end)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        lenient = StreamReader(kinds[True])
        done = lenient.latestOffset(end, ReadAllAvailable())
        assert from_json(done) == {TopicPartition(TOPIC, 0): 30}
        assert values(table for part in lenient.partitions(end, done) for table in lenient.read(part)) == AFTER
    assert caplog.text.count("was truncated to offset 10") == 1
    assert StreamReader(kinds[False]).latestOffset(done, ReadAllAvailable()) is done, "its epochs are those of the log"
    # Checkpoints of earlier versions: the epochs have a key of their own, or are missing and then not compared.
    earlier = {TOPIC: {"0": 20}, EPOCHS: {TOPIC: {"0": 0}}}
    with pytest.raises(PipelineError, match=truncated):
        StreamReader(kinds[False]).latestOffset(earlier, ReadAllAvailable())
    before = {TOPIC: {"0": 20}}
    assert from_json(StreamReader(kinds[False]).latestOffset(before, ReadAllAvailable())) == from_json(done)
    # Its offsets, given to another query with their epochs:
    given = {"kafka.bootstrap.servers": kinds[False].client.bootstrap_servers, "subscribe": TOPIC}
    another = StreamReader(SourceOptions.parse(given | {"startingOffsets": json.dumps(end)}, streaming=True))
    with pytest.raises(PipelineError, match=truncated):
        another.latestOffset(another.initialOffset(), ReadAllAvailable())
