"""Courier of the transaction coordinator: the node's other brokers as the marker and verification channels see them.

Driven by: both channels.
Emits: WriteTxnMarkers and AddPartitionsToTxn requests to other brokers, on a connection each: an addition may be held until
markers are written, so that neither may wait for the other's answer on the same connection. Markers for this broker go
straight to its own `marker_writer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.coordinator.marker_writer import write_markers
from barnabas.broker.coordinator.shard import partition_for
from barnabas.errors import BarnabasError, BrokerError, ErrorCode
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["TRANSACTION_TOPIC", "NodeCourier"]

TRANSACTION_TOPIC: Final = "__transaction_state"
NO_LEADER: Final = -1
ADDITIONS: Final = "transactions"  # purposes of the connections
MARKERS: Final = "markers"


class NodeCourier:
    """Leaders and coordinators by the node's image, and the ways to them."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def leader_of(self, topic: str, partition: int) -> int | None:
        image = self._node.image.partition(topic, partition)
        return None if image is None else image.leader

    def coordinator_of(self, transactional_id: str) -> int:
        topic = self._node.image.topic(TRANSACTION_TOPIC)
        if topic is None:
            return NO_LEADER
        return topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader

    def send(
        self,
        broker_id: int,
        request: WriteTxnMarkersRequest,
        done: Callable[[WriteTxnMarkersResponse | BrokerError], None],
    ) -> None:
        if broker_id == self._node.node_id:
            write_markers(self._node, request, done)
        else:
            self._deliver(broker_id, MARKERS, request, done)

    def ask(
        self,
        broker_id: int,
        request: AddPartitionsToTxnRequest,
        done: Callable[[AddPartitionsToTxnResponse | BrokerError], None],
    ) -> None:
        self._deliver(broker_id, ADDITIONS, request, done)

    def monotonic_ms(self) -> int:
        return self._node.clock.monotonic_ms()

    def soon(self, callback: Callable[[], None]) -> None:
        self._node.soon(callback)

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._node.call_later(delay_ms, callback)

    def _deliver(self, broker_id: int, purpose: str, request: Any, done: Callable[[Any], None]) -> None:
        node = self._node
        broker = node.image.brokers.get(broker_id)
        address = None if broker is None else broker.endpoint(node.listener_name)
        if address is None or broker_id == node.node_id:
            node.soon(lambda: done(BrokerError(ErrorCode.NOT_COORDINATOR)))
            return
        peer = node.peers.to(address.host, address.port, purpose, node_id=broker_id)
        peer.send(
            request,
            lambda answer: done(
                BrokerError(ErrorCode.NETWORK_EXCEPTION, str(answer)) if isinstance(answer, BarnabasError) else answer
            ),
            timeout_ms=node.config.get_int("request.timeout.ms"),
        )
