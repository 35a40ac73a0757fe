"""Checks the results of the flights pipeline: reads them without Spark and compares them with the expected results.

A consumer reads the result topics from beginning to end under read_committed; Arrow reads the files. Both must hold
each expected row exactly once, with the same values, and no other row. No transaction may be left open.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.client import Consumer
from barnabas.client.admin import Admin
from barnabas.client.types import TopicPartition
from examples.demo.flights.dataset import Dataset, Expected

YEAR: Final = {"in": 336_776, "without departure": 8_255, "EWR": 120_835, "JFK": 111_279, "LGA": 104_662}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, the expected figure and the figure found."""

    what: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


async def read_topic(bootstrap: str, topic: str) -> list[Row]:
    """Reads every committed record of a topic."""
    rows: list[Row] = []
    async with Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        partitions = await _partitions(bootstrap, topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                rows += [json.loads(record.value or b"") for record in records]
    return rows


def read_files(folder: Path) -> list[Row]:
    """Reads every row of the committed Parquet files of a folder."""
    import pyarrow.parquet

    rows: list[Row] = []
    for path in sorted(folder.rglob("*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
            rows += pyarrow.parquet.read_table(path).to_pylist()
    return rows


async def open_partitions(bootstrap: str) -> int:
    """Counts partitions with an open transaction: their last stable offset is below their high watermark."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        topics = await admin.describe_topics(await admin.list_topics())
        wanted = dict.fromkeys(
            (TopicPartition(name, p.partition) for name, topic in topics.items() for p in topic.partitions), "latest"
        )
        ends = await admin.list_offsets(wanted)
        stable = await admin.list_offsets(wanted, isolation_level="read_committed")
    return sum(1 for tp in wanted if stable[tp].offset != ends[tp].offset)


def checks(
    dataset: Dataset, expected: Expected, hours: dict[str, list[Row]], carriers: dict[str, list[Row]], open_: int
) -> list[Check]:
    """Returns every check of a run.

    Args:
        hours: rows of the query by hour, for each place they were read from ("topic", "Parquet").
        carriers: rows of the query by carrier, for each place.
    """
    year = len(dataset.flights) == YEAR["in"]
    origins = Counter(row["origin"] for row in dataset.flights)
    counts = {"in": len(dataset.flights), "without departure": sum(r["dep_time"] == "NA" for r in dataset.flights)}
    counts |= dict(sorted(origins.items()))
    if year:
        counts = dict(YEAR)  # the published figures of the data, independent of what was read
    found = []
    for where, rows in hours.items():
        counted = Counter[str]()
        for row in rows:
            counted[row["origin"]] += row["flights"]
        figures = {"in": counted.total(), "without departure": sum(row["cancelled"] for row in rows)} | counted
        found += [Check(f"flights {_named(what)}, {where}", counts[what], figures.get(what, 0)) for what in counts]
    for where, rows in carriers.items():
        found.append(Check(f"flights by carrier, {where}", counts["in"], sum(row["flights"] for row in rows)))
    for name, results, right in (("hour", hours, expected.hours), ("carrier", carriers, expected.carriers)):
        for where, rows in results.items():
            found += _rows(f"by {name}, {where}", rows, right.values())
    found.append(Check("partitions with an open transaction", 0, open_))
    return found


def _named(figure: str) -> str:
    return f"out of {figure}" if figure.isupper() else figure


def _rows(name: str, rows: Iterable[Row], right: Iterable[dict[str, object]]) -> list[Check]:
    """Counts correct rows and surplus rows: duplicates, or rows with other values."""
    got, wanted = Counter(map(_canonical, rows)), Counter(map(_canonical, right))
    return [
        Check(f"right rows {name}", wanted.total(), (got & wanted).total()),
        Check(f"rows too many {name}", 0, (got - wanted).total()),
    ]


def _canonical(row: dict[str, object]) -> str:
    return json.dumps(row, sort_keys=True)


async def _partitions(bootstrap: str, topic: str) -> list[TopicPartition]:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        described = (await admin.describe_topics([topic]))[topic]
    return [TopicPartition(topic, p.partition) for p in described.partitions]
