"""MetadataImage: the state of the cluster as of one offset of the metadata log. Immutable; shared by every reader.
`replay.ImageBuilder` replays it from records. A `MetadataDelta` lists the changes, so that a listener's work grows with them only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from barnabas.broker.image.records import (
    DelegationTokenRecord,
    RegisterControllerRecord,
    RegisteredEndpoint,
    RegisteredFeature,
    UserScramCredentialRecord,
)
from barnabas.work import Work

K = TypeVar("K")

NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1  # leader recovery states
# of ConfigRecord, DescribeConfigs and IncrementalAlterConfigs
TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 8, 16, 32

PARTITIONS_PER_UNIT: Final = 50  # of work: copied or compared

_NOTHING: Mapping[str, str] = {}


class PartitionImage(NamedTuple):
    """One partition. `directories` has the order of `replicas`."""

    leader: int  # NO_LEADER without a leader
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...]
    eligible_leader_replicas: tuple[int, ...] = ()  # KIP-966: may be elected when the ISR is empty
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED  # RECOVERING after an unclean election


class TopicImage(NamedTuple):
    """One topic. The index in `partitions` is the partition's number."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    # producers with lower ids may have written to an earlier topic of this name, or records that an unclean election lost
    first_producer_id: int = 0


class BrokerImage(NamedTuple):
    """One registered broker."""

    broker_id: int
    epoch: int  # offset of its registration
    incarnation_id: bytes
    end_points: tuple[RegisteredEndpoint, ...]
    features: tuple[RegisteredFeature, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    cordoned_directories: tuple[bytes, ...] | None = None

    def endpoint(self, listener: str) -> RegisteredEndpoint | None:
        """None if the broker has no such listener."""
        return next((point for point in self.end_points if point.name == listener), None)


class AclImage(NamedTuple):
    """One ACL. The numbers are those of `protocol/acls.py`."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str  # "User:alice"
    host: str
    operation: int
    permission_type: int


QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""A quota entity: (type, name) pairs in ascending order of the type; types "user", "client-id", "ip"; name None is the default."""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """State of the cluster as of one offset. Every mapping has the order of the records, so that iteration is deterministic.

    Records in it are never changed.
    """

    offset: int = -1  # of the last record in it, -1 without records; DescribeFeatures' epoch
    epoch: int = 0  # Raft leader epoch of that record
    timestamp_ms: int = 0  # append time of that record, for snapshots
    features: Mapping[str, int] = field(default_factory=dict)  # finalized level by name
    topics_by_name: dict[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, RegisterControllerRecord] = field(default_factory=dict)
    # settings by (resource type, resource name)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0  # first id of the next block
    acls: Mapping[bytes, AclImage] = field(default_factory=dict)  # by id
    # by mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512) and user name
    scram_credentials: Mapping[tuple[int, str], UserScramCredentialRecord] = field(default_factory=dict)
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=dict)  # by token id
    # values by key ("producer_byte_rate"), by entity
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    foreign: tuple[bytes, ...] = ()  # values of records of unserved types, in order

    # --- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicImage | None:
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def topic_id(self, name: str) -> bytes | None:
        found = self.topics_by_name.get(name)
        return None if found is None else found.topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        found = self.topics_by_id.get(topic_id)
        return None if found is None else found.name

    @property
    def youngest_topic(self) -> TopicImage | None:
        """The topic with the highest `first_producer_id`."""
        return next(reversed(self.topics_by_name.values()), None)

    def partition_count(self, topic: str) -> int:
        """0 if the topic does not exist."""
        found = self.topics_by_name.get(topic)
        return 0 if found is None else len(found.partitions)

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        found = self.topics_by_name.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Topic by topic."""
        for topic in self.topics_by_name.values():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    # --- configuration ------------------------------------------------------------------------------------------

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        return self.configs.get((resource_type, name), _NOTHING)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self.config(TOPIC_RESOURCE, topic)

    @property
    def cluster_config(self) -> Mapping[str, str]:
        """The dynamic defaults of all brokers."""
        return self.config(BROKER_RESOURCE, "")

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic settings of one broker."""
        return self.config(BROKER_RESOURCE, str(broker_id))

    def min_insync_replicas(self, topic: str, replicas: int, otherwise: int) -> int:
        """In-sync replicas for acks=all: the topic's setting, else the cluster's, at most `replicas`, those of the partition (KIP-966).

        Kafka's leaders count the replicas of each partition, too; its controller counts those of partition 0. `otherwise` is the node's own
        configuration, for a cluster without a value in the metadata, as without eligible leaders.
        """
        text = self.topic_config(topic).get("min.insync.replicas") or self.cluster_config.get("min.insync.replicas")
        return min(otherwise if text is None else int(text), replicas)

    # --- brokers ------------------------------------------------------------------------------------------------

    def alive_brokers(self) -> list[BrokerImage]:
        """Neither fenced nor shutting down."""
        return [broker for broker in self.brokers.values() if not broker.fenced and not broker.in_controlled_shutdown]

    def feature(self, name: str) -> int:
        """The finalized level, 0 if the feature is not finalized."""
        return self.features.get(name, 0)


