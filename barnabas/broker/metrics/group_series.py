"""Consumer group series under kafka_exporter's names: members, committed offsets and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily

from barnabas.broker.coordinator.groups.records import CommittedOffset
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import NO_LEADER
from barnabas.broker.metrics.exposition import Collected, awaited
from barnabas.broker.metrics.line_table import LineTable, Series, escaped, labels_text
from barnabas.broker.metrics.parts import Observed
from barnabas.broker.peers.peers import Peers
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.errors import BrokerError
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.work import Steps

ROWS_PER_SLICE: Final = 500
NO_OFFSET: Final = -1

PREFIX: Final = "kafka_consumergroup_"
TOPIC_SUMS: Final = (
    Series(PREFIX + "current_offset_sum", "gauge", "The sum of current_offset over the partitions of a topic."),
    Series(PREFIX + "lag_sum", "gauge", "The sum of lag over the partitions of a topic that have a committed offset."),
)
PARTITION_OFFSETS: Final = (
    Series(PREFIX + "current_offset", "gauge", "The committed offset; -1 without one."),
    Series(PREFIX + "lag", "gauge", "Records from the committed offset to the high watermark; -1 without a commit."),
)

_Topic = tuple[str, str]  # group, topic
_Commits = dict[int, tuple[int, int | None]]  # partition → committed offset, end

_escaped = lru_cache(maxsize=1_024)(escaped)
PURPOSE: Final = "lag"  # of the connections
FRESH_MS: Final = 1_000
WAIT_S: Final = 0.5
ANSWER_MS: Final = 5_000
PARTITIONS_PER_REQUEST: Final = 1_000
PARTITIONS_PER_UNIT: Final = 8
CONSUMER: Final = -1
LATEST: Final = -1
_Wanted = Mapping[str, Iterable[int]]  # partitions by topic
ROWS_MAX: Final = 100_000
CHECKED_PER_SLICE: Final = 1_000  # partitions; a changed one counts as CHANGED_COST of them
CHANGED_COST: Final = 6
TOPIC_COST: Final = 4  # of a topic of a group
GROUP_SERIES: Final = (Series(PREFIX + "members", "gauge", "Members of the group."),)
_Ends = list[int | None]  # of the partitions of a topic


class _Known(NamedTuple):
    """State of a topic's rows."""

    partitions: int  # rows exist for no partition from this number on
    commits: _Commits | None  # None: the rows were not all updated


class GroupOffsets:
    """Rows of committed offsets; only changed rows are touched. A scrape abandoned within a topic is completed by the next."""

    def __init__(self) -> None:
        self.sums: LineTable[_Topic] = LineTable(  # a row for each topic of a group
            TOPIC_SUMS, lambda key: labels_text(consumergroup=key[0], topic=key[1])
        )
        # a row for each partition of such a topic
        self.offsets: LineTable[tuple[str, str, int]] = LineTable(PARTITION_OFFSETS, lambda key: _labels(*key))
        self._known: dict[_Topic, _Known] = {}

    def put(
        self, key: _Topic, commits: Mapping[int, tuple[int, CommittedOffset]], ends: Sequence[int | None]
    ) -> Generator[None, None, int]:
        """Returns the number of touched rows. `ends` has the high watermark of each partition of the topic; None: unknown."""
        count = len(ends)
        now = {number: (entry[1].offset, ends[number]) for number, entry in commits.items() if number < count}
        known = self._known.get(key, _Known(0, None))
        if known == (count, now):
            return 0
        touched: Iterable[int] = range(count)
        if known.commits is not None:
            former = known.commits
            changed = [number for number, row in now.items() if former.get(number) != row]
            gone = [number for number in former if number not in now and number < count]
            touched = [*changed, *gone, *range(known.partitions, count)]
        self._known[key] = _Known(max(count, known.partitions), None)
        rows = 0
        for rows, number in enumerate(touched, 1):
            self.offsets.put((*key, number), _row(*now.get(number, (NO_OFFSET, None))))
            if rows % ROWS_PER_SLICE == 0:
                yield None
        yield from self._drop_rows(key, range(count, known.partitions))
        self.sums.put(key, _sums(count, now))
        self._known[key] = _Known(count, now)
        return rows

    def drop_all_but(self, kept: Container[_Topic]) -> Iterator[None]:
        for key in [each for each in self._known if each not in kept]:
            known = self._known[key] = self._known[key]._replace(commits=None)
            yield from self._drop_rows(key, range(known.partitions))
            self.sums.drop(key)
            del self._known[key]
            yield None

    def _drop_rows(self, key: _Topic, numbers: range) -> Iterator[None]:
        for rows, number in enumerate(numbers, 1):
            self.offsets.drop((*key, number))
            if rows % ROWS_PER_SLICE == 0:
                yield None


def _row(offset: int, end: int | None) -> tuple[int, int | None]:
    if offset == NO_OFFSET:
        return NO_OFFSET, NO_OFFSET
    return offset, None if end is None else max(end - offset, 0)


def _sums(count: int, commits: _Commits) -> tuple[int, int | None]:
    """Sums over a topic of `count` partitions; a partition without a commit counts as NO_OFFSET and has no lag."""
    offsets = sum(offset for offset, _ in commits.values()) + NO_OFFSET * (count - len(commits))
    lags = [_row(offset, end)[1] for offset, end in commits.values() if offset != NO_OFFSET]
    known = [lag for lag in lags if lag is not None]
    return offsets, sum(known) if len(known) == len(lags) else None


