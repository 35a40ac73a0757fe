"""Brokers and controllers that come and go, and where replicas lie."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.directories import assign_replicas
from barnabas.broker.controller.core.registration import register_broker, register_controller, unregister_broker
from barnabas.broker.controller.core.requests import allocate_producer_ids
from barnabas.broker.image.records import RegisterBrokerRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestTopic,
    ControllerRegistrationRequest,
    RegistrationFeature,
    RegistrationListener,
    UnregisterBrokerRequest,
)
from barnabas.protocol.messages.shared import PartitionIndex
from tests.support.broker.metadata_images import cluster, directory_of, registration, replayed, view, with_topic

TOPIC = bytes(15) + b"t"


def test_a_registration_is_fenced_and_its_epoch_is_its_offset() -> None:
    image = cluster(())
    now = view(image)
    listener = RegistrationListener(name="PLAINTEXT", host="h", port=9092)
    decision = register_broker(now, registration(4, rack="r", listeners=[listener]))
    (record,) = decision.records
    assert isinstance(record, RegisterBrokerRecord)
    assert decision.answer.broker_epoch == record.broker_epoch == now.next_offset
    assert (record.fenced, record.rack, record.end_points[0].host) == (True, "r", "h")


def test_the_same_incarnation_keeps_its_epoch() -> None:
    request = registration(1)
    image = replayed(cluster(()), register_broker(view(cluster(())), request).records)
    epoch = image.brokers[1].epoch
    again = register_broker(view(image), request)
    assert again.answer.broker_epoch == epoch
    assert replayed(image, again.records).brokers[1].epoch == epoch


@pytest.mark.parametrize(
    ("clean", "directories"),
    [
        (True, [directory_of(1)]),
        (True, [directory_of(1), b"n" * 16]),
        (False, [directory_of(1)]),
        (False, [b"n" * 16]),  # a clean stop, and another directory in the place of the one that had the replicas
    ],
)
def test_a_new_life_ends_the_leaderships_of_the_former_one(clean: bool, directories: list[bytes]) -> None:
    image = with_topic(cluster((1, 2)), "t", TOPIC, ((1, 2), (1, 2), 1), ((1,), (1,), 1))
    previous = image.brokers[1].epoch if clean or directories != [directory_of(1)] else -1
    request = registration(1, previous=previous, log_dirs=directories)
    image = replayed(image, register_broker(view(image), request).records)
    first, second = (partition for _, _, partition in image.partitions())
    assert (first.leader, first.isr) == (2, (2,))
    assert (second.leader, second.isr, second.last_known_elr) == (-1, (), (1,))
    assert second.eligible_leader_replicas == ((1,) if clean else ())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(16)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [b"d" * 16, b"d" * 16]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [directory_of(1)]}, ErrorCode.INVALID_REGISTRATION),  # of another broker
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
        (
            {"features": [RegistrationFeature(name="metadata.version", max_supported_version=29)]},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
    ],
)
def test_registrations_that_cannot_be(fields: dict[str, Any], code: ErrorCode) -> None:
    fields = {"log_dirs": [(200).to_bytes(16, "big")]} | fields
    with pytest.raises(BrokerError) as refusal:
        register_broker(view(cluster((1,))), registration(2, **fields))
    assert refusal.value.code == code


def test_a_broker_is_removed_from_everything() -> None:
    image = with_topic(cluster((1, 2)), "t", TOPIC, ((1, 2), (1, 2), 1))
    image = replayed(image, unregister_broker(view(image), UnregisterBrokerRequest(broker_id=1)).records)
    assert list(image.brokers) == [2]
    assert image.partition("t", 0).isr == (2,)  # type: ignore[union-attr]
    with pytest.raises(BrokerError, match="BROKER_ID_NOT_REGISTERED"):
        unregister_broker(view(image), UnregisterBrokerRequest(broker_id=1))


def test_controllers_register() -> None:
    request = ControllerRegistrationRequest(
        controller_id=3, incarnation_id=b"i" * 16, listeners=[RegistrationListener(name="CONTROLLER", host="c", port=1)]
    )
    image = replayed(cluster(()), register_controller(request).records)
    assert image.controllers[3].end_points[0].name == "CONTROLLER"


def test_blocks_of_producer_ids_go_to_registered_brokers_only() -> None:
    image = cluster((1,))
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=image.brokers[1].epoch)
    decision = allocate_producer_ids(view(image), request)
    assert (decision.answer.producer_id_start, decision.answer.producer_id_len) == (0, 1000)
    image = replayed(image, decision.records)
    assert allocate_producer_ids(view(image), request).answer.producer_id_start == 1000
    request.broker_epoch -= 1
    with pytest.raises(BrokerError, match="STALE_BROKER_EPOCH"):
        allocate_producer_ids(view(image), request)


def test_replicas_are_assigned_to_directories() -> None:
    image = with_topic(cluster((1, 2)), "t", TOPIC, ((1, 2), (1, 2), 1), ((2,), (2,), 2))

    def assign(directory: bytes, number: int, topic: bytes = TOPIC) -> Any:
        partition = PartitionIndex(partition_index=number)
        wanted = AssignReplicasToDirsRequestDirectory(
            id=directory, topics=[AssignReplicasToDirsRequestTopic(topic_id=topic, partitions=[partition])]
        )
        return assign_replicas(
            view(image),
            AssignReplicasToDirsRequest(broker_id=1, broker_epoch=image.brokers[1].epoch, directories=[wanted]),
        )

    def code(decision: Any) -> int:
        return decision.answer.directories[0].topics[0].partitions[0].error_code  # type: ignore[no-any-return]

    assert code(assign(directory_of(1), 0, bytes(15) + b"x")) == ErrorCode.UNKNOWN_TOPIC_ID
    assert code(assign(directory_of(1), 7)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(assign(directory_of(1), 1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (code(assign(directory_of(1), 0)), list(assign(directory_of(1), 0).records)) == (0, [])
    offline = replayed(image, assign(b"\xee" * 16, 0).records).partition("t", 0)
    assert offline is not None
    assert (offline.directories[0], offline.leader, offline.isr) == (b"\xee" * 16, 2, (2,))
