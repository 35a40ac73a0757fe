"""The driver of the flights pipeline, a process of its own: `python -m barnabas.cli.flights.job BOOTSTRAP FOLDER WATERMARK UNTIL`.

It starts both queries from their checkpoints under FOLDER and ends when the watermark of each has passed UNTIL. On stdout it tells
one JSON object a line: {"ready": …}, {"batch": …} for each completed micro-batch, {"restarted": …} for a query that failed and was
started again from its checkpoint, as after the death of a Python worker that a whole query hangs on. Killed at any moment and
started again it goes on where it was: what it had not decided is done again, what it had decided is not.
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

from barnabas.cli.flights import queries
from barnabas.cli.flights.dataset import AIRLINES, FLIGHTS, PLANES, WEATHER
from barnabas.cli.flights.names import BY_CARRIER, BY_HOUR, TOPIC_OF, checkpoint_of, folder_of
from barnabas.pipeline import session

__all__ = ["main"]

KEYS: Final = {BY_HOUR: ("origin",), BY_CARRIER: ("carrier",)}
LOOK_S: Final = 0.1
EVERY: Final = "500 milliseconds"  # at most so often a batch begins: looking for new records costs time, too
RESTARTS_MAX: Final = 10  # of a query that completes no batch meanwhile
ATTEMPTS: Final = 4  # of a task: a local session would give up at the first death of a worker


def main(bootstrap: str, folder: Path, watermark: str, until: str) -> int:
    """Runs both queries to their ends; 0, or 1 where one failed for good."""
    spark = session(
        "flights",
        master=f"local[2,{ATTEMPTS}]",
        spark__sql__shuffle__partitions=2,
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    starters = _queries(spark, bootstrap, folder, watermark)
    running = {name: start() for name, start in starters.items()}
    _tell({"ready": {"at_s": time.time()}})
    told: dict[str, tuple[str, int]] = {}  # the batch that was told last, by query: its run and id
    restarts: dict[str, int] = {}
    while running:
        time.sleep(LOOK_S)  # no loop here: this process does nothing but look, Spark works in its Java
        for name, query in list(running.items()):
            before = told.get(name)
            if _tell_batches(name, query, told) >= until:
                query.stop()
                del running[name]
            elif not query.isActive:
                failure = _failure_of(query)
                restarts[name] = restarts.get(name, 0) + 1
                if restarts[name] > RESTARTS_MAX:
                    _tell({"failed": {"query": name, "why": failure}})
                    return 1
                running[name] = starters[name]()
                _tell({"restarted": {"query": name, "at_s": time.time(), "why": failure}})
            elif told.get(name) != before:
                restarts.pop(name, None)
    spark.stop()
    return 0


def _queries(
    spark: SparkSession, bootstrap: str, folder: Path, watermark: str
) -> dict[str, Callable[[], StreamingQuery]]:
    """What starts each query, for the first time or again from its checkpoint."""

    def table(topic: str) -> DataFrame:
        return spark.read.format("barnabas").options(**source, subscribe=topic).load()

    def stream(topic: str) -> DataFrame:
        records = spark.readStream.format("barnabas").options(**source, subscribe=topic, startingOffsets="earliest")
        return records.load()

    def start(name: str, result: DataFrame) -> StreamingQuery:
        records = result.select(
            "*",  # these columns go into the files, the other two into the topic
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


def _tell_batches(name: str, query: StreamingQuery, told: dict[str, tuple[str, int]]) -> str:
    """Tells the batches that were completed since the last look; the watermark of the latest one, "" before there is one."""
    latest = ""
    for progress in query.recentProgress:
        this = (str(progress["runId"]), int(progress["batchId"]))
        durations = progress["durationMs"]
        if "addBatch" not in durations:
            continue  # a look that found nothing to do
        times = progress["eventTime"] or {}
        latest = times.get("watermark", "")
        if told.get(name, ("", -1))[0] == this[0] and this[1] <= told[name][1]:
            continue
        told[name] = this
        begin_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
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
