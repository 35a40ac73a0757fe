"""Decisions about nodes: the first records of a new cluster, registration of controllers and brokers, fencing and shutdown.

Pure functions of an image: they return records, the controller appends them.

Every start of a broker registers anew: a fresh incarnation id, the broker epoch that is the offset of its registration, fenced
until it serves. Its former leaderships end with the registration, so that every partition it leads again has a new leader epoch.
Follows KIP-631 (registration), KIP-584 (features), KIP-858 (directories), KIP-966 (unclean shutdown).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.broker.config import BrokerConfig, Endpoint
from barnabas.broker.metadata.elections import after_arrival, after_departure
from barnabas.broker.metadata.image import BROKER_RESOURCE, MetadataImage
from barnabas.broker.metadata.records import (
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RegisteredEndpoint,
    RegisteredFeature,
)
from barnabas.errors import BrokerError, ErrorCode

__all__ = [
    "FEATURES",
    "FeatureRange",
    "bootstrap_records",
    "fence_broker",
    "register_broker",
    "register_controller",
    "shut_down_broker",
    "unfence_broker",
    "unsupported_features",
]


class FeatureRange(NamedTuple):
    """Levels of a feature: what this broker can do, and what a new cluster is finalized at."""

    low: int
    high: int
    initial: int


ELIGIBLE_LEADERS: Final = "eligible.leader.replicas.version"

# In the order in which Kafka's formatter writes them. metadata.version 30 is 4.3-IV0.
FEATURES: Final[dict[str, FeatureRange]] = {
    "metadata.version": FeatureRange(7, 30, 30),
    ELIGIBLE_LEADERS: FeatureRange(0, 1, 1),
    "group.version": FeatureRange(0, 1, 1),
    "share.version": FeatureRange(0, 1, 1),
    "streams.version": FeatureRange(0, 1, 1),
    "transaction.version": FeatureRange(0, 2, 2),
}


def bootstrap_records(config: BrokerConfig, formatted: Sequence[MetadataRecord] = ()) -> list[MetadataRecord]:
    """The first records of a new cluster, as one metadata transaction.

    Args:
        formatted: what Kafka's storage tool laid down in bootstrap.checkpoint; taken instead of our own feature levels.
    """
    features: Sequence[MetadataRecord] = formatted or [
        FeatureLevelRecord(name=name, feature_level=levels.initial) for name, levels in FEATURES.items()
    ]
    records = [BeginTransactionRecord(name="Bootstrap records"), *features]
    if any(isinstance(record, FeatureLevelRecord) and record.name == ELIGIBLE_LEADERS for record in features):
        min_isr = str(config.get_int("min.insync.replicas"))
        records.append(ConfigRecord(resource_type=BROKER_RESOURCE, name="min.insync.replicas", value=min_isr))
    return [*records, EndTransactionRecord()]


def unsupported_features(image: MetadataImage) -> list[str]:
    """Finalized features that this broker does not know or only at lower levels, in words."""
    found = []
    for name, level in image.features.items():
        known = FEATURES.get(name)
        if known is None:
            found.append(f"{name} is finalized at {level} and unknown here")
        elif not known.low <= level <= known.high:
            found.append(f"{name} is finalized at {level}, supported here are {known.low} to {known.high}")
    return found


def _features() -> list[RegisteredFeature]:
    return [
        RegisteredFeature(name=name, min_supported_version=levels.low, max_supported_version=levels.high)
        for name, levels in FEATURES.items()
    ]


def _end_points(endpoints: Sequence[Endpoint]) -> list[RegisteredEndpoint]:
    return [
        RegisteredEndpoint(
            name=endpoint.name,
            host=endpoint.host,
            port=endpoint.port,
            security_protocol=endpoint.security_protocol_id,
        )
        for endpoint in endpoints
    ]


def register_controller(
    controller_id: int, incarnation_id: bytes, endpoints: Sequence[Endpoint]
) -> list[MetadataRecord]:
    """A controller process has started."""
    return [
        RegisterControllerRecord(
            controller_id=controller_id,
            incarnation_id=incarnation_id,
            end_points=_end_points(endpoints),
            features=_features(),
        )
    ]


def register_broker(
    image: MetadataImage,
    *,
    broker_id: int,
    incarnation_id: bytes,
    endpoints: Sequence[Endpoint],
    rack: str | None,
    directories: Sequence[bytes],
    previous_broker_epoch: int,
    broker_epoch: int,
) -> list[MetadataRecord]:
    """A broker process has started: its registration, fenced, and the end of what its former self led.

    Args:
        previous_broker_epoch: from the clean-shutdown file, −1 where there is none. If it is not the epoch registered last,
            the broker may have lost what it had not synced, and counts as in sync nowhere.
        broker_epoch: the offset at which the first of these records will be written.
    """
    registered = image.brokers.get(broker_id)
    clean = registered is None or registered.epoch == previous_broker_epoch
    registration = RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=incarnation_id,
        broker_epoch=broker_epoch,
        end_points=_end_points(endpoints),
        features=_features(),
        rack=rack,
        fenced=True,
        log_dirs=list(directories),
    )
    return [registration, *_departures(image, broker_id, clean=clean)]


def unfence_broker(image: MetadataImage, broker_id: int) -> list[MetadataRecord]:
    """The broker serves: it is unfenced, and leads what waits for it.

    No records where it is unfenced already, or is shutting down: only a new registration brings that one back.

    Raises:
        BrokerError: BROKER_ID_NOT_REGISTERED.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if not broker.fenced or broker.in_controlled_shutdown:
        return []
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=-1)
    alive = {each.broker_id for each in image.alive_brokers()} | {broker_id}
    records: list[MetadataRecord] = [change]
    for topic in image.topics_by_name.values():
        min_isr = image.min_insync_replicas(topic.name)
        for number, partition in enumerate(topic.partitions):
            elected = after_arrival(topic.topic_id, number, partition, alive=alive, min_isr=min_isr)
            if elected is not None:
                records.append(elected)
    return records


def shut_down_broker(image: MetadataImage, broker_id: int) -> list[MetadataRecord]:
    """Controlled shutdown: the broker gives up every leadership. No records where it is fenced or unknown."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return []
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
    return [change, *_departures(image, broker_id, clean=True)]


def fence_broker(image: MetadataImage, broker_id: int) -> list[MetadataRecord]:
    """The broker may lead no more: its session ended, or it has shut down. No records where it is fenced or unknown."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return []
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=1)
    return [*_departures(image, broker_id, clean=True), change]


def _departures(image: MetadataImage, broker_id: int, *, clean: bool) -> Iterator[MetadataRecord]:
    alive = {broker.broker_id for broker in image.alive_brokers()} - {broker_id}
    for topic in image.topics_by_name.values():
        min_isr = image.min_insync_replicas(topic.name)
        for number, partition in enumerate(topic.partitions):
            change = after_departure(
                topic.topic_id, number, partition, broker_id, alive=alive, min_isr=min_isr, clean=clean
            )
            if change is not None:
                yield change
