"""TopicSeries: the sums of all topics while topics are deleted."""

from __future__ import annotations

import pytest

from barnabas.broker.metrics import topic_series
from barnabas.broker.metrics.line_table import LineTable
from barnabas.broker.metrics.topic_series import TopicSeries
from barnabas.broker.replica.core.traffic import Traffic
from barnabas.work import finished


def records_of_all(series: TopicSeries, traffic: Traffic, deleted: str = "") -> int:
    """The counter of all topics; `deleted` is deleted in the first pause of the scrape."""
    out: list[bytes] = []
    for each in series.collect():
        if each is None and deleted:
            traffic.forget(deleted)
            deleted = ""
        elif isinstance(each, LineTable):
            finished(each.written(out, openmetrics=False))
    (line,) = [
        each
        for each in b"".join(out).splitlines()
        if each.startswith(b"kafka_server_brokertopicmetrics_messagesin_total ")
    ]
    return int(line.split()[1])


def test_a_topic_that_is_deleted_within_a_scrape_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that falls again is a restart for Prometheus, and all of it an increase."""
    monkeypatch.setattr(topic_series, "TOPICS_PER_SLICE", 1)
    traffic = Traffic()
    for name in ("a", "b", "c"):
        traffic.of(name).messages_in = 10
        traffic.of(name).produce_requests = 1
    series = TopicSeries(traffic)
    assert records_of_all(series, traffic) == 30
    for deleted in ("a", "c"):
        assert records_of_all(series, traffic, deleted) == 30
    assert records_of_all(series, traffic) == 30
