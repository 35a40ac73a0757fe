"""ImageBuilder: builds the next MetadataImage and its delta from an image and records (KIP-868, KIP-966, KIP-858)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.image.image import (
    NO_LEADER,
    PARTITIONS_PER_UNIT,
    RECOVERING,
    TOPIC_RESOURCE,
    AclImage,
    BrokerImage,
    ControllerImage,
    DelegationTokenImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    ScramCredentialImage,
    TopicImage,
)
from barnabas.broker.image.records import (
    NO_LEADER_CHANGE,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    ForeignRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from barnabas.errors import InvariantViolated
from barnabas.work import Work, finished


def changed_partition(partition: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
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


class ImageBuilder:
    """Builds the image that follows `base`, which never changes: mappings are copied at their first change.

    Args:
        transaction: records of a metadata transaction that is open at `base`, None without one.
        of_snapshot: the records are a snapshot's. It names topics before the first ProducerIdsRecord if Kafka wrote it, or if they were
            created before the first producer id. Both count as created at the snapshot: no producer is wrongly younger than its topic.
    """

    def __init__(
        self, base: MetadataImage, transaction: list[MetadataRecord] | None = None, *, of_snapshot: bool = False
    ) -> None:
        self._base = base
        self._of_snapshot = of_snapshot
        self._features: dict[str, int] | None = None
        self._topics: dict[str, TopicImage] | None = None  # with the partitions as of the last `image()`
        self._topics_by_id: dict[bytes, TopicImage] | None = None  # the same topics
        self._partitions: dict[bytes, list[PartitionImage]] = {}  # of topics changed since
        self._brokers: dict[int, BrokerImage] | None = None
        self._controllers: dict[int, ControllerImage] | None = None
        self._configs: dict[tuple[int, str], Mapping[str, str]] | None = None
        self._next_producer_id = base.next_producer_id
        self._acls: dict[bytes, AclImage] | None = None
        self._scram_credentials: dict[tuple[int, str], ScramCredentialImage] | None = None
        self._delegation_tokens: dict[str, DelegationTokenImage] | None = None
        self._quotas: dict[QuotaEntity, Mapping[str, float]] | None = None
        self._foreign: list[bytes] | None = None
        self._transaction = transaction
        self._offset, self._epoch, self._timestamp_ms = base.offset, base.epoch, base.timestamp_ms
        self.delta = MetadataDelta()

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction is open, so that `image` does not hold its records yet."""
        return self._transaction is not None

    @property
    def transaction(self) -> list[MetadataRecord] | None:
        """The records of the open metadata transaction: for the builder of the next image."""
        return self._transaction

    def replay(self, record: MetadataRecord) -> None:
        """Raises InvariantViolated if the record contradicts the ones before it."""
        if self._transaction is not None:
            if isinstance(record, EndTransactionRecord):
                pending, self._transaction = self._transaction, None
                for each in pending:
                    self.replay(each)
            elif isinstance(record, AbortTransactionRecord):
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
            topic = self._topics_by_id_now()[topic_id]._replace(partitions=tuple(partitions))
            if self._of_snapshot and not topic.first_producer_id:
                topic = topic._replace(first_producer_id=self._next_producer_id)
            self._put(topic)
            yield 1 + len(partitions) // PARTITIONS_PER_UNIT
        self._partitions.clear()
        base = self._base
        return MetadataImage(
            offset=self._offset,
            epoch=self._epoch,
            timestamp_ms=self._timestamp_ms,
            features=base.features if self._features is None else dict(self._features),
            topics_by_name=base.topics_by_name if self._topics is None else dict(self._topics),
            topics_by_id=base.topics_by_id if self._topics_by_id is None else dict(self._topics_by_id),
            brokers=base.brokers if self._brokers is None else dict(self._brokers),
            controllers=base.controllers if self._controllers is None else dict(self._controllers),
            configs=base.configs if self._configs is None else dict(self._configs),
            next_producer_id=self._next_producer_id,
            acls=base.acls if self._acls is None else dict(self._acls),
            scram_credentials=base.scram_credentials
            if self._scram_credentials is None
            else dict(self._scram_credentials),
            delegation_tokens=base.delegation_tokens
            if self._delegation_tokens is None
            else dict(self._delegation_tokens),
            quotas=base.quotas if self._quotas is None else dict(self._quotas),
            foreign=base.foreign if self._foreign is None else tuple(self._foreign),
        )

    # --- copies on the first change -------------------------------------------------------------------------------

    def _topics_now(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._base.topics_by_name)
        return self._topics

    def _topics_by_id_now(self) -> dict[bytes, TopicImage]:
        if self._topics_by_id is None:
            self._topics_by_id = dict(self._base.topics_by_id)
        return self._topics_by_id

    def _put(self, topic: TopicImage) -> None:
        self._topics_now()[topic.name] = topic
        self._topics_by_id_now()[topic.topic_id] = topic

    def _partitions_of(self, topic_id: bytes) -> list[PartitionImage]:
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            topic = self._topics_by_id_now().get(topic_id)
            if topic is None:
                raise InvariantViolated(f"metadata record for topic id {topic_id.hex()}, which does not exist")
            partitions = self._partitions[topic_id] = list(topic.partitions)
        return partitions

    def _brokers_now(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._base.brokers)
        return self._brokers

    def _configs_now(self) -> dict[tuple[int, str], Mapping[str, str]]:
        if self._configs is None:
            self._configs = dict(self._base.configs)
        return self._configs

    def _acls_now(self) -> dict[bytes, AclImage]:
        if self._acls is None:
            self._acls = dict(self._base.acls)
        return self._acls

    def _scram_credentials_now(self) -> dict[tuple[int, str], ScramCredentialImage]:
        if self._scram_credentials is None:
            self._scram_credentials = dict(self._base.scram_credentials)
        return self._scram_credentials

    def _delegation_tokens_now(self) -> dict[str, DelegationTokenImage]:
        if self._delegation_tokens is None:
            self._delegation_tokens = dict(self._base.delegation_tokens)
        return self._delegation_tokens

    def _touch(self, topic_id: bytes, partition: int) -> None:
        touched = self.delta.partitions.get(topic_id)
        if touched is None:
            touched = self.delta.partitions[topic_id] = {}
        touched[partition] = None

    # --- topics -----------------------------------------------------------------------------------------------------

    def _topic(self, record: TopicRecord) -> None:
        if record.name in self._topics_now():
            raise InvariantViolated(f"TopicRecord for topic {record.name!r}, which exists")
        self._put(TopicImage(record.name, record.topic_id, (), self._next_producer_id))
        self._partitions[record.topic_id] = []
        self.delta.created[record.topic_id] = None

    def _partition(self, record: PartitionRecord) -> None:
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

    def _partition_change(self, record: PartitionChangeRecord) -> None:
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
            topic = self._topics_now().pop(self._topics_by_id_now()[record.topic_id].name)
            self._put(topic._replace(first_producer_id=self._next_producer_id))  # now the youngest topic
        self._touch(record.topic_id, record.partition_id)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        partitions = tuple(self._partitions_of(record.topic_id))
        topic = self._topics_by_id_now().pop(record.topic_id)._replace(partitions=partitions)
        name = topic.name
        del self._topics_now()[name]
        del self._partitions[record.topic_id]
        if (TOPIC_RESOURCE, name) in self._configs_now():
            del self._configs_now()[TOPIC_RESOURCE, name]
        self.delta.partitions.pop(record.topic_id, None)
        if record.topic_id in self.delta.created:
            del self.delta.created[record.topic_id]  # created and deleted between two images: never published
        else:
            self.delta.deleted[record.topic_id] = topic

    def _clear_elr(self, record: ClearElrRecord) -> None:
        for name, topic in list(self._topics_now().items()):
            if record.topic_name not in ("", name):
                continue
            partitions = self._partitions_of(topic.topic_id)
            for number, partition in enumerate(partitions):
                # Without an ISR nothing was committed since, and no other replica can be elected. Kafka clears these, too.
                if partition.isr and (partition.eligible_leader_replicas or partition.last_known_elr):
                    partitions[number] = partition._replace(eligible_leader_replicas=(), last_known_elr=())
                    self._touch(topic.topic_id, number)

    # --- brokers and controllers ----------------------------------------------------------------------------------

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        brokers = self._brokers_now()
        brokers[record.broker_id] = BrokerImage(
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

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        del self._brokers_now()[record.broker_id]
        self.delta.brokers[record.broker_id] = None

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._brokers_now().get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            raise InvariantViolated(
                f"metadata record for broker {broker_id} epoch {broker_epoch}, registered is {broker}"
            )
        return broker

    def _change_broker(self, broker_id: int, broker_epoch: int, **changes: Any) -> None:
        broker = self._registered(broker_id, broker_epoch)
        self._brokers_now()[broker_id] = broker._replace(**changes)
        self.delta.brokers[broker_id] = None

    def _fence(self, record: FenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=True)

    def _unfence(self, record: UnfenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=False)

    def _registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
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

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        if self._controllers is None:
            self._controllers = dict(self._base.controllers)
        self._controllers[record.controller_id] = ControllerImage(
            record.controller_id, record.incarnation_id, tuple(record.end_points), tuple(record.features)
        )

    # --- security and quotas --------------------------------------------------------------------------------------

    def _acl(self, record: AccessControlEntryRecord) -> None:
        self._acls_now()[record.id] = AclImage(
            resource_type=record.resource_type,
            resource_name=record.resource_name,
            pattern_type=record.pattern_type,
            principal=record.principal,
            host=record.host,
            operation=record.operation,
            permission_type=record.permission_type,
        )
        self.delta.acls[record.id] = None

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        if self._acls_now().pop(record.id, None) is None:
            raise InvariantViolated(f"metadata record removes ACL {record.id.hex()}, which does not exist")
        self.delta.acls[record.id] = None

    def _scram_credential(self, record: UserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        self._scram_credentials_now()[key] = ScramCredentialImage(
            record.salt, record.stored_key, record.server_key, record.iterations
        )
        self.delta.scram_credentials[key] = None

    def _remove_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        if self._scram_credentials_now().pop(key, None) is None:
            raise InvariantViolated(f"metadata record removes a SCRAM credential of {record.name!r}, which has none")
        self.delta.scram_credentials[key] = None

    def _delegation_token(self, record: DelegationTokenRecord) -> None:
        self._delegation_tokens_now()[record.token_id] = DelegationTokenImage(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=tuple(record.renewers),
            issue_ms=record.issue_timestamp,
            max_ms=record.max_timestamp,
            expiry_ms=record.expiration_timestamp,
        )
        self.delta.delegation_tokens[record.token_id] = None

    def _remove_delegation_token(self, record: RemoveDelegationTokenRecord) -> None:
        self._delegation_tokens_now().pop(record.token_id, None)
        self.delta.delegation_tokens[record.token_id] = None

    def _quota(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        if self._quotas is None:
            self._quotas = dict(self._base.quotas)
        values = dict(self._quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self._quotas[entity] = values
        else:
            self._quotas.pop(entity, None)
        self.delta.quotas[entity] = None

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        configs = self._configs_now()
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

    def _feature(self, record: FeatureLevelRecord) -> None:
        if self._features is None:
            self._features = dict(self._base.features)
        if record.feature_level:
            self._features[record.name] = record.feature_level
        else:
            self._features.pop(record.name, None)
        self.delta.features = True

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    def _begin(self, _record: BeginTransactionRecord) -> None:
        self._transaction = []

    def _nothing(self, _record: NoOpRecord) -> None:
        pass

    def _keep(self, record: ForeignRecord) -> None:
        if self._foreign is None:
            self._foreign = list(self._base.foreign)
        self._foreign.append(record.value)


_REPLAY: Final[dict[type, Callable[[ImageBuilder, Any], None]]] = {
    TopicRecord: ImageBuilder._topic,
    PartitionRecord: ImageBuilder._partition,
    PartitionChangeRecord: ImageBuilder._partition_change,
    RemoveTopicRecord: ImageBuilder._remove_topic,
    ClearElrRecord: ImageBuilder._clear_elr,
    RegisterBrokerRecord: ImageBuilder._register_broker,
    UnregisterBrokerRecord: ImageBuilder._unregister_broker,
    FenceBrokerRecord: ImageBuilder._fence,
    UnfenceBrokerRecord: ImageBuilder._unfence,
    BrokerRegistrationChangeRecord: ImageBuilder._registration_change,
    RegisterControllerRecord: ImageBuilder._register_controller,
    ConfigRecord: ImageBuilder._config,
    FeatureLevelRecord: ImageBuilder._feature,
    ProducerIdsRecord: ImageBuilder._producer_ids,
    BeginTransactionRecord: ImageBuilder._begin,
    NoOpRecord: ImageBuilder._nothing,
    AccessControlEntryRecord: ImageBuilder._acl,
    RemoveAccessControlEntryRecord: ImageBuilder._remove_acl,
    UserScramCredentialRecord: ImageBuilder._scram_credential,
    RemoveUserScramCredentialRecord: ImageBuilder._remove_scram_credential,
    DelegationTokenRecord: ImageBuilder._delegation_token,
    RemoveDelegationTokenRecord: ImageBuilder._remove_delegation_token,
    ClientQuotaRecord: ImageBuilder._quota,
    ForeignRecord: ImageBuilder._keep,
}
