"""Moves the coordinator of a group or transactional id, on any Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.testing.errors import KitError

if TYPE_CHECKING:
    from barnabas.testing.core import Core


async def move_coordinator(core: Core, txn: object, group: object, to: object) -> int:
    """Returns the id of the new coordinator. Raises KitError if there is no other broker for it."""
    name = group if txn is None else txn
    if (txn is None) == (group is None) or not isinstance(name, str) or not name:
        raise KitError(
            f"move_coordinator(txn={txn!r}, group={group!r}): name one of them, a transactional id or the id of a group"
        )
    if len(core.backend.broker_ids) == 1:
        raise KitError(
            "this cluster has one broker, so its coordinators cannot move: use Cluster(brokers=3) or brokers=3 in the marker"
        )
    target = None if to is None else core.check_broker(to)
    topic = GROUP_METADATA_TOPIC if txn is None else TRANSACTION_STATE_TOPIC
    count = len(await core.partitions(topic))
    return await core.move_leader(topic, partition_for(name, count), target)
