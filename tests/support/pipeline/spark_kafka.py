"""Spark's own Kafka connector, bound to a broker, and what tests read and write with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

AWAIT_SECONDS_MAX = 300


class Kafka:
    """Spark's `kafka` source and sink, bound to a broker."""

    def __init__(self, spark: SparkSession, broker: ServedBroker, format_: str) -> None:
        self.spark = spark
        self.bootstrap = broker.address
        self.format = format_

    def read(self, **options: Any) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.bootstrap, **_dotted(options)}
        return self.spark.read.format(self.format).options(**options).load()

    def stream(self, **options: Any) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.bootstrap, "startingOffsets": "earliest", **_dotted(options)}
        return self.spark.readStream.format(self.format).options(**options).load()

    def write(self, frame: DataFrame, **options: Any) -> None:
        options = {"kafka.bootstrap.servers": self.bootstrap, **_dotted(options)}
        frame.write.format(self.format).options(**options).save()

    def write_stream(self, frame: DataFrame, checkpoint: Path, mode: str = "append", **options: Any) -> StreamingQuery:
        """Runs until everything that is there has been read."""
        options = {"kafka.bootstrap.servers": self.bootstrap, "checkpointLocation": str(checkpoint), **_dotted(options)}
        writer = frame.writeStream.format(self.format).options(**options).outputMode(mode)
        return _finished(writer.trigger(availableNow=True).start())


def _dotted(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in options.items()}


def _finished(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(AWAIT_SECONDS_MAX), f"the query does not end: {query.status}"
    return query


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())


def into_parquet(frame: DataFrame, folder: Path) -> StreamingQuery:
    """One AvailableNow run of a stream into files; run again, it goes on."""
    writer = frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
    options = {"path": str(folder / "data"), "checkpointLocation": str(folder / "checkpoint")}
    return _finished(writer.options(**options).trigger(availableNow=True).start())


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, end)]


def texts(start: int, end: int) -> list[str]:
    return [f"{number:06}" for number in range(start, end)]
