"""Features: levels of this release and of a cluster, and UpdateFeatures (KIP-584, KIP-778, KIP-1022).
Deviation: metadata.version cannot exceed the level of Kafka 4.3, and every downgrade is refused, as Kafka refuses lossy downgrades.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.controller.core.elections import ELIGIBLE_LEADERS
from barnabas.broker.image.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataDelta, MetadataImage
from barnabas.broker.image.records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisteredFeature,
)
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.protocol.messages.admin import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from barnabas.protocol.messages.cluster import RegistrationFeature
from barnabas.work import Work

NAMES_PER_UNIT: Final = 16  # of work: features that are only counted
METADATA_VERSION: Final = "metadata.version"
MIN_ISR_KEY: Final = "min.insync.replicas"
TIERED_KEY: Final = "remote.storage.enable"


class FeatureRange(NamedTuple):
    """Levels of a feature: the supported range, and the level of a new cluster."""

    low: int
    high: int
    initial: int
    # False for share and streams groups: a directory of Kafka with them opens and keeps its levels, but clients cannot use them.
    served: bool = True


# In the order of Kafka's formatter. metadata.version 30 is 4.3-IV0.
FEATURES: Final[dict[str, FeatureRange]] = {
    METADATA_VERSION: FeatureRange(7, 30, 30),
    ELIGIBLE_LEADERS: FeatureRange(0, 1, 1),
    "group.version": FeatureRange(0, 1, 1),
    "share.version": FeatureRange(0, 1, 0, served=False),
    "streams.version": FeatureRange(0, 1, 0, served=False),
    "transaction.version": FeatureRange(0, 2, 2),
}


class UnsupportedFeatures(InvariantViolated):
    """A feature of the cluster or directory is not supported: the node stops and leaves the directory unchanged."""


class UpgradeType(IntEnum):
    """Upgrade type of a feature update."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def is_served(name: str) -> bool:
    """Whether clients see the feature."""
    return name not in FEATURES or FEATURES[name].served


def supported_features() -> list[RegistrationFeature]:
    return [
        RegistrationFeature(name=name, min_supported_version=levels.low, max_supported_version=levels.high)
        for name, levels in FEATURES.items()
    ]


def check_features(image: MetadataImage) -> None:
    """Raises UnsupportedFeatures if this node lacks a finalized feature or its level."""
    found = []
    for name, level in image.features.items():
        known = FEATURES.get(name)
        if known is None:
            found.append(f"{name} is finalized at {level} and unknown here")
        elif not known.low <= level <= known.high:
            found.append(f"{name} is finalized at {level}, supported here are {known.low} to {known.high}")
    if found:
        raise UnsupportedFeatures(
            f"this data directory needs features that this broker does not have: {'; '.join(found)}. "
            f"Open it with the Apache Kafka that wrote it"
        )


def check_no_tiers(image: MetadataImage, delta: MetadataDelta) -> None:
    """Raises UnsupportedFeatures if a topic got tiered storage; Kafka's brokers without it do not start either.

    Its log begins in the remote storage: as leader this node would move the log start, and Kafka would later delete the remote records.
    """
    for kind, name in delta.configs:
        if kind == TOPIC_RESOURCE and image.topic_config(name).get(TIERED_KEY, "").strip().lower() == "true":
            raise UnsupportedFeatures(
                f"topic {name!r} has {TIERED_KEY}=true, and tiered storage is not served here. Open this data directory with the Apache "
                f"Kafka that wrote it, and there delete the topic, or set its {TIERED_KEY}=false and remote.log.delete.on.disable=true, "
                f"which deletes its remote records"
            )


def min_isr_record(config_value: int) -> ConfigRecord:
    """The cluster's min.insync.replicas as a record, so that all brokers use the same value (KIP-966)."""
    return ConfigRecord(resource_type=BROKER_RESOURCE, name=MIN_ISR_KEY, value=str(config_value))


