"""Incremental fetch session with one broker (KIP-227): a request contains only changes since the last one.
`_known` is the broker's session after the last request; an error starts a new session (id 0, epoch 0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from barnabas.client.net.core.metadata import NO_ID, ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

VERSION_BY_NAME_MAX = 12  # from version 13 on Fetch uses topic ids
VERSION_MAX = 18
_EPOCH_MAX = 2**31 - 1


class _Entry(NamedTuple):
    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int


class FetchSessionHandler:
    """The client's side of one session."""

    __slots__ = ("_by_id", "_epoch", "_id", "_known", "_names")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: dict[TopicPartition, _Entry] = {}
        self._names: dict[bytes, str] = {}
        self._by_id = True

    def restart(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known = {}

    def on_answer(self, session_id: int) -> None:
        """Session id of a successful response; 0: the broker keeps no session."""
        if session_id == 0:
            self.restart()
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def name_of(self, topic_id: bytes) -> str:
        return self._names.get(topic_id, "")

    def request(
        self, wanted: dict[TopicPartition, tuple[int, int]], metadata: ClusterMetadata, partition_max_bytes: int
    ) -> tuple[FetchRequest, int]:
        """The next request and its highest version. `wanted` has (fetch offset, epoch of the record before or −1)."""
        entries = {
            tp: _Entry(metadata.topic_id(tp.topic), offset, metadata.leader_epochs.get(tp, -1), epoch)
            for tp, (offset, epoch) in wanted.items()
        }
        by_id = all(entry.topic_id != NO_ID for entry in entries.values())
        moved = any(tp in self._known and self._known[tp].topic_id != e.topic_id for tp, e in entries.items())
        if by_id != self._by_id or moved:
            self._by_id = by_id
            self.restart()
        known = self._known
        changed = {tp: entry for tp, entry in entries.items() if known.get(tp) != entry}
        gone = [tp for tp in known if tp not in entries]
        request = FetchRequest(
            session_id=self._id,
            session_epoch=self._epoch,
            topics=self._topics(changed, partition_max_bytes),
            forgotten_topics_data=self._forgotten(gone),
        )
        self._known = entries
        for tp, entry in entries.items():
            self._names[entry.topic_id] = tp.topic
        return request, VERSION_MAX if by_id else VERSION_BY_NAME_MAX

    def _topics(self, changed: dict[TopicPartition, _Entry], partition_max_bytes: int) -> list[FetchTopic]:
        topics: dict[str, FetchTopic] = {}
        for tp, entry in changed.items():
            topic = topics.get(tp.topic)
            if topic is None:
                topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=entry.topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=entry.leader_epoch,
                    fetch_offset=entry.fetch_offset,
                    last_fetched_epoch=entry.last_fetched_epoch,
                    partition_max_bytes=partition_max_bytes,
                )
            )
        return list(topics.values())

    def _forgotten(self, gone: Iterable[TopicPartition]) -> list[ForgottenTopic]:
        topics: dict[str, ForgottenTopic] = {}
        for tp in gone:
            topic = topics.get(tp.topic)
            if topic is None:
                topic_id = self._known[tp].topic_id
                topic = topics[tp.topic] = ForgottenTopic(topic=tp.topic, topic_id=topic_id)
            topic.partitions.append(tp.partition)
        return list(topics.values())
