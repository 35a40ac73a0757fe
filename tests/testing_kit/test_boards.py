"""The boards: every query of ours and every series of the known ones returns something, from brokers under traffic and from Prometheus."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Consumer, Producer
from barnabas.testing import Cluster
from tests.support.broker.board_names import ALERTED, EXPORTER_BOARDS, KAFKA_BOARD, KRAFT_BOARD
from tests.support.broker.cluster_scrapes import addresses, scrapes
from tests.support.processes.ports import free_ports

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
DOCS = GRAFANA.parent
RECORDS = 60
TRIES_MAX = 4_000


def loaded(name: str) -> Any:
    """A script of docs/grafana."""
    spec = importlib.util.spec_from_file_location(name, GRAFANA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kafka() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"metrics.listen": "127.0.0.1:0"}, topics={"orders": 6}) as cluster:
        yield cluster


@asynccontextmanager
async def traffic(kafka: Cluster) -> AsyncIterator[None]:
    """Records, a group that has committed, a completed transaction, and one that stays open."""
    servers = kafka.bootstrap_servers
    async with (
        Producer(bootstrap_servers=servers, transactional_id="done") as done,
        Producer(bootstrap_servers=servers, transactional_id="open") as left,
        Consumer("orders", bootstrap_servers=servers, auto_offset_reset="earliest", group_id="readers") as consumer,
    ):
        await done.begin_transaction()
        for number in range(RECORDS):
            await done.send("orders", b"tea", partition=number % 6)
        await done.commit_transaction()
        for _ in range(RECORDS):
            await consumer.getone()
        await consumer.commit()
        await left.begin_transaction()
        await left.send_and_wait("orders", b"tea", partition=0)
        yield
        await left.abort_transaction()


def queries() -> list[str]:
    """The queries of our board, as Grafana sends them for all jobs."""
    board = json.loads((GRAFANA / "barnabas.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [each.replace("$job", ".*").replace("$__rate_interval", "20s") for each in found]


def test_the_board_is_fresh() -> None:
    """If not: python docs/grafana/make_board.py."""
    assert (GRAFANA / "barnabas.json").read_text() == loaded("make_board").text()


def test_the_board_can_be_imported() -> None:
    board = json.loads((GRAFANA / "barnabas.json").read_text())
    assert board["uid"] == "barnabas"
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "job"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        here = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not here & cells, panel["title"]
        cells |= here
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'job=~"$job"' in target["expr"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"expr": "sum(rate(kafka_a_total{topic=~\\"kafka_x\\"}[5m])) by (kafka_topic)"}', {"kafka_a_total"}),
        ('{"query": "label_values(kafka_b{job=~\\"$job\\"}, kafka_label)"}', {"kafka_b"}),
        ("      expr: kafka_c > 0\n      for: 10s\n", {"kafka_c"}),
    ],
)
def test_names_in_queries(text: str, names: set[str]) -> None:
    assert loaded("board_metrics").asked(text) == names


async def test_brokers_have_what_the_boards_ask_for(kafka: Cluster) -> None:
    ours = loaded("board_metrics").asked((GRAFANA / "barnabas.json").read_text())
    assert len(ours) > 40
    async with traffic(kafka):
        found = scrapes(kafka)
    names = {name for each in found for name in each.names}
    assert ours - names == set()
    for name, labels in EXPORTER_BOARDS.items():
        for label in labels:
            assert any(each.labels(name, label) - {""} for each in found), (name, label)


async def test_prometheus_answers_the_boards(kafka: Cluster, tmp_path: Path) -> None:
    """Scraped as docs/operations.md shows it, only faster."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs a Prometheus server: apt-get install prometheus")
    shown = re.search(r"```yaml\n(# prometheus\.yml\n.*?)```", (DOCS / "operations.md").read_text(), re.DOTALL)
    assert shown is not None
    (port,) = free_ports(1)
    targets = json.dumps(addresses(kafka))
    config = re.sub(r"targets: \[.*\]", f"targets: {targets}", shown.group(1)).replace("15s", "250ms")
    (tmp_path / "prometheus.yml").write_text(config)
    with served(program, tmp_path, port):
        async with traffic(kafka):
            left = [*queries(), *KAFKA_BOARD, *KRAFT_BOARD, *ALERTED, *EXPORTER_BOARDS, "up == 1"]
            for _ in range(TRIES_MAX):
                left = [each for each in left if not answered(port, each)]
                if not left:
                    break
            assert left == []
            # One instance for the series of kafka_exporter, as board 7589 wants it; each series once.
            assert answered(port, 'count(kafka_topic_partition_leader{instance="kafka",topic="orders"}) == 6')
            assert answered(port, 'count(kafka_topic_partition_leader{job="kafka",topic="orders"}) == 6')
            assert answered(port, 'sum(kafka_topic_partition_current_offset{job="kafka",topic="orders"}) > 60')
        # Strimzi's alert ScrapeProblem.
        kafka.kill(3)
        assert any(answered(port, "up == 0") for _ in range(TRIES_MAX))


@contextmanager
def served(program: str, directory: Path, port: int) -> Iterator[None]:
    """A Prometheus server with DIRECTORY/prometheus.yml; it logs no error."""
    files = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    listens = [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    server = subprocess.Popen([program, *files, *listens], stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        server.kill()
        _, errors = server.communicate()
    assert errors == ""


def answered(port: int, query: str) -> list[Any]:
    """What Prometheus answers to an instant query; empty while it does not answer."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
    except (ConnectionError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code != 503:  # 503: it starts
            raise AssertionError(f"{query}: {error.read()!r}") from error
        return []
    return result
