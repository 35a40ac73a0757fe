"""Replicas: every partition that this node holds, and the group commit of their logs.

Driven by: `load` at the start, the metadata image and its deltas (`apply`), replicas that ask for a sync, `close` at the stop.
Emits: opened, renamed and deleted folders; elections and resignations for the coordinators; one sync for all logs that
asked for it in a wake-up, or while the sync before was running.

Invariants: a folder is opened only for a partition of the image with the same topic id; a folder of no such partition is set
aside as `-stray`, as in Kafka, never deleted. What a deleted topic leaves is renamed to `-delete` at once and removed later.
A failed sync takes its replicas offline: what the disk may have lost is never acknowledged by a second try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.metadata.image import MetadataDelta, MetadataImage, TopicImage
from barnabas.broker.replica.machine import Replica
from barnabas.broker.topic_config import log_config
from barnabas.errors import BrokerError, ErrorCode
from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    MalformedCheckpoint,
    format_offsets,
    read_offsets,
)
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["INTERNAL_TOPICS", "Election", "Replicas"]

log = logging.getLogger(__name__)

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
METADATA_FOLDER: Final = "__cluster_metadata-0"


class Election(NamedTuple):
    """This node became leader of a partition in `leader_epoch`, or was until now (`leads` is false)."""

    topic: str
    partition: int
    leader_epoch: int
    leads: bool


class Replicas:
    """The partitions of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_topic: dict[str, dict[int, Replica]] = {}
        self._names: dict[bytes, str] = {}  # of every topic in the image
        self._image = MetadataImage()
        self._unsynced: dict[Replica, None] = {}
        # Partitions whose folder could not be opened: recovery point, log start and high watermark as they were.
        self._unopened: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._syncing = False
        self._sync_due = False
        self._clean = False
        self._recovery_points: dict[tuple[str, int], int] = {}
        self._log_starts: dict[tuple[str, int], int] = {}
        self._high_watermarks: dict[tuple[str, int], int] = {}
        self._written_high_watermarks: dict[tuple[str, int], int] = {}

    # -- lookup

    def get(self, topic: str, partition: int) -> Replica | None:
        """The replica of a partition on this node, else None."""
        partitions = self._by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def leader(self, topic: str, partition: int) -> Replica:
        """The replica, where this node leads it.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        replica = self.get(topic, partition)
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

    def load(self, image: MetadataImage, *, clean: bool) -> list[Election]:
        """Opens every partition that the image gives this node; folders of no partition are set aside.

        Args:
            clean: the last stop was clean: files are trusted and not read through.
        """
        disk = self._node.disk
        self._clean = clean
        for name, into in (
            (RECOVERY_POINT_CHECKPOINT, self._recovery_points),
            (LOG_START_OFFSET_CHECKPOINT, self._log_starts),
            (REPLICATION_OFFSET_CHECKPOINT, self._high_watermarks),
        ):
            try:
                into.update(read_offsets(disk, name))
            except MalformedCheckpoint as error:
                log.warning("%s is unreadable, every log is recovered from its start: %s", name, error)
        mine = {
            f"{topic.name}-{number}"
            for topic, number, partition in image.partitions()
            if self._node.config.node_id in partition.replicas
        }
        for folder in disk.listdir(""):
            if folder.endswith("-delete"):
                disk.remove_tree(folder)
            elif folder not in mine and _is_partition_folder(folder) and disk.exists(f"{folder}/partition.metadata"):
                aside = f"{folder}.{self._node.rng.uuid().hex()}-stray"
                log.warning("%s belongs to no partition of this cluster, renamed to %s", folder, aside)
                disk.rename(folder, aside)
        elections = self._take(image, image.topics_by_name.values())
        self._sync_recovered()
        return elections

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
        return elections

    # -- the end

    def close(self) -> bool:
        """Closes every log with its producer snapshot and writes the checkpoints.

        Returns:
            Whether the stop is a clean one: no partition was offline, so that the next start may trust every file.

        Raises:
            OSError: as the disk says.
        """
        healthy = [replica for replica in self.all() if not replica.failed]
        self._node.disk.sync_now([file for replica in healthy for file in replica.log.prepare_close()])
        for replica in healthy:
            replica.log.mark_synced(replica.log.log_end_offset)
            replica.log.close()
        self.write_checkpoints()
        return not self._unopened and len(healthy) == sum(1 for _ in self.all())

    def write_checkpoints(self) -> None:
        """Writes every checkpoint and blocks until they are durable: at a clean stop. Else see `Upkeep`."""
        for name, data in self.checkpoints().items():
            self._node.disk.replace(name, data)

    def checkpoints(self, *, only_high_watermarks: bool = False) -> dict[str, bytes]:
        """The checkpoint files as they should be now, by name; without the high watermarks where none has moved."""
        files: dict[str, bytes] = {}
        if not only_high_watermarks:
            recovery_points = {key: offsets[0] for key, offsets in self._unopened.items()}
            log_starts = {key: offsets[1] for key, offsets in self._unopened.items()}
            for one in self.all():
                recovery_points[one.topic, one.partition] = one.log.recovery_point
                log_starts[one.topic, one.partition] = one.log.log_start_offset
            files[RECOVERY_POINT_CHECKPOINT] = format_offsets(recovery_points)
            files[LOG_START_OFFSET_CHECKPOINT] = format_offsets(
                {key: offset for key, offset in log_starts.items() if offset > 0}
            )
            if not self._node.disk.exists(CLEANER_OFFSET_CHECKPOINT):
                files[CLEANER_OFFSET_CHECKPOINT] = format_offsets({})
        now = {key: offsets[2] for key, offsets in self._unopened.items()}
        now.update({(one.topic, one.partition): one.high_watermark for one in self.all()})
        if now != self._written_high_watermarks or not only_high_watermarks:
            files[REPLICATION_OFFSET_CHECKPOINT] = format_offsets(now)
            self._written_high_watermarks = now
        return files

    # -- group commit

    def request_sync(self, replica: Replica) -> None:
        """Makes the log durable, together with all that ask in the same wake-up; `replica.on_synced` answers."""
        self._unsynced[replica] = None
        if not self._sync_due and not self._syncing:
            self._sync_due = True
            self._node.soon(self._start_sync)

    def _start_sync(self) -> None:
        self._sync_due = False
        if self._unsynced and not self._syncing:
            self._syncing = True
            self._node.scope.start(self._sync(), name="sync")

    async def _sync(self) -> None:
        try:
            while self._unsynced:
                asked, self._unsynced = list(self._unsynced), {}
                ends = [(replica.log.log_end_offset, replica.log.cuts) for replica in asked]
                files = [file for replica in asked for file in replica.log.unsynced_files()]
                try:
                    await self._node.disk.sync(files)
                except OSError as error:
                    log.error("sync failed, %d partitions go offline: %s", len(asked), error)
                    for replica in asked:
                        replica.fail()
                    self._node.fatal(error)
                    continue
                for replica, (end, cuts) in zip(asked, ends, strict=True):
                    if replica.failed:
                        continue
                    if replica.log.cuts != cuts:  # what lies below `end` now is not what was synced
                        self._unsynced[replica] = None
                        continue
                    replica.log.mark_synced(end)
                    replica.on_synced(end)
        finally:
            self._syncing = False

    def _sync_recovered(self) -> None:
        """What a crash left unsynced, and may not be acknowledged unsynced, is synced before this node leads anything.

        Coordinators load up to the high watermark: it must be where the log ends when they are elected.
        """
        waiting = [
            one
            for one in self.all()
            if one.log.log_end_offset - one.log.recovery_point >= one.log.config.flush_messages
            or one.log.truncated_bytes  # what was cut off must not come back among what is appended next
        ]
        if waiting:
            self._node.disk.sync_now([file for one in waiting for file in one.log.unsynced_files()])
            for one in waiting:
                one.log.mark_synced(one.log.log_end_offset)
                one.on_synced(one.log.log_end_offset)

    # -- following the image

    def _take(
        self, image: MetadataImage, topics: Iterable[TopicImage], delta: MetadataDelta | None = None
    ) -> list[Election]:
        self._image = image
        node_id = self._node.config.node_id
        elections = []
        for topic in topics:
            self._names[topic.topic_id] = topic.name
            numbers = range(len(topic.partitions)) if delta is None else delta.partitions[topic.topic_id]
            config = None
            enough = image.min_insync_replicas(topic.name)
            for number in numbers:
                partition = topic.partitions[number]
                replica = self.get(topic.name, number)
                if node_id not in partition.replicas:
                    continue
                if replica is None:
                    if config is None:
                        config = log_config(self._node.config, image.topic_config(topic.name))
                    replica = self._open(topic, number, config)
                    if replica is None:
                        continue
                replica.require(enough)
                if partition.leader == node_id:
                    if replica.lead(partition.leader_epoch, partition.isr, partition.partition_epoch):
                        elections.append(Election(topic.name, number, partition.leader_epoch, True))
                elif replica.follow(partition.leader, partition.leader_epoch, partition.isr, partition.partition_epoch):
                    elections.append(Election(topic.name, number, partition.leader_epoch, False))
        return elections

    def _open(self, topic: TopicImage, number: int, config: LogConfig) -> Replica | None:
        node = self._node
        key = (topic.name, number)
        offsets = self._unopened.pop(key, None) or (
            self._recovery_points.pop(key, 0),
            self._log_starts.pop(key, 0),
            self._high_watermarks.pop(key, 0),
        )
        try:
            partition_log = PartitionLog.open(
                node.disk,
                f"{topic.name}-{number}",
                config,
                now_ms=node.clock.now_ms(),
                topic_id=topic.topic_id,
                clean=self._clean,
                recovery_point=offsets[0],
                log_start_offset=offsets[1],
            )
        except (OSError, BrokerError) as error:
            log.error("%s-%d cannot be opened and stays offline: %s", topic.name, number, error)
            self._unopened[key] = offsets
            return None
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
            high_watermark=offsets[2],
        )
        self._by_topic.setdefault(topic.name, {})[number] = replica
        return replica

    def _delete(self, topic: TopicImage) -> list[Election]:
        self._names.pop(topic.topic_id, None)
        self._node.upkeep.checkpoint_soon()  # a topic of the same name must not inherit its offsets
        partitions = self._by_topic.pop(topic.name, {})
        elections = []
        for replica in partitions.values():
            if replica.is_leader:
                elections.append(Election(topic.name, replica.partition, replica.leader_epoch, False))
            self._unsynced.pop(replica, None)
            replica.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            aside = f"{replica.topic}-{replica.partition}.{self._node.rng.uuid().hex()}-delete"
            try:
                replica.log.rename(aside)
            except OSError as error:
                log.error("folder of deleted %r cannot be renamed: %s", replica, error)
                continue
            self._node.call_later(replica.log.config.file_delete_delay_ms, _remover(self._node, aside))
        return elections

    def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Topic settings changed, or the broker's, which are every topic's defaults."""
        brokers = any(name in ("", str(self._node.config.node_id)) for kind, name in delta.configs if kind == 4)
        names = list(self._by_topic) if brokers else [name for kind, name in delta.configs if kind == 2]
        for name in names:
            config = log_config(self._node.config, image.topic_config(name))
            enough = image.min_insync_replicas(name)
            for replica in self._by_topic.get(name, {}).values():
                replica.log.reconfigure(config)
                replica.require(enough)


def _remover(node: Node, folder: str) -> Callable[[], None]:
    def remove() -> None:
        node.disk.remove_tree(folder)

    return remove


def _is_partition_folder(name: str) -> bool:
    topic, _, number = name.rpartition("-")
    return bool(topic) and number.isdigit() and name != METADATA_FOLDER
