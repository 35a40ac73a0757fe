"""Names shared by the driver and the demonstration: the two queries, their topics and their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BY_HOUR, BY_CARRIER = "by hour", "by carrier"
QUERIES: Final = (BY_HOUR, BY_CARRIER)
TOPIC_OF: Final = {BY_HOUR: "delays-by-hour", BY_CARRIER: "delays-by-carrier"}


def folder_of(data: Path, query: str) -> Path:
    """The folder of a query's Parquet files."""
    return data / TOPIC_OF[query] / "parquet"


def checkpoint_of(data: Path, query: str) -> Path:
    """The folder of a query's checkpoint."""
    return data / TOPIC_OF[query] / "checkpoint"
