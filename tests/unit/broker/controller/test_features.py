"""Features: which levels a cluster may be finalized at, and what a change of them writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.broker.controller.core.features import UnsupportedFeatures, UpgradeType, check_features, update_features
from barnabas.broker.controller.core.registration import register_broker
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import FeatureLevelRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.broker.metadata_images import cluster, registration, replayed, view

ELR = "eligible.leader.replicas.version"


def update(
    image: MetadataImage, feature: str, level: int, kind: int = UpgradeType.UPGRADE, validate_only: bool = False
) -> MetadataImage:
    key = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    request = UpdateFeaturesRequest(feature_updates=[key], validate_only=validate_only)
    return replayed(image, update_features(view(image), request).records)


def test_transaction_version_goes_down_and_up() -> None:
    image = cluster((1, 2))
    image = update(image, "transaction.version", 1, UpgradeType.SAFE_DOWNGRADE)
    assert image.feature("transaction.version") == 1
    assert update(image, "transaction.version", 2, validate_only=True).feature("transaction.version") == 1
    image = update(image, "transaction.version", 2)
    assert image.feature("transaction.version") == 2
    image = update(image, "transaction.version", 0, UpgradeType.UNSAFE_DOWNGRADE)
    assert "transaction.version" not in image.features


@pytest.mark.parametrize(
    ("feature", "level", "kind", "words"),
    [
        ("transaction.version", 1, UpgradeType.UPGRADE, "Can't downgrade"),
        ("transaction.version", 3, UpgradeType.UPGRADE, "Local controller 1 only supports versions 0-2"),
        ("transaction.version", -1, UpgradeType.SAFE_DOWNGRADE, "cannot be less than 0"),
        ("transaction.version", 1, 9, "upgrade type"),
        ("metadata.version", 29, UpgradeType.SAFE_DOWNGRADE, "might delete metadata"),
        ("metadata.version", 0, UpgradeType.SAFE_DOWNGRADE, "only supports versions 7-30"),
        ("share.version", 1, UpgradeType.UPGRADE, "Local controller 1 only supports versions 0-0"),
        ("streams.version", 1, UpgradeType.UPGRADE, "Local controller 1 only supports versions 0-0"),
        ("kraft.dreams", 1, UpgradeType.UPGRADE, "Local controller 1 does not support this feature"),
    ],
)
def test_refusals(feature: str, level: int, kind: int, words: str) -> None:
    with pytest.raises(BrokerError, match=words) as refusal:
        update(cluster((1,)), feature, level, kind)
    assert refusal.value.code == ErrorCode.INVALID_UPDATE_VERSION


def test_every_broker_must_support_the_level() -> None:
    image = update(cluster((1,)), "transaction.version", 1, UpgradeType.SAFE_DOWNGRADE)
    request = registration(2)
    for feature in request.features:
        if feature.name == "transaction.version":
            feature.max_supported_version = 1
    image = replayed(image, register_broker(view(image), request).records)
    with pytest.raises(BrokerError, match="Broker 2 only supports versions 0-1"):
        update(image, "transaction.version", 2)


def test_all_or_none_and_each_once() -> None:
    image = cluster((1,))
    good = FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
    bad = FeatureUpdateKey(feature="group.version", max_version_level=7)
    with pytest.raises(BrokerError):
        update_features(view(image), UpdateFeaturesRequest(feature_updates=[good, bad]))
    with pytest.raises(BrokerError, match="more than once"):
        update_features(view(image), UpdateFeaturesRequest(feature_updates=[good, good]))


def test_eligible_leaders_need_one_min_isr_for_all() -> None:
    image = update(cluster((1,)), ELR, 0, UpgradeType.SAFE_DOWNGRADE)
    image = replace(image, configs={})
    image = update(image, ELR, 1)
    assert image.cluster_config == {"min.insync.replicas": "1"}


def test_a_node_stops_on_a_cluster_that_is_ahead_of_it() -> None:
    check_features(cluster((1,)))
    with pytest.raises(UnsupportedFeatures, match=r"transaction.version is finalized at 3, supported here are 0 to 2"):
        check_features(MetadataImage(features={"transaction.version": 3}))
    with pytest.raises(UnsupportedFeatures, match="unknown here"):
        check_features(MetadataImage(features={"kraft.dreams": 1}))


def test_features_that_are_not_served_are_not_finalized_and_can_be_turned_off_where_they_are() -> None:
    image = cluster((1,))
    assert not {"share.version", "streams.version"} & set(image.features)
    image = replayed(image, [FeatureLevelRecord(name="share.version", feature_level=1)])  # as Kafka has it
    check_features(image)
    image = replayed(image, register_broker(view(image), registration(2)).records)
    assert 2 in image.brokers
    assert "share.version" not in update(image, "share.version", 0, UpgradeType.SAFE_DOWNGRADE).features
