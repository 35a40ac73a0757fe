"""Registration of brokers and controllers: bootstrap records, registration, fencing, unfencing, shutdown.
Follows KIP-631, KIP-584 (features), KIP-858 (directories), KIP-903 and KIP-966 (broker epochs, unclean stops), KIP-919 (controllers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.decision import ClusterView, MetadataDecision
from barnabas.broker.controller.core.elections import ELIGIBLE_LEADERS, Elections
from barnabas.broker.controller.core.features import FEATURES, METADATA_VERSION, min_isr_record
from barnabas.broker.image.image import BrokerImage, MetadataImage
from barnabas.broker.image.records import (
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RegisteredEndpoint,
    RegisteredFeature,
    UnregisterBrokerRecord,
)
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REGISTERED_ITEMS_MAX
from barnabas.protocol.messages.cluster import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    RegistrationFeature,
    RegistrationListener,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

RESERVED_DIRECTORIES: Final = 100  # ids below this number have a special meaning


def bootstrap_records(config: BrokerConfig, formatted: Sequence[MetadataRecord] = ()) -> list[MetadataRecord]:
    """The first records of a new cluster. Those of Kafka's bootstrap.checkpoint (`formatted`) replace our feature levels."""
    features: Sequence[MetadataRecord] = formatted or [
        FeatureLevelRecord(name=name, feature_level=levels.initial)
        for name, levels in FEATURES.items()
        if levels.initial > 0
    ]
    records = [BeginTransactionRecord(name="Bootstrap records"), *features]
    if any(isinstance(record, FeatureLevelRecord) and record.name == ELIGIBLE_LEADERS for record in features):
        records.append(min_isr_record(config.get_int("min.insync.replicas")))
    return [*records, EndTransactionRecord()]


# --- registration ---------------------------------------------------------------------------------------------------------


def register_controller(
    request: ControllerRegistrationRequest,
) -> MetadataDecision[ControllerRegistrationResponse]:
    """Raises BrokerError(INVALID_REQUEST) for more listeners or features than a node has."""
    _check_sizes(request)
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=_end_points(request.listeners),
        features=_features(request.features),
    )
    return MetadataDecision(ControllerRegistrationResponse(error_message=None), [record])


def _check_sizes(request: ControllerRegistrationRequest | BrokerRegistrationRequest) -> None:
    """Limits the size of a registration, which every node stores. Raises BrokerError(INVALID_REQUEST)."""
    for what, items in (("listeners", request.listeners), ("features", request.features)):
        if len(items) > REGISTERED_ITEMS_MAX:
            text = f"{len(items)} {what} in a registration, at most {REGISTERED_ITEMS_MAX} are allowed"
            raise BrokerError(ErrorCode.INVALID_REQUEST, text)


def register_broker(
    view: ClusterView, request: BrokerRegistrationRequest
) -> MetadataDecision[BrokerRegistrationResponse]:
    """Registers a broker, fenced, and ends the leaderships of its former incarnation, so that each has a new leader epoch.

    The broker epoch is the offset of the registration; a repeated registration of the same incarnation keeps it. A broker that does not
    name its last epoch from a clean stop may have lost unsynced data and leaves every ISR, and so does one that lacks a former directory.
    Raises BrokerError(INVALID_REGISTRATION) for directories that cannot be its own, UNSUPPORTED_VERSION without a finalized feature.
    """
    _check_sizes(request)
    registered = view.image.brokers.get(request.broker_id)
    _check_directories(view.image, request)
    features = _checked_features(view.image, request)
    again = registered is not None and registered.incarnation_id == request.incarnation_id
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=view.next_offset,
        end_points=_end_points(request.listeners),
        features=features,
        rack=request.rack,
        fenced=True,
        log_dirs=list(request.log_dirs),
    )
    changes: Sequence[MetadataRecord] = ()
    if registered is not None and again:
        record.broker_epoch = registered.epoch
        record.fenced = registered.fenced
        record.in_controlled_shutdown = registered.in_controlled_shutdown
    elif registered is not None:
        whole = set(registered.directories) <= set(request.log_dirs)  # else replicas are lost with their directory
        clean = whole and registered.epoch == request.previous_broker_epoch
        who = {"departing": request.broker_id} if clean else {"lost": request.broker_id}
        changes = Elections(view.image, view.config, **who).departures()
    return MetadataDecision(BrokerRegistrationResponse(broker_epoch=record.broker_epoch), [record, *changes])


