"""Broker heartbeats: requested and decided states of a broker (KIP-631, KIP-841, Kafka's BrokerHeartbeatManager).

FENCED ──caught up, wants neither──► UNFENCED ──wants to shut down, leads something──► CONTROLLED_SHUTDOWN
   ▲                                     │                                                    │
   └───────── session over, wants fence ─┴── leads nothing ──► SHUTDOWN_NOW ◄── leads nothing, the others know it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from barnabas.broker.controller.core.decision import ClusterView, MetadataDecision
from barnabas.broker.controller.core.directories import directories_offline
from barnabas.broker.controller.core.registration import (
    check_broker_epoch,
    fence_broker,
    shut_down_broker,
    unfence_broker,
)
from barnabas.broker.controller.core.sessions import BrokerSessions
from barnabas.broker.image.image import BrokerImage, MetadataImage
from barnabas.broker.image.records import BrokerRegistrationChangeRecord, MetadataRecord
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerHeartbeatResponse


class BrokerControlState(Enum):
    """A broker's state at the controller."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


def broker_heartbeat(
    view: ClusterView, sessions: BrokerSessions, request: BrokerHeartbeatRequest, now_ms: int
) -> MetadataDecision[BrokerHeartbeatResponse]:
    """`liveness.py` records the heartbeat. Raises BrokerError(STALE_BROKER_EPOCH) if the broker has registered again, or was removed."""
    broker = check_broker_epoch(view.image, request.broker_id, request.broker_epoch)
    present = _present(broker)
    wanted = _next(view.image, broker, request, lambda others: sessions.may_stop(broker.broker_id, others, now_ms))
    if wanted is BrokerControlState.UNFENCED and sessions.unfence_in_ms(broker.broker_id, now_ms):
        wanted = present  # it has crashed too often recently
    records: list[MetadataRecord] = []
    if broker.directories and all(each in request.offline_log_dirs for each in broker.directories):
        if wanted is not BrokerControlState.SHUTDOWN_NOW:
            wanted = BrokerControlState.FENCED  # KIP-858: no online directory
    else:
        records = directories_offline(view, broker, request.offline_log_dirs)
    if records and wanted is BrokerControlState.UNFENCED:
        # It must not be elected for what it has just lost: its next heartbeat unfences it.
        wanted = present
    if present is not wanted:
        records += _becomes(view, broker.broker_id, wanted)
    cordoned = request.cordoned_log_dirs
    if cordoned is not None and tuple(cordoned) != (broker.cordoned_directories or ()):
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
            )
        )
    answer = BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.epoch,
        is_fenced=wanted in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=wanted is BrokerControlState.SHUTDOWN_NOW,
    )
    return MetadataDecision(answer, records)


def _becomes(view: ClusterView, broker_id: int, state: BrokerControlState) -> list[MetadataRecord]:
    if state is BrokerControlState.UNFENCED:
        return unfence_broker(view, broker_id)
    if state is BrokerControlState.CONTROLLED_SHUTDOWN:
        return shut_down_broker(view, broker_id)
    return fence_broker(view, broker_id)


def _present(broker: BrokerImage) -> BrokerControlState:
    if broker.fenced:
        return BrokerControlState.FENCED
    return BrokerControlState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerControlState.UNFENCED


def _next(
    image: MetadataImage,
    broker: BrokerImage,
    request: BrokerHeartbeatRequest,
    may_stop: Callable[[Sequence[BrokerImage]], bool],
) -> BrokerControlState:
    match _present(broker):
        case BrokerControlState.FENCED if request.want_shut_down:
            return BrokerControlState.SHUTDOWN_NOW
        case BrokerControlState.FENCED:
            caught_up = request.current_metadata_offset >= broker.epoch
            stays = request.want_fence or not caught_up or broker.in_controlled_shutdown
            return BrokerControlState.FENCED if stays else BrokerControlState.UNFENCED
        case BrokerControlState.UNFENCED if request.want_fence:
            return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
        case BrokerControlState.UNFENCED if not request.want_shut_down:
            return BrokerControlState.UNFENCED
        case BrokerControlState.UNFENCED:
            return (
                BrokerControlState.CONTROLLED_SHUTDOWN
                if _leads(image, broker.broker_id)
                else BrokerControlState.SHUTDOWN_NOW
            )
    if _leads(image, broker.broker_id) or not may_stop(image.alive_brokers()):
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.SHUTDOWN_NOW


def _leads(image: MetadataImage, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, _, partition in image.partitions())
