"""Replicas: every partition that this node holds, and what the metadata image makes of each.

Driven by: `load` at the start, the metadata image and its deltas (`apply`), directories that fail, `close` at the stop.
Emits: opened, renamed and deleted folders; elections and resignations for the coordinators; directories of new replicas for
the controller.

Opening a folder takes the loop half a millisecond. Of many new partitions in one image the first are opened at once, the others in turns
of the loop, or when somebody writes to them first: who created a large topic is answered meanwhile, and heartbeats leave.

Invariants: a folder is opened only for a partition of the image with the same topic id; a folder of no such partition is set
aside as `-stray`, as in Kafka, never deleted. What a deleted topic leaves is renamed to `-delete` at once and removed later.
A replica whose directory failed stays offline until the next start, whatever the image says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionImage, TopicImage
from barnabas.broker.replica.alter_partition import IsrChanges
from barnabas.broker.replica.directories import UNASSIGNED_DIRECTORY
from barnabas.broker.replica.directory import NO_OFFSETS, LogDirectory, Offsets
from barnabas.broker.replica.isr import InSyncReplicas
from barnabas.broker.replica.machine import Replica
from barnabas.broker.topic_config import log_config
from barnabas.errors import BrokerError, ErrorCode
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["INTERNAL_TOPICS", "Election", "Replicas"]

log = logging.getLogger(__name__)

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


OPENED_AT_ONCE: Final = 64  # new partitions of one image: enough for the internal topics, 30 ms of the loop
OPENED_PER_TURN: Final = 16  # of the others; 8 ms


class Election(NamedTuple):
    """This node became leader of a partition in `leader_epoch`, or was until now (`leads` is false)."""

    topic: str
    partition: int
    leader_epoch: int
    leads: bool


class Replicas:
    """The partitions of one node.

    Args:
        elected: told of elections that come of partitions opened later; `load` and `apply` return theirs.
    """

    def __init__(self, node: Node, elected: Callable[[list[Election]], None]) -> None:
        self._node = node
        self._elected = elected
        self._unopened: dict[tuple[bytes, int], None] = {}  # new partitions by topic id: their folders come later
        self._by_topic: dict[str, dict[int, Replica]] = {}
        self._names: dict[bytes, str] = {}  # of every topic in the image
        self._image = MetadataImage()
        self._homes: dict[Replica, LogDirectory] = {}
        self._isr_changes = IsrChanges(node)

    # -- lookup

    def get(self, topic: str, partition: int) -> Replica | None:
        """The replica of a partition on this node, else None; also where its folder is still to be opened."""
        partitions = self._by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def obtain(self, topic: str, partition: int) -> Replica | None:
        """As `get`, for who is about to write: opens the folder where that is still to come."""
        replica = self.get(topic, partition)
        if replica is None and self._unopened:
            described = self._image.topic(topic)
            if described is not None and (described.topic_id, partition) in self._unopened:
                self._open_now([(described.topic_id, partition)])
                return self.get(topic, partition)
        return replica

    def leader(self, topic: str, partition: int) -> Replica:
        """The replica, where this node leads it.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        replica = self.obtain(topic, partition)
        if replica is None:
            raise BrokerError(self.absence(topic, partition))
        if not replica.is_leader:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR if replica.failed else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def absence(self, topic: str, partition: int) -> ErrorCode:
        """Why `get` found nothing: the partition is elsewhere, or nowhere."""
        if self._image.partition(topic, partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic of an id, whether or not this node holds a part of it."""
        return self._names.get(topic_id)

    def is_internal(self, topic: str) -> bool:
        """Whether clients may not write to it."""
        return topic in INTERNAL_TOPICS

    def all(self) -> Iterable[Replica]:
        """Every replica of this node, topic by topic."""
        for partitions in self._by_topic.values():
            yield from partitions.values()

    # -- start

    def load(self, image: MetadataImage) -> list[Election]:
        """Opens every partition that the image gives this node; folders of no partition are set aside."""
        assigned = {
            (topic.name, number): _assigned(partition, self._node.node_id)
            for topic, number, partition in image.partitions()
            if self._node.node_id in partition.replicas
        }
        directories = self._node.log_dirs
        directories.find(assigned.get, self._set_aside)
        for directory in directories.online():
            directory.forget_offsets_but(assigned)
        elections = self._take(image, image.topics_by_name.values())
        for directory in directories.online():
            directory.sync_recovered()
        return elections

    def _set_aside(self, directory: LogDirectory, folder: str) -> None:
        aside = f"{folder}.{self._node.rng.uuid().hex()}-stray"
        log.warning("%s belongs to no partition of this cluster, renamed to %s", folder, aside)
        directory.disk.rename(folder, aside)

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> list[Election]:
        """Follows a change of the metadata: opens, leads, resigns and deletes partitions, takes over configurations."""
        elections: list[Election] = []
        for topic in delta.deleted.values():
            elections += self._delete(topic)
        self._image = image
        touched = [image.topics_by_id[topic_id] for topic_id in delta.partitions if topic_id in image.topics_by_id]
        elections += self._take(image, touched, delta)
        if delta.configs:
            self._reconfigure(image, delta)
        if delta.brokers:
            for replica in self.all():
                replica.consider_isr()  # who was fenced may join now
        return elections

    # -- the end

    def close(self, broker_epoch: int) -> None:
        """Closes every directory; those where nothing is missing get the mark of a clean stop.

        Raises:
            OSError: as the first directory's disk says.
        """
        for directory in self._node.log_dirs:
            try:
                directory.close(broker_epoch)
            except OSError as error:
                if directory is self._node.log_dirs.main:
                    raise
                directory.fail(error)

    # -- directories

    def on_directory_failed(self, directory: LogDirectory) -> list[Election]:
        """Takes every replica in it offline."""
        resigned = []
        for replica in list(directory.replicas):
            resigned.append(Election(replica.topic, replica.partition, replica.leader_epoch, False))
            replica.fail()
            self._node.fetchers.unfollow(replica)
        return resigned

    def on_io_error(self, replica: Replica, error: OSError) -> None:
        """The disk failed under a replica: that takes its whole directory offline."""
        home = self._homes.get(replica)
        if home is not None:
            home.fail(error)

    def home_of(self, replica: Replica) -> LogDirectory | None:
        """Where it lies; None where it is gone."""
        return self._homes.get(replica)

    def request_sync(self, replica: Replica) -> None:
        """Makes the log durable, together with all that ask in the same wake-up; `replica.on_synced` answers."""
        home = self._homes.get(replica)
        if home is not None:  # else it is being opened, and is synced with all that were recovered
            home.request_sync(replica)

    # -- following the image

    def _take(
        self, image: MetadataImage, topics: Iterable[TopicImage], delta: MetadataDelta | None = None
    ) -> list[Election]:
        self._image = image
        elections = []
        opened = 0
        for topic in topics:
            self._names[topic.topic_id] = topic.name
            numbers: Iterable[int] = range(len(topic.partitions))
            if delta is not None:
                numbers = []
                for number in delta.partitions[topic.topic_id]:
                    if self._is_new(topic, number):
                        opened += 1
                        if opened > OPENED_AT_ONCE:
                            self._postpone(topic.topic_id, number)
                            continue
                    numbers.append(number)
            elections += self._take_topic(topic, numbers)
        return elections

    def _is_new(self, topic: TopicImage, number: int) -> bool:
        return self._node.node_id in topic.partitions[number].replicas and self.get(topic.name, number) is None

    def _take_topic(self, topic: TopicImage, numbers: Iterable[int]) -> list[Election]:
        """Makes of some partitions of a topic what the present image says."""
        image = self._image
        elections = []
        config = None
        enough = self._min_insync_replicas(image, topic.name)
        for number in numbers:
            partition = topic.partitions[number]
            replica = self.get(topic.name, number)
            if self._node.node_id not in partition.replicas:
                if replica is not None:
                    elections += self._discard(replica)
                continue
            if replica is None:
                if config is None:
                    config = log_config(self._node.config, image.topic_config(topic.name))
                replica = self._open(topic, number, partition, config)
            if replica is not None and not replica.failed:
                replica.require(enough)
                elections += self._lead_or_follow(replica, partition)
        return elections

    def _postpone(self, topic_id: bytes, number: int) -> None:
        if not self._unopened:
            self._node.call_later(0, self._open_some)
        self._unopened[topic_id, number] = None

    def _open_some(self) -> None:
        self._open_now(list(islice(self._unopened, OPENED_PER_TURN)))
        if self._unopened:
            self._node.call_later(0, self._open_some)

    def _open_now(self, keys: list[tuple[bytes, int]]) -> None:
        """Opens partitions that were postponed; what is gone since is passed over."""
        by_topic: dict[bytes, list[int]] = {}
        for key in keys:
            del self._unopened[key]
            by_topic.setdefault(key[0], []).append(key[1])
        elections = []
        for topic_id, numbers in by_topic.items():
            topic = self._image.topics_by_id.get(topic_id)
            if topic is not None:
                elections += self._take_topic(topic, numbers)
        self._elected(elections)

    def _lead_or_follow(self, replica: Replica, partition: PartitionImage) -> list[Election]:
        leader, epoch, isr = partition.leader, partition.leader_epoch, partition.isr
        if leader == self._node.node_id:
            self._node.fetchers.unfollow(replica)
            changed = replica.lead(epoch, isr, partition.partition_epoch, replicas=partition.replicas)
        else:
            changed = replica.follow(leader, epoch, isr, partition.partition_epoch)
            if leader == NO_LEADER:
                self._node.fetchers.unfollow(replica)
            else:
                self._node.fetchers.follow(replica)
        return [Election(replica.topic, replica.partition, epoch, replica.is_leader)] if changed else []

    def _min_insync_replicas(self, image: MetadataImage, topic: str) -> int:
        return image.min_insync_replicas(topic, self._node.config.get_int("min.insync.replicas"))

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may join an ISR: alive (KIP-841), in the life that fetched (KIP-903)."""
        broker = self._image.brokers.get(broker_id)
        return (
            broker is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and broker_epoch in (-1, broker.epoch)
        )

    def _open(self, topic: TopicImage, number: int, partition: PartitionImage, config: LogConfig) -> Replica | None:
        node = self._node
        key = (topic.name, number)
        assigned = _assigned(partition, node.node_id)
        directory = node.log_dirs.home_of(key, assigned)
        if directory is None:
            log.error("%s-%d lies in a log directory that is offline", topic.name, number)
            return None
        offsets = directory.take_offsets(key)
        try:
            try:
                partition_log = self._open_log(directory, topic, number, config, offsets)
            except BrokerError:
                # INCONSISTENT_TOPIC_ID: of a former topic, deleted and created anew while this node was down.
                self._set_aside(directory, f"{topic.name}-{number}")
                offsets = NO_OFFSETS
                partition_log = self._open_log(directory, topic, number, config, offsets)
        except (OSError, BrokerError) as error:
            log.error("%s-%d cannot be opened and stays offline: %s", topic.name, number, error)
            directory.unopened[key] = offsets
            return None
        partition_log.cleaned_to = min(offsets.cleaned_to, partition_log.log_end_offset)
        if partition_log.truncated_bytes:
            log.warning(
                "%s-%d: %d bytes of a torn write were cut off at offset %d",
                topic.name,
                number,
                partition_log.truncated_bytes,
                partition_log.log_end_offset,
            )
        replica = Replica(
            topic.name,
            number,
            topic.topic_id,
            partition_log,
            node_id=node.config.node_id,
            clock=node.clock,
            request_sync=self.request_sync,
            propose=self._isr_changes.propose,
            on_io_error=self.on_io_error,
            in_sync=InSyncReplicas(
                node.config.node_id, self._is_eligible, node.config.get_int("replica.lag.time.max.ms")
            ),
            high_watermark=offsets.high_watermark,
            may_lead=node.lifecycle.may_lead,
        )
        directory.replicas[replica] = None
        self._homes[replica] = directory
        if assigned != directory.directory_id:
            node.directory_assignments.tell(topic.topic_id, number, directory.directory_id)
        self._by_topic.setdefault(topic.name, {})[number] = replica
        return replica

    def _open_log(
        self, directory: LogDirectory, topic: TopicImage, number: int, config: LogConfig, offsets: Offsets
    ) -> PartitionLog:
        return PartitionLog.open(
            directory.disk,
            f"{topic.name}-{number}",
            config,
            now_ms=self._node.clock.now_ms(),
            topic_id=topic.topic_id,
            clean=directory.clean,
            recovery_point=offsets.recovery_point,
            log_start_offset=offsets.log_start_offset,
        )

    def _delete(self, topic: TopicImage) -> list[Election]:
        self._names.pop(topic.topic_id, None)
        self._node.upkeep.checkpoint_soon()  # a topic of the same name must not inherit its offsets
        partitions = self._by_topic.pop(topic.name, {})
        for number in range(len(topic.partitions)):
            self._node.log_dirs.forget((topic.name, number))
        return [election for replica in partitions.values() for election in self._discard(replica)]

    def _discard(self, replica: Replica) -> list[Election]:
        """This node holds the partition no more: its folder goes, a while later."""
        elections = []
        if replica.is_leader:
            elections.append(Election(replica.topic, replica.partition, replica.leader_epoch, False))
        self._node.fetchers.unfollow(replica)
        self._by_topic.get(replica.topic, {}).pop(replica.partition, None)
        directory = self._homes.pop(replica)
        directory.forget(replica)
        replica.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if directory.online:
            aside = f"{replica.topic}-{replica.partition}.{self._node.rng.uuid().hex()}-delete"
            try:
                replica.log.rename(aside)
            except OSError as error:
                log.error("folder of deleted %r cannot be renamed: %s", replica, error)
            else:
                self._node.call_later(replica.log.config.file_delete_delay_ms, _remover(directory, aside))
        return elections

    def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Topic settings changed, or the broker's, which are every topic's defaults."""
        brokers = any(name in ("", str(self._node.config.node_id)) for kind, name in delta.configs if kind == 4)
        names = list(self._by_topic) if brokers else [name for kind, name in delta.configs if kind == 2]
        for name in names:
            config = log_config(self._node.config, image.topic_config(name))
            enough = self._min_insync_replicas(image, name)
            for replica in self._by_topic.get(name, {}).values():
                replica.log.reconfigure(config)
                replica.require(enough)


def _remover(directory: LogDirectory, folder: str) -> Callable[[], None]:
    def remove() -> None:
        try:
            directory.disk.remove_tree(folder)
        except OSError as error:
            directory.fail(error)

    return remove


def _assigned(partition: PartitionImage, node_id: int) -> bytes:
    """The directory that the metadata log gives this node's replica."""
    place = partition.replicas.index(node_id)
    return partition.directories[place] if place < len(partition.directories) else UNASSIGNED_DIRECTORY
