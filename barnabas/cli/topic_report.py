"""What `barnabas topic list` and `topic describe` show: topics with their partitions, offsets and configs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from barnabas.cli.output import printed_uuid, table
from barnabas.client.admin import Admin, ConfigEntry
from barnabas.client.errors import KafkaError, UnknownTopicOrPartition
from barnabas.client.net.metadata import PartitionInfo, TopicInfo
from barnabas.client.types import TopicPartition

__all__ = [
    "PartitionOffsets",
    "TopicReport",
    "found_topics",
    "reported_topics",
    "topic_document",
    "topic_summary",
    "topic_text",
]

TOPIC_SOURCE: Final = 1  # ConfigSource of DescribeConfigs: set on the topic itself
IN_FLIGHT_MAX: Final = 50  # DescribeConfigs requests at the same time
MIN_ISR: Final = "min.insync.replicas"


class PartitionOffsets(NamedTuple):
    """Offsets of a partition. `end` is the high watermark, `stable` the last stable offset."""

    start: int
    end: int
    stable: int


class TopicReport(NamedTuple):
    """A topic. `configs` has all configs of the topic, also defaults; `offsets` those of partitions with a leader."""

    info: TopicInfo
    configs: Mapping[str, ConfigEntry] = {}
    offsets: Mapping[int, PartitionOffsets] = {}

    @property
    def min_isr(self) -> int:
        """min.insync.replicas; 1 if it is not known."""
        entry = self.configs.get(MIN_ISR)
        return int(entry.value) if entry is not None and entry.value else 1

    def only(self, names: Iterable[str]) -> TopicReport:
        """This topic with those of its partitions that have one of these conditions."""
        conditions: dict[str, Callable[[PartitionInfo], bool]] = {
            "under-replicated": lambda p: len(p.isr) < len(p.replicas),
            "unavailable": lambda p: p.leader < 0,
            "under-min-isr": lambda p: len(p.isr) < self.min_isr,
            "at-min-isr": lambda p: len(p.isr) == self.min_isr,
        }
        chosen = [conditions[name] for name in names]
        kept = tuple(p for p in self.info.partitions if any(holds(p) for holds in chosen))
        return self._replace(info=self.info._replace(partitions=kept))


async def found_topics(admin: Admin, names: Iterable[str], missing: dict[str, KafkaError]) -> list[TopicInfo]:
    """The topics with these names, in order; notes in `missing` why one cannot be described."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    try:
        found = await admin.describe_topics(wanted)
        return [found[name] for name in wanted]
    except KafkaError as error:
        if error.topic is None:
            raise
    each: list[TopicInfo] = []
    for name in wanted:  # one of them was refused
        try:
            each.append((await admin.describe_topics([name]))[name])
        except KafkaError as error:
            if error.topic is None:
                raise
            missing[name] = error
    return each


async def reported_topics(admin: Admin, topics: list[TopicInfo]) -> list[TopicReport]:
    """The topics with their configs and offsets. A topic that is deleted between two requests is left out."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def configs(name: str) -> dict[str, ConfigEntry] | None:
        async with room:
            try:
                return await admin.describe_configs(topic=name)
            except UnknownTopicOrPartition:
                return None

    found = await asyncio.gather(*(configs(topic.name) for topic in topics))
    kept = [(topic, each) for topic, each in zip(topics, found, strict=True) if each is not None]
    offsets = await _offsets(admin, [topic for topic, _ in kept])
    return [TopicReport(topic, each, offsets.get(topic.name, {})) for topic, each in kept]


async def _offsets(admin: Admin, topics: list[TopicInfo]) -> dict[str, dict[int, PartitionOffsets]]:
    """The offsets of all partitions with a leader; none if a leader does not answer, which stderr says."""
    led = [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions if p.leader >= 0]
    try:
        first = await admin.list_offsets(dict.fromkeys(led, "earliest"))
        last = await admin.list_offsets(dict.fromkeys(led, "latest"))
        stable = await admin.list_offsets(dict.fromkeys(led, "latest"), isolation_level="read_committed")
    except KafkaError as error:
        print(f"offsets are not shown: {error}", file=sys.stderr)
        return {}
    found: dict[str, dict[int, PartitionOffsets]] = {}
    for tp in led:
        at = PartitionOffsets(first[tp].offset, last[tp].offset, stable[tp].offset)
        found.setdefault(tp.topic, {})[tp.partition] = at
    return found


def topic_summary(topic: TopicInfo) -> dict[str, Any]:
    """A topic as `topic list --json` prints it."""
    return {
        "name": topic.name,
        "topic_id": printed_uuid(topic.topic_id),
        "is_internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": max((len(p.replicas) for p in topic.partitions), default=0),
        "under_replicated_partitions": sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
        "unavailable_partitions": sum(p.leader < 0 for p in topic.partitions),
    }


def topic_document(topic: TopicReport) -> dict[str, Any]:
    """A topic as `topic describe --json` prints it."""
    return {
        **topic_summary(topic.info),
        "configs": _own_configs(topic),
        "partitions": [_partition(p, topic.offsets.get(p.partition)) for p in topic.info.partitions],
    }


def topic_text(topic: TopicReport) -> str:
    """A topic as `topic describe` prints it."""
    summary = topic_summary(topic.info)
    lines = [
        f"{topic.info.name}  id {summary['topic_id']}  partitions {summary['partition_count']}  "
        f"replication factor {summary['replication_factor']}"
    ]
    lines += [f"  {name}={value}" for name, value in _own_configs(topic).items()]
    header = ("partition", "leader", "epoch", "replicas", "in sync", "start", "end", "stable")
    rows = []
    for p in topic.info.partitions:
        at = topic.offsets.get(p.partition)
        leader = p.leader if p.leader >= 0 else "none"
        places = (",".join(map(str, p.replicas)), ",".join(map(str, p.isr)))
        rows.append((p.partition, leader, p.leader_epoch, *places, *(at or (None, None, None))))
    lines += [f"  {line}" for line in table(header, rows).splitlines()]
    return "\n".join(lines)


def _own_configs(topic: TopicReport) -> dict[str, str | None]:
    return {name: each.value for name, each in sorted(topic.configs.items()) if each.source == TOPIC_SOURCE}


def _partition(p: PartitionInfo, at: PartitionOffsets | None) -> dict[str, Any]:
    return {
        "partition": p.partition,
        "leader": p.leader if p.leader >= 0 else None,
        "leader_epoch": p.leader_epoch,
        "replicas": list(p.replicas),
        "isr": list(p.isr),
        "start_offset": None if at is None else at.start,
        "end_offset": None if at is None else at.end,
        "last_stable_offset": None if at is None else at.stable,
    }
