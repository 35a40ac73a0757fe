"""LogFolders: finds, opens, renames and removes the folders of a node's partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.topic_config import log_config
from barnabas.broker.image.image import MetadataImage, PartitionImage, TopicImage
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.broker.replica.log_dirs import UNASSIGNED_DIRECTORY, LogDirectories
from barnabas.broker.replica.recovery import UnopenedLog
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError
from barnabas.loggers import logger
from barnabas.ports import NAME_BYTES_MAX
from barnabas.protocol.internal_topics import INTERNAL_TOPICS
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.recovery import drain

log = logger("kafka.log.LogManager")


def name_aside(folder: str, unique_id: bytes, suffix: str) -> str:
    """`topic-0.<id><suffix>`; a long topic name is truncated, as in Kafka, because file systems allow 255 bytes."""
    topic, _, number = folder.rpartition("-")
    end = f"-{number}.{unique_id.hex()}{suffix}"
    return topic[: NAME_BYTES_MAX - len(end)] + end


class LogFolders:
    """The folders of one node's partitions, in all its log directories.

    A folder without a partition in the image is renamed to `-stray`, as in Kafka, and never deleted. One renamed to `-delete` is removed
    after file.delete.delay.ms, or at the next start.
    """

    def __init__(self, reactor: Reactor, config: BrokerConfig, log_dirs: LogDirectories) -> None:
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._log_dirs = log_dirs
        self._loaded = False  # whether all logs of the start were named
        self._configured: tuple[MetadataImage, str, LogConfig] | None = None

    # -- start

    def find(self, image: MetadataImage) -> None:
        """Finds the folders of this node's partitions; sets the others aside. Raises OSError if a disk failed that the node needs."""
        assigned = {
            (topic.name, number): assigned_directory(partition, self._node_id)
            for topic, number, partition in image.partitions()
            if self._node_id in partition.replicas
        }
        directories = self._log_dirs
        directories.find(assigned.get, self._set_aside)
        for directory in directories.online():
            directory.forget_offsets_but(assigned)

    def unopened_at_start(self, image: MetadataImage) -> Iterator[UnopenedLog]:
        """The logs of this node's partitions in the image, those of internal topics first."""
        for topic in sorted(image.topics_by_name.values(), key=lambda topic: topic.name not in INTERNAL_TOPICS):
            config = self.config_of(image, topic.name)
            for number, partition in enumerate(topic.partitions):
                if self._node_id in partition.replicas:
                    one = self.unopened(topic, number, partition, config)
                    if one is not None:
                        yield one
        self._loaded = True

    # -- opening

    def config_of(self, image: MetadataImage, topic: str) -> LogConfig:
        """The topic's configuration in the image; caches the last one, because logs of one topic are opened in sequence."""
        if self._configured is None or self._configured[0] is not image or self._configured[1] != topic:
            config = log_config(self._config, image.topic_config(topic), self._reactor.rng.randrange)
            self._configured = image, topic, config
        return self._configured[2]

    def unopened(
        self, topic: TopicImage, number: int, partition: PartitionImage, config: LogConfig
    ) -> UnopenedLog | None:
        """The present or future place of a partition's log; None if that directory has failed."""
        key = (topic.name, number)
        directory = self._log_dirs.home_of(key, assigned_directory(partition, self._node_id))
        if directory is None:
            log.error("Partition is in an offline log directory: topic=%s partition=%d", topic.name, number)
            return None
        offsets = directory.take_offsets(key)
        return UnopenedLog(
            topic.name,
            topic.topic_id,
            number,
            config,
            directory,
            offsets,
            self._set_aside,
            new=self._loaded,
        )

    def open(self, one: UnopenedLog) -> PartitionLog:
        """Opens a log at once. Sets the folder aside if it belongs to another topic of that name. Raises OSError."""
        try:
            return drain(one.opening(self._reactor.clock.now_ms()))
        except BrokerError:
            one.set_folder_aside()
            return drain(one.opening(self._reactor.clock.now_ms()))

    # -- removing

    def _set_aside(self, directory: LogDirectory, folder: str) -> None:
        aside = name_aside(folder, self._reactor.rng.uuid(), "-stray")
        log.warning(
            "Folder belongs to no partition of this cluster and is renamed: folder=%s renamed_to=%s", folder, aside
        )
        directory.disk.rename(folder, aside)

    def forget(self, topic: str, partition: int) -> None:
        self._log_dirs.forget((topic, partition))

    def remove(self, directory: LogDirectory, folder: str, config: LogConfig, rename: Callable[[str], None]) -> None:
        """Renames a folder, and removes it later."""
        if directory.online:
            aside = name_aside(folder, self._reactor.rng.uuid(), "-delete")
            try:
                rename(aside)
            except OSError as error:
                log.error("Folder cannot be renamed for deletion: folder=%s error=%s", folder, error)
            else:
                self._reactor.call_later(config.file_delete_delay_ms, lambda: directory.discard([aside]))

    # -- close

    def close(self, broker_epoch: int) -> None:
        """Writes the clean-shutdown file to directories without offline partitions. Raises OSError if the disk of the first one failed."""
        for directory in self._log_dirs:
            try:
                directory.close(broker_epoch)
            except OSError as error:
                if directory is self._log_dirs.main:
                    raise
                directory.fail(error)


def assigned_directory(partition: PartitionImage, node_id: int) -> bytes:
    place = partition.replicas.index(node_id)
    return partition.directories[place] if place < len(partition.directories) else UNASSIGNED_DIRECTORY


def note_recovery(one: UnopenedLog, opened: PartitionLog) -> None:
    """Brings an opened log to its offsets in the checkpoints. One that ends below its high watermark counts as having lost records."""
    opened.cleaned_to = min(one.offsets.cleaned_to, opened.log_end_offset)
    if one.offsets.high_watermark > opened.log_end_offset:
        log.warning(
            "Log ends below its high watermark, acknowledged records may be lost: folder=%s log_end_offset=%d high_watermark=%d",
            one.folder,
            opened.log_end_offset,
            one.offsets.high_watermark,
        )
        opened.on_records_lost()
    if opened.truncated_bytes:
        log.warning(
            "Incomplete write was truncated: folder=%s bytes=%d offset=%d",
            one.folder,
            opened.truncated_bytes,
            opened.log_end_offset,
        )
