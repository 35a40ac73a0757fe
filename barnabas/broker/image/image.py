"""MetadataImage: the state of the cluster as of one offset of the metadata log. Immutable; shared by every reader.

The image holds topics, partitions, brokers, features, configurations, the next producer id, ACLs, SCRAM credentials, delegation
tokens and quotas, replayed from records by `replay.ImageBuilder`. A new image is published with a `MetadataDelta` of its changes, so that a listener's work is of the size of the change.

Invariants: a published image never changes (mappings are read-only by contract); `topics_by_name` and `topics_by_id` hold the same
TopicImage objects; a partition's replicas, directories and ISR are those of its last record. Every mapping has the order of the
records, so that iteration is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from barnabas.broker.image.records import RegisteredEndpoint, RegisteredFeature
from barnabas.work import Work

K = TypeVar("K")

NO_LEADER = -1
TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = (
    2,
    4,
    8,
    16,
    32,
)  # of ConfigRecord, DescribeConfigs and IncrementalAlterConfigs

PARTITIONS_PER_UNIT: Final = 50  # of work (slices.Work): copied or compared

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
    leader_recovery_state: int = 0  # 1 while recovering from an unclean election


class TopicImage(NamedTuple):
    """One topic. The index in `partitions` is the partition's number; numbers begin at 0, without gaps."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    first_producer_id: int = (
        0  # lower ids are older than the topic: their producers may have written to an earlier topic of this name
    )


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
        """The address of the named listener, None if the broker has no such listener."""
        return next((point for point in self.end_points if point.name == listener), None)


class ControllerImage(NamedTuple):
    """One registered controller."""

    controller_id: int
    incarnation_id: bytes
    end_points: tuple[RegisteredEndpoint, ...]
    features: tuple[RegisteredFeature, ...]


class AclImage(NamedTuple):
    """One ACL. The numbers are those of `protocol/acls.py`."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str  # "User:alice"
    host: str
    operation: int
    permission_type: int


class ScramCredentialImage(NamedTuple):
    """The SCRAM credential of one user and mechanism. Its representation shows no key."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredentialImage(iterations={self.iterations})"


class DelegationTokenImage(NamedTuple):
    """One delegation token; principals as "User:alice", times in ms since 1970. Its HMAC is computed from the id."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int


QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""A quota entity: (type, name) pairs in ascending order of the type; types "user", "client-id", "ip"; name None is the default."""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """State of the cluster as of one offset. Attributes:

    offset: offset of the last record in it, -1 without records; DescribeFeatures' epoch.
    epoch: Raft leader epoch of that record.
    timestamp_ms: append time of that record, for snapshots.
    features: finalized level by name.
    configs: settings by (resource type, resource name).
    next_producer_id: first id of the next block.
    acls: by id.
    scram_credentials: by mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512) and user name.
    delegation_tokens: by token id.
    quotas: values by key ("producer_byte_rate"), by entity.
    foreign: values of records of types that this broker does not serve, in order.
    """

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    topics_by_name: dict[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: Mapping[bytes, AclImage] = field(default_factory=dict)
    scram_credentials: Mapping[tuple[int, str], ScramCredentialImage] = field(default_factory=dict)
    delegation_tokens: Mapping[str, DelegationTokenImage] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    foreign: tuple[bytes, ...] = ()

    # --- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicImage | None:
        """The topic of that name, else None."""
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic of that id, else None."""
        return self.topics_by_id.get(topic_id)

    def topic_id(self, name: str) -> bytes | None:
        """The id of a topic, else None."""
        found = self.topics_by_name.get(name)
        return None if found is None else found.topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic, else None."""
        found = self.topics_by_id.get(topic_id)
        return None if found is None else found.name

    @property
    def youngest_topic(self) -> TopicImage | None:
        """The topic that was created last, else None."""
        return next(reversed(self.topics_by_name.values()), None)

    def partition_count(self, topic: str) -> int:
        """Number of a topic's partitions, 0 if the topic does not exist."""
        found = self.topics_by_name.get(topic)
        return 0 if found is None else len(found.partitions)

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        """One partition, else None."""
        found = self.topics_by_name.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Every partition of the cluster, topic by topic."""
        for topic in self.topics_by_name.values():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    # --- configuration ------------------------------------------------------------------------------------------

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings of one resource; empty without settings."""
        return self.configs.get((resource_type, name), _NOTHING)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """The topic's own settings."""
        return self.config(TOPIC_RESOURCE, topic)

    @property
    def cluster_config(self) -> Mapping[str, str]:
        """The dynamic defaults of all brokers."""
        return self.config(BROKER_RESOURCE, "")

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic settings of one broker."""
        return self.config(BROKER_RESOURCE, str(broker_id))

    def min_insync_replicas(self, topic: str, replicas: int, otherwise: int) -> int:
        """How many in-sync replicas acks=all needs: the topic's setting, else the cluster's, at most the partition's replicas (KIP-966).

        Kafka's leaders count the replicas of each partition, too. Its controller counts those of partition 0.

        Args:
            replicas: how many the partition has.
            otherwise: the asking node's own configuration; used if the metadata holds no value for the cluster, as without eligible
                leaders.
        """
        text = self.topic_config(topic).get("min.insync.replicas") or self.cluster_config.get("min.insync.replicas")
        return min(otherwise if text is None else int(text), replicas)

    # --- brokers ------------------------------------------------------------------------------------------------

    def alive_brokers(self) -> list[BrokerImage]:
        """Brokers that are neither fenced nor shutting down."""
        return [broker for broker in self.brokers.values() if not broker.fenced and not broker.in_controlled_shutdown]

    def feature(self, name: str) -> int:
        """The finalized level, 0 if the feature is not finalized."""
        return self.features.get(name, 0)


EMPTY_IMAGE = MetadataImage()


@dataclass(slots=True)
class MetadataDelta:
    """Changes between two images. Names and ids in the order of the records.

    created: new topics.
    deleted: deleted topics, as they were.
    partitions: numbers of new and changed partitions, by topic id (of existing topics).
    configs: resources whose settings changed.
    brokers: ids whose registration changed or was removed.
    acls, scram_credentials, delegation_tokens, quotas: keys of the image's mappings that were added, changed or removed.
    """

    created: dict[bytes, None] = field(default_factory=dict)
    deleted: dict[bytes, TopicImage] = field(default_factory=dict)
    partitions: dict[bytes, dict[int, None]] = field(default_factory=dict)
    configs: dict[tuple[int, str], None] = field(default_factory=dict)
    brokers: dict[int, None] = field(default_factory=dict)
    features: bool = False
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
    """Returns the MetadataDelta between any two images, with a yield after each topic; used when a snapshot replaces the image."""
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
    """Adds the keys whose values differ to `changed`."""
    for number, key in enumerate(dict.fromkeys((*old, *new))):
        if old.get(key) != new.get(key):
            changed[key] = None
        if not (number + 1) % PARTITIONS_PER_UNIT:
            yield 1
