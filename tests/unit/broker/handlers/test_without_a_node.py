"""Handlers on small stand-ins of what they need: what they ask for, and what becomes of a refusal. No node, loop or disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.api.call import Pending
from barnabas.broker.handlers import (
    admin,
    cluster,
    configs,
    offsets,
    producers,
    quorum,
    quotas,
    reassignments,
    scram_users,
)
from barnabas.broker.image.image import MetadataImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    AlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerHeartbeatResponse, UnregisterBrokerRequest
from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest, QuotaAlteration
from barnabas.protocol.messages.reassignments import AlterPartitionReassignmentsRequest
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import DescribeProducersRequest
from barnabas.protocol.registry import API
from barnabas.protocol.schema import decode, encode
from barnabas.work import finished
from tests.support.broker.calls import call_of, computed

CREATION = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=9)
REFUSED = BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not you")
Table = Mapping[type[Any], tuple[Callable[..., Any], Callable[..., Any]]]


class Controller:
    """Notes what it is asked, and is answered by hand."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Callable[[Any], None] = lambda answer: None

    def request(self, request: Any, done: Callable[[Any], None], **_how: Any) -> None:
        self.asked.append(request)
        self.answer = done

    create_topics = create_partitions = alter_configs = request


class Needs(SimpleNamespace):
    """Any part by name."""


def coded(api_key: int, response: Any) -> str:
    """What a peer reads of a response in the latest version."""
    version = API[api_key].versions[1]
    return repr(decode(API[api_key].response, encode(response, version), version))


ASKED: list[tuple[Table, Any]] = [
    (admin.HANDLERS, CREATION),
    (admin.HANDLERS, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=9)),
    (admin.HANDLERS, CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2)], timeout_ms=9)),
    (admin.HANDLERS, ElectLeadersRequest(timeout_ms=9)),
    (admin.HANDLERS, UpdateFeaturesRequest()),
    (reassignments.HANDLERS, AlterPartitionReassignmentsRequest(timeout_ms=9)),
    (cluster.HANDLERS, UnregisterBrokerRequest(broker_id=3)),
    (quotas.HANDLERS, AlterClientQuotasRequest(entries=[QuotaAlteration()])),
    (scram_users.HANDLERS, AlterUserScramCredentialsRequest(upsertions=[ScramCredentialUpsertion(name="u")])),
]


@pytest.mark.parametrize(("table", "request_"), ASKED, ids=lambda each: type(each).__name__)
def test_a_refusal_of_the_controller_becomes_the_answer_of_the_api(table: Table, request_: Any) -> None:
    controller = Controller()
    handle, _ = table[type(request_)]
    pending: Pending[Any] = computed(handle(Needs(controller=controller), call_of(request_)))
    assert [type(asked) for asked in controller.asked] == [type(request_)]
    assert (pending.blocks, pending.resolved) == (True, False)  # later requests of the connection wait for it
    controller.answer(REFUSED)
    assert pending.resolved
    assert not pending.blocks
    assert "error_code=31" in coded(request_.API_KEY, computed(pending.response))


@pytest.mark.parametrize(("table", "request_"), ASKED[:4] + ASKED[5:6], ids=lambda each: type(each).__name__)
def test_a_request_without_time_is_over_before_the_controller_is_asked(table: Table, request_: Any) -> None:
    controller = Controller()
    late = type(request_)(**{**{name: getattr(request_, name) for name in type(request_).__slots__}, "timeout_ms": 0})
    with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT"):
        computed(table[type(late)][0](Needs(controller=controller), call_of(late)))
    assert controller.asked == []


def test_only_settings_that_are_ours_reach_the_controller() -> None:
    controller = Controller()
    ours, others = (
        AlterConfigsResource(resource_type=kind, resource_name=name) for kind, name in ((2, "t"), (4, "99"))
    )
    pending = finished(
        configs.incremental_alter_configs(
            Needs(controller=controller, node_id=1), call_of(IncrementalAlterConfigsRequest(resources=[ours, others]))
        )
    )
    (asked,) = controller.asked
    assert [resource.resource_name for resource in asked.resources] == ["t"]
    controller.answer(IncrementalAlterConfigsResponse())
    (refused,) = computed(pending.response).responses
    assert (refused.resource_name, refused.error_code) == ("99", ErrorCode.INVALID_REQUEST)
    assert "but received 99" in refused.error_message


def test_a_node_without_the_role_decides_nothing() -> None:
    with pytest.raises(BrokerError, match="node 4 is no controller"):
        cluster.decide(Needs(quorum_controller=None, node_id=4), call_of(BrokerHeartbeatRequest()))


def test_the_controller_is_told_the_connection_of_a_heartbeat() -> None:
    sources: list[object] = []

    class Deciding:
        def handle(self, request: Any, done: Callable[[Any], None], *, source: object, **_how: object) -> None:
            sources.append(source)
            done(BrokerError(ErrorCode.STALE_BROKER_EPOCH))

    call = call_of(BrokerHeartbeatRequest())
    pending = cluster.decide(Needs(quorum_controller=Deciding(), node_id=4), call)
    assert isinstance(pending, Pending)
    assert sources == [call.connection]
    response = computed(pending.response)
    assert isinstance(response, BrokerHeartbeatResponse)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_the_quorum_is_described_by_its_leader() -> None:
    controller = Controller()
    follower = SimpleNamespace(member=None, is_leader=False, node_id=2)
    pending = quorum.describe_quorum_elsewhere(
        Needs(quorum=follower, controller=controller), call_of(DescribeQuorumRequest())
    )
    controller.answer(REFUSED)
    assert isinstance(pending, Pending)
    assert isinstance(pending.response, DescribeQuorumResponse)
    assert (pending.response.error_code, pending.response.error_message) == (REFUSED.code, "not you")


class NoReplicas:
    """A node that holds no partition."""

    def leader(self, topic: str, partition: int) -> Any:
        raise BrokerError(self.absence(topic, partition))

    def obtain(self, topic: str, partition: int) -> None:
        return None

    def take_opened_units(self) -> int:
        return 0

    def absence(self, topic: str, partition: int) -> ErrorCode:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if topic == "elsewhere" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_partitions_that_are_not_here() -> None:
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        for name in ("elsewhere", "nowhere")
    ]
    answer = finished(offsets.list_offsets(Needs(replicas=NoReplicas()), call_of(ListOffsetsRequest(topics=topics))))
    assert [one.error_code for topic in answer.topics for one in topic.partitions] == [6, 3]


def test_producers_of_a_topic_that_is_not_known() -> None:
    request = DescribeProducersRequest(topics=[TopicPartitionIndexes(name="nowhere", partition_indexes=[0, 1])])
    needs = Needs(replicas=NoReplicas(), current_image=SimpleNamespace(image=MetadataImage()))
    answer = finished(producers.describe_producers(needs, call_of(request)))
    assert [one.error_code for one in answer.topics[0].partitions] == [3, 3]
