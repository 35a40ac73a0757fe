"""Chooses the replica that a consumer should read from, for the partition's leader (KIP-392).

Pure functions. Driven by: consumers' fetches that name a rack, if `replica.selector.class` uses racks. Emits: the id of a
follower, or LEADER.

A follower is chosen only while it is in the ISR and holds the requested offset: a lagging one would be chosen again and again, and its
reader would stay behind. Of several in the rack the one with the highest log end is chosen, then the one that was caught up last, then
the highest id: the order of Kafka's RackAwareReplicaSelector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.broker.image.image import BrokerImage
    from barnabas.broker.replica.machine import Replica

LEADER: Final = -1


def nearest_replica(
    replica: Replica, fetch_offset: int, rack_id: str, brokers: Mapping[int, BrokerImage], listener: str
) -> int:
    """The follower of `replica`, which this node leads, that a consumer in a rack should read from; LEADER if none is nearer.

    Args:
        brokers: brokers in the metadata.
        listener: the consumer's listener: a broker without an address for it is not chosen.
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
