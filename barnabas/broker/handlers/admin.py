"""CreateTopics (19, versions 2 to 7), DeleteTopics (20, 1 to 6), CreatePartitions (37, 0 to 3), DeleteRecords (21, 0 to 2),
DescribeConfigs (32, 1 to 4), IncrementalAlterConfigs (44, 0 to 1).

Behaviour: changes of metadata go to the controller and are answered once this node's own image has them. The requests hold the
later ones of their connection until then, as topic creation by Metadata does. DeleteRecords moves the log start of partitions
led here. DescribeConfigs lists every key with its source, its synonyms and a line of meaning.

Version notes: CreateTopics v4 takes −1 for the broker's defaults, v5 returns the configs, v7 the id; DeleteTopics v6 deletes by
id; DescribeConfigs v3 returns types and documentation.

Deviations: resources other than topics and brokers (loggers, client metrics, groups) are refused with INVALID_REQUEST; so is
an unknown operation of IncrementalAlterConfigs, where Kafka answers UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config_entries import ConfigEntry, broker_entries, cluster_entries, topic_entries
from barnabas.broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.broker.metadata.topic_names import validate_topic_name
from barnabas.broker.router import Call, Pending, handles
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = [
    "alter_configs",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_configs",
    "refuse",
]

NO_LOW_WATERMARK: Final = -1


def _answered_later(call: Call[Any], ask: Callable[[Callable[[Any], None]], None]) -> Pending:
    """Asks the controller; a refusal of the whole request becomes the response that says so."""
    pending = Pending(blocks=True)

    def done(answer: Any) -> None:
        pending.resolve(refuse(call, answer) if isinstance(answer, BrokerError) else answer)

    ask(done)
    return pending


@handles(CreateTopicsRequest)
def create_topics(node: Node, call: Call[CreateTopicsRequest]) -> Pending:
    """Creates topics."""
    return _answered_later(call, lambda done: node.controller.create_topics(call.request, done))


@handles(DeleteTopicsRequest)
def delete_topics(node: Node, call: Call[DeleteTopicsRequest]) -> Pending:
    """Deletes topics by name or id."""
    states = _states_to_delete(call)
    return _answered_later(call, lambda done: node.controller.delete_topics(states, done))


def _states_to_delete(call: Call[DeleteTopicsRequest]) -> list[DeleteTopicState]:
    if call.version >= 6:
        return call.request.topics
    return [DeleteTopicState(name=name) for name in call.request.topic_names]


@handles(CreatePartitionsRequest)
def create_partitions(node: Node, call: Call[CreatePartitionsRequest]) -> Pending:
    """Adds partitions to topics."""
    return _answered_later(call, lambda done: node.controller.create_partitions(call.request, done))


@handles(DeleteRecordsRequest)
def delete_records(node: Node, call: Call[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    """Moves the log start of partitions led here (KIP-107)."""
    topics = []
    for topic in call.request.topics:
        partitions = []
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=NO_LOW_WATERMARK
            )
            try:
                replica = node.replicas.leader(topic.name, wanted.partition_index)
                if not replica.log.config.deletes:
                    raise BrokerError(ErrorCode.POLICY_VIOLATION, f"{topic.name} has no cleanup.policy delete")
                result.low_watermark = replica.delete_records_before(wanted.offset)
            except BrokerError as error:
                result.error_code = error.code
            partitions.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=topics)


@handles(IncrementalAlterConfigsRequest)
def alter_configs(node: Node, call: Call[IncrementalAlterConfigsRequest]) -> Pending:
    """Changes settings of topics, of this broker, or of all brokers."""
    own: list[AlterConfigsResource] = []
    refused: list[AlterConfigsResourceResponse] = []
    for resource in call.request.resources:
        try:
            if resource.resource_type == BROKER_RESOURCE:
                _check_broker_name(node, resource.resource_name, "Node id", "expected {}")
            own.append(resource)
        except BrokerError as error:
            refused.append(_resource_response(resource, error))
    request = IncrementalAlterConfigsRequest(resources=own, validate_only=call.request.validate_only)
    pending = Pending(blocks=True)

    def done(answer: IncrementalAlterConfigsResponse | BrokerError) -> None:
        if isinstance(answer, BrokerError):
            pending.resolve(refuse(call, answer))
        else:
            answer.responses.extend(refused)
            pending.resolve(answer)

    node.controller.alter_configs(request, done)
    return pending


def _check_broker_name(node: Node, name: str, what: str, expected: str) -> None:
    """A request about one broker must come to that broker; "" means all."""
    if not name:
        return
    try:
        broker_id = int(name)
    except ValueError:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {name}") from None
    if broker_id != node.node_id:
        wanted = expected.format(node.node_id)
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, {wanted}, but received {name}")


def _resource_response(resource: AlterConfigsResource, error: BrokerError) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(DescribeConfigsRequest)
def describe_configs(node: Node, call: Call[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    """Lists configurations with sources, synonyms and meaning."""
    return DescribeConfigsResponse(results=[_described(node, call.request, each) for each in call.request.resources])


def _described(node: Node, request: DescribeConfigsRequest, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        entries = _entries(node, resource)
    except BrokerError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    keys = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    result.configs = [_config(entry, request) for entry in entries if keys is None or entry.name in keys]
    return result


def _entries(node: Node, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC_RESOURCE:
        validate_topic_name(name)
        if node.image.topic(name) is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")  # without words, as Kafka
        return topic_entries(node.config, node.image.topic_config(name))
    if resource.resource_type == BROKER_RESOURCE:
        _check_broker_name(node, name, "Broker id", "expected {} or empty string")
        return broker_entries(node.config) if name else cluster_entries(node.image.cluster_config)
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


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


def refuse(call: Call[Any], error: BrokerError) -> Any:
    """The answer of this family that carries one error for everything that was asked."""
    return _REFUSALS[call.api_key](call, error)


def _refuse_create_topics(call: Call[CreateTopicsRequest], error: BrokerError) -> CreateTopicsResponse:
    names = dict.fromkeys(topic.name for topic in call.request.topics)
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=name, error_code=error.code, error_message=error.message) for name in names]
    )


def _refuse_delete_topics(call: Call[DeleteTopicsRequest], error: BrokerError) -> DeleteTopicsResponse:
    code = error.code
    if code == ErrorCode.TOPIC_DELETION_DISABLED and call.version < 3:
        code = ErrorCode.INVALID_REQUEST  # v3 brought the code that says it better
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=code, error_message=error.message)
            for state in _states_to_delete(call)
        ]
    )


def _refuse_create_partitions(call: Call[CreatePartitionsRequest], error: BrokerError) -> CreatePartitionsResponse:
    names = dict.fromkeys(topic.name for topic in call.request.topics)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message) for name in names
        ]
    )


def _refuse_delete_records(call: Call[DeleteRecordsRequest], error: BrokerError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index,
                        low_watermark=NO_LOW_WATERMARK,
                        error_code=error.code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in call.request.topics
        ]
    )


def _refuse_describe_configs(call: Call[DescribeConfigsRequest], error: BrokerError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in call.request.resources
        ]
    )


def _refuse_alter_configs(
    call: Call[IncrementalAlterConfigsRequest], error: BrokerError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_resource_response(resource, error) for resource in call.request.resources]
    )


_REFUSALS: Final[dict[int, Callable[[Call[Any], BrokerError], Any]]] = {
    CreateTopicsRequest.API_KEY: _refuse_create_topics,
    DeleteTopicsRequest.API_KEY: _refuse_delete_topics,
    DeleteRecordsRequest.API_KEY: _refuse_delete_records,
    DescribeConfigsRequest.API_KEY: _refuse_describe_configs,
    CreatePartitionsRequest.API_KEY: _refuse_create_partitions,
    IncrementalAlterConfigsRequest.API_KEY: _refuse_alter_configs,
}
