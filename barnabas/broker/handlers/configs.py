"""Handles DescribeConfigs 1 to 4, AlterConfigs 0 to 2, IncrementalAlterConfigs 0 to 1 and ListConfigResources 0 to 1; of the family `admin`.

Behaviour: DescribeConfigs lists every key with its source, its synonyms and its documentation. The controller decides changes. The answer
is sent once this node's own image has the change; until then the request holds the later requests of its connection. Clients send
requests about one broker to that broker; another broker refuses them. Answers keep the order of the request. AlterConfigs replaces all
settings of a resource, IncrementalAlterConfigs changes single settings.

Version notes: DescribeConfigs v3 returns types and documentation. ListConfigResources v0 lists client metrics only (KIP-1142).

Levels of loggers (resource BROKER_LOGGER) are this node's own: no controller is asked.

Deviations: INVALID_REQUEST answers other types of resources, unknown operations of
IncrementalAlterConfigs (Kafka answers UNKNOWN_SERVER_ERROR), a resource named twice in AlterConfigs (Kafka 4.3.1 never answers), and the
resources of a DescribeConfigs request whose answer would exceed DESCRIBED_BYTES_MAX.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.broker.api.access import CLUSTER_NAME, Access
from barnabas.broker.api.call import ELEMENTS_AT_ONCE, Call, Computed, Done, Pending, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.config.entries import (
    ConfigEntry,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from barnabas.broker.config.table import SERVER_KEYS, TOPIC_KEYS
from barnabas.broker.controller.core.authorization import resource_type_of
from barnabas.broker.controller.core.configs import ConfigOperation
from barnabas.broker.handlers.logger_levels import alter_levels, logger_entries
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.broker.image.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
)
from barnabas.broker.image.topic_names import validate_topic_name
from barnabas.broker.security.dynamic_settings import altered_mechanisms, check_dynamic_settings
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import DESCRIBED_BYTES_MAX
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.image.image import MetadataImage

Resource = AlterConfigsResource | AlterConfigsRequestResource
RESOURCES: Final = frozenset({BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE})
LISTED: Final = (TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)
RESOURCES_A_YIELD: Final = 16
ELEMENTS_OF_ENTRY: Final = 3  # a described setting takes as long as three elements
ENTRY_BYTES: Final = 8  # of an entry of DescribeConfigs and of a synonym, without its texts
DESCRIPTIONS_SHARED_MAX: Final = 1_000  # different settings of resources: 15 MB
_SHARED: Final = (TOPIC_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)
_TOO_LONG: Final = "The answer is too long: describe fewer resources at once."
R = TypeVar("R", AlterConfigsResource, AlterConfigsRequestResource)
A = TypeVar("A", AlterConfigsResponse, IncrementalAlterConfigsResponse)


def incremental_alter_configs(needs: Needs, call: Call[IncrementalAlterConfigsRequest]) -> Work:
    """Changes single settings of topics, of this broker, or of all brokers; levels of this node's loggers."""
    mine, refused = yield from _split(
        needs, call.request.resources, call.access, validate_only=call.request.validate_only
    )
    if not mine and refused:
        return IncrementalAlterConfigsResponse(responses=refused)
    request = IncrementalAlterConfigsRequest(resources=mine, validate_only=call.request.validate_only)
    return _changed(call, refused, partial(needs.controller.alter_configs, request, access=call.access))


def alter_configs(needs: Needs, call: Call[AlterConfigsRequest]) -> Work:
    """Replaces all settings of topics, of this broker, or of all brokers."""
    mine, refused = yield from _split(needs, call.request.resources, call.access)
    request = AlterConfigsRequest(resources=mine, validate_only=call.request.validate_only)
    return _changed(call, refused, partial(needs.controller.request, request, access=call.access))


def _split(needs: Needs, resources: list[R], access: Access, *, validate_only: bool = False) -> Work:
    """Returns the resources for the controller to decide, and the answers of this node: refusals of resources that belong to other
    brokers, and those about loggers, which are changed here."""
    mine: list[R] = []
    refused: list[AlterConfigsResourceResponse] = []
    for number, resource in enumerate(resources):
        if number % RESOURCES_A_YIELD == 0:
            yield 1
        try:
            if resource.resource_type == BROKER_RESOURCE:
                _check_broker_name(needs.node_id, resource.resource_name, "Node id", "expected {}")
                yield from _check_security(needs, resource, access)
            if resource.resource_type == LOGGER_RESOURCE and isinstance(resource, AlterConfigsResource):
                check_permission(access, AclOperation.ALTER_CONFIGS, AclResourceType.CLUSTER)
                _alter_loggers(needs, resource, validate_only)
                refused.append(_resource_response(resource, None))
                continue
            if resource.resource_type not in RESOURCES:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
            mine.append(resource)
        except BrokerError as error:
            refused.append(_resource_response(resource, error))
            yield 1
    return mine, refused


