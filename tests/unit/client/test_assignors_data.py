"""What members say of what they have: Kafka's bytes, and those of other clients."""

from __future__ import annotations

import pytest

from barnabas.client.group.core.classic_member import Ownership, read_ownership, user_data
from barnabas.client.types import TopicPartition
from barnabas.protocol.messages.groups import ConsumerProtocolSubscription
from barnabas.protocol.messages.shared import TopicPartitions

OWNED = Ownership((TopicPartition("ab", 1), TopicPartition("ab", 3), TopicPartition("c", 0)), 7)
# [topic [partition]] generation: as StickyAssignor writes it, version 1; version 0 ends before the generation.
STICKY = bytes.fromhex("00000002 0002 6162 00000002 00000001 00000003 0001 63 00000001 00000000 00000007")


def subscription(data: bytes | None, generation_id: int = -1, *partitions: int) -> ConsumerProtocolSubscription:
    return ConsumerProtocolSubscription(
        topics=["ab"],
        user_data=data,
        owned_partitions=[TopicPartitions(topic="ab", partitions=list(partitions))] if partitions else [],
        generation_id=generation_id,
    )


def test_sticky_members_say_what_they_had() -> None:
    assert user_data("sticky", OWNED) == STICKY
    assert user_data("sticky", Ownership((), 7)) is None
    assert read_ownership("sticky", subscription(STICKY)) == OWNED
    assert read_ownership("sticky", subscription(STICKY, 9, 5)) == OWNED, "what is owned counts in cooperation only"


def test_the_first_version_has_no_generation() -> None:
    assert read_ownership("sticky", subscription(STICKY[:-4])) == Ownership(OWNED.partitions, -1)


@pytest.mark.parametrize("data", [None, b"", b"\x00", b"\x7f\xff\xff\xff", STICKY[:9]])
def test_what_cannot_be_read_is_nothing(data: bytes | None) -> None:
    assert read_ownership("sticky", subscription(data)) == Ownership((), -1)


def test_cooperative_members_say_their_generation_twice() -> None:
    assert user_data("cooperative-sticky", OWNED) == bytes.fromhex("00000007")
    assert user_data("cooperative-sticky", Ownership((), -1)) == bytes.fromhex("ffffffff")
    owned = (TopicPartition("ab", 1),)
    assert read_ownership("cooperative-sticky", subscription(b"", 5, 1)) == Ownership(owned, 5)
    # Version 1 of a subscription has no generation: Java's members say it in their user data, librdkafka's in the form of "sticky".
    assert read_ownership("cooperative-sticky", subscription(bytes.fromhex("00000004"), -1, 1)) == Ownership(owned, 4)
    assert read_ownership("cooperative-sticky", subscription(STICKY, -1, 1)) == Ownership(owned, 7)
    assert read_ownership("cooperative-sticky", subscription(b"\x00\x01", -1, 1)) == Ownership(owned, -1)


def test_others_say_nothing() -> None:
    assert user_data("range", OWNED) is None
    assert read_ownership("range", subscription(None, 5, 1)).partitions == (TopicPartition("ab", 1),)
