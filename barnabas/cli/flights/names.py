"""The two queries of the flights pipeline by name, and where their results are; what the driver and its watchers agree upon."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["BY_CARRIER", "BY_HOUR", "QUERIES", "TOPIC_OF", "checkpoint_of", "folder_of"]

BY_HOUR, BY_CARRIER = "by hour", "by carrier"
QUERIES: Final = (BY_HOUR, BY_CARRIER)
TOPIC_OF: Final = {BY_HOUR: "delays-by-hour", BY_CARRIER: "delays-by-carrier"}


def folder_of(data: Path, query: str) -> Path:
    """Where a query's Parquet files are."""
    return data / TOPIC_OF[query] / "parquet"


def checkpoint_of(data: Path, query: str) -> Path:
    """Where Spark keeps how far a query has come."""
    return data / TOPIC_OF[query] / "checkpoint"
