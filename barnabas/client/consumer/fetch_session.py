"""One broker's incremental fetch session (KIP-227): only what changed since the last request is sent.

Driven by: the partitions wanted for each fetch, the session id of each answer, errors.
Emits: Fetch requests with their session fields, topics and forgotten topics filled in.

Invariants: `_known` is what the broker's session holds after the last request; the epoch rises by one a request and goes
from 2³¹−1 to 1; after any error the next request is a full one (id 0, epoch 0). Topic ids (version 13) are used once all
topics of the session have one, else names (version 12).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from barnabas.client.net.metadata import NO_ID, ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

__all__ = ["VERSION_BY_NAME_MAX", "VERSION_MAX", "FetchSession"]

VERSION_BY_NAME_MAX = 12  # of Fetch: from 13 on it goes by topic id
VERSION_MAX = 18
_EPOCH_MAX = 2**31 - 1


class _Entry(NamedTuple):
    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int


class FetchSession:
    """The client's side of a session."""

    __slots__ = ("_by_id", "_epoch", "_id", "_known", "_names")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: dict[TopicPartition, _Entry] = {}
        self._names: dict[bytes, str] = {}
        self._by_id = True

    def restart(self) -> None:
        """The next request begins a new session."""
        self._id = 0
        self._epoch = 0
        self._known = {}

    def on_answer(self, session_id: int) -> None:
        """Takes the id of a good answer; 0 means that the broker keeps no session."""
        if session_id == 0:
            self.restart()
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def name_of(self, topic_id: bytes) -> str:
        """The name under which a topic id was asked for; "" where it was not."""
        return self._names.get(topic_id, "")

    def request(
        self, wanted: dict[TopicPartition, tuple[int, int]], metadata: ClusterMetadata, partition_max_bytes: int
    ) -> tuple[FetchRequest, int]:
        """The next request, and the highest version it fits.

        Args:
            wanted: by partition the fetch offset, and the leader epoch of the record before it, −1 where it is not known.
        """
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
