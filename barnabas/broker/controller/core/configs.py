"""Decisions on configurations: AlterConfigs and IncrementalAlterConfigs (KIP-339) of topics, single brokers and the cluster default.
Error texts and codes are Kafka's: INVALID_CONFIG for topics, INVALID_REQUEST for broker values out of range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from barnabas.broker.config.client_metrics_config import validate_client_metrics_config
from barnabas.broker.config.group_config import validate_group_config
from barnabas.broker.config.key import ConfigKey, ConfigType
from barnabas.broker.config.refusals import refuse_unserved
from barnabas.broker.config.table import GROUP_KEYS, SSL_STORE_KEYS, TOPIC_KEYS, is_per_broker, server_key
from barnabas.broker.config.topic_config import topic_value, validate_topic_config
from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision, check_record_count
from barnabas.broker.image.image import BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from barnabas.broker.image.records import ClearElrRecord, ConfigRecord, MetadataRecord
from barnabas.broker.image.topic_names import validate_topic_name
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REFUSAL_TEXTS_MAX
from barnabas.protocol.decoding import STRING_BYTES_MAX
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.work import Work

MIN_ISR: Final = "min.insync.replicas"
KEYS_PER_UNIT: Final = 4  # of work
CHARACTERS_PER_UNIT: Final = 64  # of a value that is parsed: a list of 32 kB takes 5 ms
LOGGERS: Final = 8  # resource type of a broker's loggers: each broker sets its own


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does with a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@LongDecision[IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse]
def incremental_alter_configs(view: ClusterView, request: IncrementalAlterConfigsRequest) -> Work:
    """With `validate_only` the answer is the same, without records."""
    responses, records = yield from _alter_all(view, request)
    return MetadataDecision(IncrementalAlterConfigsResponse(responses=responses), records)


@LongDecision[AlterConfigsRequest, AlterConfigsResponse]
def alter_configs(view: ClusterView, request: AlterConfigsRequest) -> Work:
    """Replaces all settings of each resource."""
    responses, records = yield from _alter_all(view, request)
    return MetadataDecision(AlterConfigsResponse(responses=responses), records)


def _alter_all(view: ClusterView, request: IncrementalAlterConfigsRequest | AlterConfigsRequest) -> Work:
    """Decides each resource separately: all of its changes or none."""
    records: list[MetadataRecord] = []
    responses: list[AlterConfigsResourceResponse] = []
    times: dict[int, Counter[str]] = {}  # how often each resource is named, by type; 0 after its answer
    for resource in request.resources:
        times.setdefault(resource.resource_type, Counter())[resource.resource_name] += 1
        yield 1
    for resource in request.resources:
        yield 1
        kind, name = resource.resource_type, resource.resource_name
        named = times[kind][name]
        if not named:
            continue
        times[kind][name] = 0
        response = AlterConfigsResourceResponse(resource_type=kind, resource_name=name, error_message=None)
        responses.append(response)
        try:
            if named > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if isinstance(resource, AlterConfigsRequestResource):
                resource = yield from _replacement(view, resource)
            records += yield from _alter(view, resource)
        except BrokerError as error:
            response.error_code = error.code
            if len(responses) <= REFUSAL_TEXTS_MAX:
                response.error_message = error.message
        check_record_count(len(records))
    return responses, [] if request.validate_only else records


def _replacement(view: ClusterView, resource: AlterConfigsRequestResource) -> Work:
    """Changes that leave exactly the named settings."""
    named: set[str] = set()
    changes = []
    for config in resource.configs:
        named.add(config.name)
        changes.append(AlterableConfig(name=config.name, config_operation=ConfigOperation.SET, value=config.value))
        if len(changes) % KEYS_PER_UNIT == 0:
            yield 1
    yield 1
    changes += [
        AlterableConfig(name=name, config_operation=ConfigOperation.DELETE)
        for name in view.image.config(resource.resource_type, resource.resource_name)
        if name not in named
    ]
    return AlterConfigsResource(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=changes
    )


def _alter(view: ClusterView, resource: AlterConfigsResource) -> Work:
    """Records of one resource; only real changes are written."""
    kind, name = resource.resource_type, resource.resource_name
    names: set[str] = set()
    nulls = []
    for number, config in enumerate(resource.configs):
        names.add(config.name)
        if config.value is None and config.config_operation != ConfigOperation.DELETE:
            nulls.append(config.name)
        if number % KEYS_PER_UNIT == 0:
            yield 1
    if len(names) < len(resource.configs):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if nulls:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if kind == TOPIC_RESOURCE:
        return (yield from _alter_topic(view, name, resource.configs))
    if kind == BROKER_RESOURCE:
        return (yield from _alter_broker(view, name, resource.configs))
    if kind == GROUP_RESOURCE:
        return (yield from _alter_group(view, name, resource.configs))
    if kind == CLIENT_METRICS_RESOURCE:
        return (yield from _alter_client_metrics(view, name, resource.configs))
    if kind == LOGGERS:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
    raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {kind}.")


def _alter_topic(view: ClusterView, topic: str, configs: Sequence[AlterableConfig]) -> Work:
    if not topic:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    validate_topic_name(topic)
    if view.image.topic(topic) is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
    settings = view.image.topic_config(topic)
    changes: dict[str, str | None] = {}
    changed: dict[str, str | None] = dict(settings)
    for number, config in enumerate(configs):
        yield _units(number, config.value)
        key = TOPIC_KEYS.get(config.name)
        current = settings.get(config.name)
        if current is None and key is not None:
            current = key.render(topic_value(view.config, settings, config.name))
        value = changes[config.name] = _changed(config, key, current)
        if value is None:
            changed.pop(config.name, None)
        else:
            changed[config.name] = value
    validate_topic_config(changed)
    return _records(TOPIC_RESOURCE, topic, settings, changes, clear_elr_of=topic)


def _alter_broker(view: ClusterView, broker: str, configs: Sequence[AlterableConfig]) -> Work:
    settings = view.image.config(BROKER_RESOURCE, broker)
    given = [config.name for config in configs if config.config_operation != ConfigOperation.DELETE]
    fixed = [name for name in given if (key := server_key(name)) is not None and not key.dynamic]
    if fixed:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    stores = [name for name in given if name in SSL_STORE_KEYS]
    if stores:
        text = "These security configs can be dynamically updated only per-listener using the listener prefix"
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(stores)}]")
    per_broker = [] if broker else [name for name in given if is_per_broker(name)]
    if per_broker:
        text = "Cannot update these configs at default cluster level, broker id must be specified"
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(per_broker)}]")
    changes: dict[str, str | None] = {}
    for number, config in enumerate(configs):
        yield _units(number, config.value)
        key = server_key(config.name)
        current = settings.get(config.name)
        if current is None and key is not None:
            current = key.render(view.config.value(key.name))
        value = changes[config.name] = _changed(config, key, current)
        if config.name == MIN_ISR and view.image.feature("eligible.leader.replicas.version") > 0:
            _check_min_isr(broker, value)
        if value is None:
            continue
        try:
            refuse_unserved({config.name: value})
            if key is not None:
                key.parse(value)
        except BrokerError as error:
            raise BrokerError(ErrorCode.INVALID_REQUEST, error.message) from None
    return _records(BROKER_RESOURCE, broker, settings, changes, clear_elr_of="")


def _alter_group(view: ClusterView, group: str, configs: Sequence[AlterableConfig]) -> Work:
    if not group:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    settings = view.image.config(GROUP_RESOURCE, group)
    changes: dict[str, str | None] = {}
    for number, config in enumerate(configs):
        yield _units(number, config.value)
        changes[config.name] = _changed(config, GROUP_KEYS.get(config.name), settings.get(config.name))
    after = {name: value for name, value in {**settings, **changes}.items() if value is not None}
    validate_group_config(view.config, after)
    return _records(GROUP_RESOURCE, group, settings, changes, clear_elr_of="")


def _alter_client_metrics(view: ClusterView, name: str, configs: Sequence[AlterableConfig]) -> Work:
    settings = view.image.config(CLIENT_METRICS_RESOURCE, name)
    changes: dict[str, str | None] = {}
    for number, config in enumerate(configs):
        yield _units(number, config.value)
        changes[config.name] = _changed(config, None, None)  # as in Kafka no key takes APPEND and SUBTRACT
    after = {key: value for key, value in {**settings, **changes}.items() if value is not None}
    yield sum(map(len, after.values())) // CHARACTERS_PER_UNIT
    validate_client_metrics_config(name, after)
    return _records(CLIENT_METRICS_RESOURCE, name, settings, changes, clear_elr_of="")


def _units(number: int, value: str | None) -> int:
    """Work of one key: of every KEYS_PER_UNITth short one, and of each long one."""
    return (number % KEYS_PER_UNIT == 0) + len(value or "") // CHARACTERS_PER_UNIT


def _check_min_isr(broker: str, value: str | None) -> None:
    if broker:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
    if value is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")


def _changed(config: AlterableConfig, key: ConfigKey | None, current: str | None) -> str | None:
    """The new value, None to delete it. APPEND and SUBTRACT change `current`, the effective value."""
    operation, value = config.config_operation, config.value
    if operation == ConfigOperation.DELETE or value is None:
        return None
    if operation == ConfigOperation.SET:
        return value
    if operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")
    verb = ConfigOperation(operation).name
    if key is None or key.type is not ConfigType.LIST:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {config.name} because its type is not LIST.")
    members = [member.strip() for member in (current or "").split(",") if member.strip()]
    named = [member.strip() for member in value.split(",") if member.strip()]
    if operation == ConfigOperation.APPEND:
        changed = ",".join(dict.fromkeys([*members, *named]))
        if len(changed.encode()) > STRING_BYTES_MAX:  # no broker could read its record
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{STRING_BYTES_MAX} bytes.",
            )
        return changed
    without = frozenset(named)
    return ",".join(member for member in members if member not in without)


def _records(
    kind: int, resource: str, settings: Mapping[str, str], changes: Mapping[str, str | None], *, clear_elr_of: str
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [
        ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
        for name, value in changes.items()
        if value != settings.get(name)
    ]
    if records and changes.get(MIN_ISR, settings.get(MIN_ISR)) != settings.get(MIN_ISR):
        records.append(ClearElrRecord(topic_name=clear_elr_of))
    return records