def unsupported_by(view: ClusterView, feature: str, level: int) -> str | None:
    """Kafka's error text for a node that does not support the level; None if all do."""
    who = f"Local controller {view.config.node_id}"
    own = FEATURES.get(feature)
    if own is None:
        return f"{who} does not support this feature."
    refusal = _refusal(who, own.low, own.high if own.served else 0, feature, level)
    if refusal is not None:
        return refusal
    for who, features in _registered(view.image):
        supported = next((each for each in features if each.name == feature), None)
        if supported is None:
            if level == 0:
                continue
            return f"{who} does not support this feature."
        refusal = _refusal(who, supported.min_supported_version, supported.max_supported_version, feature, level)
        if refusal is not None:
            return refusal
    return None


def _registered(image: MetadataImage) -> Iterator[tuple[str, Sequence[RegisteredFeature]]]:
    for broker in image.brokers.values():
        yield f"Broker {broker.broker_id}", broker.features
    for controller in image.controllers.values():
        yield f"Controller {controller.controller_id}", controller.features


def _refusal(who: str, low: int, high: int, feature: str, level: int) -> str | None:
    if low <= level <= high or (level == 0 and feature != METADATA_VERSION):
        return None
    return f"{who} only supports versions {low}-{high}"


@LongDecision[UpdateFeaturesRequest, UpdateFeaturesResponse]
def update_features(view: ClusterView, request: UpdateFeaturesRequest) -> Work:
    """All updates or none (versions 0 and 1 answer per feature, version 2 once). With `validate_only` no records.

    Raises BrokerError: INVALID_REQUEST for a feature named twice; INVALID_UPDATE_VERSION for a level that a node does not support, or a
    downgrade that was not requested.
    """
    updates = request.feature_updates
    names: dict[str, None] = {}
    twice: dict[str, None] = {}
    for at, update in enumerate(updates):
        if at % NAMES_PER_UNIT == 0:
            yield 1
        (twice if update.feature in names else names)[update.feature] = None
    if twice:
        first = next(name for name in names if name in twice)
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Feature {first} is updated more than once.")
    records: list[MetadataRecord] = []
    results = []
    for update in updates:
        yield 1
        _check(view, update)
        records += _records(view, update)
        results.append(UpdatableFeatureResult(feature=update.feature, error_code=0, error_message="NONE"))
    answer = UpdateFeaturesResponse(error_message=None, results=results)
    return MetadataDecision(answer, [] if request.validate_only else records)


def _check(view: ClusterView, update: FeatureUpdateKey) -> None:
    name, level = update.feature, update.max_version_level
    kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    current = view.image.feature(name)
    wrong = None
    what = f"Invalid update version {level} for feature {name}."
    if kind not in tuple(UpgradeType):
        wrong = "The controller does not support the given upgrade type."
    elif level < 0:
        wrong = "A feature version cannot be less than 0."
    elif level == 0 and name not in FEATURES:
        wrong = f"Feature {name} not found."
    else:
        wrong = unsupported_by(view, name, level)
    if wrong is None and level < current:
        if kind == UpgradeType.UPGRADE:
            wrong = (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
                "downgrade."
            )
        elif name == METADATA_VERSION:
            what = f"Unsupported metadata.version downgrade from {current} to {level}."
            wrong = "Refusing to perform the requested downgrade because it might delete metadata information."
            if kind == UpgradeType.UNSAFE_DOWNGRADE:
                wrong = "Unsafe metadata downgrade is not supported in this version."
    elif wrong is None and level > current and kind != UpgradeType.UPGRADE and not update.allow_downgrade:
        wrong = "Can't downgrade to a newer version."
    if wrong is not None:
        raise BrokerError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The update failed for all features since the following feature had an error: {what} {wrong}",
        )


def _records(view: ClusterView, update: FeatureUpdateKey) -> Iterator[MetadataRecord]:
    name, level = update.feature, update.max_version_level
    if level == view.image.feature(name):
        return
    if name == ELIGIBLE_LEADERS:
        if level == 0:
            for topic, number, partition in view.image.partitions():
                if not partition.isr:  # only an ISR can be elected then
                    isr = list(partition.eligible_leader_replicas or partition.last_known_elr)
                    yield PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id, isr=isr)
            yield ClearElrRecord(topic_name="")
        elif MIN_ISR_KEY not in view.image.cluster_config:
            yield min_isr_record(view.config.get_int(MIN_ISR_KEY))
    yield FeatureLevelRecord(name=name, feature_level=level)