def _check_security(needs: Needs, resource: AlterConfigsResource | AlterConfigsRequestResource, access: Access) -> Work:
    """Refuses settings of security that this node cannot use. The controller refuses a client without permission, whose request must
    not read files here."""
    if not any(each.name.startswith("listener.name.") or "sasl." in each.name for each in resource.configs):
        return
    if not access.allows(AclOperation.ALTER_CONFIGS, AclResourceType.CLUSTER, log=False):
        return
    name = resource.resource_name
    after: dict[str, str | None] = {}
    changes = {each.name: each.value for each in resource.configs}
    if isinstance(resource, AlterConfigsResource):
        after.update(needs.current_image.image.config(BROKER_RESOURCE, name))
        for each in resource.configs:
            if each.config_operation == ConfigOperation.DELETE:
                changes[each.name] = None
            elif each.config_operation != ConfigOperation.SET:
                changes[each.name] = altered_mechanisms(
                    needs.config, each.name, each.value or "", append=each.config_operation == ConfigOperation.APPEND
                )
    after |= changes
    yield from check_dynamic_settings(
        needs.config,
        needs.tls,
        [each for each, value in changes.items() if value is not None],
        {each: value for each, value in after.items() if value is not None},
        default=not name,
    )


def _alter_loggers(needs: Needs, resource: AlterConfigsResource, validate_only: bool) -> None:
    name = resource.resource_name
    try:
        node_id = int(name)
    except ValueError:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if node_id != needs.node_id:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {needs.node_id}, but received {name}"
        )
    alter_levels(resource.configs, validate_only=validate_only)


def _changed(
    call: Call[AlterConfigsRequest] | Call[IncrementalAlterConfigsRequest],
    refused: list[AlterConfigsResourceResponse],
    ask: Callable[[Done[A]], None],
) -> Pending[A]:
    """Asks the controller; its answer, or its refusal, is the answer of the request."""
    pending: Pending[A] = Pending(blocks=True)

    def done(answer: A | BrokerError) -> None:
        if isinstance(answer, BrokerError):
            pending.resolve(Computed(call, lambda _access: refuse_each(call, answer)))
        else:
            merged = partial(_merged, call.request.resources, answer, refused)
            pending.resolve(Computed(call, merged, len(call.request.resources)))

    ask(done)
    return pending


def _merged(
    resources: Iterable[Resource], answer: A, refused: list[AlterConfigsResourceResponse], _access: Access
) -> A:
    """Returns the controller's answer with this node's refusals inserted; both have the order of the request."""
    found: list[AlterConfigsResourceResponse] = []
    decided: deque[AlterConfigsResourceResponse] = deque(answer.responses)
    ours: deque[AlterConfigsResourceResponse] = deque(refused)
    for resource in resources if refused else ():
        for responses in (decided, ours):
            if responses and _is_about(responses[0], resource):
                found.append(responses.popleft())
                break
    answer.responses = [*found, *decided, *ours]
    return answer


def _is_about(response: AlterConfigsResourceResponse, resource: Resource) -> bool:
    return response.resource_name == resource.resource_name and response.resource_type == resource.resource_type


def _check_broker_name(node_id: int, name: str, what: str, expected: str, *, comma: str = ",") -> None:
    """Refuses a request about one broker that names another; "" means all brokers."""
    if not name:
        return
    try:
        broker_id = int(name)
    except ValueError:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {name}") from None
    if broker_id != node_id:
        wanted = expected.format(node_id)
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, {wanted}{comma} but received {name}")


