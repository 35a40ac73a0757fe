"""Computes the departure delay per airport and hour with Spark, exactly once.

Reads the topic `flights`; writes to the topic `delays` and to Parquet files.

    python examples/flights/delays.py [BOOTSTRAP [FOLDER]]

You may kill it at any time, also with SIGKILL, and start it again: it continues from its checkpoint and repeats no
hour.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.pipeline import session

COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, "
    "hour INT, minute INT, time_hour TIMESTAMP"
)


def start(spark: SparkSession, bootstrap: str, folder: str, *, until_now: bool = False) -> StreamingQuery:
    """Starts the query.

    Args:
        folder: directory for the checkpoint and the files.
        until_now: end after all present records, instead of waiting for more.
    """
    records = (
        spark.readStream.format("barnabas")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    flights = (
        records.select(F.from_csv(F.col("value").cast("string"), COLUMNS, {"nullValue": "NA"}).alias("flight"))
        .select("flight.*")
        .withWatermark("time_hour", "1 day")  # an hour closes when a flight one day later has arrived
    )
    delays = (
        flights.groupBy(F.window("time_hour", "1 hour"), "origin")
        .agg(F.count("*").alias("flights"), F.count("dep_time").alias("departed"), F.sum("dep_delay").alias("delay"))
        .select(F.col("window.start").alias("hour"), "origin", "flights", "departed", "delay")
    )
    writer = (
        delays.select("*", F.col("origin").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("barnabas")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "delays")  # key and value of each row
        .option("files.path", f"{folder}/parquet")  # the other columns
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    return writer.trigger(availableNow=True).start() if until_now else writer.start()


if __name__ == "__main__":
    given = sys.argv[1:]
    running = start(
        session("delays"), given[0] if given else "localhost:9092", given[1] if len(given) > 1 else "delays"
    )
    running.awaitTermination()
