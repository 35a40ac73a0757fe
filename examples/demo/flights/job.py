"""The driver process of the flights pipeline.

Called as `python -m examples.demo.flights.job BOOTSTRAP FOLDER WATERMARK UNTIL`.

It starts both queries from their checkpoints under FOLDER and ends when the watermark of each has passed UNTIL. It
prints one JSON object per line on stdout: {"ready": …}, {"batch": …} for each completed micro-batch, {"idle": …} for a
query that had nothing to read at its start, {"ended": …}, {"restarted": …} for a query that failed and was restarted from its
checkpoint (for example because a Python worker that serves the whole query died). The process may be killed at any time. After a restart it continues from the checkpoints: it repeats
undecided batches only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.pipeline import session
from examples.demo.flights import queries
from examples.demo.flights.dataset import AIRLINES, FLIGHTS, PLANES, WEATHER
from examples.demo.flights.names import BY_CARRIER, BY_HOUR, TOPIC_OF, checkpoint_of, folder_of

KEYS: Final = {BY_HOUR: ("origin",), BY_CARRIER: ("carrier",)}
POLL_S: Final = 0.1
EVERY: Final = "500 milliseconds"  # shortest interval between batches: looking for new records costs time, too
RESTARTS_MAX: Final = 10  # restarts of a query without a completed batch between them
ATTEMPTS: Final = 4  # attempts at a task: by default a local session gives up at the first failure


def main(bootstrap: str, folder: Path, watermark: str, until: str) -> int:
    """Runs both queries to their ends. Returns 0, or 1 if a query failed too often."""
    spark = session(
        "flights",
        master=f"local[2,{ATTEMPTS}]",
        spark__sql__shuffle__partitions=2,
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    starters = _queries(spark, bootstrap, folder, watermark)
    running = {name: start() for name, start in starters.items()}
    _tell({"ready": {"at_s": time.time()}})
    reported: dict[str, tuple[str, int]] = {}  # the last reported batch of each query: its run and id
    restarts: dict[str, int] = {}
    while running:
        time.sleep(POLL_S)  # no event loop here: this process only polls, Spark works in its JVM
        for name, query in list(running.items()):
            before, active = reported.get(name), query.isActive
            if _report_batches(name, query, reported) >= until:
                query.stop()
                del running[name]
                _tell({"ended": {"query": name, "at_s": time.time()}})
            elif not active:
                failure = _failure_of(query)
                restarts[name] = restarts.get(name, 0) + 1
                if restarts[name] > RESTARTS_MAX:
                    _tell({"failed": {"query": name, "why": failure}})
                    return 1
                running[name] = starters[name]()
                _tell({"restarted": {"query": name, "at_s": time.time(), "why": failure}})
            elif reported.get(name) != before:
                restarts.pop(name, None)
    spark.stop()
    return 0


def _queries(
    spark: SparkSession, bootstrap: str, folder: Path, watermark: str
) -> dict[str, Callable[[], StreamingQuery]]:
    """Returns a function for each query that starts it, or restarts it from its checkpoint."""

    def table(topic: str) -> DataFrame:
        return spark.read.format("barnabas").options(**source, subscribe=topic).load()

    def stream(topic: str) -> DataFrame:
        records = spark.readStream.format("barnabas").options(**source, subscribe=topic, startingOffsets="earliest")
        return records.load()

    def start(name: str, result: DataFrame) -> StreamingQuery:
        records = result.select(
            "*",  # the files get these columns, the topic gets the other two
            F.concat_ws(",", *KEYS[name]).alias("key"),
            F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value"),
        )
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": TOPIC_OF[name],
            "files.path": str(folder_of(folder, name)),
            "checkpointLocation": str(checkpoint_of(folder, name)),
        }
        writer = records.writeStream.format("barnabas").options(**options).queryName(name.replace(" ", "_"))
        return writer.outputMode("append").trigger(processingTime=EVERY).start()

    source = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}
    planes, airlines = queries.planes_of(table(PLANES)).cache(), queries.airlines_of(table(AIRLINES)).cache()

    def by_hour() -> StreamingQuery:
        flights = queries.flights_of(stream(FLIGHTS), watermark)
        return start(BY_HOUR, queries.by_hour(flights, queries.weather_of(stream(WEATHER), watermark)))

    def by_carrier() -> StreamingQuery:
        flights = queries.flights_of(stream(FLIGHTS), watermark)
        return start(BY_CARRIER, queries.by_carrier(flights, planes, airlines))

    return {BY_HOUR: by_hour, BY_CARRIER: by_carrier}


def _report_batches(name: str, query: StreamingQuery, reported: dict[str, tuple[str, int]]) -> str:
    """Prints the batches completed since the last call; returns the latest watermark, "" if there is none yet.

    A query that continues from its checkpoint and finds nothing new says so once: its last batches may be unreported.
    """
    latest = ""
    for progress in query.recentProgress:
        this = (str(progress["runId"]), int(progress["batchId"]))
        run, last = reported.get(name, ("", -1))
        begin_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
        durations = progress["durationMs"]
        if "addBatch" not in durations:  # a trigger without new records
            if run != this[0]:
                reported[name] = (this[0], -1)
                _tell({"idle": {"query": name, "at_s": begin_s}})
            continue
        times = progress["eventTime"] or {}
        latest = times.get("watermark", "")
        if run == this[0] and this[1] <= last:
            continue
        reported[name] = this
        _tell(
            {
                "batch": {
                    "query": name,
                    "batch_id": this[1],
                    "begin_s": begin_s,
                    "end_s": begin_s + durations["triggerExecution"] / 1000,
                    "rows": progress["numInputRows"],
                    "event_time_max": times.get("max", ""),
                    "watermark": latest,
                    "late": sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"]),
                    "durations_ms": {key: int(value) for key, value in durations.items()},
                }
            }
        )
    return latest


def _failure_of(query: StreamingQuery) -> str:
    try:
        query.awaitTermination(1)
    except StreamingQueryException as error:
        return str(error).splitlines()[0]
    return "it ended by itself"


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
