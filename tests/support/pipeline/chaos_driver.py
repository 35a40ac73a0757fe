"""A driver to be killed: some streaming queries in one Spark session, until it is ended.

Called as `python -m tests.support.pipeline.chaos_driver PLAN`, the path of a JSON file with what `Plan` of `chaos`
holds. Says on stdout, a JSON line each: that it is up, each batch, each query that failed. Reads from stdin: `stop`
ends every query in order, a query's name starts that query (again); the end of stdin changes nothing, since only a kill
comes without a word.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from barnabas.pipeline import session, write_batch
from barnabas.pipeline.sink_options import OUTPUT_OPTIONS
from tests.support.pipeline import chaos_points

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATCH_SECONDS = 0.1
START_SECONDS_MAX = 30.0


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Batches(StreamingQueryListener):
    """Tells of each batch with rows."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.numInputRows:
            say(batch=event.progress.batchId, query=event.progress.name, rows=event.progress.numInputRows)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def start(spark: SparkSession, query: dict[str, Any]) -> StreamingQuery:
    """An identity copy, through Python where a point in the map is wanted."""
    frame = spark.readStream.format(query["source"]).options(**query["source_options"]).load()
    frame = frame.selectExpr("key", "value")
    if query["through_python"]:
        name = query["name"]

        def passing(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            for batch in batches:
                chaos_points.reached("map", name)
                yield batch

        frame = frame.mapInArrow(passing, "key binary, value binary")
    writer = frame.writeStream.queryName(query["name"])
    if query["sink"] == "write_batch":
        own = {name: value for name, value in query["sink_options"].items() if name in OUTPUT_OPTIONS}
        common = {name: value for name, value in query["sink_options"].items() if name not in own}
        halves = ("CAST(CAST(value AS STRING) AS INT) % 2 = 0", "CAST(CAST(value AS STRING) AS INT) % 2 = 1")
        writer = writer.foreachBatch(
            lambda rows, batch: write_batch(batch, common, *[(rows.where(half), own) for half in halves])
        )
    else:
        writer = writer.format(query["sink"]).options(**query["sink_options"])
    return writer.option("checkpointLocation", query["checkpoint"]).trigger(processingTime="1 second").start()


def settle(query: StreamingQuery) -> None:
    """Waits until its source's process runs: Spark gives it ten seconds, too few for many of them at once."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while query.isActive and time.monotonic() < deadline:
        if not query.status["message"].startswith(("Initializing", "Getting")):
            return
        time.sleep(WATCH_SECONDS)


def main(path: str) -> None:
    plan = json.loads(Path(path).read_text())
    spark = session("chaos", master=plan["master"], jars=plan["jars"], **plan["settings"])
    spark.dataSource.register(chaos_points.ChaosDataSource)
    spark.streams.addListener(Batches())
    queries = {query["name"]: query for query in plan["queries"]}
    running: dict[str, StreamingQuery] = {}
    wanted = [name for name, query in queries.items() if not query["later"]]
    over = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                over.set()
            else:
                wanted.append(line.strip())

    threading.Thread(target=listen, daemon=True).start()
    say(up=True)
    while not over.is_set():
        while wanted:
            name = wanted.pop(0)
            try:
                running[name] = start(spark, queries[name])
                settle(running[name])
            except Exception as error:  # whatever it is, it is the test's to judge
                say(failed=name, error=str(error))
        for name in [name for name, query in running.items() if not query.isActive]:
            say(failed=name, error=str(running.pop(name).exception()))
        time.sleep(WATCH_SECONDS)
    for query in running.values():
        query.stop()
    say(stopped=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
