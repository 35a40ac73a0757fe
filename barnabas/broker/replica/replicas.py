"""Replicas: all partitions that this node holds; applies metadata images to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Final, NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.topic_config import log_config
from barnabas.broker.image.image import NO_LEADER, RECOVERED, MetadataDelta, MetadataImage, PartitionImage, TopicImage
from barnabas.broker.replica.core.isr import InSyncReplicas, IsrProposal
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.core.traffic import Traffic
from barnabas.broker.replica.fetcher import Fetchers
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.broker.replica.log_dirs import LogDirectories
from barnabas.broker.replica.log_folders import LogFolders, assigned_directory, note_recovery
from barnabas.broker.replica.recovery import LogRecovery, UnopenedLog
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.storage.inspection import Inspection
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.work import Work, finished

log = logger("kafka.log.LogManager")


OPENED_AT_ONCE: Final = 64  # new partitions of one image, before it is published: enough for the internal topics
OPENED_PER_TURN: Final = 2  # of the other new ones; 1 to 5 ms, most of it in the kernel
# Units of work:
UNITS_OF_A_FOLDER: Final = 32  # opened or renamed
UNITS_OF_A_CONFIG: Final = 4  # of a topic, applied
REPLICAS_PER_UNIT: Final = 8  # only checked


class LeadershipChange(NamedTuple):
    """This node became the leader of a partition in `leader_epoch`, or stopped being it (`leads` is false)."""

    topic: str
    partition: int
    leader_epoch: int
    leads: bool


class Replicas:
    """The partitions of one node.

    A new folder takes about a millisecond. The first of many new partitions are opened before the image is published, the others later or
    when a client writes to them, so the request that created a large topic is answered first. `recovery` opens the folders of the start. A
    folder is opened only for a partition with the same topic id. A replica whose directory failed stays offline until the next start.

    Args:
        propose: requests a change of the ISR from the controller.
        followed_since_ms: `Lifecycle.followed_since_ms`.
        assign_directory: reports the directory of a replica to the controller: topic id, partition, directory id.
        checkpoint_soon: writes every checkpoint at the end of the wake-up.
        elected: called with elections, except those of a failed directory.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        log_dirs: LogDirectories,
        fetchers: Fetchers,
        *,
        propose: Callable[[Replica, IsrProposal], None],
        followed_since_ms: Callable[[], int | None],
        assign_directory: Callable[[bytes, int, bytes], None],
        checkpoint_soon: Callable[[], None],
        elected: Callable[[list[LeadershipChange]], None],
    ) -> None:
        self.fenced_batches = 0  # batches refused with INVALID_PRODUCER_EPOCH since the start
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._folders = LogFolders(reactor, config, log_dirs)
        self._fetchers = fetchers
        self._propose = propose
        self._followed_since_ms = followed_since_ms
        self._assign_directory = assign_directory
        self._checkpoint_soon = checkpoint_soon
        self._elected = elected
        self._unopened: dict[tuple[bytes, int], None] = {}  # new partitions by topic id, without folders yet
        self._opening_due = False
        self._opened_units = 0
        self._by_topic: dict[str, dict[int, Replica]] = {}
        self._names: dict[bytes, str] = {}  # of every topic in the image
        self._image = MetadataImage()
        self._homes: dict[Replica, LogDirectory] = {}
        self._recovery = LogRecovery(reactor, self._on_opened)
        # counts written and read records; None: nothing is counted; set before `load`
        self.traffic: Traffic | None = None

    # -- lookup

    def get(self, topic: str, partition: int) -> Replica | None:
        """None also if the partition's folder is not open yet."""
        partitions = self._by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def obtain(self, topic: str, partition: int) -> Replica | None:
        """As `get`, for a caller that is about to write: opens the folder if it is not open yet."""
        partitions = self._by_topic.get(topic)
        replica = None if partitions is None else partitions.get(partition)
        if replica is None and self._unopened:
            described = self._image.topic(topic)
            if described is not None and (described.topic_id, partition) in self._unopened:
                self._open_now([(described.topic_id, partition)])
                self._opened_units += UNITS_OF_A_FOLDER
                return self.get(topic, partition)
        return replica

    @property
    def opening(self) -> bool:
        """Whether new partitions have no folders yet: `obtain` and `leader` may open them, half a millisecond each."""
        return bool(self._unopened)

    @property
    def recovery_progress(self) -> tuple[int, int]:
        """How many of the logs that existed at the start are open, and their number."""
        return self._recovery.progress

    def take_opened_units(self) -> int:
        """Units of work for openings by `obtain` and `leader` since the last call."""
        units, self._opened_units = self._opened_units, 0
        return units

    def leader(self, topic: str, partition: int) -> Replica:
        """The replica, if this node leads it. Raises BrokerError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR."""
        replica = self.obtain(topic, partition)
        if replica is None:
            raise BrokerError(self.absence(topic, partition))
        if not replica.is_leader:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR if replica.failed else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def absence(self, topic: str, partition: int) -> ErrorCode:
        """Why `get` found nothing: the partition is elsewhere, unknown, or its log is not open yet; then opens it next."""
        if self._image.partition(topic, partition) is not None:
            if self._recovery:
                self._recovery.want(self._image.topics_by_name[topic].topic_id, partition)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def topic_name(self, topic_id: bytes) -> str | None:
        """Whether or not this node holds a partition of the topic."""
        return self._names.get(topic_id)

    def all(self) -> Iterable[Replica]:
        """Topic by topic."""
        return chain.from_iterable([partitions.values() for partitions in self._by_topic.values()])

    def on_session_over(self) -> None:
        """This node's session with the controller has ended: refuses waiting requests of leaders that may have a successor."""
        for replica in self.all():
            replica.refuse_unless_leading()

    # -- start

    async def load(self, image: MetadataImage) -> None:
        """Opens the logs of this node's partitions, those that need much reading later; sets other folders aside. Raises OSError."""
        self._folders.find(image)
        self._image = image
        self._names.update((topic.topic_id, topic.name) for topic in image.topics_by_name.values())
        self._recovery.add(self._folders.unopened_at_start(image))
        await self._recovery.run_before_serving()

    def _on_opened(self, one: UnopenedLog, opened: PartitionLog) -> None:
        """A waiting log is open: makes its replica by the present image."""
        topic = self._image.topics_by_id.get(one.topic_id)
        if topic is None:
            raise InvariantViolated(f"{one.folder} of a topic that is gone was still being opened")
        one.config = self._folders.config_of(self._image, topic.name)
        opened.reconfigure(one.config)
        partition = topic.partitions[one.partition]
        if self._node_id not in partition.replicas:  # moved away by an image that `apply` has not reached yet
            self._folders.remove(one.directory, one.folder, one.config, opened.rename)
            return
        replica = self._adopt(one, opened, partition)
        if one.wanted:
            replica.note_refusal()
        finished(self._follow(topic, [one.partition]))

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        """Applies a metadata change in slices: partitions not reached yet keep their state. Coordinators are notified of each election at once."""
        for topic in delta.deleted.values():
            yield from self._delete(topic)
        if delta.deleted:
            self._checkpoint_soon()  # a topic of the same name must not inherit its offsets
        self._image = image
        opened = 0
        for topic_id, numbers in delta.partitions.items():
            if topic_id in image.topics_by_id:
                changed = image.topics_by_id[topic_id]
                opened += yield from self._follow_change(changed, numbers, OPENED_AT_ONCE - opened)
        if delta.configs:
            yield from self._reconfigure(image, delta)
        if delta.brokers:
            for count, replica in enumerate(list(self.all())):
                replica.consider_isr()  # a broker that was fenced may join now
                if count % REPLICAS_PER_UNIT == 0:
                    yield 1

    # -- close

    def close(self, broker_epoch: int) -> None:
        """As `LogFolders.close`."""
        self._recovery.stop()
        self._folders.close(broker_epoch)

    def abandon(self) -> None:
        self._recovery.stop()

    # -- directories

    def on_directory_failed(self, directory: LogDirectory) -> list[LeadershipChange]:
        self._recovery.forget_directory(directory)
        for replica in directory.replicas:
            replica.log.saved.drop()
        resigned = []
        for replica in list(directory.replicas):
            resigned.append(LeadershipChange(replica.topic, replica.partition, replica.leader_epoch, False))
            replica.fail()
            self._fetchers.unfollow(replica)
        return resigned

    def on_io_error(self, replica: Replica, error: OSError) -> None:
        """The disk failed under a replica: takes its whole directory offline."""
        home = self._homes.get(replica)
        if home is not None:
            home.fail(error)

    def on_refused(self, replica: Replica | None, code: ErrorCode, records: Buffer | Inspection) -> None:
        self.fenced_batches += code is ErrorCode.INVALID_PRODUCER_EPOCH
        if replica is not None and replica.traffic is not None:
            replica.traffic.on_refusal(code, records)

    def home_of(self, replica: Replica) -> LogDirectory | None:
        """None if the replica was removed."""
        return self._homes.get(replica)

    def request_sync(self, replica: Replica) -> None:
        """Syncs the log, together with all logs requested in the same wake-up; calls `replica.on_synced`."""
        home = self._homes.get(replica)
        if home is not None:  # else it is being opened, and the recovery syncs it
            home.request_sync(replica)

    # -- applying the image

    def _follow_change(self, topic: TopicImage, numbers: Iterable[int], opened_max: int) -> Work:
        """Applies new or changed partitions of a topic. Opens `opened_max` new ones, the others later; returns how many it opened."""
        self._names[topic.topic_id] = topic.name
        opened = 0
        present = []
        for number in numbers:
            if not self._is_new(topic, number):
                present.append(number)
            elif opened < opened_max:
                opened += 1
                present.append(number)
            else:
                self._postpone(topic.topic_id, number)
            yield 1
        if present:
            yield from self._follow(topic, present)
        return opened

    def _is_new(self, topic: TopicImage, number: int) -> bool:
        return (
            self._node_id in topic.partitions[number].replicas
            and self.get(topic.name, number) is None
            and (topic.topic_id, number) not in self._recovery
        )

    def _follow(self, topic: TopicImage, numbers: Iterable[int]) -> Work:
        config = None
        for number in numbers:
            partition = topic.partitions[number]
            replica = self.get(topic.name, number)
            if self._node_id not in partition.replicas:
                if replica is not None:
                    self._discard(replica)
                else:
                    self._discard_unopened(topic, number)
                yield UNITS_OF_A_FOLDER
                continue
            if replica is None:
                if (topic.topic_id, number) in self._recovery:
                    continue
                if config is None:
                    config = self._folders.config_of(self._image, topic.name)
                replica = self._open(topic, number, partition, config)
                yield UNITS_OF_A_FOLDER
            if replica is not None and not replica.failed:
                replica.log.producers.first_id = topic.first_producer_id
                self._require(replica, partition)
                self._elected(self._lead_or_follow(replica, partition))
            yield 1

    def _postpone(self, topic_id: bytes, number: int) -> None:
        self._unopened[topic_id, number] = None
        if not self._opening_due:
            self._opening_due = True
            self._reactor.call_later(0, self._open_some)

    def _open_some(self) -> None:
        self._opening_due = False
        self._open_now(list(islice(self._unopened, OPENED_PER_TURN)))
        if self._unopened:
            self._opening_due = True
            self._reactor.call_later(0, self._open_some)

    def _open_now(self, keys: list[tuple[bytes, int]]) -> None:
        """Opens postponed partitions; skips those deleted since."""
        by_topic: dict[bytes, list[int]] = {}
        for key in keys:
            del self._unopened[key]
            by_topic.setdefault(key[0], []).append(key[1])
        for topic_id, numbers in by_topic.items():
            topic = self._image.topics_by_id.get(topic_id)
            if topic is not None:
                finished(self._follow(topic, numbers))

    def _lead_or_follow(self, replica: Replica, partition: PartitionImage) -> list[LeadershipChange]:
        leader, epoch, isr = partition.leader, partition.leader_epoch, partition.isr
        if leader == self._node_id:
            self._fetchers.unfollow(replica)
            changed = replica.lead(epoch, isr, partition.partition_epoch, replicas=partition.replicas)
            if partition.leader_recovery_state != RECOVERED:
                replica.log.on_records_lost()
        else:
            changed = replica.follow(leader, epoch, isr, partition.partition_epoch)
            if leader == NO_LEADER:
                self._fetchers.unfollow(replica)
            else:
                self._fetchers.follow(replica)
        return [LeadershipChange(replica.topic, replica.partition, epoch, replica.is_leader)] if changed else []

    def _require(self, replica: Replica, partition: PartitionImage) -> None:
        otherwise = self._config.get_int("min.insync.replicas")
        replica.require(self._image.min_insync_replicas(replica.topic, len(partition.replicas), otherwise))

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may join an ISR: alive (KIP-841), in the same broker epoch as its fetch (KIP-903)."""
        broker = self._image.brokers.get(broker_id)
        return (
            broker is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and broker_epoch in (-1, broker.epoch)
        )

    def _open(self, topic: TopicImage, number: int, partition: PartitionImage, config: LogConfig) -> Replica | None:
        """Opens the log of a partition that is new on this node. None if that fails, or has to wait."""
        one = self._folders.unopened(topic, number, partition, config)
        if one is None:
            return None
        try:
            opened = self._folders.open(one)
        except OSError as error:
            self._recovery.on_error(one, error)
            return None
        return self._adopt(one, opened, partition)

    def _adopt(self, one: UnopenedLog, opened: PartitionLog, partition: PartitionImage) -> Replica:
        directory = one.directory
        note_recovery(one, opened)
        replica = Replica(
            one.topic,
            one.partition,
            one.topic_id,
            opened,
            node_id=self._node_id,
            clock=self._reactor.clock,
            request_sync=self.request_sync,
            propose=self._propose,
            on_io_error=self.on_io_error,
            in_sync=InSyncReplicas(self._node_id, self._is_eligible, self._config.get_int("replica.lag.time.max.ms")),
            high_watermark=one.offsets.high_watermark,
            followed_since_ms=self._followed_since_ms,
        )
        replica.traffic = None if self.traffic is None else self.traffic.of(one.topic)
        directory.replicas[replica] = None
        self._homes[replica] = directory
        if opened.unnamed:
            directory.request_sync(replica)  # before its first record, if possible
        directory.discard(opened.take_deleted(0))
        if assigned_directory(partition, self._node_id) != directory.directory_id:
            self._assign_directory(one.topic_id, one.partition, directory.directory_id)
        self._by_topic.setdefault(one.topic, {})[one.partition] = replica
        return replica

    def _delete(self, topic: TopicImage) -> Work:
        self._names.pop(topic.topic_id, None)
        for number in range(len(topic.partitions)):
            self._unopened.pop((topic.topic_id, number), None)
            replica = self.get(topic.name, number)
            if replica is not None:
                self._discard(replica)
            else:
                self._discard_unopened(topic, number)
            self._folders.forget(topic.name, number)
            yield 1 if replica is None else UNITS_OF_A_FOLDER
        self._by_topic.pop(topic.name, None)
        if self.traffic is not None:
            self.traffic.forget(topic.name)

    def _discard(self, replica: Replica) -> None:
        led = replica.is_leader
        self._fetchers.unfollow(replica)
        self._by_topic.get(replica.topic, {}).pop(replica.partition, None)
        directory = self._homes.pop(replica)
        directory.forget(replica)
        replica.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._folders.remove(directory, f"{replica.topic}-{replica.partition}", replica.log.config, replica.log.rename)
        if led:
            self._elected([LeadershipChange(replica.topic, replica.partition, replica.leader_epoch, False)])

    def _discard_unopened(self, topic: TopicImage, number: int) -> None:
        one = self._recovery.forget(topic.topic_id, number)
        if one is not None:
            directory, folder = one.directory, one.folder
            directory.unopened.pop(one.name, None)
            if directory.disk.exists(folder):
                self._folders.remove(directory, folder, one.config, lambda aside: directory.disk.rename(folder, aside))

    def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        """Applies changed settings of topics or of the broker, which are every topic's defaults."""
        brokers = any(name in ("", str(self._node_id)) for kind, name in delta.configs if kind == 4)
        names = list(self._by_topic) if brokers else [name for kind, name in delta.configs if kind == 2]
        for name in names:
            config = log_config(self._config, image.topic_config(name), self._reactor.rng.randrange)
            for replica in list(self._by_topic.get(name, {}).values()):
                replica.log.reconfigure(config)
                self._require(replica, image.topics_by_name[name].partitions[replica.partition])
                yield 1
            yield UNITS_OF_A_CONFIG
