"""The flights pipeline piece by piece on the shared session; all of it, with its kills, is `chaos`: it takes minutes.

Plain Python computes the expected results (`dataset.compute_expected`); the queries must produce the same values.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.librdkafka import value_of

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.sql import functions as F

from barnabas.cli.flights import dataset as data
from barnabas.cli.flights import queries
from tests.support.flights import january
from tests.support.pipeline import topics
from tests.support.processes.cli import ForeignModules
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["january"]

EXAMPLES = Path(__file__).parents[2] / "examples" / "flights"
DEMO_SECONDS_MAX = 1_200  # on a machine that does much else
HOUR = "yyyy-MM-dd'T'HH:mm:ss'Z'"


def records(spark: SparkSession, events: list[data.Event]) -> DataFrame:
    """Events as the source gives records, as far as the queries look at them."""
    rows = [(event.key, event.value, offset) for offset, event in enumerate(events)]
    return spark.createDataFrame(rows, "key BINARY, value BINARY, offset BIGINT")


def canonical(rows: list[Any]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def test_the_queries_come_to_what_plain_python_comes_to(spark: SparkSession, january: data.Dataset) -> None:
    events = [event for day in january.days for event in day.events]
    flights = queries.flights_of(records(spark, [e for e in events if e.topic == data.FLIGHTS]), "1 day")
    weather = queries.weather_of(records(spark, [e for e in events if e.topic == data.WEATHER]), "1 day")
    planes = queries.planes_of(records(spark, january.planes + january.planes[:10]))  # a topic not compacted yet
    airlines = queries.airlines_of(records(spark, january.airlines))
    expected = data.compute_expected(january)
    by_hour = [row.asDict() for row in queries.by_hour(flights, weather).collect()]
    assert canonical(by_hour) == canonical(list(expected.hours.values()))
    by_carrier = [row.asDict() for row in queries.by_carrier(flights, planes, airlines).collect()]
    assert canonical(by_carrier) == canonical(list(expected.carriers.values()))
    assert sum(row["flights"] for row in by_carrier) == len(january.flights) == 26_865


def test_the_example_of_the_tutorial(
    spark: SparkSession, broker: ServedBroker, january: data.Dataset, tmp_path: Path
) -> None:
    """Two runs over three days: each hour that the watermark has passed comes out once, in the topic and in the files."""
    for name in ("flights", "delays"):
        topics.new_topic(broker.address, 2, name=name)
    subprocess.run([sys.executable, str(EXAMPLES / "replay.py"), broker.address, "3"], check=True, timeout=120)
    delays = _example("delays")
    for _ in range(2):
        assert delays.start(spark, broker.address, str(tmp_path), until_now=True).awaitTermination(DEMO_SECONDS_MAX)
    newest = max(row["time_hour"] for row in january.flights if row["time_hour"] < "2013-01-04")
    day_before = newest.replace("2013-01-03", "2013-01-02")  # the watermark: hours that end by then are over
    expected = Counter(
        (hour, origin, row["flights"], row["delay"])
        for (hour, origin), row in data.compute_expected(january).hours.items()
        if hour < day_before
    )
    files = spark.read.parquet(str(tmp_path / "parquet")).withColumn("hour", F.date_format("hour", HOUR)).collect()
    assert Counter((row.hour, row.origin, row.flights, row.delay) for row in files) == expected
    sent = [json.loads(value_of(message)) for message in topics.read_committed(broker.address, "delays", 2)]
    assert Counter((row["hour"][:19] + "Z", row["origin"], row["flights"], row["delay"]) for row in sent) == expected


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"flights_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.chaos
def test_the_demonstration(tmp_path: Path) -> None:
    """Four months through all three kills; its own checks decide, here it is only looked whether they were made."""
    page = tmp_path / "page.html"
    foreign = ForeignModules(tmp_path / "cwd")
    command = [
        sys.executable,
        "-P",
        "-m",
        "barnabas.cli.main",
        "demo",
        "--spark",
        "--months",
        "4",
        "--report",
        str(page),
    ]
    ran = subprocess.run(
        command, cwd=foreign.folder, capture_output=True, text=True, timeout=DEMO_SECONDS_MAX, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert not foreign.imported()
    for what in ("a Python worker", "a broker", "the driver"):
        assert re.search(rf"killed: {what} +│ recovered after", ran.stdout), ran.stdout
    found = re.search(r"^const data = (\{.*\});$", page.read_text(), re.MULTILINE)
    assert found is not None
    assert all(check["holds"] for check in json.loads(found.group(1))["checks"])
