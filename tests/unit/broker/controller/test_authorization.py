"""Requests to the controller from clients that may do some things only: what is refused, and what the decision still gets."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.api.access import CLUSTER_NAME, FULL_ACCESS
from barnabas.broker.controller.core.authorization import authorized_decision
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.controller.core.requests import DECISIONS, OF_CLIENTS
from barnabas.broker.image.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from barnabas.broker.image.records import TopicRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.admin import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    UpdateFeaturesRequest,
)
from barnabas.protocol.registry import API, PERMISSIONS
from barnabas.work import finished
from tests.support.broker.metadata_images import cluster, replayed
from tests.support.broker.some_access import Question, SomeAccess

TOPIC, CLUSTER, GROUP = AclResourceType.TOPIC, AclResourceType.CLUSTER, AclResourceType.GROUP
SECRET_ID, OPEN_ID = bytes([1] * 16), bytes([2] * 16)
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class View:
    """What a decision reads."""

    image = replayed(
        cluster((1,)), [TopicRecord(name="secret", topic_id=SECRET_ID), TopicRecord(name="open", topic_id=OPEN_ID)]
    )


def decided(request: Any, answer: Any, *allowed: Question) -> tuple[Any, Any]:
    """The request that the decision gets, None if it is not asked, and the answer to the client."""
    got: list[Any] = []

    def decide(view: Any, request: Any) -> MetadataDecision[Any]:
        got.append(request)
        return MetadataDecision(answer)

    work: Any = authorized_decision(SomeAccess(*allowed), decide)(View(), request)
    decision = finished(work)
    return (got[0] if got else None), decision.answer


def test_full_access_leaves_a_decision_as_it_is() -> None:
    decide = DECISIONS[CreateTopicsRequest]
    assert authorized_decision(FULL_ACCESS, decide) is decide


def test_only_allowed_topics_are_created_and_their_settings_may_be_hidden() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in ("mine", "other")], timeout_ms=9)
    made = CreateTopicsResponse(topics=[CreatableTopicResult(name="mine", error_message=None, num_partitions=3)])
    asked, answer = decided(request, made, (AclOperation.CREATE, TOPIC, "mine"))
    assert [topic.name for topic in asked.topics] == ["mine"]
    assert (asked.timeout_ms, asked.validate_only) == (9, False)
    mine, other = answer.topics
    assert (mine.error_code, mine.topic_config_error_code, mine.num_partitions) == (0, DENIED, -1)
    assert (other.name, other.error_code, other.error_message) == ("other", DENIED, "Authorization failed.")


def test_create_of_the_cluster_includes_every_topic() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="any")])
    asked, _ = decided(request, CreateTopicsResponse(), (AclOperation.CREATE, CLUSTER, CLUSTER_NAME))
    assert asked.topics == request.topics


def test_a_name_given_twice_is_refused_by_the_decision_not_by_its_permissions() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t"), CreatableTopic(name="t")])
    asked, _ = decided(request, CreateTopicsResponse())
    assert len(asked.topics) == 2


@pytest.mark.parametrize("name", ["secret", "missing"])
def test_deletion_does_not_tell_whether_a_hidden_topic_exists(name: str) -> None:
    asked, answer = decided(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]), None)
    assert asked is None
    (result,) = answer.responses
    assert (result.name, result.topic_id, result.error_code) == (name, bytes(16), DENIED)


def test_deletion_by_id_names_only_a_topic_that_may_be_described() -> None:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(topic_id=SECRET_ID), DeleteTopicState(topic_id=OPEN_ID), DeleteTopicState(name="open")]
    )
    _, answer = decided(request, None, (AclOperation.DESCRIBE, TOPIC, "open"))
    assert [(one.name, one.topic_id, one.error_code) for one in answer.responses] == [
        (None, SECRET_ID, DENIED),
        ("open", OPEN_ID, DENIED),
        ("open", bytes(16), DENIED),
    ]


def test_delete_of_the_cluster_includes_every_topic() -> None:
    request = DeleteTopicsRequest(topic_names=["secret"])
    asked, _ = decided(request, DeleteTopicsResponse(), (AclOperation.DELETE, CLUSTER, CLUSTER_NAME))
    assert [state.name for state in asked.topics] == ["secret"]


def test_partitions_are_added_only_to_topics_that_may_be_altered() -> None:
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=2) for name in ("open", "secret")])
    asked, answer = decided(request, CreatePartitionsResponse(), (AclOperation.ALTER, TOPIC, "open"))
    assert [topic.name for topic in asked.topics] == ["open"]
    assert [(one.name, one.error_code, one.error_message) for one in answer.results] == [("secret", DENIED, None)]


def test_each_type_of_settings_has_its_own_permission_and_answers_keep_their_order() -> None:
    resources = [
        AlterConfigsResource(resource_type=kind, resource_name=name)
        for kind, name in (
            (BROKER_RESOURCE, ""),
            (TOPIC_RESOURCE, "open"),
            (TOPIC_RESOURCE, "secret"),
            (GROUP_RESOURCE, "g"),
        )
    ]
    inner = IncrementalAlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(resource_type=TOPIC_RESOURCE, resource_name="open", error_message=None)]
    )
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=True)
    asked, answer = decided(request, inner, (AclOperation.ALTER_CONFIGS, TOPIC, "open"))
    assert (asked.resources, asked.validate_only) == ([resources[1]], True)
    assert [(one.resource_name, ErrorCode(one.error_code).name) for one in answer.responses] == [
        ("", "CLUSTER_AUTHORIZATION_FAILED"),
        ("open", "NONE"),
        ("secret", "TOPIC_AUTHORIZATION_FAILED"),
        ("g", "GROUP_AUTHORIZATION_FAILED"),
    ]


def test_a_request_about_the_cluster_is_refused_as_a_whole() -> None:
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        decided(UpdateFeaturesRequest(), None, (AclOperation.DESCRIBE, CLUSTER, CLUSTER_NAME))
    asked, _ = decided(UpdateFeaturesRequest(), None, (AclOperation.ALTER, CLUSTER, CLUSTER_NAME))
    assert isinstance(asked, UpdateFeaturesRequest)


@pytest.mark.parametrize("api_key", sorted(API))
def test_every_api_has_a_row_in_the_table_of_permissions(api_key: int) -> None:
    assert api_key in PERMISSIONS, f"{API[api_key].name}: add what it needs to registry.py"


# Tokens belong to their owner and renewers; the handlers and the decisions compare the principal.
ASKING = [each for each in DECISIONS if each not in OF_CLIENTS]


@pytest.mark.parametrize("request_class", ASKING, ids=lambda each: each.__name__)
def test_a_client_that_may_do_nothing_gets_nothing_from_a_decision(request_class: type[Any]) -> None:
    refusal = None
    asked = None
    try:
        asked, _ = decided(request_class(), None)
    except BrokerError as error:
        refusal = error.code
    assert (refusal, asked) in ((ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None), (None, None))
