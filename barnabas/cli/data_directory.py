"""Reads a data directory without a broker: names, sizes, small files, and headers of each partition's last segment. It locks, repairs and creates
nothing; a file that cannot be parsed is in `problems`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from barnabas.broker.quorum.core.quorum_state import QUORUM_STATE, QuorumState, read_quorum_state
from barnabas.broker.quorum.core.snapshots import BOOTSTRAP, SnapshotId, list_snapshots
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.stored_log import last_batch
from barnabas.errors import BarnabasError
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.runtime.files import FileDisk
from barnabas.runtime.port_owner import lock_holder
from barnabas.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SIZE_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    PRODUCER_STATE_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    LogSize,
    MetaProperties,
    parse_epochs,
    parse_partition_metadata,
    read_clean_shutdown,
    read_log_sizes,
    read_meta_properties,
    read_offsets,
)

T = TypeVar("T")

LOCK: Final = ".lock"
CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
_OFFSET_DIGITS: Final = 20
_PARTITION = re.compile(r"(\S+)-(\d+)\Z", re.ASCII)
_ASIDE = re.compile(r"(\S+)-(\S+)\.(\S+)-(delete|stray|future)\Z")
_SEGMENT_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex")


class NoDirectory(WrongCall):
    """There is no directory at the path, or it cannot be read."""


@dataclass(slots=True)
class SegmentOnDisk:
    """A segment: sizes of its files in bytes, by suffix; "" has no entry."""

    base_offset: int
    sizes: dict[str, int]

    @property
    def log_bytes(self) -> int | None:
        """The size of the .log file; None without one, only indexes are left then."""
        return self.sizes.get(".log")


@dataclass(slots=True)
class PartitionFolder:
    """A folder of a partition. Offsets of checkpoints are None if the checkpoint has no entry."""

    name: str
    path: Path
    topic: str
    partition: int
    topic_id: bytes | None = None
    segments: list[SegmentOnDisk] = field(default_factory=list)  # ascending, those with a .log file or only indexes
    producer_snapshots: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)  # epoch, start offset
    log_end_offset: int | None = None
    log_start_offset: int | None = None
    recovery_point: int | None = None
    size_at_stop: LogSize | None = None  # at the clean stop, if the directory is as it was after that
    high_watermark: int | None = None
    # Names with a segment's suffix and no offset: Kafka cannot read them.
    not_numbered: list[str] = field(default_factory=list)
    misnamed: list[str] = field(default_factory=list)  # files of segments whose offset has not 20 digits
    leftovers: list[str] = field(default_factory=list)  # .deleted, .cleaned, .swap
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def logs(self) -> list[SegmentOnDisk]:
        """The segments with a .log file."""
        return [each for each in self.segments if each.log_bytes is not None]

    @property
    def size_bytes(self) -> int:
        """The size of the .log files."""
        return sum(each.log_bytes or 0 for each in self.segments)

    @property
    def index_bytes(self) -> int:
        """The size of the files beside the .log files."""
        return sum(size for each in self.segments for suffix, size in each.sizes.items() if suffix != ".log")

    @property
    def aborted_bytes(self) -> int:
        """The size of the .txnindex files of segments with records."""
        return sum(each.sizes.get(".txnindex", 0) for each in self.segments if each.log_bytes)

    @property
    def first_offset(self) -> int | None:
        """Where the log begins: the checkpoint of the log start, or the first segment."""
        if self.log_start_offset is not None:
            return self.log_start_offset
        return self.logs[0].base_offset if self.logs else None


@dataclass(slots=True)
class DataDirectory:
    """What a data directory holds."""

    path: Path
    meta: MetaProperties | None = None
    is_clean: bool = False  # the mark of a clean stop is there
    locked_by: int | None = None  # the process of the broker that runs on it
    has_bootstrap: bool = False
    partitions: list[PartitionFolder] = field(default_factory=list)
    metadata: PartitionFolder | None = None
    quorum_state: QuorumState | None = None
    snapshots: list[SnapshotId] = field(default_factory=list)
    # Recovery points of folders in the checkpoints that are not there.
    missing: dict[str, int] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)  # folders named -delete, -stray or -future
    foreign_folders: list[str] = field(default_factory=list)
    foreign_files: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def read_data_directory(path: Path) -> DataDirectory:
    """Reads a data directory. Raises NoDirectory: there is none, it is a file, or it cannot be listed."""
    try:
        if not path.is_dir():
            what = "is a file, not a directory" if path.exists() else "does not exist"
            raise NoDirectory(f"{path} {what}: give the data directory of a broker (log.dirs)")
        entries = sorted(path.iterdir())
    except OSError as error:
        raise NoDirectory(f"{path} cannot be read: {error.strerror}") from error
    disk = FileDisk(str(path))
    found = DataDirectory(path)
    found.meta = _tried(found.problems, META_PROPERTIES, lambda: read_meta_properties(disk), None)
    found.is_clean = disk.exists(CLEAN_SHUTDOWN_FILE)
    found.has_bootstrap = disk.exists(BOOTSTRAP)
    found.locked_by = _locked_by(path / LOCK)
    for entry in entries:
        if not entry.is_dir():
            if entry.name not in _KNOWN_FILES and not entry.name.endswith((".tmp", ".new")):
                found.foreign_files.append(entry.name)
        elif _ASIDE.match(entry.name):
            found.aside.append(entry.name)
        elif match := _PARTITION.match(entry.name):
            folder = _folder(disk, entry, match[1], int(match[2]))
            if entry.name == CLUSTER_METADATA_FOLDER:
                found.metadata = folder
            else:
                found.partitions.append(folder)
        else:
            found.foreign_folders.append(entry.name)
    _take_checkpoints(disk, found)
    if found.metadata is not None:
        name = CLUSTER_METADATA_FOLDER
        found.quorum_state = _tried(
            found.problems, f"{name}/{QUORUM_STATE}", lambda: read_quorum_state(disk, name), None
        )
        found.snapshots = _tried(found.problems, name, lambda: list_snapshots(disk, name), [])
    return found


_KNOWN_FILES: Final = frozenset(
    {
        META_PROPERTIES,
        CLEAN_SHUTDOWN_FILE,
        LOCK,
        BOOTSTRAP,
        *CHECKPOINTS,
        PRODUCER_STATE_CHECKPOINT,
        LOG_SIZE_CHECKPOINT,
        "lost-records",
        "lost-producers",
        "damaged-after-clean-stop",
    }
)


def _take_checkpoints(disk: FileDisk, found: DataDirectory) -> None:
    no_offsets: dict[tuple[str, int], int] = {}
    points, starts, high_watermarks, _ = (
        _tried(found.problems, name, partial(_offsets, disk, name), no_offsets) for name in CHECKPOINTS
    )
    sizes: dict[tuple[str, int], LogSize] = {}
    if found.is_clean:
        epoch = read_clean_shutdown(disk)
        sizes = _tried(
            found.problems, LOG_SIZE_CHECKPOINT, lambda: read_log_sizes(disk, -1 if epoch is None else epoch), {}
        )
    present = {(folder.topic, folder.partition) for folder in found.partitions}
    found.missing = {
        f"{topic}-{partition}": point
        for (topic, partition), point in points.items()
        if point > 0 and (topic, partition) not in present
    }
    for folder in found.partitions:
        key = (folder.topic, folder.partition)
        folder.size_at_stop = sizes.get(key)
        folder.recovery_point = points.get(key)
        folder.log_start_offset = starts.get(key)
        folder.high_watermark = high_watermarks.get(key)


def _offsets(disk: FileDisk, name: str) -> dict[tuple[str, int], int]:
    """An offset checkpoint. An empty file has no entries, as in Kafka, which creates one for the cleaner."""
    return read_offsets(disk, name) if disk.exists(name) and disk.size(name) else {}


def _folder(disk: FileDisk, path: Path, topic: str, partition: int) -> PartitionFolder:
    folder = PartitionFolder(path.name, path, topic, partition)
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError as error:
        folder.problems[path.name] = f"cannot be read: {error.strerror}"
        return folder
    segments: dict[int, SegmentOnDisk] = {}
    for name in names:
        stem, suffix = name.partition(".")[::2]
        suffix = "." + suffix
        if name.endswith((".deleted", ".cleaned", ".swap")):
            folder.leftovers.append(name)
        elif suffix in _SEGMENT_SUFFIXES or suffix == ".snapshot":
            if not (stem.isascii() and stem.isdigit()):
                folder.not_numbered.append(name)
            elif len(stem) != _OFFSET_DIGITS:
                folder.misnamed.append(name)
            elif suffix == ".snapshot":
                folder.producer_snapshots.append(int(stem))
            else:
                segment = segments.setdefault(int(stem), SegmentOnDisk(int(stem), {}))
                segment.sizes[suffix] = (path / name).stat().st_size
    folder.segments = [segments[base] for base in sorted(segments)]
    if PARTITION_METADATA in names:
        folder.topic_id = _tried(
            folder.problems,
            PARTITION_METADATA,
            lambda: parse_partition_metadata(disk.read(f"{path.name}/{PARTITION_METADATA}")),
            None,
        )
    if LEADER_EPOCH_CHECKPOINT in names and (path / LEADER_EPOCH_CHECKPOINT).stat().st_size:
        folder.epochs = _tried(
            folder.problems,
            LEADER_EPOCH_CHECKPOINT,
            lambda: parse_epochs(disk.read(f"{path.name}/{LEADER_EPOCH_CHECKPOINT}")),
            [],
        )
    if folder.logs:
        last = folder.logs[-1]
        try:
            batch = last_batch(path / f"{last.base_offset:020d}.log")
            folder.log_end_offset = last.base_offset if batch is None else batch.last_offset + 1
        except OSError as error:
            folder.problems[f"{last.base_offset:020d}.log"] = f"cannot be read: {error.strerror}"
    return folder


def _tried(problems: dict[str, str], name: str, read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except (BarnabasError, OSError) as error:
        problems[name] = str(error)
        return otherwise


def _locked_by(path: Path) -> int | None:
    """The process that holds the lock of a broker; takes no lock itself, which could hinder a broker that starts."""
    try:
        with path.open("rb") as file:
            return lock_holder(file.fileno())
    except OSError:
        return None
