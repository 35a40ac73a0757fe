"""ImageBuilder: builds the next MetadataImage and its delta from an image and records (KIP-868, KIP-966, KIP-858)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, cast

from barnabas.broker.image import records
from barnabas.broker.image.image import (
    NO_LEADER,
    PARTITIONS_PER_UNIT,
    RECOVERING,
    TOPIC_RESOURCE,
    AclImage,
    BrokerImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from barnabas.broker.image.records import NO_LEADER_CHANGE
from barnabas.errors import InvariantViolated
from barnabas.work import Work, finished

K = TypeVar("K")
V = TypeVar("V")
_ACL_FIELDS: Final = attrgetter(*AclImage._fields)


def changed_partition(partition: PartitionImage, change: records.PartitionChangeRecord) -> PartitionImage:
    """`partition` after `change`. The leader epoch goes up if the change names a leader (or none)."""
    leads = change.leader != NO_LEADER_CHANGE
    ready = change.eligible_leader_replicas
    known = change.last_known_elr
    adding, removing = change.adding_replicas, change.removing_replicas
    return PartitionImage(
        leader=change.leader if leads else partition.leader,
        leader_epoch=partition.leader_epoch + 1 if leads else partition.leader_epoch,
        partition_epoch=partition.partition_epoch + 1,
        replicas=partition.replicas if change.replicas is None else tuple(change.replicas),
        isr=partition.isr if change.isr is None else tuple(change.isr),
        directories=partition.directories if change.directories is None else tuple(change.directories),
        eligible_leader_replicas=partition.eligible_leader_replicas if ready is None else tuple(ready),
        last_known_elr=partition.last_known_elr if known is None else tuple(known),
        adding_replicas=partition.adding_replicas if adding is None else tuple(adding),
        removing_replicas=partition.removing_replicas if removing is None else tuple(removing),
        leader_recovery_state=partition.leader_recovery_state
        if change.leader_recovery_state < 0
        else change.leader_recovery_state,
    )


class _Copied(Generic[K, V]):
    """A mapping of the image, copied before its first change."""

    __slots__ = ("_is_own", "_mapping")

    def __init__(self, mapping: Mapping[K, V]) -> None:
        self._mapping = mapping
        self._is_own = False

    def own(self) -> dict[K, V]:
        """The copy, to be changed."""
        if not self._is_own:
            self._mapping, self._is_own = dict(self._mapping), True
        return cast("dict[K, V]", self._mapping)

    def published(self) -> dict[K, V]:
        """The mapping for an image: the next change copies it again."""
        self._is_own = False
        return cast("dict[K, V]", self._mapping)


class ImageBuilder:
    """Builds the image that follows `base`, which never changes: mappings are copied at their first change.

    Args:
        transaction: records of a metadata transaction that is open at `base`, None without one.
        of_snapshot: the records are a snapshot's. It names topics before the first ProducerIdsRecord if Kafka wrote it, or if they were
            created before the first producer id. Both count as created at the snapshot: no producer is wrongly younger than its topic.
    """

    def __init__(
        self, base: MetadataImage, transaction: list[records.MetadataRecord] | None = None, *, of_snapshot: bool = False
    ) -> None:
        self._of_snapshot = of_snapshot
        self._features = _Copied(base.features)
        self._topics = _Copied(base.topics_by_name)  # with the partitions as of the last `image()`
        self._topics_by_id = _Copied(base.topics_by_id)  # the same topics
        self._partitions: dict[bytes, list[PartitionImage]] = {}  # of topics changed since
        self._brokers = _Copied(base.brokers)
        self._controllers = _Copied(base.controllers)
        self._configs = _Copied(base.configs)
        self._next_producer_id = base.next_producer_id
        self._acls = _Copied(base.acls)
        self._scram_credentials = _Copied(base.scram_credentials)
        self._delegation_tokens = _Copied(base.delegation_tokens)
        self._quotas = _Copied(base.quotas)
        self._foreign = list(base.foreign)
        self._transaction = transaction
        self._offset, self._epoch, self._timestamp_ms = base.offset, base.epoch, base.timestamp_ms
        self.delta = MetadataDelta()

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction is open, so that `image` does not hold its records yet."""
        return self._transaction is not None

    @property
    def transaction(self) -> list[records.MetadataRecord] | None:
        """The records of the open metadata transaction: for the builder of the next image."""
        return self._transaction

    def replay(self, record: records.MetadataRecord) -> None:
        """Raises InvariantViolated if the record contradicts the ones before it."""
        if self._transaction is not None:
            if isinstance(record, records.EndTransactionRecord):
                pending, self._transaction = self._transaction, None
                for each in pending:
                    self.replay(each)
            elif isinstance(record, records.AbortTransactionRecord):
                self._transaction = None
            else:
                self._transaction.append(record)
            return
        replay = _REPLAY.get(type(record))
        if replay is None:
            raise InvariantViolated(f"{type(record).__name__} outside a metadata transaction")
        replay(self, record)

    def advance(self, offset: int, epoch: int, timestamp_ms: int) -> None:
        """Offset, epoch and append time of the last record."""
        self._offset, self._epoch, self._timestamp_ms = offset, epoch, timestamp_ms

    def image(self) -> MetadataImage:
        image: MetadataImage = finished(self.image_in_slices())
        return image

    def image_in_slices(self) -> Work:
        """As `image`, with a yield after each topic. Replay nothing until it has returned."""
        for topic_id, partitions in self._partitions.items():
            topic = self._topics_by_id.own()[topic_id]._replace(partitions=tuple(partitions))
            if self._of_snapshot and not topic.first_producer_id:
                topic = topic._replace(first_producer_id=self._next_producer_id)
            self._put(topic)
            yield 1 + len(partitions) // PARTITIONS_PER_UNIT
        self._partitions.clear()
        return MetadataImage(
            offset=self._offset,
            epoch=self._epoch,
            timestamp_ms=self._timestamp_ms,
            features=self._features.published(),
            topics_by_name=self._topics.published(),
            topics_by_id=self._topics_by_id.published(),
            brokers=self._brokers.published(),
            controllers=self._controllers.published(),
            configs=self._configs.published(),
            next_producer_id=self._next_producer_id,
            acls=self._acls.published(),
            scram_credentials=self._scram_credentials.published(),
            delegation_tokens=self._delegation_tokens.published(),
            quotas=self._quotas.published(),
            foreign=tuple(self._foreign),
        )

    def _put(self, topic: TopicImage) -> None:
        self._topics.own()[topic.name] = topic
        self._topics_by_id.own()[topic.topic_id] = topic

    def _partitions_of(self, topic_id: bytes) -> list[PartitionImage]:
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            topic = self._topics_by_id.own().get(topic_id)
            if topic is None:
                raise InvariantViolated(f"metadata record for topic id {topic_id.hex()}, which does not exist")
            partitions = self._partitions[topic_id] = list(topic.partitions)
        return partitions

    def _touch(self, topic_id: bytes, partition: int) -> None:
        touched = self.delta.partitions.get(topic_id)
        if touched is None:
            touched = self.delta.partitions[topic_id] = {}
        touched[partition] = None

    # --- topics -----------------------------------------------------------------------------------------------------

    def _topic(self, record: records.TopicRecord) -> None:
        if record.name in self._topics.own():
            raise InvariantViolated(f"TopicRecord for topic {record.name!r}, which exists")
        self._put(TopicImage(record.name, record.topic_id, (), self._next_producer_id))
        self._partitions[record.topic_id] = []
        self.delta.created[record.topic_id] = None

    def _partition(self, record: records.PartitionRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        image = PartitionImage(
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            directories=tuple(record.directories),
            eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            adding_replicas=tuple(record.adding_replicas),
            removing_replicas=tuple(record.removing_replicas),
            leader_recovery_state=record.leader_recovery_state,
        )
        if record.partition_id < len(partitions):
            partitions[record.partition_id] = image
        elif record.partition_id == len(partitions):
            partitions.append(image)
        else:
            raise InvariantViolated(f"PartitionRecord {record.partition_id} where {len(partitions)} is next")
        self._touch(record.topic_id, record.partition_id)

    def _partition_change(self, record: records.PartitionChangeRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        if not 0 <= record.partition_id < len(partitions):
            raise InvariantViolated(f"PartitionChangeRecord for partition {record.partition_id} of {len(partitions)}")
        was = partitions[record.partition_id]
        now = partitions[record.partition_id] = changed_partition(was, record)
        self.delta.unclean_elections += now.leader not in (
            was.leader,
            NO_LEADER,
            *was.isr,
            *was.eligible_leader_replicas,
        )
        if record.leader_recovery_state == RECOVERING:
            topic = self._topics.own().pop(self._topics_by_id.own()[record.topic_id].name)
            self._put(topic._replace(first_producer_id=self._next_producer_id))  # now the youngest topic
        self._touch(record.topic_id, record.partition_id)

    def _remove_topic(self, record: records.RemoveTopicRecord) -> None:
        partitions = tuple(self._partitions_of(record.topic_id))
        topic = self._topics_by_id.own().pop(record.topic_id)._replace(partitions=partitions)
        name = topic.name
        del self._topics.own()[name]
        del self._partitions[record.topic_id]
        if (TOPIC_RESOURCE, name) in self._configs.own():
            del self._configs.own()[TOPIC_RESOURCE, name]
        self.delta.partitions.pop(record.topic_id, None)
        if record.topic_id in self.delta.created:
            del self.delta.created[record.topic_id]  # created and deleted between two images: never published
        else:
            self.delta.deleted[record.topic_id] = topic

    def _clear_elr(self, record: records.ClearElrRecord) -> None:
        for name, topic in list(self._topics.own().items()):
            if record.topic_name not in ("", name):
                continue
            partitions = self._partitions_of(topic.topic_id)
            for number, partition in enumerate(partitions):
                # Without an ISR nothing was committed since, and no other replica can be elected. Kafka clears these, too.
                if partition.isr and (partition.eligible_leader_replicas or partition.last_known_elr):
                    partitions[number] = partition._replace(eligible_leader_replicas=(), last_known_elr=())
                    self._touch(topic.topic_id, number)

    # --- brokers and controllers ----------------------------------------------------------------------------------

    def _register_broker(self, record: records.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._brokers.own()[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            end_points=tuple(record.end_points),
            features=tuple(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            directories=tuple(record.log_dirs),
            cordoned_directories=None if cordoned is None else tuple(cordoned),
        )
        self.delta.brokers[record.broker_id] = None

    def _unregister_broker(self, record: records.UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        del self._brokers.own()[record.broker_id]
        self.delta.brokers[record.broker_id] = None

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._brokers.own().get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            raise InvariantViolated(
                f"metadata record for broker {broker_id} epoch {broker_epoch}, registered is {broker}"
            )
        return broker

    def _change_broker(self, broker_id: int, broker_epoch: int, **changes: Any) -> None:
        broker = self._registered(broker_id, broker_epoch)
        self._brokers.own()[broker_id] = broker._replace(**changes)
        self.delta.brokers[broker_id] = None

    def _fence(self, record: records.FenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=True)

    def _unfence(self, record: records.UnfenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=False)

    def _registration_change(self, record: records.BrokerRegistrationChangeRecord) -> None:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_directories"] = tuple(record.cordoned_log_dirs)
        self._change_broker(record.broker_id, record.broker_epoch, **changes)

    def _register_controller(self, record: records.RegisterControllerRecord) -> None:
        self._controllers.own()[record.controller_id] = record

    # --- security and quotas --------------------------------------------------------------------------------------

    def _acl(self, record: records.AccessControlEntryRecord) -> None:
        self._acls.own()[record.id] = AclImage._make(_ACL_FIELDS(record))
        self.delta.acls[record.id] = None

    def _remove_acl(self, record: records.RemoveAccessControlEntryRecord) -> None:
        if self._acls.own().pop(record.id, None) is None:
            raise InvariantViolated(f"metadata record removes ACL {record.id.hex()}, which does not exist")
        self.delta.acls[record.id] = None

    def _scram_credential(self, record: records.UserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        self._scram_credentials.own()[key] = record
        self.delta.scram_credentials[key] = None

    def _remove_scram_credential(self, record: records.RemoveUserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        if self._scram_credentials.own().pop(key, None) is None:
            raise InvariantViolated(f"metadata record removes a SCRAM credential of {record.name!r}, which has none")
        self.delta.scram_credentials[key] = None

    def _delegation_token(self, record: records.DelegationTokenRecord) -> None:
        self._delegation_tokens.own()[record.token_id] = record
        self.delta.delegation_tokens[record.token_id] = None

    def _remove_delegation_token(self, record: records.RemoveDelegationTokenRecord) -> None:
        self._delegation_tokens.own().pop(record.token_id, None)
        self.delta.delegation_tokens[record.token_id] = None

    def _quota(self, record: records.ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        quotas = self._quotas.own()
        values = dict(quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            quotas[entity] = values
        else:
            quotas.pop(entity, None)
        self.delta.quotas[entity] = None

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _config(self, record: records.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        configs = self._configs.own()
        settings = dict(configs.get(resource, {}))
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value
        if settings:
            configs[resource] = settings
        else:
            configs.pop(resource, None)
        self.delta.configs[resource] = None

    def _feature(self, record: records.FeatureLevelRecord) -> None:
        if record.feature_level:
            self._features.own()[record.name] = record.feature_level
        else:
            self._features.own().pop(record.name, None)
        self.delta.features = True

    def _producer_ids(self, record: records.ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    def _begin(self, _record: records.BeginTransactionRecord) -> None:
        self._transaction = []

    def _nothing(self, _record: records.NoOpRecord) -> None:
        pass

    def _keep(self, record: records.ForeignRecord) -> None:
        self._foreign.append(record.value)


_REPLAY: Final[dict[type, Callable[[ImageBuilder, Any], None]]] = {
    records.TopicRecord: ImageBuilder._topic,
    records.PartitionRecord: ImageBuilder._partition,
    records.PartitionChangeRecord: ImageBuilder._partition_change,
    records.RemoveTopicRecord: ImageBuilder._remove_topic,
    records.ClearElrRecord: ImageBuilder._clear_elr,
    records.RegisterBrokerRecord: ImageBuilder._register_broker,
    records.UnregisterBrokerRecord: ImageBuilder._unregister_broker,
    records.FenceBrokerRecord: ImageBuilder._fence,
    records.UnfenceBrokerRecord: ImageBuilder._unfence,
    records.BrokerRegistrationChangeRecord: ImageBuilder._registration_change,
    records.RegisterControllerRecord: ImageBuilder._register_controller,
    records.ConfigRecord: ImageBuilder._config,
    records.FeatureLevelRecord: ImageBuilder._feature,
    records.ProducerIdsRecord: ImageBuilder._producer_ids,
    records.BeginTransactionRecord: ImageBuilder._begin,
    records.NoOpRecord: ImageBuilder._nothing,
    records.AccessControlEntryRecord: ImageBuilder._acl,
    records.RemoveAccessControlEntryRecord: ImageBuilder._remove_acl,
    records.UserScramCredentialRecord: ImageBuilder._scram_credential,
    records.RemoveUserScramCredentialRecord: ImageBuilder._remove_scram_credential,
    records.DelegationTokenRecord: ImageBuilder._delegation_token,
    records.RemoveDelegationTokenRecord: ImageBuilder._remove_delegation_token,
    records.ClientQuotaRecord: ImageBuilder._quota,
    records.ForeignRecord: ImageBuilder._keep,
}
