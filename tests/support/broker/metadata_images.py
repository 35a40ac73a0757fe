"""Metadata images of small clusters, made by replaying records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import count
from typing import Any, TypeVar

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.decision import ClusterView
from barnabas.broker.controller.core.features import supported_features
from barnabas.broker.controller.core.registration import bootstrap_records, register_broker, unfence_broker
from barnabas.broker.image.image import EMPTY_IMAGE, MetadataImage
from barnabas.broker.image.records import MetadataRecord, PartitionRecord, TopicRecord
from barnabas.broker.image.replay import ImageBuilder
from barnabas.protocol.messages.cluster import BrokerRegistrationRequest

R = TypeVar("R")
_incarnations = count(1)


def directory_of(broker_id: int) -> bytes:
    return bytes(15) + bytes([100 + broker_id])


def replayed(image: MetadataImage, records: Iterable[MetadataRecord]) -> MetadataImage:
    """The image after the records, as if they were appended at its end offset."""
    builder = ImageBuilder(image)
    appended = 0
    for record in records:
        builder.replay(record)
        appended += 1
    builder.advance(image.offset + appended, 1, 1_700_000_000_000)
    return builder.image()


def registration(broker_id: int, *, previous: int = -1, **fields: Any) -> BrokerRegistrationRequest:
    """The registration request of a starting broker, with a new incarnation id each time."""
    request = BrokerRegistrationRequest(
        broker_id=broker_id,
        incarnation_id=next(_incarnations).to_bytes(16, "big"),
        features=supported_features(),
        log_dirs=[directory_of(broker_id)],
        previous_broker_epoch=previous,
    )
    return changed(request, **fields)


def register(image: MetadataImage, broker_id: int, *, previous: int = -1, unfence: bool = True) -> MetadataImage:
    image = replayed(image, register_broker(view(image), registration(broker_id, previous=previous)).records)
    return replayed(image, unfence_broker(view(image), broker_id)) if unfence else image


def changed(record: R, **values: object) -> R:
    """A copy of a record with other values."""
    found = copy(record)
    for name, value in values.items():
        setattr(found, name, value)
    return found


def cluster(brokers: Sequence[int] = (1,)) -> MetadataImage:
    """A new cluster with these brokers, unfenced."""
    image = replayed(EMPTY_IMAGE, bootstrap_records(BrokerConfig()))
    for broker_id in brokers:
        image = register(image, broker_id)
    return image


def ids() -> Callable[[], bytes]:
    """Ids 1, 2, 3, …"""
    numbers = count(1)
    return lambda: next(numbers).to_bytes(16, "big")


def view(
    image: MetadataImage, config: BrokerConfig | None = None, new_id: Callable[[], bytes] | None = None
) -> ClusterView:
    return ClusterView(image, config or BrokerConfig(), new_id or ids(), image.offset + 1)


def with_topic(
    image: MetadataImage, name: str, topic_id: bytes, *partitions: tuple[Sequence[int], Sequence[int], int]
) -> MetadataImage:
    """Adds a topic; a partition is (replicas, ISR, leader)."""
    records: list[MetadataRecord] = [TopicRecord(name=name, topic_id=topic_id)]
    for number, (replicas, isr, leader) in enumerate(partitions):
        records.append(
            PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=list(isr),
                leader=leader,
                leader_epoch=0,
                partition_epoch=0,
                directories=[directory_of(broker_id) for broker_id in replicas],
            )
        )
    return replayed(image, records)
