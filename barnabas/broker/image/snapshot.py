"""Records of a metadata snapshot: replaying them into an empty image gives the same image again (property-tested)."""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityPart,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    decode_record,
)

METADATA_VERSION = "metadata.version"


def snapshot_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Features come first, metadata.version before all, as Kafka's reader demands; unserved types come last, in the order of writing.

    A ProducerIdsRecord before a topic has the next producer id at its creation: Kafka uses the last one, and accepts several in ascending
    order.
    """
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for controller in image.controllers.values():
        yield RegisterControllerRecord(
            controller_id=controller.controller_id,
            incarnation_id=controller.incarnation_id,
            end_points=list(controller.end_points),
            features=list(controller.features),
        )
    for broker in image.brokers.values():
        cordoned = broker.cordoned_directories
        yield RegisterBrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker.epoch,
            end_points=list(broker.end_points),
            features=list(broker.features),
            rack=broker.rack,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=list(broker.directories),
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )
    yield from _topics(image)
    for (resource_type, resource_name), settings in image.configs.items():
        for name, value in settings.items():
            yield ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    yield from _security(image)
    for entity, quotas in image.quotas.items():
        parts = [QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity]
        for key, quota in quotas.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=quota, remove=False)
    for foreign in image.foreign:
        yield decode_record(foreign)


def _security(image: MetadataImage) -> Iterator[MetadataRecord]:
    for (mechanism, name), scram in image.scram_credentials.items():
        yield UserScramCredentialRecord(
            name=name,
            mechanism=mechanism,
            salt=scram.salt,
            stored_key=scram.stored_key,
            server_key=scram.server_key,
            iterations=scram.iterations,
        )
    for acl_id, acl in image.acls.items():
        yield AccessControlEntryRecord(
            id=acl_id,
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
    for token in image.delegation_tokens.values():
        yield DelegationTokenRecord(
            owner=token.owner,
            requester=token.requester,
            renewers=list(token.renewers),
            issue_timestamp=token.issue_ms,
            max_timestamp=token.max_ms,
            expiration_timestamp=token.expiry_ms,
            token_id=token.token_id,
        )


def _topics(image: MetadataImage) -> Iterator[MetadataRecord]:
    next_producer_id = 0
    for topic in sorted(image.topics_by_name.values(), key=lambda topic: topic.first_producer_id):
        if topic.first_producer_id > next_producer_id:
            next_producer_id = topic.first_producer_id
            yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for number, partition in enumerate(topic.partitions):
            yield PartitionRecord(
                partition_id=number,
                topic_id=topic.topic_id,
                replicas=list(partition.replicas),
                isr=list(partition.isr),
                removing_replicas=list(partition.removing_replicas),
                adding_replicas=list(partition.adding_replicas),
                leader=partition.leader,
                leader_recovery_state=partition.leader_recovery_state,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                directories=list(partition.directories),
                eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
                last_known_elr=list(partition.last_known_elr) or None,
            )
    if image.next_producer_id > next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
