"""Ways to damage a data directory of a stopped node, and what `barnabas storage check` must say about each.

The directory has the topic `orders` with the partition folders orders-0 (several segments) and orders-1.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

SECOND = "second"  # a further directory of the node, beside the first one


def damaged(path: Path, name: str) -> list[Path]:
    """Damages the directory at `path` in one way; returns the directories of the node."""
    DAMAGES[name][0](path)
    second = path.parent / SECOND
    return [path, second] if second.exists() else [path]


def _logs(data: Path, folder: str = "orders-0") -> list[Path]:
    return sorted((data / folder).glob("*.log"))


def _cut(path: Path, size: int) -> None:
    os.truncate(path, path.stat().st_size - size)


def _flip(path: Path, position: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[position] ^= 0xFF
    path.write_bytes(contents)


def _crashed(data: Path) -> None:
    """As if the node had been killed, and nothing of its logs had been synced."""
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for state in data.glob("*/*-state-checkpoint"):
        state.unlink()


def _cut_after_crash(data: Path) -> None:
    _crashed(data)
    _cut(_logs(data)[-1], 10)


def _flip_after_crash(data: Path) -> None:
    _crashed(data)
    _flip(_logs(data)[0], 200)


def _index_after_crash(data: Path) -> None:
    _crashed(data)
    _logs(data)[0].with_suffix(".index").write_bytes(bytes(13))


def _second(data: Path, cluster_id: str | None = None) -> Path:
    second = data.parent / SECOND
    second.mkdir()
    lines = dict(line.split("=", 1) for line in (data / "meta.properties").read_text().splitlines() if "=" in line)
    lines["directory.id"] = "DDDDDDDDDDDDDDDDDDDDDg"
    lines["cluster.id"] = cluster_id or lines["cluster.id"]
    (second / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return second


def _two_clusters(data: Path) -> None:
    _second(data, cluster_id="A" * 22)


def _two_metadata_logs(data: Path) -> None:
    shutil.copytree(data / "__cluster_metadata-0", _second(data) / "__cluster_metadata-0")


def _partition_twice(data: Path) -> None:
    shutil.copytree(data / "orders-1", _second(data) / "orders-1")


def _not_formatted(data: Path) -> None:
    (data.parent / SECOND).mkdir()


def _no_index(data: Path) -> None:
    _logs(data)[-1].with_suffix(".index").unlink()


def _bad_index(data: Path) -> None:
    _logs(data)[0].with_suffix(".index").write_bytes(bytes(13))


def _no_segment(data: Path) -> None:
    for path in (data / "orders-0").glob(f"{_logs(data)[1].stem}.*"):
        path.unlink()


def _other_aborted(data: Path) -> None:
    _logs(data)[0].with_suffix(".txnindex").write_bytes(bytes(34))


def _no_snapshot(data: Path) -> None:
    for path in (data / "orders-0").glob("*.snapshot"):
        path.unlink()


def _gone(data: Path) -> None:
    shutil.copytree(data / "orders-1", data / "orders-7")


def _torn_metadata(data: Path) -> None:
    _cut(_logs(data, "__cluster_metadata-0")[-1], 10)


def _written(relative: str, text: str = "x") -> Callable[[Path], None]:
    def write(data: Path) -> None:
        (data / relative).write_text(text)

    return write


def _without(relative: str) -> Callable[[Path], None]:
    return lambda data: (data / relative).unlink()


# name: how, the severity of the worst finding, a part of its path, a part of its words
DAMAGES: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "a folder of no partition": (
        lambda data: (data / "backup").mkdir(),
        "refuse",
        "backup",
        "a folder of no partition",
    ),
    "a file beside the folders": (_written("notes.txt"), "note", "notes.txt", "a file of no broker"),
    "a log without an offset": (_written("orders-0/copy.log"), "refuse", "copy.log", "begin with an offset"),
    "no partition.metadata": (_without("orders-0/partition.metadata"), "stray", "orders-0", "no partition.metadata"),
    "bad partition.metadata": (_written("orders-0/partition.metadata"), "refuse", "partition.metadata", ""),
    "bad epochs": (_written("orders-0/leader-epoch-checkpoint"), "refuse", "leader-epoch-checkpoint", "version 0"),
    "bad recovery points": (_written("recovery-point-offset-checkpoint"), "refuse", "recovery-point", "version 0"),
    "bad high watermarks": (_written("replication-offset-checkpoint"), "refuse", "replication-offset", "version 0"),
    "no index": (_no_index, "rebuild", ".index", "missing"),
    "a bad index": (_bad_index, "unnoticed", ".index", "no multiple of 8"),
    "a bad index after a crash": (_index_after_crash, "rebuild", ".index", "no multiple of 8"),
    "an index with a short name": (_written("orders-0/5.index"), "rebuild", "orders-0/5.index", "without a .log file"),
    "an index with a short name beside its log": (
        _written("orders-0/0.index"),
        "note",
        "orders-0/0.index",
        "20 digits",
    ),
    "a log with a short name": (_written("orders-1/5.log", ""), "lose", "orders-1/5.log", "20 digits"),
    "a segment is gone": (_no_segment, "unnoticed", "orders-0", "its .log files have"),
    "a .log file is gone": (lambda data: _logs(data)[1].unlink(), "unnoticed", "orders-0", "its .log files have"),
    "other aborted transactions": (_other_aborted, "unnoticed", "orders-0", "its .txnindex files have 34 bytes"),
    "a folder is gone": (
        lambda data: shutil.rmtree(data / "orders-0"),
        "unnoticed",
        "orders-0",
        "the folder is missing",
    ),
    "a torn log": (lambda data: _cut(_logs(data)[-1], 10), "unnoticed", "orders-0", "it was durable up to"),
    "a torn log after a crash": (_cut_after_crash, "lose", "orders-0", "is cut off"),
    "a wrong checksum after a crash": (_flip_after_crash, "lose", "orders-0", "does not match its checksum"),
    "no meta.properties": (_without("meta.properties"), "refuse", "", "no readable meta.properties"),
    "meta.properties of another version": (
        _written("meta.properties", "version=0\n"),
        "refuse",
        "meta.properties",
        "0",
    ),
    "two clusters": (_two_clusters, "refuse", SECOND, "cluster AAAA"),
    "two metadata logs": (_two_metadata_logs, "refuse", SECOND, "a second metadata log"),
    "a partition twice": (_partition_twice, "refuse", SECOND, "has this partition, too"),
    "a directory that is not formatted": (_not_formatted, "refuse", SECOND, "no meta.properties"),
    "a bad quorum-state": (_written("__cluster_metadata-0/quorum-state"), "refuse", "quorum-state", "damaged"),
    "a torn metadata log": (_torn_metadata, "lose", "__cluster_metadata-0", "is cut off"),
    "no producer snapshot": (_no_snapshot, "unnoticed", "orders-0", "no producer snapshot"),
    "a partition that is gone": (
        _gone,
        "stray",
        "orders-7",
        "has 2 partitions",
    ),
}
