"""Decides AllocateProducerIds: allocates each block of producer ids once (KIP-730)."""

from __future__ import annotations

from barnabas.broker.controller.core.decision import ClusterView, MetadataDecision
from barnabas.broker.controller.core.registration import check_broker_epoch
from barnabas.broker.image.records import ProducerIdsRecord
from barnabas.limits import PRODUCER_ID_BLOCK_SIZE
from barnabas.protocol.messages.cluster import AllocateProducerIdsRequest, AllocateProducerIdsResponse


def allocate_producer_ids(
    view: ClusterView, request: AllocateProducerIdsRequest
) -> MetadataDecision[AllocateProducerIdsResponse]:
    """Allocates the next block. Raises BrokerError(STALE_BROKER_EPOCH)."""
    check_broker_epoch(view.image, request.broker_id, request.broker_epoch)
    first = view.image.next_producer_id
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    answer = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE)
    return MetadataDecision(answer, [record])
