"""BrokerGateway: sends marker and verification requests of the transaction coordinator to other brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.coordinator.marker_writer import MarkerWriter
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.peers.peers import Peers
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BarnabasError, BrokerError, ErrorCode
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

NO_LEADER: Final = -1
# Purposes of the connections: an addition may be held until markers are written, so it must not delay their answers.
ADDITIONS: Final = "transactions"
MARKERS: Final = "markers"


class BrokerGateway:
    """Finds leaders and coordinators in the node's image. Markers for this broker go directly to its `marker_writer`."""

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        current: CurrentImage,
        peers: Peers,
        marker_writer: MarkerWriter,
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._listener_name = config.inter_broker_listener
        self._current = current
        self._peers = peers
        self._marker_writer = marker_writer

    def leader_of(self, topic: str, partition: int) -> int | None:
        image = self._current.image.partition(topic, partition)
        return None if image is None else image.leader

    def coordinator_of(self, transactional_id: str) -> int:
        topic = self._current.image.topic(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return NO_LEADER
        return topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader

    def send(
        self,
        broker_id: int,
        request: WriteTxnMarkersRequest,
        done: Done[WriteTxnMarkersResponse],
    ) -> None:
        if broker_id == self._node_id:
            self._marker_writer.write(request, done)
        else:
            self._deliver(broker_id, MARKERS, request, done)

    def ask(
        self,
        broker_id: int,
        request: AddPartitionsToTxnRequest,
        done: Done[AddPartitionsToTxnResponse],
    ) -> None:
        self._deliver(broker_id, ADDITIONS, request, done)

    def monotonic_ms(self) -> int:
        return self._reactor.clock.monotonic_ms()

    def soon(self, callback: Callable[[], None]) -> None:
        self._reactor.soon(callback)

    def retry_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._reactor.call_later(delay_ms, callback)

    def _deliver(self, broker_id: int, purpose: str, request: Any, done: Done[Any]) -> None:
        broker = self._current.image.brokers.get(broker_id)
        address = None if broker is None else broker.endpoint(self._listener_name)
        if address is None or broker_id == self._node_id:
            self._reactor.soon(lambda: done(BrokerError(ErrorCode.NOT_COORDINATOR)))
            return
        peer = self._peers.to(address.host, address.port, purpose, node_id=broker_id)
        peer.send(
            request,
            lambda answer: done(
                BrokerError(ErrorCode.NETWORK_EXCEPTION, str(answer)) if isinstance(answer, BarnabasError) else answer
            ),
            timeout_ms=self._config.get_int("request.timeout.ms"),
        )