def _labels(group: str, topic: str, number: int) -> str:
    """As `labels_text`, faster for many partitions of a topic."""
    return f'{{consumergroup="{_escaped(group)}",partition="{number}",topic="{_escaped(topic)}"}}'


class EndOffsets:
    """Requests end offsets only at a scrape, at most once every FRESH_MS, from leaders of partitions with commits (`wanted`).

    A scrape waits at most WAIT_S; a later answer serves the next one. After ANSWER_MS without an answer a leader's offsets are dropped:
    their lag is not exported. Offsets are requested before the commits are read, so a lag may be too small by commits in between, never
    below 0.
    """

    def __init__(
        self,
        reactor: Reactor,
        slices: Slices,
        peers: Peers,
        current: CurrentImage,
        *,
        node_id: int,
        listener: str,
        wanted: Callable[[], Steps[_Wanted]],
    ) -> None:
        self._reactor = reactor
        self._slices = slices
        self._peers = peers
        self._current = current
        self._node_id = node_id
        self._listener = listener
        self._wanted = wanted
        self._offsets: dict[tuple[str, int], int] = {}
        self._asked_ms = -FRESH_MS
        self._unanswered = 0
        self._answered = asyncio.Event()

    def get(self, topic: str, partition: int) -> int | None:
        """The last high watermark from the leader; None if unknown."""
        return self._offsets.get((topic, partition))

    async def refresh(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        if not self._unanswered and now_ms - self._asked_ms >= FRESH_MS:
            self._asked_ms = now_ms
            requests = await awaited(self._slices, self._requests())
            self._answered.clear()
            for leader_id, request in requests:
                self._send(leader_id, request)
        if self._unanswered:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._answered.wait()
            except TimeoutError:
                pass

    def _requests(self) -> Steps[list[tuple[int, ListOffsetsRequest]]]:
        """Requests to each leader; drops offsets of partitions without group."""
        image = self._current.image
        if len(image.brokers) <= 1:
            return []  # this broker leads everything
        wanted = yield from self._wanted()
        leaders: dict[int, list[tuple[str, int]]] = {}
        known: dict[tuple[str, int], int] = {}
        for topic, numbers in wanted.items():
            found = image.topic(topic)
            if found is None:
                continue
            partitions = found.partitions
            looked = 0
            for number in numbers:
                looked += 1
                leader = partitions[number].leader if number < len(partitions) else NO_LEADER
                if leader in (NO_LEADER, self._node_id):
                    continue
                key = (topic, number)
                leaders.setdefault(leader, []).append(key)
                if key in self._offsets:
                    known[key] = self._offsets[key]
            yield 1 + looked // PARTITIONS_PER_UNIT
        self._offsets = known
        requests = []
        for leader, keys in leaders.items():
            for start in range(0, len(keys), PARTITIONS_PER_REQUEST):
                chunk = keys[start : start + PARTITIONS_PER_REQUEST]
                requests.append((leader, _request(chunk)))
                yield 1 + len(chunk) // PARTITIONS_PER_UNIT
        return requests

    def _send(self, leader_id: int, request: ListOffsetsRequest) -> None:
        broker = self._current.image.brokers.get(leader_id)
        address = None if broker is None else broker.endpoint(self._listener)
        if address is None:
            self._forget(request)
            return
        self._unanswered += 1
        peer = self._peers.to(address.host, address.port, PURPOSE, node_id=leader_id)
        peer.send(request, partial(self._on_answer, request), timeout_ms=ANSWER_MS, long=True)

    def _on_answer(self, request: ListOffsetsRequest, answer: object) -> None:
        if isinstance(answer, ListOffsetsResponse):
            offsets = self._offsets
            for topic in answer.topics:
                for partition in topic.partitions:
                    key = (topic.name, partition.partition_index)
                    if partition.error_code:
                        offsets.pop(key, None)
                    else:
                        offsets[key] = partition.offset
        else:
            self._forget(request)
        self._unanswered -= 1
        if not self._unanswered:
            self._answered.set()

    def _forget(self, request: ListOffsetsRequest) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                self._offsets.pop((topic.name, partition.partition_index), None)


def _request(keys: Iterable[tuple[str, int]]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for topic, number in keys:
        if topic not in topics:
            topics[topic] = ListOffsetsTopic(name=topic)
        topics[topic].partitions.append(ListOffsetsPartition(partition_index=number, timestamp=LATEST))
    return ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=0, topics=list(topics.values()), timeout_ms=ANSWER_MS
    )


class GroupSeries:
    """Only the coordinator exports a group, so that a sum over all brokers counts everything once.

    Lag is the leader's high watermark minus the committed offset, at least 0. As in kafka_exporter, offset and lag are -1 without a commit,
    lag_sum omits such partitions, and current_offset_sum has their -1. Unlike there, lag_sum is missing while an end is unknown: an
    autoscaler must not read a sum that is too small. Above ROWS_MAX partitions `barnabas_consumergroup_topics_left_out` counts the omitted
    topics.
    """

    def __init__(self, node: Observed) -> None:
        self._groups = node.groups
        self._current = node.current_image
        self._replicas = node.replicas
        self.ends = EndOffsets(
            node.reactor,
            node.slices,
            node.peers,
            node.current_image,
            node_id=node.node_id,
            listener=node.config.inter_broker_listener,
            wanted=self.wanted,
        )
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