def _resource_response(resource: Resource, error: BrokerError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def describe_configs(needs: Needs, call: Call[DescribeConfigsRequest]) -> Computed:
    """Lists configurations with sources, synonyms and meaning."""
    entries = sum(
        len(SERVER_KEYS if resource.resource_type == BROKER_RESOURCE else TOPIC_KEYS)
        for resource in call.request.resources[:ELEMENTS_AT_ONCE]
    )
    config, image = needs.config.fixed(), needs.current_image.image
    return Computed(call, partial(_describe, call.request, config, image), entries * ELEMENTS_OF_ENTRY)


def _describe(
    request: DescribeConfigsRequest, config: BrokerConfig, image: MetadataImage, access: Access
) -> DescribeConfigsResponse:
    descriptions = _Descriptions(request, config, image, access)
    different: dict[tuple[int, str], DescribeConfigsResource] = {}
    for resource in request.resources:  # a repetition is answered once: a broker's answer has 300 entries
        different.setdefault((resource.resource_type, resource.resource_name), resource)
    return DescribeConfigsResponse(results=[descriptions.of(resource) for resource in different.values()])


class _Descriptions:
    """The answers for the resources of one request. Resources with the same settings share their entries."""

    def __init__(
        self, request: DescribeConfigsRequest, config: BrokerConfig, image: MetadataImage, access: Access
    ) -> None:
        self._request = request
        self._config = config
        self._image = image
        self._access = access
        self._shared: dict[tuple[object, ...], tuple[list[DescribeConfigsResourceResult], int]] = {}
        self._size_bytes = 0

    def of(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        """Returns the answer for one resource."""
        result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            kind = resource_type_of(resource.resource_type)
            if kind is not None:
                name = CLUSTER_NAME if kind is AclResourceType.CLUSTER else resource.resource_name
                check_permission(self._access, AclOperation.DESCRIBE_CONFIGS, kind, name)
            settings = self._settings(resource)
            shared = None
            if resource.configuration_keys is None and resource.resource_type in _SHARED:
                shared = (resource.resource_type, *settings.items())
            found = None if shared is None else self._shared.get(shared)
            configs, size_bytes = found or self._entries(resource, settings)
            self._size_bytes += size_bytes
            if self._size_bytes > DESCRIBED_BYTES_MAX:
                raise BrokerError(ErrorCode.INVALID_REQUEST, _TOO_LONG)
            if shared is not None and len(self._shared) < DESCRIPTIONS_SHARED_MAX:
                self._shared[shared] = configs, size_bytes
            result.configs = configs
        except BrokerError as error:
            result.error_code, result.error_message = error.code, error.message
        return result

    def _entries(
        self, resource: DescribeConfigsResource, settings: Mapping[str, str]
    ) -> tuple[list[DescribeConfigsResourceResult], int]:
        """Returns the entries of one resource, and about how many bytes of the answer they take."""
        keys = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
        configs = [
            _config(entry, self._request)
            for entry in self._described(resource, settings)
            if keys is None or entry.name in keys
        ]
        return configs, sum(map(_size, configs))

    def _settings(self, resource: DescribeConfigsResource) -> Mapping[str, str]:
        """Returns the own settings of a topic or group; checks the name of any resource."""
        name, image, node_id = resource.resource_name, self._image, self._config.node_id
        if resource.resource_type == TOPIC_RESOURCE:
            validate_topic_name(name)
            if image.topic(name) is None:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")  # no message, as in Kafka
            return image.topic_config(name)
        if resource.resource_type == BROKER_RESOURCE:
            _check_broker_name(node_id, name, "Broker id", "expected {} or empty string")
            return image.cluster_config
        if resource.resource_type == LOGGER_RESOURCE:
            if not name:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            _check_broker_name(node_id, name, "Broker id", "expected {}", comma="")
            return {}
        if resource.resource_type == GROUP_RESOURCE:
            if not name:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return image.config(GROUP_RESOURCE, name)
        if resource.resource_type == CLIENT_METRICS_RESOURCE:
            if not name:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            return image.config(CLIENT_METRICS_RESOURCE, name)
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")

    def _described(self, resource: DescribeConfigsResource, settings: Mapping[str, str]) -> Iterable[ConfigEntry]:
        if resource.resource_type == TOPIC_RESOURCE:
            return topic_entries(self._config, settings)
        if resource.resource_type == GROUP_RESOURCE:
            return group_entries(self._config, settings)
        if resource.resource_type == CLIENT_METRICS_RESOURCE:
            return client_metrics_entries(settings)
        if resource.resource_type == LOGGER_RESOURCE:
            return logger_entries()
        return broker_entries(self._config) if resource.resource_name else cluster_entries(settings)


def _size(config: DescribeConfigsResourceResult) -> int:
    """Returns about how many bytes of the answer an entry takes; characters count as one byte."""
    size_bytes = ENTRY_BYTES + len(config.name) + len(config.value or "") + len(config.documentation or "")
    for synonym in config.synonyms:
        size_bytes += ENTRY_BYTES + len(synonym.name) + len(synonym.value or "")
    return size_bytes


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation else None,
    )


def list_config_resources(needs: Needs, call: Call[ListConfigResourcesRequest]) -> Computed:
    """Lists the resources of some types, or of all: every topic and broker; groups and client metrics with settings."""
    check_permission(call.access, AclOperation.DESCRIBE_CONFIGS, AclResourceType.CLUSTER)
    image = needs.current_image.image
    return Computed(call, partial(_listed, call, image), len(image.topics_by_name) + len(image.configs))


def _listed(
    call: Call[ListConfigResourcesRequest], image: MetadataImage, _access: Access
) -> ListConfigResourcesResponse:
    kinds = dict.fromkeys(call.request.resource_types) if call.version else (CLIENT_METRICS_RESOURCE,)
    if not set(kinds) <= set(LISTED):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    found = []
    for kind in kinds or LISTED:
        if kind == TOPIC_RESOURCE:
            names = list(image.topics_by_name)
        elif kind in (BROKER_RESOURCE, LOGGER_RESOURCE):
            names = [str(broker.broker_id) for broker in image.alive_brokers()]
        else:
            names = [name for each, name in image.configs if each == kind]
        found += [ListedConfigResource(resource_name=name, resource_type=kind) for name in names]
    return ListConfigResourcesResponse(config_resources=found)


HANDLERS: Final[Table] = {
    ListConfigResourcesRequest: (list_config_resources, refuse),
    DescribeConfigsRequest: (describe_configs, refuse_each),
    AlterConfigsRequest: (alter_configs, refuse_each),
    IncrementalAlterConfigsRequest: (incremental_alter_configs, refuse_each),
}
