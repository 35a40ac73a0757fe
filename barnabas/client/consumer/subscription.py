"""Subscription of a consumer: topics, a pattern, or manually assigned partitions, never both."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from barnabas.client.committable import checked_partition
from barnabas.client.consumer.core.fetching import Fetcher
from barnabas.client.errors import IllegalState, KafkaError, check_topic_name, error_for
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.consumer_group import ConsumerGroup
from barnabas.client.group.group import Group, RebalanceListener, matching_topics
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

log = logging.getLogger("barnabas.client.consumer")

_NO_PARTITION = -1
# A coordinator rejects the join although the cluster has KIP-848: classic members cannot be converted
# (`group.consumer.migration.policy`), or the protocol is disabled.
_REFUSALS: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})


class GroupProtocols(NamedTuple):
    """Make the membership of a consumer, in either protocol."""

    classic: Callable[[], ClassicGroup]
    consumer: Callable[[], ConsumerGroup]


class Subscription:
    """The subscription of one consumer.

    `group` is None without a group_id, and until `choose_group` with `group_protocol="auto"`, which sets `protocols`.
    `chosen`: the caller has selected topics or partitions, perhaps none.
    """

    def __init__(self, cluster: NetworkClient, fetcher: Fetcher, group_id: str | None) -> None:
        self.group: Group | None = None
        self.protocols: GroupProtocols | None = None
        self.listener: RebalanceListener | None = None
        self.chosen = False
        self._cluster = cluster
        self._fetcher = fetcher
        self._group_id = group_id
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._assigned_by_hand = False
        # Reported missing partitions, and topics (with partition −1).
        self._reported: dict[tuple[str, int], None] = {}

    @property
    def active(self) -> bool:
        return bool(self._topics) or self._pattern is not None

    @property
    def member(self) -> Group | None:
        """The group membership; None with a manual assignment."""
        return None if self._assigned_by_hand else self.group

    def listen(self, listener: RebalanceListener | None) -> None:
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise IllegalState(f"listener must be a RebalanceListener, not {type(listener).__name__}")
        self.listener = listener

    async def choose_group(self) -> Group | None:
        """The group membership; with "auto" by KIP-848 if the cluster has finalized and offers it. Raises BrokerUnreachable."""
        if self.protocols is not None:
            connection = await self._cluster.ready_connection(None)
            finalized = self._cluster.features().levels.get("group.version", 0) >= 1
            served = finalized and ConsumerGroupHeartbeatRequest.API_KEY in connection.core.versions
            self._use(self.protocols.consumer() if served else self.protocols.classic())
        return self.group

    def begin_poll(self, group: Group, now_ms: int) -> Group:
        try:
            group.begin_poll(now_ms)
        except KafkaError as error:
            if self.protocols is None or not isinstance(group, ConsumerGroup) or error.code not in _REFUSALS:
                raise
            # With partitions its next poll reports their loss first; the join after that is rejected again.
            if not group.member.owned:
                log.info("group %s is joined with the classic protocol: %s", group.group_id, error)
                group.end_tasks()
                group = self.protocols.classic()
            self._use(group)
            group.begin_poll(now_ms)
        return group

    def _use(self, group: Group) -> None:
        self.group = group
        self._subscribe_group()

    def _subscribe_group(self) -> None:
        if self.group is not None:
            self.group.listener = self.listener or self.group.listener
            if self.active:
                self.group.subscribe(self._topics, self._pattern)

    def topics(self) -> set[str]:
        """The subscribed topics; with a pattern, the topics that are read."""
        if self._pattern is None:
            return set(self._topics)
        return self.group.topics() if self.group is not None else {tp.topic for tp in self._fetcher.partitions}

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The member that commits. Raises IllegalState without a group_id."""
        if self._group_id is None:
            raise IllegalState("this consumer has no group_id, so it commits nothing")
        member = self.member
        return member.metadata if member is not None else ConsumerGroupMetadata(self._group_id)

    def reading_member(self) -> tuple[ConsumerGroupMetadata, bool] | None:
        """The member that reads committed offsets, and whether the coordinator can fence it; None without a group_id."""
        if self._group_id is None:
            return None
        member = self.member
        return self.group_metadata(), member is not None and member.fences_reads

    def subscribe(self, names: tuple[str, ...], pattern: str | None, listener: RebalanceListener | None) -> None:
        for name in names:
            check_topic_name(name)
        if bool(names) == (pattern is not None):
            raise IllegalState("subscribe needs either topics or a pattern")
        if self._assigned_by_hand:
            raise IllegalState("partitions were assigned by hand; unsubscribe() first")
        try:
            self._pattern = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            raise IllegalState(f"pattern {pattern!r} is no regular expression: {error}") from error
        self.chosen = True
        self._topics = names
        self._cluster.all_topics = pattern is not None
        if names:
            self._cluster.set_topics(names)
        self.listener = listener or self.listener
        self._subscribe_group()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        if self.active:
            raise IllegalState("topics are subscribed to; unsubscribe() first")
        wanted = [checked_partition(tp) for tp in partitions]
        for tp in wanted:
            check_topic_name(tp.topic)
        self.chosen = True
        self._assigned_by_hand = bool(wanted)
        self._reported.clear()
        self._cluster.set_topics(dict.fromkeys(tp.topic for tp in wanted))
        self._fetcher.assign(dict.fromkeys(wanted))

    def clear(self, *, leave: bool) -> None:
        """Ends the subscription or the assignment; with `leave` also the group membership."""
        subscribed = self.active
        self.chosen = False
        self._topics = ()
        self._pattern = None
        self._assigned_by_hand = False
        self._cluster.all_topics = False
        if self.group is not None and leave and subscribed:
            self.group.leave_soon("the consumer has unsubscribed")

    def on_cluster_change(self) -> None:
        if self.group is not None:
            if self.active:
                self.group.on_cluster_change()
        elif self._group_id is not None:
            pass  # the group is chosen at the start
        elif self._pattern is not None:
            self._assign_all(matching_topics(self._cluster.metadata, self._pattern))
        elif self._topics:
            self._assign_all(self._topics)
        self.report_missing()

    def report_missing(self) -> None:
        """Warns once of each missing topic; the next poll raises for each missing partition."""
        by_hand = self._fetcher.partitions if self._assigned_by_hand else ()
        for topic in dict.fromkeys([*self._topics, *(tp.topic for tp in by_hand)]):
            info = self._cluster.metadata.topics.get(topic)
            if info is None or info.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._reported.pop((topic, _NO_PARTITION), None)
            elif (topic, _NO_PARTITION) not in self._reported:
                self._reported[topic, _NO_PARTITION] = None
                log.warning("topic %r does not exist; the consumer reads it once it is created", topic)
        for tp in by_hand:
            count = self._cluster.metadata.partition_count(tp.topic)
            if 0 < count <= tp.partition and tp not in self._reported:
                self._reported[tp] = None
                text = f"the topic has partitions 0 to {count - 1}; assign others"
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self._fetcher.errors.append(error_for(code, text, topic=tp.topic, partition=tp.partition))

    def _assign_all(self, topics: Iterable[str]) -> None:
        metadata = self._cluster.metadata
        infos = [metadata.topics[topic] for topic in topics if topic in metadata.topics]
        wanted = dict.fromkeys(TopicPartition(info.name, p.partition) for info in infos for p in info.partitions)
        if wanted.keys() != self._fetcher.partitions.keys():
            self._fetcher.assign(wanted)
