"""Leader hints of Produce and Fetch: who leads instead, told with the refusal (KIP-951).

Used by the handlers of both for partitions that are answered NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH, so that a client
turns to the new leader without a Metadata request in between. Produce tells since version 10, Fetch since version 12 (and
the endpoints since 16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.call import Call
    from barnabas.broker.node import Node

__all__ = ["add_fetch_hints", "add_produce_hints"]

_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def add_produce_hints(node: Node, call: Call[Any], response: Any) -> None:
    """Names the leaders in a ProduceResponse that has errors."""
    if call.version < 10:
        return
    from barnabas.protocol.messages.produce import NodeEndpoint

    leaders: dict[int, None] = {}
    for topic in response.responses:
        name = topic.name or node.replicas.topic_name(topic.topic_id)
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                _hint(node, name, answer.index, answer, leaders)
    response.node_endpoints = _endpoints(node, call.listener, leaders, NodeEndpoint)


def add_fetch_hints(node: Node, call: Call[Any], response: Any) -> None:
    """Names the leaders in a FetchResponse that has errors."""
    if call.version < 12:
        return
    from barnabas.protocol.messages.fetch import NodeEndpoint

    leaders: dict[int, None] = {}
    for topic in response.responses:
        name = topic.topic or node.replicas.topic_name(topic.topic_id)
        for answer in topic.partitions:
            if answer.error_code in _MOVED:
                _hint(node, name, answer.partition_index, answer, leaders)
    if call.version >= 16:
        response.node_endpoints = _endpoints(node, call.listener, leaders, NodeEndpoint)


def _hint(node: Node, name: str | None, index: int, answer: Any, leaders: dict[int, None]) -> None:
    partition = None if name is None else node.image.partition(name, index)
    if partition is not None:
        answer.current_leader.leader_id = partition.leader
        answer.current_leader.leader_epoch = partition.leader_epoch
        if partition.leader >= 0:
            leaders[partition.leader] = None


def _endpoints(node: Node, listener: str, leaders: dict[int, None], endpoint: Any) -> list[Any]:
    return [
        endpoint(node_id=broker.broker_id, host=address.host, port=address.port, rack=broker.rack)
        for broker, address in node.listing.live(listener)
        if broker.broker_id in leaders
    ]
