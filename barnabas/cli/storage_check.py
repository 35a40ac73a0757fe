"""Judges a data directory: what Apache Kafka 4.3.1 would refuse, lose, set aside, rebuild or not notice at a start, and why.

The rules were compared with Kafka 4.3.1 on damaged directories (tests/oracle/test_storage_check.py repeats some of the
comparisons). Four were not: duplicate directory.id values, a metadata.version above the supported ones, a damaged
metadata snapshot, and a metadata log that begins above every snapshot. Barnabas differs where a finding says so: after
a clean stop it refuses a log that ends early, where Kafka does not notice.

Severities, the worst first: "refuse": Kafka does not start, or takes the directory offline; "lose": it starts and deletes records;
"stray": it sets a partition's folder aside; "unnoticed": it starts and fails later, or silently misses records; "rebuild": it repairs
the files; "note": nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from barnabas.broker.image.image import EMPTY_IMAGE, MetadataImage
from barnabas.broker.image.records import decode_record
from barnabas.broker.image.replay import ImageBuilder
from barnabas.broker.quorum.core.quorum_state import QUORUM_STATE
from barnabas.broker.quorum.core.snapshots import decode_snapshot, snapshot_name
from barnabas.cli.data_directory import CHECKPOINTS, DataDirectory, PartitionFolder, SegmentOnDisk
from barnabas.cli.stored_log import DamageFound, batches_of
from barnabas.errors import BarnabasError, RemoteProtocolError
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL
from barnabas.protocol.metadata_versions import METADATA_VERSIONS, metadata_version_name
from barnabas.protocol.records import decode_records
from barnabas.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, META_PROPERTIES, PARTITION_METADATA, encode_uuid
from barnabas.storage.index import OffsetIndex, TimeIndex
from barnabas.storage.producers import PartitionProducers

Severity = Literal["refuse", "lose", "stray", "unnoticed", "rebuild", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("refuse", "lose", "stray", "unnoticed", "rebuild", "note")
_INDEX_ENTRY_BYTES: Final = {".index": 8, ".timeindex": 12}
_OFFLINE: Final = "Kafka takes the directory offline, and stops if it is its only one"
METADATA_VERSION: Final = "metadata.version"


class Finding(NamedTuple):
    """A defect in a data directory."""

    severity: Severity
    path: str
    what: str
    effect: str


def check_directories(
    directories: Sequence[DataDirectory], image: MetadataImage | None, *, all_records: bool = False
) -> Iterator[Finding]:
    """Yields the findings of the data directories of one node.

    Args:
        image: the metadata of the node's log, which knows the topic ids; None if there is none.
        all_records: also checks records that Kafka trusts: those below the recovery point, all after a clean stop.

    Raises OSError: a log file cannot be read.
    """
    yield from _owners(directories)
    for directory in directories:
        yield from _top(directory)
        yield from _missing(directory, image)
        for folder in directory.partitions:
            yield from _partition(directory, folder, all_records=all_records)
            yield from _known(directory, folder, image)
        if directory.metadata is not None:
            yield from _metadata(directory, directory.metadata)
    yield from _twice(directories)
    if image is not None:
        level = image.features.get(METADATA_VERSION, 0)
        if level > max(METADATA_VERSIONS):
            effect = f"Kafka 4.3.1 supports up to {metadata_version_name(max(METADATA_VERSIONS))}: start the release that wrote it"
            yield Finding("refuse", str(directories[0].path), f"{METADATA_VERSION} is {level}", effect)


def _owners(directories: Sequence[DataDirectory]) -> Iterator[Finding]:
    known = [(each, each.meta) for each in directories if each.meta is not None]
    if not known and not any(META_PROPERTIES in each.problems for each in directories):
        yield Finding(
            "refuse",
            str(directories[0].path),
            f"no readable {META_PROPERTIES}",
            "Kafka starts only on a formatted directory: restore the file, or `barnabas storage format`",
        )
    if not known:
        return
    (_, first), *others = known
    for each in directories:
        if each.meta is None and META_PROPERTIES not in each.problems:
            effect = "restore the file, or format the directory if it is a new one"
            yield Finding("refuse", str(each.path), f"no {META_PROPERTIES}, and {known[0][0].path} has one", effect)
    metadata_logs = [each for each in directories if each.metadata is not None]
    for each, meta in others:
        path = f"{each.path}/{META_PROPERTIES}"
        if meta.cluster_id != first.cluster_id:
            what = f"cluster {meta.cluster_id}, and {directories[0].path} belongs to {first.cluster_id}"
            yield Finding("refuse", path, what, "the directories of one node belong to one cluster")
        if meta.node_id != first.node_id:
            what = f"node {meta.node_id}, and {directories[0].path} belongs to {first.node_id}"
            yield Finding("refuse", path, what, "each directory belongs to one node")
        if meta.directory_id == first.directory_id:
            what = f"directory.id {meta.directory_id} is that of {directories[0].path}, too"
            yield Finding("refuse", path, what, "a copied directory needs a directory.id of its own")
    for each in metadata_logs[1:]:
        effect = f"the metadata log belongs in one directory (metadata.log.dir); {metadata_logs[0].path} has one, too"
        yield Finding("refuse", f"{each.path}/__cluster_metadata-0", "a second metadata log", effect)


def _top(directory: DataDirectory) -> Iterator[Finding]:
    if directory.locked_by is not None:
        effect = "its files change while they are read: findings about logs may be wrong"
        yield Finding("note", str(directory.path), f"process {directory.locked_by} runs on it", effect)
    for name, why in directory.problems.items():
        path = f"{directory.path}/{name}"
        if name == META_PROPERTIES and "'directory.id'" in why:
            yield Finding("note", path, why, "Kafka adds a directory.id; Barnabas refuses the file")
        elif name == META_PROPERTIES:
            yield Finding("refuse", path, why, "the identity of the directory is unknown: restore the file")
        elif name in CHECKPOINTS[:3]:
            yield Finding("refuse", path, why, f"{_OFFLINE}. Without the file it starts: then it checks all logs")
        elif name.endswith(QUORUM_STATE):
            yield Finding("refuse", path, why, "the voter does not know its epoch and vote: restore the file")
        else:
            yield Finding("note", path, why, "it is written again")
    for name in directory.foreign_folders:
        effect = "a data directory holds folders of partitions only: Kafka stops. Move it away"
        yield Finding("refuse", f"{directory.path}/{name}", "a folder of no partition", effect)
    for name in directory.foreign_files:
        yield Finding("note", f"{directory.path}/{name}", "a file of no broker", "ignored")
    for name in directory.aside:
        removed = name.endswith("-delete")
        effect = "removed at the next start" if removed else "left as it is; remove it by hand if it is not needed"
        yield Finding("note", f"{directory.path}/{name}", f"a folder named -{name.rpartition('-')[2]}", effect)


def _partition(directory: DataDirectory, folder: PartitionFolder, *, all_records: bool) -> Iterator[Finding]:
    for name, why in folder.problems.items():
        path = f"{directory.path}/{name}" if name == folder.name else f"{folder.path}/{name}"
        yield Finding("refuse", path, why, _OFFLINE)
    for name in folder.not_numbered:
        effect = "Kafka reads an offset from the name and stops: move the file away"
        yield Finding("refuse", f"{folder.path}/{name}", "its name does not begin with an offset", effect)
    yield from _misnamed(folder)
    for name in folder.leftovers:
        yield Finding(
            "note", f"{folder.path}/{name}", "left by a crash", "removed, or its swap completed, at the start"
        )
    if folder.topic_id is None and PARTITION_METADATA not in folder.problems:
        effect = "Kafka renames the folder to -stray and starts an empty log"
        yield Finding("stray", str(folder.path), f"no {PARTITION_METADATA}", effect)
    for segment in folder.segments:
        yield from _indexes(directory, folder, segment)
    ends = _checked_end(directory, folder)
    yield from _records(directory, folder, all_records=all_records)
    if ends is not None:
        yield ends
    yield from _sizes(folder)


def _missing(directory: DataDirectory, image: MetadataImage | None) -> Iterator[Finding]:
    """Folders that the recovery points name, of topics that the metadata log has."""
    for name, point in directory.missing.items():
        if image is not None and image.topic(name.rpartition("-")[0]) is None:
            continue  # the topic was deleted
        effect = "Kafka and Barnabas begin an empty log: restore the folder, or another replica has its records"
        what = f"the folder is missing, and its log was durable up to offset {point}"
        yield Finding("unnoticed", f"{directory.path}/{name}", what, effect)


def _sizes(folder: PartitionFolder) -> Iterator[Finding]:
    """Files that were removed, emptied or replaced since the clean stop."""
    expected = folder.size_at_stop
    if expected is None:
        return
    if folder.size_bytes != expected.log_bytes:
        what = f"its .log files have {folder.size_bytes} bytes, and they had {expected.log_bytes} bytes at the stop"
        effect = "Kafka misses the records; Barnabas refuses the log: restore the folder"
        yield Finding("unnoticed", str(folder.path), what, effect)
    if folder.aborted_bytes != expected.aborted_bytes:
        now, before = folder.aborted_bytes, expected.aborted_bytes
        what = f"its .txnindex files have {now} bytes, and they had {before} at the stop"
        effect = "with Kafka read_committed readers may see aborted records; Barnabas reads the log and writes the files anew"
        yield Finding("unnoticed", str(folder.path), what, effect)


def _misnamed(folder: PartitionFolder) -> Iterator[Finding]:
    """Files whose offset has not 20 digits. Kafka takes the offset from the name, and opens the file with 20 digits."""
    logs = {each.base_offset for each in folder.logs}
    for name in folder.misnamed:
        stem, suffix = name.partition(".")[::2]
        path = f"{folder.path}/{name}"
        if suffix == "log":
            effect = "Kafka does not read it, and begins an empty segment at this offset: move the file away"
            yield Finding("lose", path, "its offset has not 20 digits", effect)
        elif suffix == "snapshot":
            effect = "Kafka takes it for a producer snapshot, or removes it"
            yield Finding("note", path, "its offset has not 20 digits", effect)
        elif int(stem) in logs:
            yield Finding("note", path, "its offset has not 20 digits", "left as it is")
        else:
            yield Finding("rebuild", path, "an index without a .log file", "removed")


def _checked_end(directory: DataDirectory, folder: PartitionFolder) -> Finding | None:
    """A log that ends below what was durable, or without the producer snapshot of a clean stop."""
    end, point = folder.log_end_offset, folder.recovery_point
    if end is None:
        return None
    if point is not None and end < point:
        what = f"the log ends at offset {end}, and it was durable up to {point}"
        if directory.is_clean:
            return Finding("unnoticed", str(folder.path), what, "Kafka misses the records; Barnabas refuses the log")
        effect = "the records between are lost; restore them from another replica"
        return Finding("lose", str(folder.path), what, effect)
    if directory.is_clean and end > (folder.first_offset or 0):
        why = _snapshot_problem(folder, end)
        effect = "Kafka forgets producers and open transactions: read_committed readers may see aborted records"
        return None if why is None else Finding("unnoticed", str(folder.path), why, effect)
    return None


def _snapshot_problem(folder: PartitionFolder, end: int) -> str | None:
    if end not in folder.producer_snapshots:
        return f"no producer snapshot at the log end {end}"
    try:
        PartitionProducers().load_snapshot((folder.path / f"{end:020d}.snapshot").read_bytes(), end, 0, 1 << 62)
    except BarnabasError as error:
        return f"the producer snapshot at the log end {end} is damaged: {error}"
    return None


def _indexes(directory: DataDirectory, folder: PartitionFolder, segment: SegmentOnDisk) -> Iterator[Finding]:
    stem = f"{folder.path}/{segment.base_offset:020d}"
    if segment.log_bytes is None:
        for suffix in segment.sizes:
            if directory.is_clean:
                effect = "removed: the records of the missing file are not served. Restore it"
                yield Finding("unnoticed", stem + suffix, "an index without a .log file, after a clean stop", effect)
            else:
                yield Finding("rebuild", stem + suffix, "an index without a .log file", "removed")
        return
    if ".index" not in segment.sizes:
        yield Finding("rebuild", stem + ".index", "missing", "Kafka reads the segment and writes its indexes")
    for suffix, entry_bytes in _INDEX_ENTRY_BYTES.items():
        size = segment.sizes.get(suffix)
        if size is None:
            continue
        data = Path(stem + suffix).read_bytes()
        wrong = None
        if size % entry_bytes:
            wrong = f"{size} bytes are no multiple of {entry_bytes}"
        elif suffix == ".index" and OffsetIndex.from_bytes(segment.base_offset, data, segment.log_bytes) is None:
            wrong = "its offsets or positions do not ascend"
        elif suffix == ".timeindex" and TimeIndex.from_bytes(segment.base_offset, data) is None:
            wrong = "its times or offsets do not ascend"
        if wrong is not None and directory.is_clean:
            effect = (
                "after a clean stop Kafka trusts it, and readers may fail: remove the file, then it is written anew"
            )
            yield Finding("unnoticed", stem + suffix, wrong, effect)
        elif wrong is not None:
            yield Finding("rebuild", stem + suffix, wrong, "Kafka reads the segment and writes its indexes")


def _records(directory: DataDirectory, folder: PartitionFolder, *, all_records: bool) -> Iterator[Finding]:
    """Damaged batches: in what Kafka reads at the start, from the recovery point of a log that was not stopped cleanly."""
    logs = folder.logs
    point = folder.recovery_point or 0
    for place, segment in enumerate(logs):
        ends = logs[place + 1].base_offset if place + 1 < len(logs) else None
        read = not directory.is_clean and (ends is None or ends > point)
        if not read and not all_records and ends is not None:
            continue
        path = folder.path / f"{segment.base_offset:020d}.log"
        for found in batches_of(path, contents=read or all_records):
            if isinstance(found, DamageFound):
                yield _damaged(folder, path, found, logs[place + 1 :], read=read)
                if read:
                    return


def _damaged(
    folder: PartitionFolder, path: Path, found: DamageFound, later: Sequence[SegmentOnDisk], *, read: bool
) -> Finding:
    from_offset = int(path.stem) if found.next_offset is None else found.next_offset
    if not read:
        effect = (
            f"Kafka trusts it at a start, and reads from offset {from_offset} on fail; Barnabas refuses a torn log end"
        )
        return Finding("unnoticed", str(path), found.why, effect)
    cut = path.stat().st_size - found.position + sum(each.log_bytes or 0 for each in later)
    and_later = f" and {len(later)} later segments" if later else ""
    effect = f"Kafka cuts the log at offset {from_offset}: {cut} bytes{and_later}; a replica on another broker has them"
    return Finding("lose", str(path), found.why, effect)


def _known(directory: DataDirectory, folder: PartitionFolder, image: MetadataImage | None) -> Iterator[Finding]:
    """Compares a folder with the metadata log: topics that are gone, other ids, partitions of other nodes."""
    if image is None or folder.topic_id is None:
        return
    topic = image.topic(folder.topic)
    why = None
    if topic is None:
        why = f"the metadata log has no topic {folder.topic!r}"
    elif topic.topic_id != folder.topic_id:
        why = f"the topic id is {encode_uuid(topic.topic_id)}, and the folder's is {encode_uuid(folder.topic_id)}"
    elif folder.partition >= len(topic.partitions):
        why = f"topic {folder.topic!r} has {len(topic.partitions)} partitions"
    elif directory.meta is not None and directory.meta.node_id not in topic.partitions[folder.partition].replicas:
        why = f"its replicas are on {list(topic.partitions[folder.partition].replicas)}, not on node {directory.meta.node_id}"
    if why is not None:
        yield Finding("stray", str(folder.path), why, "Kafka renames the folder to -stray")


def _metadata(directory: DataDirectory, folder: PartitionFolder) -> Iterator[Finding]:
    if (why := folder.problems.get(LEADER_EPOCH_CHECKPOINT)) is not None:
        path = f"{folder.path}/{LEADER_EPOCH_CHECKPOINT}"
        yield Finding("refuse", path, why, "Kafka does not start: restore the file")
    logs = folder.logs
    begin = logs[0].base_offset if logs else 0
    if begin > max((each.end_offset for each in directory.snapshots), default=0):
        what = f"the log begins at offset {begin}, and no snapshot has what is below"
        effect = "restore the .checkpoint file, or copy the log of another voter"
        yield Finding("refuse", str(folder.path), what, effect)
    for damaged, why in damaged_snapshots(directory):
        effect = "a start reads an older snapshot, if the log above it is still there"
        yield Finding("refuse", str(damaged), why, effect)
    for segment in logs:
        log = folder.path / f"{segment.base_offset:020d}.log"
        for found in batches_of(log):
            if isinstance(found, DamageFound):
                effect = "the metadata log is cut there; other voters have the rest, a lone node loses it"
                yield Finding("lose", str(log), found.why, effect)


def _twice(directories: Sequence[DataDirectory]) -> Iterator[Finding]:
    seen: dict[str, Path] = {}
    for directory in directories:
        for folder in directory.partitions:
            if folder.name in seen:
                effect = "Kafka stops: a partition has one folder on a node. Keep the one that the metadata log names"
                yield Finding("refuse", str(folder.path), f"{seen[folder.name]} has this partition, too", effect)
            seen.setdefault(folder.name, directory.path)


def stored_image(directory: DataDirectory) -> MetadataImage | None:
    """Returns the image as of the last readable record; None if the directory has no metadata log.

    Raises:
        InvariantViolated: records contradict each other.
        RemoteProtocolError: a record is of an unknown form.
        OSError: a file cannot be read.
    """
    folder = directory.metadata
    if folder is None:
        return None
    builder = ImageBuilder(EMPTY_IMAGE)
    next_offset = 0
    for snapshot in reversed(directory.snapshots):
        try:
            values = list(decode_snapshot((folder.path / snapshot_name(snapshot)).read_bytes()))
        except RemoteProtocolError:
            continue  # an older one, or the log from its begin
        for value in values:
            builder.replay(decode_record(value))
        builder.advance(snapshot.end_offset - 1, snapshot.epoch, 0)
        next_offset = snapshot.end_offset
        break
    for segment in folder.logs:
        for found in batches_of(folder.path / f"{segment.base_offset:020d}.log"):
            if isinstance(found, DamageFound):
                return builder.image()
            batch, data = found
            if batch.last_offset < next_offset:
                continue
            if not batch.attributes & ATTRIBUTE_CONTROL:
                for record in decode_records(data):
                    if record.value is not None and record.offset >= next_offset:
                        builder.replay(decode_record(record.value))
            builder.advance(batch.last_offset, batch.leader_epoch, batch.max_timestamp)
    return builder.image()


def damaged_snapshots(directory: DataDirectory) -> Iterator[tuple[Path, str]]:
    """The snapshots that cannot be read, and why."""
    if directory.metadata is None:
        return
    for snapshot in directory.snapshots:
        path = directory.metadata.path / snapshot_name(snapshot)
        try:
            for _ in decode_snapshot(path.read_bytes()):
                pass
        except (RemoteProtocolError, OSError) as error:
            yield path, str(error)
