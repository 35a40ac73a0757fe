"""Arguments and JSON files that name partitions, in the formats of Kafka's tools.

kafka-reassign-partitions, kafka-leader-election and kafka-delete-records read {"partitions": [{"topic": …, "partition": …}]}, with
"replicas" or "offset". Here the same is written as an argument, too: TOPIC:PARTITION, TOPIC:PARTITION=1,2,3, TOPIC:PARTITION:OFFSET.

Invariants: nothing is left out without a word. A wrong entry, an unknown key or a partition that is named twice raises WrongFile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.cli.client_properties import WrongCall
from barnabas.client.types import TopicPartition

FILE_BYTES_MAX: Final = 64 * 1024 * 1024  # about 600,000 partitions
DIGITS_MAX: Final = 19
ANY_DIRECTORY: Final = "any"
_LATEST: Final = "latest"


class WrongFile(WrongCall):
    """A file or an argument is not of the expected form; the text says what is."""


def partition_argument(text: str) -> TopicPartition:
    """Reads TOPIC:PARTITION. Raises WrongFile."""
    topic, separator, number = text.rpartition(":")
    if not separator or not topic or not number.isascii() or not number.isdigit() or len(number) > DIGITS_MAX:
        raise WrongFile(f"{text!r} is not TOPIC:PARTITION, such as orders:0")
    return TopicPartition(topic, int(number))


def replicas_argument(text: str) -> tuple[TopicPartition, tuple[int, ...]]:
    """Reads TOPIC:PARTITION=1,2,3: node ids, the preferred leader first. Raises WrongFile."""
    where, separator, listed = text.partition("=")
    brokers = listed.split(",")
    if not separator or not all(each.isascii() and each.isdigit() and len(each) <= DIGITS_MAX for each in brokers):
        raise WrongFile(f"{text!r} is not TOPIC:PARTITION=BROKER,BROKER, such as orders:0=1,2,3")
    return partition_argument(where), _brokers(text, [int(each) for each in brokers])


def offset_argument(text: str) -> tuple[TopicPartition, int]:
    """Reads TOPIC:PARTITION:OFFSET; "latest" is −1, the high watermark. Raises WrongFile."""
    where, _, offset = text.rpartition(":")
    try:
        return partition_argument(where), -1 if offset == _LATEST else _offset(int(offset))
    except ValueError as error:
        raise WrongFile(f"{text!r} is not TOPIC:PARTITION:OFFSET, such as orders:0:100 or orders:0:latest") from error


def read_partitions_file(path: Path) -> list[TopicPartition]:
    """Reads the file of kafka-leader-election: {"partitions": [{"topic": "orders", "partition": 0}]}. Raises WrongFile."""
    return [_partition(path, entry) for entry in _entries(path, "partitions", {"topic", "partition"})]


def read_offsets_file(path: Path) -> list[tuple[TopicPartition, int]]:
    """Reads the file of kafka-delete-records, with "offset" in each entry. Raises WrongFile."""
    entries = _entries(path, "partitions", {"topic", "partition", "offset"})
    try:
        return [(_partition(path, entry), _offset(_whole(entry.get("offset")))) for entry in entries]
    except ValueError as error:
        raise WrongFile(f"{path}: {error}") from error


def read_reassignment_file(path: Path) -> list[tuple[TopicPartition, tuple[int, ...]]]:
    """Reads the file of kafka-reassign-partitions, with "replicas" in each entry. Raises WrongFile."""
    found = []
    for entry in _entries(path, "partitions", {"topic", "partition", "replicas", "log_dirs"}):
        partition, replicas = _partition(path, entry), entry.get("replicas")
        if not isinstance(replicas, list) or not all(type(each) is int for each in replicas):
            raise WrongFile(f'{path}: {partition.topic}-{partition.partition} needs "replicas": a list of node ids')
        directories = entry.get("log_dirs") or []
        if not isinstance(directories, list) or any(each != ANY_DIRECTORY for each in directories):
            raise WrongFile(
                f'{path}: log_dirs other than "any" are not served: replicas cannot be moved between directories'
            )
        found.append((partition, _brokers(f"{path}: {partition.topic}-{partition.partition}", replicas)))
    return found


def read_topics_file(path: Path) -> list[str]:
    """Reads the file that names topics to move: {"topics": [{"topic": "orders"}]}. Raises WrongFile."""
    topics = [entry.get("topic") for entry in _entries(path, "topics", {"topic"})]
    if not all(isinstance(topic, str) and topic for topic in topics):
        raise WrongFile(f'{path}: each of "topics" needs a "topic"')
    return [str(topic) for topic in topics]


def as_reassignment(replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """The document that kafka-reassign-partitions reads and prints."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(brokers),
                "log_dirs": [ANY_DIRECTORY] * len(brokers),
            }
            for partition, brokers in sorted(replicas.items())
        ],
    }


def without_doubles(named: Iterable[TopicPartition]) -> None:
    """Raises WrongFile if a partition is named twice."""
    seen: set[TopicPartition] = set()
    for partition in named:
        if partition in seen:
            raise WrongFile(f"{partition.topic}:{partition.partition} is named twice")
        seen.add(partition)


def _entries(path: Path, name: str, keys: set[str]) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise WrongFile(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise WrongFile(f"cannot read {path}: {error}") from error
    entries = document.get(name) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise WrongFile(f'{path} has no list "{name}"; it should be {{"version": 1, "{name}": [{{…}}]}}')
    if document.get("version", 1) != 1:
        raise WrongFile(f"{path} has version {document['version']}, only 1 is read")
    for entry in entries:
        unknown = sorted(set(entry) - keys)
        if unknown:
            raise WrongFile(f"{path}: unknown key {unknown[0]!r}; an entry has {', '.join(sorted(keys))}")
    return entries


def _partition(path: Path, entry: dict[str, Any]) -> TopicPartition:
    topic, partition = entry.get("topic"), entry.get("partition")
    if not isinstance(topic, str) or not topic or type(partition) is not int or partition < 0:
        raise WrongFile(f'{path}: {json.dumps(entry)[:200]} needs "topic": a name and "partition": a number')
    return TopicPartition(topic, partition)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError('"offset" must be a whole number')
    return value


def _offset(offset: int) -> int:
    if not -1 <= offset < 2**63:
        raise ValueError(f"{offset} is no offset; -1 stands for the high watermark")
    return offset


def _brokers(where: str, brokers: Sequence[int]) -> tuple[int, ...]:
    if not brokers or len(set(brokers)) < len(brokers) or min(brokers) < 0 or max(brokers) >= 2**31:
        raise WrongFile(f"{where}: a partition needs at least one broker, and each only once")
    return tuple(brokers)
