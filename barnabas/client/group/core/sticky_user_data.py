"""User data of sticky assignors, in Kafka's formats (KIP-341, KIP-429); unreadable data counts as no partitions."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.client.types import TopicPartition
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.messages.groups import (
    ConsumerProtocolSubscription,
    CooperativeStickyUserData,
    StickyUserData,
)
from barnabas.protocol.messages.groups import TopicPartition as WireTopicPartition
from barnabas.protocol.schema import decode, encode

_EAGER = "sticky"
_COOPERATIVE = "cooperative-sticky"


class Ownership(NamedTuple):
    """Owned partitions and the generation of their assignment; −1 unknown or without one."""

    partitions: tuple[TopicPartition, ...]
    generation_id: int


def user_data(strategy: str, owned: Ownership) -> bytes | None:
    if strategy == _COOPERATIVE:
        return encode(CooperativeStickyUserData(generation_id=owned.generation_id), 0)
    if strategy != _EAGER or not owned.partitions:
        return None
    topics: dict[str, WireTopicPartition] = {}
    for topic, partition in owned.partitions:
        topics.setdefault(topic, WireTopicPartition(topic=topic)).partitions.append(partition)
    return encode(
        StickyUserData(previous_assignment=list(topics.values()), generation_id=owned.generation_id),
        StickyUserData.VERSIONS[1],
    )


def read_ownership(strategy: str, subscription: ConsumerProtocolSubscription) -> Ownership:
    if strategy == _EAGER:
        return _read_sticky(subscription.user_data)
    generation_id = subscription.generation_id
    if strategy == _COOPERATIVE and generation_id < 0 and subscription.user_data:
        generation_id = _read_generation(subscription.user_data)
    return Ownership(_partitions(subscription.owned_partitions), generation_id)


def _read_sticky(data: bytes | None) -> Ownership:
    for version in (1, 0):
        try:
            found = decode(StickyUserData, data or b"", version)
        except RemoteProtocolError:
            continue
        return Ownership(_partitions(found.previous_assignment), found.generation_id)
    return Ownership((), -1)


def _read_generation(data: bytes) -> int:
    """The generation in user data, if the subscription has none. librdkafka writes it in the format of "sticky"."""
    if len(data) > 4:
        return _read_sticky(data).generation_id
    try:
        return decode(CooperativeStickyUserData, data, 0).generation_id
    except RemoteProtocolError:
        return -1


def _partitions(topics: list[WireTopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, number) for each in topics for number in each.partitions)
