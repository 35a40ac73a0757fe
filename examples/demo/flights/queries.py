"""The two queries of the flights pipeline, as functions from DataFrames to DataFrames, without sources and sinks.

`by_hour`: departure delay per airport and hour with the weather of that hour: a stream-stream join and a windowed
aggregate. `by_carrier`: per airline, manufacturer and week: joins with the tables of planes and airlines and a windowed
aggregate. Both emit each window once, when the watermark has passed it. Sums are integers, so that they compare
exactly.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# The columns of the files, in their order.
FLIGHTS: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, "
    "hour INT, minute INT, time_hour TIMESTAMP"
)
WEATHER: Final = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir INT, "
    "wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"
)
PLANES: Final = (
    "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, speed INT, "
    "engine STRING"
)
AIRLINES: Final = "carrier STRING, name STRING"


def flights_of(records: DataFrame, watermark: str) -> DataFrame:
    """Parses the stream of flights from the records of its topic."""
    return _parsed(records, FLIGHTS).withWatermark("time_hour", watermark)


def weather_of(records: DataFrame, watermark: str) -> DataFrame:
    """Parses the stream of weather from the records of its topic."""
    return _parsed(records, WEATHER).withWatermark("time_hour", watermark)


def planes_of(records: DataFrame) -> DataFrame:
    """Parses tail numbers and manufacturers from the compacted topic."""
    planes = _parsed(_latest(records), PLANES)
    return planes.select("tailnum", _maker(F.col("manufacturer")).alias("manufacturer"))


def airlines_of(records: DataFrame) -> DataFrame:
    """Parses carriers and their names from the compacted topic."""
    return _parsed(_latest(records), AIRLINES).withColumnRenamed("name", "airline")


def by_hour(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """One row per airport and hour: hour, origin, temp, wind_speed, precip, visib, flights, cancelled, delay.

    `delay` is the sum of departure delays in minutes; early departures are negative. The weather columns are null for
    hours without weather.
    """
    sky = weather.select(
        F.col("origin").alias("station"), F.col("time_hour").alias("measured"), "temp", "wind_speed", "precip", "visib"
    )
    same = (F.col("origin") == F.col("station")) & (F.col("time_hour") == F.col("measured"))
    return (
        flights.select("origin", "time_hour", "dep_time", "dep_delay")
        .join(sky, same, "left_outer")
        .groupBy(F.window("time_hour", "1 hour"), "origin")
        .agg(*(F.max(name).alias(name) for name in ("temp", "wind_speed", "precip", "visib")), *_delays())
        .withColumn("hour", F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'"))
        .select("hour", "origin", "temp", "wind_speed", "precip", "visib", "flights", "cancelled", "delay")
    )


def by_carrier(flights: DataFrame, planes: DataFrame, airlines: DataFrame) -> DataFrame:
    """One row per airline, manufacturer and week: week, carrier, airline, manufacturer, flights, cancelled, delay."""
    return (
        flights.select("carrier", "tailnum", "time_hour", "dep_time", "dep_delay")
        .join(F.broadcast(planes), "tailnum", "left_outer")
        .join(F.broadcast(airlines), "carrier", "left_outer")
        .fillna("unknown", subset=["manufacturer"])
        .groupBy(F.window("time_hour", "7 days"), "carrier", "airline", "manufacturer")
        .agg(*_delays())
        .withColumn("week", F.date_format("window.start", "yyyy-MM-dd"))
        .select("week", "carrier", "airline", "manufacturer", "flights", "cancelled", "delay")
    )


def _parsed(records: DataFrame, schema: str) -> DataFrame:
    text = F.col("value").cast("string")
    return records.select(F.from_csv(text, schema, {"nullValue": "NA"}).alias("row")).select("row.*")


def _latest(records: DataFrame) -> DataFrame:
    """The last record of each key, because a compacted topic may still hold older ones."""
    return records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))


def _delays() -> tuple[Column, ...]:
    return (
        F.count("*").alias("flights"),
        (F.count("*") - F.count("dep_time")).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay"),
    )


def _maker(name: Column) -> Column:
    """Maps manufacturers that merged, or have several spellings, to one name."""
    one = F.when(name.startswith("AIRBUS"), "AIRBUS")
    for start in ("MCDONNELL DOUGLAS", "CANADAIR"):
        one = one.when(name.startswith(start), start)
    return one.otherwise(name)
