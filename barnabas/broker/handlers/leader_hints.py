"""Leader hints of Produce and Fetch: names the new leader in a refusal (KIP-951).

The handlers of both add hints for partitions that are answered NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH, so that a client can
continue at the new leader without a Metadata request. Produce has hints since v10, Fetch since v12 (and endpoints since v16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.broker.handlers.needs import Needs
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.shared import NodeEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.api.call import Call
    from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
    from barnabas.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse

E = TypeVar("E")  # NodeEndpoint of a ProduceResponse or a FetchResponse

_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def add_produce_hints(needs: Needs, call: Call[ProduceRequest], response: ProduceResponse) -> None:
    """Names the leaders in a ProduceResponse that has errors."""
    if call.version < 10:
        return

    leaders: dict[int, None] = {}
    for topic in response.responses:
        name = topic.name or needs.replicas.topic_name(topic.topic_id)
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                _hint(needs, name, answer.index, answer, leaders)
    response.node_endpoints = _endpoints(needs, call.listener, leaders, NodeEndpoint)


def add_fetch_hints(needs: Needs, call: Call[FetchRequest], response: FetchResponse) -> None:
    """Names the leaders in a FetchResponse that has errors."""
    if call.version < 12:
        return

    leaders: dict[int, None] = {}
    for topic in response.responses:
        name = topic.topic or needs.replicas.topic_name(topic.topic_id)
        for answer in topic.partitions:
            if answer.error_code in _MOVED:
                _hint(needs, name, answer.partition_index, answer, leaders)
    if call.version >= 16:
        response.node_endpoints = _endpoints(needs, call.listener, leaders, NodeEndpoint)


def _hint(
    needs: Needs,
    name: str | None,
    index: int,
    answer: PartitionProduceResponse | PartitionData,
    leaders: dict[int, None],
) -> None:
    partition = None if name is None else needs.current_image.image.partition(name, index)
    if partition is not None:
        answer.current_leader.leader_id = partition.leader
        answer.current_leader.leader_epoch = partition.leader_epoch
        if partition.leader >= 0:
            leaders[partition.leader] = None


def _endpoints(needs: Needs, listener: str, leaders: dict[int, None], endpoint: Callable[..., E]) -> list[E]:
    return [
        endpoint(node_id=broker.broker_id, host=address.host, port=address.port, rack=broker.rack)
        for broker, address in needs.listing.live(listener)
        if broker.broker_id in leaders
    ]
