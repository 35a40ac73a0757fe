"""An application on Spark: it reads sales and writes an invoice for each, exactly once.

Source and sink are those of `barnabas.pipeline`. The checkpoint and the sink's two-phase commit make it exactly once, also if
the driver, a task or a broker dies: start it again with the same checkpoint.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from barnabas.pipeline import session

__all__ = ["write_invoices"]


def write_invoices(spark: SparkSession, bootstrap_servers: str, checkpoint: str) -> StreamingQuery:
    """Starts a query that writes an invoice for each sale that is there, and then ends."""
    sales = (
        spark.readStream.format("barnabas")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "sales")
        .option("startingOffsets", "earliest")
        .load()
    )
    invoices = sales.select("key", F.concat(F.lit("invoice for "), F.col("value").cast("string")).alias("value"))
    return (
        invoices.writeStream.format("barnabas")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", "invoices")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    write_invoices(session("sales"), sys.argv[1], sys.argv[2]).awaitTermination()
