"""Consumer group series under kafka_exporter's names: members, committed offsets and lag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily

from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.metrics.end_offsets import EndOffsets
from barnabas.broker.metrics.exposition import Collected
from barnabas.broker.metrics.group_offsets import GroupOffsets
from barnabas.broker.metrics.line_table import LineTable, Series, labels_text
from barnabas.broker.replica.replicas import Replicas
from barnabas.errors import BrokerError
from barnabas.work import Steps

ROWS_MAX: Final = 100_000
CHECKED_PER_SLICE: Final = 1_000  # partitions; a changed one counts as CHANGED_COST of them
CHANGED_COST: Final = 6
TOPIC_COST: Final = 4  # of a topic of a group

PREFIX: Final = "kafka_consumergroup_"
GROUP_SERIES: Final = (Series(PREFIX + "members", "gauge", "Members of the group."),)

_Ends = list[int | None]  # of the partitions of a topic


class GroupSeries:
    """Only the coordinator exports a group, so that a sum over all brokers counts everything once.

    Lag is the leader's high watermark minus the committed offset, at least 0. As in kafka_exporter, offset and lag are -1 without a commit,
    lag_sum omits such partitions, and current_offset_sum has their -1. Unlike there, lag_sum is missing while an end is unknown: an
    autoscaler must not read a sum that is too small. Above ROWS_MAX partitions `barnabas_consumergroup_topics_left_out` counts the omitted
    topics.
    """

    ends: EndOffsets  # must be set before the first scrape

    def __init__(self, groups: GroupCoordinator, current: CurrentImage, replicas: Replicas) -> None:
        self._groups = groups
        self._current = current
        self._replicas = replicas
        self._members: LineTable[str] = LineTable(GROUP_SERIES, lambda group: labels_text(consumergroup=group))
        self._offsets = GroupOffsets()

    def wanted(self) -> Steps[dict[str, dict[int, None]]]:
        """Partitions with commits of the groups that are coordinated here, by topic."""
        found: dict[str, dict[int, None]] = {}
        for shard in self._shards():
            for group_id in list(shard.offsets.groups()):
                looked = 0
                for topic, commits in shard.offsets.of_group(group_id):
                    found.setdefault(topic, {}).update(dict.fromkeys(commits))
                    looked += 4 + len(commits) // 16
                yield 1 + looked // 16
        return found

    def collect(self) -> Iterator[Collected]:
        ends: dict[str, _Ends | None] = {}
        members: dict[str, None] = {}
        topics: dict[tuple[str, str], None] = {}
        rows = left_out = cost = 0
        for shard in self._shards():
            tables = shard.tables
            for group_id in [*tables.classic, *tables.consumer]:
                group = tables.classic.get(group_id) or tables.consumer.get(group_id)
                if group is None:
                    continue
                members[group_id] = None
                self._members.put(group_id, (len(group.members),))
                cost += TOPIC_COST
                for topic, commits in shard.offsets.of_group(group_id):
                    if topic not in ends:
                        ends[topic] = self._ends_of(topic)
                        cost += len(ends[topic] or ())
                    of_topic = ends[topic]
                    if of_topic is None:
                        continue
                    key = (group_id, topic)
                    rows += len(of_topic)
                    if rows > ROWS_MAX:
                        left_out += 1
                        rows -= len(of_topic)
                        continue
                    topics[key] = None
                    touched = yield from self._offsets.put(key, commits, of_topic)
                    cost += TOPIC_COST + len(commits) // 4 + CHANGED_COST * touched
                    if cost >= CHECKED_PER_SLICE:
                        cost = 0
                        yield None
                if cost >= CHECKED_PER_SLICE:
                    cost = 0
                    yield None
        for group_id in list(self._members.keys()):
            if group_id not in members:
                self._members.drop(group_id)
        yield None
        yield from self._offsets.drop_all_but(topics)
        yield self._members
        yield self._offsets.sums
        yield self._offsets.offsets
        yield GaugeMetricFamily(
            "barnabas_consumergroup_topics_left_out", f"Topics of groups beyond {ROWS_MAX} partitions.", left_out
        )

    def _shards(self) -> Iterable[GroupShard]:
        host = self._groups.host
        for partition, shard in host.active_shards():
            try:
                host.check_leads(partition)
            except BrokerError:
                continue
            yield shard

    def _ends_of(self, topic: str) -> _Ends | None:
        """Known high watermarks of a topic's partitions; None if the topic does not exist."""
        found = self._current.image.topic(topic)
        if found is None:
            return None
        ends: _Ends = []
        for number in range(len(found.partitions)):
            replica = self._replicas.get(topic, number)
            if replica is not None and replica.is_leader:
                ends.append(replica.high_watermark)
            else:
                ends.append(self.ends.get(topic, number))
        return ends
