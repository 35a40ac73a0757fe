"""Records of a metadata snapshot: replaying them into an empty image gives the same image again (property-tested)."""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.broker.image import records
from barnabas.broker.image.image import MetadataImage

METADATA_VERSION = "metadata.version"


def snapshot_records(image: MetadataImage) -> Iterator[records.MetadataRecord]:
    """Features come first, metadata.version before all, as Kafka's reader demands; unserved types come last, in the order of writing.

    A ProducerIdsRecord before a topic has the next producer id at its creation: Kafka uses the last one, and accepts several in ascending
    order.
    """
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield records.FeatureLevelRecord(name=name, feature_level=image.features[name])
    yield from image.controllers.values()
    for broker in image.brokers.values():
        cordoned = broker.cordoned_directories
        yield records.RegisterBrokerRecord(
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
            yield records.ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    yield from image.scram_credentials.values()
    for acl_id, acl in image.acls.items():
        yield records.AccessControlEntryRecord(id=acl_id, **acl._asdict())
    yield from image.delegation_tokens.values()
    for entity, quotas in image.quotas.items():
        parts = [records.QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity]
        for key, quota in quotas.items():
            yield records.ClientQuotaRecord(entity=parts, key=key, value=quota, remove=False)
    for foreign in image.foreign:
        yield records.decode_record(foreign)


def _topics(image: MetadataImage) -> Iterator[records.MetadataRecord]:
    next_producer_id = 0
    for topic in sorted(image.topics_by_name.values(), key=lambda topic: topic.first_producer_id):
        if topic.first_producer_id > next_producer_id:
            next_producer_id = topic.first_producer_id
            yield records.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)
        yield records.TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for number, partition in enumerate(topic.partitions):
            leaders = {
                "eligible_leader_replicas": partition.eligible_leader_replicas or None,
                "last_known_elr": partition.last_known_elr or None,
            }
            values = partition._asdict() | leaders
            yield records.PartitionRecord(partition_id=number, topic_id=topic.topic_id, **values)
    if image.next_producer_id > next_producer_id:
        yield records.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
