"""Writes the report of a run: results and events, in one self-contained HTML file.

The figures come from the records that were read back from the result topics. The script in `page.html` draws the charts
in the browser from the data that this module inserts.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from examples.demo.flights.figures import Check, Row
from examples.demo.flights.story import Story

# Daylight saving time of New York in 2013, in UTC: converts to local time without a time zone database.
SUMMER: Final = ("2013-03-10T07:00:00Z", "2013-11-03T06:00:00Z")
VISIBILITY: Final = ((0.0, "under 1 mile"), (1.0, "1 to 3"), (3.0, "3 to 7"), (7.0, "7 and more"))
RAIN: Final = ((0.0, "dry"), (0.001, "under 0.1 inch an hour"), (0.1, "0.1 and more"))
WIND: Final = ((0.0, "under 10 mph"), (10.0, "10 to 20"), (20.0, "20 to 30"), (30.0, "30 and more"))
MAKERS_SHOWN: Final = 6
PLACEHOLDER: Final = '"DATA"'


def check_page(path: Path) -> None:
    """Checks before the run that the page can be written. Raises OSError if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.exists()
    with path.open("ab"):
        pass
    if not there:
        path.unlink()


def write_page(
    path: Path, story: Story, checks: Sequence[Check], hours: Sequence[Row], carriers: Sequence[Row]
) -> None:
    """Writes the page; replaces the page of an earlier run.

    Args:
        hours: the rows by hour and airport that were read back.
        carriers: the rows by week, airline and manufacturer that were read back.
    """
    data = {
        "checks": [asdict(check) | {"holds": check.holds} for check in checks],
        "story": story.as_dict(),
        "python": platform.python_version(),
        **summary(hours, carriers),
    }
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")  # the data must not close the script element
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(template.replace(PLACEHOLDER, text), encoding="utf-8")


def summary(hours: Sequence[Row], carriers: Sequence[Row]) -> dict[str, Any]:
    """Computes the data of the charts. A mean delay is in minutes, over the flights that departed."""
    return {
        "total": _sums(hours),
        "origins": _grouped(hours, lambda row: row["origin"]),
        "clock": _grouped(hours, lambda row: f"{row['origin']} {_local(row['hour']).hour}"),
        "days": _grouped(hours, lambda row: _local(row["hour"]).strftime("%Y-%m-%d")),
        "weather": {
            "Visibility": _binned(hours, "visib", VISIBILITY),
            "Rain": _binned(hours, "precip", RAIN),
            "Wind": _binned(hours, "wind_speed", WIND),
        },
        "airlines": _grouped(carriers, lambda row: row["airline"]),
        "makers": _grouped(carriers, lambda row: row["manufacturer"]),
        "matrix": _matrix(carriers),
    }


def _sums(rows: Iterable[Row]) -> dict[str, float]:
    flights = cancelled = delay = 0
    for row in rows:
        flights += row["flights"]
        cancelled += row["cancelled"]
        delay += row["delay"]
    left = flights - cancelled
    return {"flights": flights, "cancelled": cancelled, "mean": round(delay / left, 2) if left else 0.0}


def _grouped(rows: Iterable[Row], key: Any) -> dict[str, dict[str, float]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {name: _sums(groups[name]) for name in sorted(groups)}


def _binned(rows: Sequence[Row], column: str, bins: tuple[tuple[float, str], ...]) -> dict[str, dict[str, float]]:
    def bin_of(value: float) -> str:
        return next(name for least, name in reversed(bins) if value >= least)

    found = _grouped([row for row in rows if row[column] is not None], lambda row: bin_of(row[column]))
    return {name: found[name] for _, name in bins if name in found}


def _matrix(carriers: Sequence[Row]) -> dict[str, Any]:
    makers = _grouped(carriers, lambda row: row["manufacturer"])
    shown = sorted((name for name in makers if name != "unknown"), key=lambda name: -makers[name]["flights"])
    shown = shown[:MAKERS_SHOWN]
    cells = _grouped((row for row in carriers if row["manufacturer"] in shown), _airline_and_maker)
    return {"makers": shown, "cells": cells}


def _airline_and_maker(row: Row) -> str:
    return f"{row['airline']}|{row['manufacturer']}"


def _local(hour: str) -> datetime:
    """Converts an hour of the results (UTC) to New York's local time."""
    offset = timedelta(hours=-4 if SUMMER[0] <= hour < SUMMER[1] else -5)
    return datetime.strptime(hour, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) + offset
