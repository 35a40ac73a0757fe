"""QueryMetrics: what a streaming query does, as one log line a batch and as series for Prometheus."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from barnabas.pipeline.planning import from_json
from barnabas.pipeline.sink_reports import NOTHING, Mailbox, SinkReport

log = logging.getLogger("barnabas.pipeline")


class Lag(NamedTuple):
    """Offsets of a topic that a query has not read yet, over its partitions; aborted and control records count."""

    min: int
    max: int
    avg: float
    total: int


def lag_of(progress: Mapping[str, Any]) -> dict[str, Lag]:
    """The lag of each topic, from a query's progress as JSON: sources `barnabas`, and Spark's own connector."""
    behind: dict[str, list[int]] = {}
    for source in progress["sources"]:
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if not all(isinstance(o, dict) and all(isinstance(each, dict) for each in o.values()) for o in (latest, end)):
            continue  # a source of something else
        read = from_json(end)
        for tp, last in from_json(latest).items():
            behind.setdefault(tp.topic, []).append(max(0, last - read.get(tp, 0)))
    return {
        topic: Lag(min(each), max(each), sum(each) / len(each), sum(each)) for topic, each in sorted(behind.items())
    }


@dataclass
class _Query:
    name: str
    mailbox: Mailbox
    reports: list[SinkReport] = field(default_factory=list)  # of batches that Spark has not told of yet
    running: bool = True
    rows: int = 0
    aborted: int = 0
    lag: dict[str, Lag] = field(default_factory=dict)
    steps: dict[str, tuple[int, float]] = field(default_factory=dict)  # number and sum of seconds, by step of a batch


class QueryMetrics(StreamingQueryListener):
    """Listens to all streaming queries of a session: `spark.streams.addListener(QueryMetrics())`.

    The logger `barnabas.pipeline` gets a line per batch (INFO) and per failed query (ERROR). Steps of a batch are those of
    Spark's progress (`durationMs`), and of a sink `barnabas` with exactly once on this host `sinkStart`, `decision` and
    `commit` (phase two).

    Args:
        registry: gets the series `barnabas_query_…`; serve it by `prometheus_client.start_http_server(port)`.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._queries: dict[str, _Query] = {}
        registry.register(self)

    # -- Spark ---------------------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._query(str(event.id), event.name).running = True

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Takes the progress of one batch."""
        self.on_progress(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query = self._query(str(event.id), None)
        query.running = False
        query.mailbox.close()
        if event.exception:
            log.error("query %s has failed: %s", query.name, event.exception.strip().partition("\n")[0])

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        """Takes the progress of one batch, as JSON."""
        query = self._query(progress["id"], progress.get("name"))
        batch = progress["batchId"]
        query.reports += query.mailbox.take()  # Spark may tell of a batch when the next one is committed already
        reports = [report for report in query.reports if report.batch <= batch]
        query.reports = [report for report in query.reports if report.batch > batch]
        last = SinkReport(*(sum(numbers) for numbers in zip(*reports, strict=True))) if reports else NOTHING
        steps = dict(progress["durationMs"])
        if reports:
            steps |= {"sinkStart": last.start, "decision": last.decision, "commit": last.commit}
        for step, ms in steps.items():
            count, seconds = query.steps.get(step, (0, 0.0))
            query.steps[step] = count + 1, seconds + ms / 1000
        query.rows += progress["numInputRows"]
        query.aborted += last.aborted
        query.lag = lag_of(progress)
        log.info(
            "query %s: batch %d, %d rows in %d ms (%s); %s; %d aborted parts",
            query.name,
            batch,
            progress["numInputRows"],
            steps.pop("triggerExecution", 0),
            ", ".join(f"{step} {ms}" for step, ms in steps.items()),
            ", ".join(
                f"{topic}: {lag.total} offsets behind, {lag.max} in one partition" for topic, lag in query.lag.items()
            )
            or "lag unknown",
            last.aborted,
        )

    # -- Prometheus ----------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """The series, for a registry."""
        queries = list(self._queries.values())
        for stat in ("min", "max", "avg"):
            lags = GaugeMetricFamily(
                f"barnabas_query_{stat}_offsets_behind_latest",
                "Offsets that the query has not read, over the partitions of a topic.",
                labels=("query", "topic"),
            )
            for query in queries:
                for topic, lag in query.lag.items():
                    lags.add_metric((query.name, topic), getattr(lag, stat))
            yield lags
        running = GaugeMetricFamily("barnabas_query_running", "1, or 0 after the end.", labels=("query",))
        rows = CounterMetricFamily("barnabas_query_rows", "Rows that the query has read.", labels=("query",))
        aborted = CounterMetricFamily(
            "barnabas_query_aborted_parts", "Parts of the sink that were aborted.", labels=("query",)
        )
        steps = SummaryMetricFamily("barnabas_query_step_seconds", "Steps of batches.", labels=("query", "step"))
        for query in queries:
            running.add_metric((query.name,), query.running)
            rows.add_metric((query.name,), query.rows)
            aborted.add_metric((query.name,), query.aborted)
            for step, (count, seconds) in list(query.steps.items()):
                steps.add_metric((query.name, step), count, seconds)
        yield from (running, rows, aborted, steps)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _query(self, identifier: str, name: str | None) -> _Query:
        """The query, also if it began before this listener; a restarted one keeps its sums."""
        found = self._queries.get(identifier)
        if found is None or not found.running:
            mailbox = Mailbox(identifier)
            if found is None:
                found = self._queries[identifier] = _Query(name or identifier, mailbox)
            found.mailbox = mailbox
        return found
