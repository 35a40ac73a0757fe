"""CreateTopics (19, versions 2 to 7), DeleteTopics (20, 1 to 6), CreatePartitions (37, 0 to 3),
ElectLeaders (43, 0 to 2), UpdateFeatures (57, 0 to 2); of the same family are `configs`, `delete_records` and `log_dirs`.

Behaviour: changes of metadata go to the controller and are answered once this node's own image has them. The requests hold the
later ones of their connection until then, as topic creation by Metadata does.

Version notes: CreateTopics v4 takes −1 for the broker's defaults, v5 returns the configs, v7 the id; DeleteTopics v6 deletes by
id; ElectLeaders v1 knows unclean elections; UpdateFeatures v1 has upgrade types and validate_only, from v2 it is answered by one
error, for features change together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.call import Call, Pending
from barnabas.broker.handlers.configs import (
    describe_configs,
    incremental_alter_configs,
    refuse_alter_configs,
    refuse_describe_configs,
    replace_configs,
)
from barnabas.broker.handlers.delete_records import delete_records, refuse_delete_records
from barnabas.broker.handlers.log_dirs import describe_log_dirs, refuse_describe_log_dirs
from barnabas.broker.router import Refuse, handles
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    AlterConfigsRequest,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    PartitionElectionResult,
    ReplicaElectionResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = [
    "answered_in_time",
    "answered_later",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_configs",
    "describe_log_dirs",
    "elect_leaders",
    "incremental_alter_configs",
    "refuse",
    "replace_configs",
    "update_features",
]


def answered_later(
    call: Call[Any], ask: Callable[[Callable[[Any], None]], None], refusal: Refuse | None = None
) -> Pending[Any]:
    """Asks the controller; a refusal of the whole request becomes the response that says so (`refusal`, else this family's)."""
    pending: Pending[Any] = Pending(blocks=True)

    def done(answer: Any) -> None:
        pending.resolve((refusal or refuse)(call, answer) if isinstance(answer, BrokerError) else answer)

    ask(done)
    return pending


def answered_in_time(
    call: Call[Any], ask: Callable[[Callable[[Any], None]], None], refusal: Refuse | None = None
) -> Any:
    """As `answered_later`, for a request whose `timeout_ms` bounds when it may begin: one of 0 ms or less is over before that."""
    if call.request.timeout_ms <= 0:
        return (refusal or refuse)(call, BrokerError(ErrorCode.REQUEST_TIMED_OUT))
    return answered_later(call, ask, refusal)


@handles(CreateTopicsRequest)
def create_topics(node: Node, call: Call[CreateTopicsRequest]) -> Any:
    """Creates topics."""
    return answered_in_time(call, lambda done: node.controller.create_topics(call.request, done))


@handles(DeleteTopicsRequest)
def delete_topics(node: Node, call: Call[DeleteTopicsRequest]) -> Any:
    """Deletes topics by name or id."""
    request = DeleteTopicsRequest(topics=_states_to_delete(call), timeout_ms=call.request.timeout_ms)
    return answered_in_time(call, lambda done: node.controller.request(request, done))


def _states_to_delete(call: Call[DeleteTopicsRequest]) -> list[DeleteTopicState]:
    if call.version >= 6:
        return call.request.topics
    return [DeleteTopicState(name=name) for name in call.request.topic_names]


@handles(CreatePartitionsRequest)
def create_partitions(node: Node, call: Call[CreatePartitionsRequest]) -> Any:
    """Adds partitions to topics."""
    return answered_in_time(call, lambda done: node.controller.create_partitions(call.request, done))


@handles(ElectLeadersRequest)
def elect_leaders(node: Node, call: Call[ElectLeadersRequest]) -> Any:
    """Elects preferred or unclean leaders (KIP-183, KIP-460)."""
    timeout_ms = call.request.timeout_ms
    return answered_in_time(call, lambda done: node.controller.request(call.request, done, timeout_ms=timeout_ms))


@handles(UpdateFeaturesRequest)
def update_features(node: Node, call: Call[UpdateFeaturesRequest]) -> Pending[UpdateFeaturesResponse]:
    """Changes finalized feature levels of the cluster (KIP-584). Its `timeout_ms` bounds nothing, as in Kafka."""
    return answered_later(call, lambda done: node.controller.request(call.request, done))


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


def _refuse_elect_leaders(call: Call[ElectLeadersRequest], error: BrokerError) -> ElectLeadersResponse:
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionElectionResult(partition_id=number, error_code=error.code, error_message=error.message)
                for number in topic.partitions
            ],
        )
        for topic in call.request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


def _refuse_update_features(call: Call[UpdateFeaturesRequest], error: BrokerError) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)


_REFUSALS: Final[dict[int, Callable[[Call[Any], BrokerError], Any]]] = {
    CreateTopicsRequest.API_KEY: _refuse_create_topics,
    DeleteTopicsRequest.API_KEY: _refuse_delete_topics,
    DeleteRecordsRequest.API_KEY: refuse_delete_records,
    DescribeConfigsRequest.API_KEY: refuse_describe_configs,
    AlterConfigsRequest.API_KEY: refuse_alter_configs,
    DescribeLogDirsRequest.API_KEY: refuse_describe_log_dirs,
    CreatePartitionsRequest.API_KEY: _refuse_create_partitions,
    ElectLeadersRequest.API_KEY: _refuse_elect_leaders,
    IncrementalAlterConfigsRequest.API_KEY: refuse_alter_configs,
    UpdateFeaturesRequest.API_KEY: _refuse_update_features,
}
