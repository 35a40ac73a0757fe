"""What a listener says of a query, from progress as Spark writes it, and from a sink's reports."""

from __future__ import annotations

import logging
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from prometheus_client import CollectorRegistry

from barnabas.pipeline.query_metrics import Lag, QueryMetrics, lag_of
from barnabas.pipeline.sink_reports import SinkReport, send

BEHIND = {"endOffset": {"a": {"0": 5, "1": 7}, "b": {"0": 1}}, "latestOffset": {"a": {"0": 5, "1": 10}, "b": {"0": 3}}}


def progress(*sources: dict[str, Any], query: str = "q-1", **more: Any) -> dict[str, Any]:
    steps = {"addBatch": 500, "triggerExecution": 700}
    return {"id": query, "batchId": 3, "numInputRows": 20, "durationMs": steps, "sources": list(sources), **more}


def test_lag_is_that_of_the_connector_by_topic() -> None:
    assert lag_of(progress(BEHIND)) == {"a": Lag(0, 3, 1.5, 3), "b": Lag(2, 2, 2.0, 2)}
    new_partition = {"endOffset": {"a": {"0": 5}}, "latestOffset": {"a": {"0": 5, "1": 4}}}
    assert lag_of(progress(new_partition)) == {"a": Lag(0, 4, 2.0, 4)}
    ahead = {"endOffset": {"a": {"0": 9}}, "latestOffset": {"a": {"0": 5}}}
    assert lag_of(progress(ahead)) == {"a": Lag(0, 0, 0.0, 0)}


def test_two_sources_with_one_topic() -> None:
    other = {"endOffset": {"a": {"0": 0}}, "latestOffset": {"a": {"0": 6}}}
    assert lag_of(progress(BEHIND, other))["a"] == Lag(0, 6, 3.0, 9)


@pytest.mark.parametrize(
    "source",
    [
        {"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}},  # files
        {"endOffset": 10, "latestOffset": None},  # rate
        {"endOffset": {"a": {"0": 1}}},  # nothing was reported yet
    ],
)
def test_a_source_without_topics_or_latest_offsets(source: dict[str, Any]) -> None:
    assert lag_of(progress(source)) == {}


def test_leader_epochs_in_an_end_offset_are_no_topic() -> None:
    forms: list[dict[str, Any]] = [{'leader epochs {"a":{"0":4}}': {}}, {"leader epochs": {"a": {"0": 4}}}]
    for epochs in forms:
        source = {"endOffset": {"a": {"0": 5}, **epochs}, "latestOffset": {"a": {"0": 6}}}
        assert lag_of(progress(source)) == {"a": Lag(1, 1, 1.0, 1)}


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CollectorRegistry:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return CollectorRegistry()


def test_a_line_and_series_for_a_batch(series: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    metrics = QueryMetrics(series)
    send("q-1", SinkReport(aborted=9))  # no listener yet
    with caplog.at_level(logging.INFO, "barnabas.pipeline"):
        metrics.on_progress(progress(BEHIND, name="copy"))
        send("q-1", SinkReport(4, aborted=2))  # an attempt that failed
        send("q-1", SinkReport(4, start=5, decision=30, commit=12, aborted=1))
        send("q-1", SinkReport(5, decision=1000))  # of a batch that Spark has not told of yet
        metrics.on_progress(progress(BEHIND, name="copy", batchId=4))
    first, second = caplog.messages
    lag = "a: 3 offsets behind, 3 in one partition, b: 2 offsets behind, 2 in one partition"
    assert first == f"query copy: batch 3, 20 rows in 700 ms (addBatch 500); {lag}; 0 aborted parts"
    steps = "addBatch 500, sinkStart 5, decision 30, commit 12"
    assert second == f"query copy: batch 4, 20 rows in 700 ms ({steps}); {lag}; 3 aborted parts"

    def value(name: str, **labels: str) -> float | None:
        return series.get_sample_value(f"barnabas_query_{name}", {"query": "copy", **labels})

    assert [value(f"{stat}_offsets_behind_latest", topic="a") for stat in ("min", "max", "avg")] == [0, 3, 1.5]
    assert (value("rows_total"), value("aborted_parts_total"), value("running")) == (40, 3, 1)
    assert value("step_seconds_sum", step="addBatch") == 1.0
    assert value("step_seconds_count", step="decision") == 1


def test_the_end_of_a_query_and_its_restart(series: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    metrics = QueryMetrics(series)
    query = uuid.uuid4()

    class Ended:
        id = query
        name = None
        exception = "[STREAM_FAILED] option 'topic' is not there\n=== Streaming Query ==="

    def running() -> float | None:
        return series.get_sample_value("barnabas_query_running", {"query": str(query)})

    event: Any = Ended()
    metrics.onQueryStarted(event)
    assert running() == 1
    metrics.onQueryTerminated(event)
    assert running() == 0
    assert caplog.messages == [f"query {query} has failed: [STREAM_FAILED] option 'topic' is not there"]
    metrics.onQueryStarted(event)
    send(str(query), SinkReport(decision=3))
    metrics.on_progress(progress(query=str(query)))
    assert running() == 1
    steps = {"query": str(query), "step": "decision"}
    assert series.get_sample_value("barnabas_query_step_seconds_sum", steps) == 0.003


def test_without_a_folder_for_sockets_only_the_sinks_steps_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    registry = CollectorRegistry()
    QueryMetrics(registry).on_progress(progress(BEHIND))
    send("q-1", SinkReport())
    assert registry.get_sample_value("barnabas_query_rows_total", {"query": "q-1"}) == 20