def _check_directories(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    directories = request.log_dirs
    wrong = None
    if not directories:
        wrong = "No directories specified in request"
    elif any(int.from_bytes(directory, "big") < RESERVED_DIRECTORIES for directory in directories):
        wrong = "Reserved directory ID in request"
    elif len(set(directories)) < len(directories):
        wrong = "Duplicate directory ID in request"
    else:
        for broker in image.brokers.values():
            taken = next((each for each in directories if each in broker.directories), None)
            if broker.broker_id != request.broker_id and taken is not None:
                wrong = f"Broker {broker.broker_id} is already registered with directory {taken.hex()}"
    if wrong is not None:
        raise BrokerError(ErrorCode.INVALID_REGISTRATION, wrong)


def _checked_features(image: MetadataImage, request: BrokerRegistrationRequest) -> list[RegisteredFeature]:
    features = _features(request.features)
    ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in features}
    for name, level in image.features.items():
        low, high = ranges.get(name, (0, 0))
        if name != METADATA_VERSION and name not in ranges and level == 0:
            continue
        if not low <= level <= high:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {low} and {high}, inclusive.",
            )
    return features


def _end_points(listeners: Sequence[RegistrationListener]) -> list[RegisteredEndpoint]:
    return [
        RegisteredEndpoint(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
        for each in listeners
    ]


def _features(features: Sequence[RegistrationFeature]) -> list[RegisteredFeature]:
    return [
        RegisteredFeature(
            name=each.name,
            min_supported_version=each.min_supported_version,
            max_supported_version=each.max_supported_version,
        )
        for each in features
    ]


def unregister_broker(
    view: ClusterView, request: UnregisterBrokerRequest
) -> MetadataDecision[UnregisterBrokerResponse]:
    """Removes a broker from every ISR and every set of eligible leaders. Raises BrokerError(BROKER_ID_NOT_REGISTERED)."""
    broker = registered_broker(view.image, request.broker_id)
    changes = Elections(view.image, view.config, lost=broker.broker_id).departures()
    record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)
    return MetadataDecision(UnregisterBrokerResponse(error_message=None), [*changes, record])


# --- registered brokers ---------------------------------------------------------------------------------------------------


def registered_broker(image: MetadataImage, broker_id: int) -> BrokerImage:
    """Raises BrokerError(BROKER_ID_NOT_REGISTERED)."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
    return broker


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Raises BrokerError(STALE_BROKER_EPOCH) for another epoch or an unknown broker, as Kafka."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.epoch != broker_epoch:
        raise BrokerError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.epoch} of broker {broker_id}, but got broker epoch {broker_epoch}",
        )
    return broker


def unfence_broker(view: ClusterView, broker_id: int) -> list[MetadataRecord]:
    """Unfences a broker and elects it for partitions that wait for it. Raises BrokerError(BROKER_ID_NOT_REGISTERED).

    No records if it is unfenced already or shutting down: then only a new registration can unfence it.
    """
    broker = registered_broker(view.image, broker_id)
    if not broker.fenced or broker.in_controlled_shutdown:
        return []
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=-1)
    return [change, *Elections(view.image, view.config, arriving=broker_id).arrivals()]


def shut_down_broker(view: ClusterView, broker_id: int) -> list[MetadataRecord]:
    """Controlled shutdown: the broker gives up every leadership. No records if it is fenced or unknown."""
    broker = view.image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return []
    records: list[MetadataRecord] = []
    if not broker.in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
        )
    return [*records, *Elections(view.image, view.config, departing=broker_id).departures()]


def fence_broker(view: ClusterView, broker_id: int, broker_epoch: int | None = None) -> list[MetadataRecord]:
    """No records if the broker is fenced or unknown, or has registered again since `broker_epoch`."""
    broker = view.image.brokers.get(broker_id)
    if broker is None or broker.fenced or broker_epoch not in (None, broker.epoch):
        return []
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=1)
    return [*Elections(view.image, view.config, departing=broker_id).departures(), change]