EMPTY_IMAGE = MetadataImage()


@dataclass(slots=True)
class MetadataDelta:
    """Changes between two images. Names and ids in the order of the records."""

    created: dict[bytes, None] = field(default_factory=dict)  # new topics
    deleted: dict[bytes, TopicImage] = field(default_factory=dict)  # topics as they were
    # numbers of new and changed partitions, by topic id (of existing topics)
    partitions: dict[bytes, dict[int, None]] = field(default_factory=dict)
    configs: dict[tuple[int, str], None] = field(default_factory=dict)  # resources whose settings changed
    brokers: dict[int, None] = field(default_factory=dict)  # ids whose registration changed or was removed
    # elections of replicas outside of the ISR and the ELR; `difference` cannot know them
    unclean_elections: int = field(default=0, compare=False)
    features: bool = False
    # keys of the image's mappings that were added, changed or removed, here and below
    acls: dict[bytes, None] = field(default_factory=dict)
    scram_credentials: dict[tuple[int, str], None] = field(default_factory=dict)
    delegation_tokens: dict[str, None] = field(default_factory=dict)
    quotas: dict[QuotaEntity, None] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing relevant to a listener changed."""
        return not (
            self.created
            or self.deleted
            or self.partitions
            or self.configs
            or self.brokers
            or self.features
            or self.acls
            or self.scram_credentials
            or self.delegation_tokens
            or self.quotas
        )


def difference(old: MetadataImage, new: MetadataImage) -> Work:
    """The MetadataDelta between any two images, with a yield after each topic, for a snapshot that replaces the image."""
    delta = MetadataDelta(features=old.features != new.features)
    for topic_id, topic in old.topics_by_id.items():
        yield 1
        if topic_id not in new.topics_by_id:
            delta.deleted[topic_id] = topic
    for topic_id, topic in new.topics_by_id.items():
        former = old.topics_by_id.get(topic_id)
        if former is None:
            delta.created[topic_id] = None
        before = () if former is None else former.partitions
        changed = {
            number: None
            for number, partition in enumerate(topic.partitions)
            if number >= len(before) or before[number] != partition
        }
        if changed:
            delta.partitions[topic_id] = changed
        yield 1 + len(topic.partitions) // PARTITIONS_PER_UNIT
    yield from _changed(old.configs, new.configs, delta.configs)
    yield from _changed(old.brokers, new.brokers, delta.brokers)
    yield from _changed(old.acls, new.acls, delta.acls)
    yield from _changed(old.scram_credentials, new.scram_credentials, delta.scram_credentials)
    yield from _changed(old.delegation_tokens, new.delegation_tokens, delta.delegation_tokens)
    yield from _changed(old.quotas, new.quotas, delta.quotas)
    return delta


def _changed(old: Mapping[K, object], new: Mapping[K, object], changed: dict[K, None]) -> Work:
    for number, key in enumerate(dict.fromkeys((*old, *new))):
        if old.get(key) != new.get(key):
            changed[key] = None
        if not (number + 1) % PARTITIONS_PER_UNIT:
            yield 1
