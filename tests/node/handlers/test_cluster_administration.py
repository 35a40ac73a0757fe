"""What administrators ask of the controller through any broker: elections, features, brokers that are gone."""

from __future__ import annotations

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import ElectLeadersRequest, FeatureUpdateKey, UpdateFeaturesRequest
from barnabas.protocol.messages.cluster import UnregisterBrokerRequest
from barnabas.protocol.messages.shared import TopicPartitions
from tests.support.broker.nodes import Peer


def electing(*topics: tuple[str, list[int]], election_type: int = 0) -> ElectLeadersRequest:
    return ElectLeadersRequest(
        election_type=election_type,
        topic_partitions=[TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics],
    )


@pytest.mark.parametrize("version", range(3))
async def test_elections(peer: Peer, version: int) -> None:
    await peer.create("a", 2)
    answer = await peer.call(electing(("a", [0, 7]), ("nope", [0])), version)
    outcomes = [
        (each.topic, [one.error_code for one in each.partition_result]) for each in answer.replica_election_results
    ]
    assert (answer.error_code, outcomes) == (0, [("a", [84, 3]), ("nope", [3])])
    everything = await peer.call(ElectLeadersRequest(topic_partitions=None), version)
    assert [(each.topic, each.partition_result) for each in everything.replica_election_results] == [("a", [])]


async def test_an_unknown_election(peer: Peer) -> None:
    answer = await peer.call(electing(("a", [0]), election_type=5), 2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    (outcome,) = answer.replica_election_results[0].partition_result
    assert (outcome.error_code, outcome.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown election type 5")


def updating(
    level: int, upgrade_type: int, feature: str = "transaction.version", **fields: bool
) -> UpdateFeaturesRequest:
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    return UpdateFeaturesRequest(feature_updates=[update], **fields)


async def test_features_go_down_and_up_while_the_broker_serves(peer: Peer, node: Node) -> None:
    assert (await peer.call(updating(1, 2), 2)).error_code == 0
    assert node.image.features["transaction.version"] == 1
    assert (await peer.call(updating(2, 1, validate_only=True), 2)).error_code == 0
    assert node.image.features["transaction.version"] == 1
    answer = await peer.call(updating(2, 1), 1)
    assert (answer.error_code, [each.feature for each in answer.results]) == (0, ["transaction.version"])
    assert node.image.features["transaction.version"] == 2


@pytest.mark.parametrize("version", range(3))
async def test_refused_features(peer: Peer, node: Node, version: int) -> None:
    answer = await peer.call(updating(9, 1), version)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Local controller 1 only supports versions 0-2" in answer.error_message
    assert node.image.features["transaction.version"] == 2


async def test_a_broker_that_is_not_there_cannot_be_removed(peer: Peer) -> None:
    answer = await peer.call(UnregisterBrokerRequest(broker_id=77), 0)
    assert (answer.error_code, answer.error_message) == (102, "Broker ID 77 is not currently registered")
