"""The small text files of a data directory, in Kafka's formats.

Functions that parse and format text, with readers and writers over a Disk: the offset checkpoints (recovery point,
high watermark, log start, cleaner), leader-epoch-checkpoint, partition.metadata, meta.properties and .kafka_cleanshutdown.

Invariants: a file that does not parse completely raises MalformedCheckpoint and never gives a partial result. The caller handles
the error.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.errors import BarnabasError
from barnabas.ports import Disk

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
PRODUCER_STATE_CHECKPOINT = "producer-state-offset-checkpoint"  # not a file of Kafka: `ProducerSnapshots.complete_to`
LOG_SIZE_CHECKPOINT = "log-size-checkpoint"  # not a file of Kafka: `format_log_sizes`
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
NEW_SUFFIX = ".new"  # of a file until it is synced
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
_TAKEN = CLEAN_SHUTDOWN_FILE + ".taken"

_VERSION = 0

TopicPartition = tuple[str, int]


class MalformedCheckpoint(BarnabasError):
    """A checkpoint file is damaged or has another version."""


def encode_uuid(uuid: bytes) -> str:
    """Formats 16 bytes as Kafka formats ids: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """The reverse of `encode_uuid`.

    Raises:
        ValueError: not 22 characters of base64.
    """
    try:
        uuid = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id of 22 characters of base64") from error
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is not an id of 22 characters of base64")
    return uuid


