"""Writes docs/grafana/barnabas.json, the Grafana board of a Barnabas cluster, from the table ROWS.

    python docs/grafana/make_board.py

Every query selects the scrape job by the variable `job`; the data source is a variable, too. tests/testing_kit/test_boards.py checks that
the file is fresh and that brokers under traffic have every series that it asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["BOARD", "ROWS", "Panel", "board"]

BOARD: Final = Path(__file__).with_name("barnabas.json")
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, STAT_WIDTH, STAT_HEIGHT, GRAPH_WIDTH, GRAPH_HEIGHT = 24, 4, 4, 8, 8


class Panel(NamedTuple):
    """A panel. `queries` has an expression for each legend; `#` stands for the labels that every query selects.

    Attributes:
        warn, alarm: values from which it is yellow and red; a stat without them is green.
        below: the value below which it is red.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    stat: bool = False
    warn: float | None = None
    alarm: float | None = None
    below: float | None = None


TOPIC, MANAGER = "kafka_server_brokertopicmetrics_", "kafka_server_replicamanager_"
CONTROLLER, RAFT = "kafka_controller_kafkacontroller_", "kafka_server_raftmetrics_"

ROWS: Final[dict[str, list[Panel]]] = {
    "Cluster": [
        Panel("Brokers", {"brokers": "sum(kafka_brokers{#})"}, stat=True, below=1),
        Panel("Partitions", {"partitions": "sum(kafka_topic_partitions{#})"}, stat=True),
        Panel("Offline partitions", {"offline": f"max({CONTROLLER}offlinepartitionscount{{#}})"}, stat=True, alarm=1),
        Panel(
            "Under-replicated partitions",
            {"partitions": f"sum({MANAGER}underreplicatedpartitions{{#}})"},
            stat=True,
            warn=1,
            alarm=10,
        ),
        Panel("Under min ISR", {"partitions": f"sum({MANAGER}underminisrpartitioncount{{#}})"}, stat=True, alarm=1),
        Panel(
            "Offline log directories",
            {"directories": "sum(kafka_log_logmanager_offlinelogdirectorycount{#})"},
            stat=True,
            alarm=1,
        ),
        Panel(
            "Bytes in and out",
            {
                name: f'sum(rate({TOPIC}{name}_total{{topic!="",#}}[$__rate_interval]))'
                for name in ("bytesin", "bytesout")
            },
            unit="Bps",
        ),
        Panel(
            "Records in by topic",
            {"{{topic}}": f'sum by (topic) (rate({TOPIC}messagesin_total{{topic!="",#}}[$__rate_interval]))'},
            unit="cps",
        ),
        Panel(
            "Time of requests, 99 %",
            {
                "{{request}}": 'max by (request) (kafka_network_requestmetrics_totaltimems{quantile="0.99",'
                'request=~"Produce|FetchConsumer|EndTxn|AddPartitionsToTxn|OffsetCommit",#})'
            },
            unit="ms",
        ),
        Panel(
            "Requests by API",
            {
                "{{request}}": "sum by (request) (rate(kafka_network_requestmetrics_requests_total{#}[$__rate_interval]))"
            },
            unit="reqps",
        ),
        Panel(
            "Idle share of the loop",
            {"{{instance}}": "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{#}"},
            unit="percentunit",
        ),
        Panel(
            "Longest pause of the loop",
            {"{{instance}}": "barnabas_loop_longest_pause_seconds{#}"},
            unit="s",
            warn=0.1,
            alarm=1,
        ),
        Panel(
            "Connections",
            {
                "{{instance}} {{listener}}": "sum by (instance, listener) (kafka_server_socket_server_metrics_connection_count{#})"
            },
        ),
        Panel(
            "Connections refused",
            {"{{reason}}": "sum by (reason) (rate(barnabas_connections_refused_total{#}[$__rate_interval]))"},
            unit="cps",
        ),
        Panel("Bytes of logs", {"{{instance}}": "sum by (instance) (kafka_log_log_size{#})"}, unit="bytes"),
        Panel("Memory", {"{{instance}}": "process_resident_memory_bytes{#}"}, unit="bytes"),
        Panel("Open files", {"{{instance}}": "process_open_fds{#}"}),
        Panel(
            "Recovery: logs that are not open",
            {"{{instance}}": "barnabas_recovery_logs{#} - barnabas_recovery_logs_opened{#}"},
            warn=1,
        ),
    ],
    "Quorum": [
        Panel(
            "Active controllers",
            {"active": f"sum({CONTROLLER}activecontrollercount{{#}})"},
            stat=True,
            below=1,
            alarm=2,
        ),
        Panel("Fenced brokers", {"fenced": f"max({CONTROLLER}fencedbrokercount{{#}})"}, stat=True, alarm=1),
        Panel("Leader", {"leader": f"max({RAFT}current_leader{{#}})"}, unit="none", stat=True, below=0),
        Panel("Epoch", {"epoch": f"max({RAFT}current_epoch{{#}})"}, unit="none", stat=True),
        Panel(
            "Brokers fenced by probes", {"fences": "sum(barnabas_controller_probe_fences_total{#})"}, stat=True, warn=1
        ),
        Panel(
            "Unclean elections",
            {"elections": "max(kafka_controller_controllerstats_uncleanleaderelections_total{#})"},
            stat=True,
            alarm=1,
        ),
        Panel(
            "Behind the leader's log",
            {"{{instance}}": f"scalar(max({RAFT}log_end_offset{{#}})) - {RAFT}log_end_offset{{#}}"},
        ),
        Panel(
            "Metadata not applied",
            {"{{instance}}": "kafka_server_brokermetadatametrics_last_applied_record_lag_ms{#}"},
            unit="ms",
        ),
        Panel("Records appended", {"{{instance}}": f"{RAFT}append_records_rate{{#}}"}, unit="cps"),
    ],
    "Transactions": [
        Panel("Open", {"open": "sum(barnabas_transactions_open{#})"}, stat=True),
        Panel(
            "Oldest open",
            {"age": 'max(barnabas_transactions_oldest_open_seconds{two_phase="false",#})'},
            unit="s",
            stat=True,
            warn=60,
            alarm=900,
        ),
        Panel(
            "Oldest with two-phase commit",
            {"age": 'max(barnabas_transactions_oldest_open_seconds{two_phase="true",#})'},
            unit="s",
            stat=True,
            warn=3600,
        ),
        Panel("Prepared and taken over", {"prepared": "sum(barnabas_transactions_prepared{#})"}, stat=True),
        Panel(
            "Markers waiting", {"transactions": "sum(barnabas_transactions_markers_waiting{#})"}, stat=True, warn=100
        ),
        Panel(
            "Partitions held back",
            {"partitions": "count(barnabas_partition_open_transactions{#}) or vector(0)"},
            stat=True,
        ),
        Panel(
            "Last-stable-offset lag",
            {"{{topic}}-{{partition}}": "topk(10, barnabas_partition_last_stable_offset_lag{#})"},
        ),
        Panel(
            "Oldest transaction by partition",
            {"{{topic}}-{{partition}}": "topk(10, barnabas_partition_oldest_transaction_seconds{#})"},
            unit="s",
            warn=900,
        ),
        Panel(
            "From decision to completion, 99 %",
            {
                "all": "histogram_quantile(0.99, sum by (le) "
                "(rate(barnabas_transactions_completion_seconds_bucket{#}[$__rate_interval])))"
            },
            unit="s",
        ),
        Panel(
            "Transactions completed",
            {"all": "sum(rate(barnabas_transactions_completion_seconds_count{#}[$__rate_interval]))"},
            unit="cps",
        ),
        Panel("Fences", {"{{cause}}": "sum by (cause) (rate(barnabas_fences_total{#}[$__rate_interval]))"}, unit="cps"),
        Panel(
            "Answers CONCURRENT_TRANSACTIONS",
            {"answers": "sum(rate(barnabas_transactions_concurrent_answers_total{#}[$__rate_interval]))"},
            unit="cps",
        ),
    ],
    "Lag of consumer groups": [
        Panel(
            "Lag by group and topic",
            {"{{consumergroup}} {{topic}}": "topk(20, sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{#}))"},
        ),
        Panel(
            "Records committed",
            {
                "{{consumergroup}} {{topic}}": "sum by (consumergroup, topic) "
                "(rate(kafka_consumergroup_current_offset_sum{#}[$__rate_interval]))"
            },
            unit="cps",
        ),
        Panel("Members", {"{{consumergroup}}": "sum by (consumergroup) (kafka_consumergroup_members{#})"}),
    ],
}


