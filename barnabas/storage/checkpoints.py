"""Checkpoint files of a data directory, in Kafka's text formats; a malformed one gives no partial result."""

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
    """16 bytes as Kafka formats ids: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """Raises ValueError if `text` is not 22 characters of base64."""
    try:
        uuid = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id of 22 characters of base64") from error
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is not an id of 22 characters of base64")
    return uuid


def _lines(data: bytes, what: str) -> list[str]:
    """The entries after the version line and the count line. Each must end with a newline."""
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
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return format_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def write_offsets(disk: Disk, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Writes durably and blocks: only for start and stop."""
    disk.replace(name, format_offsets(offsets))


def read_offsets(disk: Disk, name: str) -> dict[TopicPartition, int]:
    """Empty without a file. Raises MalformedCheckpoint; without recovery points the caller recovers everything."""
    offsets: dict[TopicPartition, int] = {}
    data = disk.read(name) if disk.exists(name) else None
    # Kafka creates the cleaner's file without a byte
    if data is None or (not data and name == CLEANER_OFFSET_CHECKPOINT):
        return offsets
    for line in _lines(data, name):
        try:
            topic, partition, offset = line.split(" ")
            offsets[topic, int(partition)] = int(offset)
        except ValueError as error:
            raise MalformedCheckpoint(f"{name} has the line {line!r}") from error
    return offsets


class LogSize(NamedTuple):
    """Bytes of a log's .log files and of its .txnindex files."""

    log_bytes: int
    aborted_bytes: int


def format_log_sizes(broker_epoch: int, sizes: Mapping[TopicPartition, LogSize]) -> bytes:
    """log-size-checkpoint: the broker epoch of a clean stop, then lines of topic, partition and sizes."""
    lines = [f"{topic} {partition} {' '.join(map(str, size))}" for (topic, partition), size in sizes.items()]
    return format_lines([str(broker_epoch), *lines])


def read_log_sizes(disk: Disk, broker_epoch: int) -> dict[TopicPartition, LogSize]:
    """Empty if the file is missing or of a stop with another broker epoch. Raises MalformedCheckpoint."""
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
    return format_lines([f"{epoch} {start}" for epoch, start in entries])


def parse_epochs(data: bytes) -> list[tuple[int, int]]:
    """Raises MalformedCheckpoint if the file is damaged or its entries do not increase."""
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
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> bytes:
    """The topic id. Raises MalformedCheckpoint."""
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
    """None without a file. Raises MalformedCheckpoint for another version or a missing property."""
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
    """Call it last: every log is closed, synced and has a producer snapshot at its end."""
    disk.replace(
        CLEAN_SHUTDOWN_FILE, json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
    )


def read_clean_shutdown(disk: Disk) -> int | None:
    """The broker epoch of a clean stop: -1 if the file lacks it, None without a file."""
    if not disk.exists(CLEAN_SHUTDOWN_FILE):
        return None
    try:
        epoch = json.loads(disk.read(CLEAN_SHUTDOWN_FILE))["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def take_clean_shutdown(disk: Disk) -> int | None:
    """As `read_clean_shutdown`, and removes the file: call it before any log is written."""
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