def _lines(data: bytes, what: str) -> list[str]:
    """The entry lines of a checkpoint, which follow a version line and a count line. Each must end with a newline."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(f"{what} is not text") from error
    lines = text.split("\n")
    if len(lines) < 3 or lines[-1] != "" or lines[0] != str(_VERSION) or not lines[1].isdigit():
        raise MalformedCheckpoint(f"{what} does not begin with version {_VERSION} and a count, or is cut off")
    entries = lines[2:-1]
    if len(entries) != int(lines[1]):
        raise MalformedCheckpoint(f"{what} has {len(entries)} entries and says {lines[1]}")
    return entries


def format_lines(lines: Sequence[str]) -> bytes:
    """The text of a checkpoint with these entries."""
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of an offset checkpoint: lines of topic, partition, offset."""
    return format_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def write_offsets(disk: Disk, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Writes one of the four offset checkpoints durably. Blocks until then: only for a start and a stop."""
    disk.replace(name, format_offsets(offsets))


def read_offsets(disk: Disk, name: str) -> dict[TopicPartition, int]:
    """Reads an offset checkpoint; empty if there is none.

    Raises:
        MalformedCheckpoint: the file is damaged. The caller may use an empty map of recovery points: then everything is recovered.
    """
    offsets: dict[TopicPartition, int] = {}
    data = disk.read(name) if disk.exists(name) else None
    if data is None or (
        not data and name == CLEANER_OFFSET_CHECKPOINT
    ):  # Kafka creates the cleaner's file without a byte
        return offsets
    for line in _lines(data, name):
        try:
            topic, partition, offset = line.split(" ")
            offsets[topic, int(partition)] = int(offset)
        except ValueError as error:
            raise MalformedCheckpoint(f"{name} has the line {line!r}") from error
    return offsets


class LogSize(NamedTuple):
    """Bytes of all .log files and of all .txnindex files of one log."""

    log_bytes: int
    aborted_bytes: int


def format_log_sizes(broker_epoch: int, sizes: Mapping[TopicPartition, LogSize]) -> bytes:
    """The text of log-size-checkpoint: a line with the broker epoch of a clean stop, then lines of topic, partition and sizes.

    The broker epoch ties the file to the clean-shutdown file: another stop, also one of Kafka, has another broker epoch.
    """
    lines = [f"{topic} {partition} {' '.join(map(str, size))}" for (topic, partition), size in sizes.items()]
    return format_lines([str(broker_epoch), *lines])


def read_log_sizes(disk: Disk, broker_epoch: int) -> dict[TopicPartition, LogSize]:
    """The sizes of the logs at the clean stop with that broker epoch; empty if the file is missing or of another stop.

    Raises:
        MalformedCheckpoint: the file is damaged.
    """
    if broker_epoch < 0 or not disk.exists(LOG_SIZE_CHECKPOINT):
        return {}
    lines = _lines(disk.read(LOG_SIZE_CHECKPOINT), LOG_SIZE_CHECKPOINT)
    if lines[:1] != [str(broker_epoch)]:
        return {}
    sizes: dict[TopicPartition, LogSize] = {}
    for line in lines[1:]:
        try:
            topic, partition, log_bytes, aborted_bytes = line.split(" ")
            sizes[topic, int(partition)] = LogSize(int(log_bytes), int(aborted_bytes))
        except ValueError as error:
            raise MalformedCheckpoint(f"{LOG_SIZE_CHECKPOINT} has the line {line!r}") from error
    return sizes


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """The text of leader-epoch-checkpoint: lines of epoch and start offset."""
    return format_lines([f"{epoch} {start}" for epoch, start in entries])


def parse_epochs(data: bytes) -> list[tuple[int, int]]:
    """Reads leader-epoch-checkpoint. Raises MalformedCheckpoint if it is damaged or its entries do not increase."""
    entries: list[tuple[int, int]] = []
    for line in _lines(data, LEADER_EPOCH_CHECKPOINT):
        try:
            epoch, start = map(int, line.split(" "))
        except ValueError as error:
            raise MalformedCheckpoint(f"{LEADER_EPOCH_CHECKPOINT} has the line {line!r}") from error
        if entries and (epoch <= entries[-1][0] or start <= entries[-1][1]):
            raise MalformedCheckpoint(f"{LEADER_EPOCH_CHECKPOINT} does not increase at {line!r}")
        entries.append((epoch, start))
    return entries


def format_partition_metadata(topic_id: bytes) -> bytes:
    """The text of partition.metadata: the id of the topic to which a folder belongs."""
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> bytes:
    """Reads the topic id of partition.metadata. Raises MalformedCheckpoint."""
    try:
        version, topic = data.decode().rstrip("\n").split("\n")
        if version.strip() != "version: 0" or not topic.startswith("topic_id:"):
            raise ValueError(f"expected version and topic_id, found {version!r} and {topic!r}")
        return decode_uuid(topic.removeprefix("topic_id:").strip())
    except ValueError as error:
        raise MalformedCheckpoint(f"{PARTITION_METADATA}: {error}") from error


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a data directory. Ids have Kafka's base64 form; `cluster_id` may be any text."""

    cluster_id: str
    node_id: int
    directory_id: str


def _property_value(text: str) -> str:
    return text.replace("\\:", ":").replace("\\=", "=").replace("\\\\", "\\").strip()


def read_meta_properties(disk: Disk) -> MetaProperties | None:
    """Reads meta.properties version 1; None if there is none.

    Raises:
        MalformedCheckpoint: the file has another version, or a property is missing.
    """
    if not disk.exists(META_PROPERTIES):
        return None
    properties: dict[str, str] = {}
    for line in disk.read(META_PROPERTIES).decode(errors="replace").splitlines():
        if line.strip() and not line.startswith(("#", "!")):
            key, _, value = line.partition("=")
            properties[key.strip()] = _property_value(value)
    if properties.get("version") != "1":
        raise MalformedCheckpoint(f"{META_PROPERTIES} has version {properties.get('version')}, only 1 (KRaft) is read")
    try:
        return MetaProperties(properties["cluster.id"], int(properties["node.id"]), properties["directory.id"])
    except (KeyError, ValueError) as error:
        raise MalformedCheckpoint(f"{META_PROPERTIES} lacks a proper {error}") from error


def write_meta_properties(disk: Disk, meta: MetaProperties) -> None:
    """Writes meta.properties version 1, durably."""
    lines = [
        "#",
        f"cluster.id={meta.cluster_id}",
        f"directory.id={meta.directory_id}",
        f"node.id={meta.node_id}",
        "version=1",
        "",
    ]
    disk.replace(META_PROPERTIES, "\n".join(lines).encode())


def write_clean_shutdown(disk: Disk, broker_epoch: int) -> None:
    """Writes the mark of a clean stop. Call it last: every log is closed, synced and has a producer snapshot at its end."""
    disk.replace(
        CLEAN_SHUTDOWN_FILE, json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
    )


def read_clean_shutdown(disk: Disk) -> int | None:
    """The broker epoch in the mark of a clean stop; -1 if it holds none, None without a mark."""
    if not disk.exists(CLEAN_SHUTDOWN_FILE):
        return None
    try:
        epoch = json.loads(disk.read(CLEAN_SHUTDOWN_FILE))["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def take_clean_shutdown(disk: Disk) -> int | None:
    """Removes the mark of a clean stop. Returns its broker epoch (-1 if it holds none), None if the stop was not clean.

    Call it before any log is written: a mark that reappears after a power loss would declare torn files valid.
    """
    epoch = read_clean_shutdown(disk)
    if epoch is not None:
        disk.remove(CLEAN_SHUTDOWN_FILE)
        disk.replace(_TAKEN, b"")  # it syncs the folder, too: the removal must be durable
        disk.remove(_TAKEN)
    return epoch


async def replace_off_loop(disk: Disk, path: str, data: bytes) -> None:
    """Does what `disk.replace` does, with the syncs off the loop. Another call for the same path must not run at the same time.

    Raises:
        OSError: the disk failed; the file is the old one or the new one.
    """
    aside = path + NEW_SUFFIX
    file = disk.open(aside, create=True)
    try:
        file.pwrite(data, 0)
        file.truncate(len(data))  # it may remain from a process that was killed
        await disk.sync([file])
    finally:
        file.close()
    disk.rename(aside, path)
    renamed = disk.open(path)
    try:
        await disk.sync([renamed])  # also the folder, for the new name
    finally:
        renamed.close()
