"""Nearest replica: the follower that a consumer of a rack should read from (KIP-392)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.broker.image.image import BrokerImage
    from barnabas.broker.replica.core.machine import Replica

LEADER: Final = -1


def nearest_replica(
    replica: Replica, fetch_offset: int, rack_id: str, brokers: Mapping[int, BrokerImage], listener: str
) -> int:
    """The follower that a consumer in a rack should read from; LEADER if none is nearer.

    Only one in the ISR that holds the offset: a reader of a lagging follower would stay behind. Order of Kafka's RackAwareReplicaSelector:
    highest log end, caught up last, highest id. A broker without an address for `listener` is not chosen.
    """
    own = brokers.get(replica.node_id)
    if own is None or own.rack == rack_id:
        return LEADER
    best, best_rank = LEADER, (-1, 0)
    for broker_id, follower in sorted(replica.in_sync.followers.items()):
        if broker_id not in replica.isr or not follower.log_start_offset <= fetch_offset <= follower.log_end_offset:
            continue
        broker = brokers.get(broker_id)
        if broker is None or broker.fenced or broker.rack != rack_id or broker.endpoint(listener) is None:
            continue
        rank = (follower.log_end_offset, follower.last_caught_up_ms)
        if best == LEADER or rank >= best_rank:
            best, best_rank = broker_id, rank
    return best