def board() -> dict[str, Any]:
    """The board as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            _placed(panels, {"type": "row", "title": title, "collapsed": False, "panels": []}, (0, y, WIDTH, 1))
        )
        y += 1
        x = height = 0
        for panel in row:
            width, wanted = (STAT_WIDTH, STAT_HEIGHT) if panel.stat else (GRAPH_WIDTH, GRAPH_HEIGHT)
            if x + width > WIDTH or (height and wanted != height):
                x, y = 0, y + height
            panels.append(_placed(panels, _panel(panel), (x, y, width, wanted)))
            x, height = x + width, wanted
        y += height
    return {
        "uid": "barnabas",
        "title": "Barnabas",
        "tags": ["kafka", "barnabas"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                {
                    "name": "job",
                    "label": "Job",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "query": {"query": "label_values(kafka_server_replicamanager_leadercount, job)", "refId": "job"},
                    "definition": "label_values(kafka_server_replicamanager_leadercount, job)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def _placed(panels: list[dict[str, Any]], panel: dict[str, Any], at: tuple[int, int, int, int]) -> dict[str, Any]:
    return {"id": len(panels) + 1, "gridPos": dict(zip("xywh", at, strict=True)), **panel}


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.below is None else "red", "value": None}]
    for color, value in (("green", panel.below), ("yellow", panel.warn), ("red", panel.alarm)):
        if value is not None:
            steps.append({"color": color, "value": value})
    custom = {} if panel.stat else {"custom": {"fillOpacity": 10, "showPoints": "never"}}
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": query.replace("#", 'job=~"$job"'),
                "legendFormat": legend,
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}, **custom},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"} if panel.stat else {},
    }


def text() -> str:
    """The content of the file."""
    return json.dumps(board(), indent=1) + "\n"


if __name__ == "__main__":
    BOARD.write_text(text(), encoding="utf-8")
