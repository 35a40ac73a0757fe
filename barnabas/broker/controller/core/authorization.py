"""Authorization of requests that the controller decides, also of forwarded ones; rules of Kafka's ControllerApis.
CREATE and DELETE of the cluster include all topics. A topic that a client may not describe is refused in the same way whether it
exists or not; the settings of a new topic are hidden from a client that may not describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.broker.api.access import CLUSTER_NAME, Access
from barnabas.broker.authorization.permissions import AllowedNames, check_permission, refusal_of
from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.controller.core.topics import states_of_names
from barnabas.broker.image.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC
from barnabas.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.protocol.registry import API
from barnabas.protocol.schema import Message
from barnabas.work import Steps, Work

NO_ID: Final = bytes(16)
_TOPIC, _CLUSTER = AclResourceType.TOPIC, AclResourceType.CLUSTER
_CONFIGURED: Final[Mapping[int, AclResourceType]] = {
    TOPIC_RESOURCE: _TOPIC,
    BROKER_RESOURCE: _CLUSTER,
    LOGGER_RESOURCE: _CLUSTER,
    CLIENT_METRICS_RESOURCE: _CLUSTER,
    GROUP_RESOURCE: AclResourceType.GROUP,
}

RequestDecider = Callable[..., MetadataDecision[object] | Work]  # takes a ClusterView and a request
Split = Steps["_Parts"]


class _Parts(NamedTuple):
    """A request in two parts."""

    allowed: Message | None  # the part that the client may change; None: nothing
    complete: Callable[[Message | None], Message]  # adds the refusals to the answer of the allowed part


def resource_type_of(config_resource: int) -> AclResourceType | None:
    return _CONFIGURED.get(config_resource)


def check_cluster_operation(access: Access, api_key: int) -> None:
    """Raises BrokerError(CLUSTER_AUTHORIZATION_FAILED) if the API needs an operation on the cluster that the client lacks."""
    operation = None if access.unrestricted else API[api_key].cluster_operation
    if operation is not None:
        check_permission(access, operation, _CLUSTER)


def authorized_decision(access: Access, decide: RequestDecider) -> RequestDecider:
    """`decide` for what the client may do; raises BrokerError(CLUSTER_AUTHORIZATION_FAILED) if that is nothing."""
    if access.unrestricted:
        return decide
    in_slices: RequestDecider = decide.in_slices if isinstance(decide, LongDecision) else decide

    def decided(view: ClusterView, request: Message) -> Work:
        check_cluster_operation(access, request.API_KEY)
        split = _SPLITS.get(type(request))
        if split is None:
            decision = in_slices(view, request)
            if not isinstance(decision, MetadataDecision):
                decision = yield from decision
            return decision
        parts: _Parts = yield from split(access, view.image, request)
        if parts.allowed is None:
            return MetadataDecision(parts.complete(None))
        decision = in_slices(view, parts.allowed)
        if not isinstance(decision, MetadataDecision):
            decision = yield from decision
        answer = decision.answer
        if not isinstance(answer, Message):
            raise InvariantViolated(f"the decision about {type(request).__name__} has no answer to a client")
        return MetadataDecision(parts.complete(answer), decision.records)

    return decided


def _create_topics(access: Access, _image: MetadataImage, request: CreateTopicsRequest) -> Split:
    everything = access.allows(AclOperation.CREATE, _CLUSTER, log=False)
    creatable = AllowedNames(access, AclOperation.CREATE, _TOPIC)
    shown = AllowedNames(access, AclOperation.DESCRIBE_CONFIGS, _TOPIC, log_denied=False)
    repeated = yield from _repeated([topic.name for topic in request.topics])
    allowed = []
    refused = []
    hidden: set[str] = set()
    for topic in request.topics:
        name = topic.name
        decided = name in repeated or name == CLUSTER_METADATA_TOPIC  # refused for another reason
        if decided or everything or name in creatable:
            allowed.append(topic)
            if name not in shown:
                hidden.add(name)
        else:
            refused.append(
                CreatableTopicResult(
                    name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="Authorization failed."
                )
            )
        yield 1

    def complete(answer: Message | None) -> Message:
        response = answer if isinstance(answer, CreateTopicsResponse) else CreateTopicsResponse()
        for result in response.topics:
            if not result.error_code and result.name in hidden:
                result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.num_partitions = result.replication_factor = -1
                result.configs = []
        response.topics = [*response.topics, *refused]
        return response

    rest = CreateTopicsRequest(topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only)
    return _Parts(rest if allowed else None, complete)


def _delete_topics(access: Access, image: MetadataImage, request: DeleteTopicsRequest) -> Split:
    everything = access.allows(AclOperation.DELETE, _CLUSTER, log=False)
    described = AllowedNames(access, AclOperation.DESCRIBE, _TOPIC)
    deletable = AllowedNames(access, AclOperation.DELETE, _TOPIC)
    described.all = deletable.all = everything
    states = request.topics or (yield from states_of_names(request))
    repeated = yield from _repeated([state.name or state.topic_id for state in states])
    allowed = []
    refused = []
    for state in states:
        yield 1
        name: str | None = state.name
        by_id = name is None
        if name is None:
            topic = image.topic_by_id(state.topic_id)
            name = None if topic is None else topic.name
        contradicts = not by_id and state.topic_id != NO_ID
        if name is None or contradicts or (state.name or state.topic_id) in repeated:
            allowed.append(state)  # refused for another reason
        elif by_id:
            if name in deletable:
                allowed.append(state)
            else:
                refused.append(_not_deletable(name if name in described else None, state.topic_id))
        elif name in described and (name in deletable or image.topic(name) is None):
            allowed.append(state)
        else:
            refused.append(_not_deletable(name, state.topic_id))

    def complete(answer: Message | None) -> Message:
        response = answer if isinstance(answer, DeleteTopicsResponse) else DeleteTopicsResponse()
        response.responses = [*response.responses, *refused]
        return response

    rest = DeleteTopicsRequest(topics=allowed, timeout_ms=request.timeout_ms)
    return _Parts(rest if allowed else None, complete)


def _not_deletable(name: str | None, topic_id: bytes) -> DeletableTopicResult:
    error = refusal_of(_TOPIC)
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)


def _create_partitions(access: Access, _image: MetadataImage, request: CreatePartitionsRequest) -> Split:
    alterable = AllowedNames(access, AclOperation.ALTER, _TOPIC)
    repeated = yield from _repeated([topic.name for topic in request.topics])
    allowed = []
    refused = []
    for topic in request.topics:
        if topic.name in repeated or topic.name in alterable:
            allowed.append(topic)
        else:
            refused.append(
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=None
                )
            )
        yield 1

    def complete(answer: Message | None) -> Message:
        response = answer if isinstance(answer, CreatePartitionsResponse) else CreatePartitionsResponse()
        response.results = [*response.results, *refused]
        return response

    rest = CreatePartitionsRequest(topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only)
    return _Parts(rest if allowed else None, complete)


def _alter_configs(
    access: Access, _image: MetadataImage, request: AlterConfigsRequest | IncrementalAlterConfigsRequest
) -> Split:
    of_class = AlterConfigsResponse if isinstance(request, AlterConfigsRequest) else IncrementalAlterConfigsResponse
    resources: Sequence[AlterConfigsRequestResource | AlterConfigsResource] = request.resources
    refused: dict[int, AlterConfigsResourceResponse] = {}  # by place in the request
    for number, resource in enumerate(resources):
        kind = resource_type_of(resource.resource_type)
        name = CLUSTER_NAME if kind is _CLUSTER else resource.resource_name
        try:
            if kind is not None:
                check_permission(access, AclOperation.ALTER_CONFIGS, kind, name)
        except BrokerError as error:
            refused[number] = AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        yield 1

    def complete(answer: Message | None) -> Message:
        response = answer if isinstance(answer, AlterConfigsResponse | IncrementalAlterConfigsResponse) else of_class()
        decided = iter(response.responses)
        responses = [refused[number] if number in refused else next(decided, None) for number in range(len(resources))]
        response.responses = [each for each in (*responses, *decided) if each is not None]
        return response

    rest: Message | None = None
    if len(refused) < len(resources) and isinstance(request, AlterConfigsRequest):
        kept = [each for number, each in enumerate(request.resources) if number not in refused]
        rest = AlterConfigsRequest(resources=kept, validate_only=request.validate_only)
    elif len(refused) < len(resources) and isinstance(request, IncrementalAlterConfigsRequest):
        changed = [each for number, each in enumerate(request.resources) if number not in refused]
        rest = IncrementalAlterConfigsRequest(resources=changed, validate_only=request.validate_only)
    return _Parts(rest, complete)


def _repeated(names: Sequence[str | bytes]) -> Steps[set[str | bytes]]:
    seen: set[str | bytes] = set()
    repeated: set[str | bytes] = set()
    for number, name in enumerate(names):
        if name in seen:
            repeated.add(name)
        seen.add(name)
        if number % 16 == 0:
            yield 1
    return repeated


_SPLITS: Final[Mapping[type[Message], Callable[..., Split]]] = {
    CreateTopicsRequest: _create_topics,
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: _create_partitions,
    AlterConfigsRequest: _alter_configs,
    IncrementalAlterConfigsRequest: _alter_configs,
}
