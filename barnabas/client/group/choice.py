"""The choice of a group's protocol with `group_protocol="auto"`: KIP-848 where the cluster serves it, the classic one otherwise.

The consumer protocol is served if the cluster has finalized `group.version` 1 and a broker offers its heartbeats. A new group then
needs no rebalance delay. Even so a coordinator may refuse the join: GROUP_ID_NOT_FOUND if the group has members of the classic
protocol and cannot be converted (`group.consumer.migration.policy`, or an assignor that only its members know), and
UNSUPPORTED_VERSION if the protocol is disabled. The consumer then joins as a classic member, and stays one.
Follows KIP-848.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from barnabas.client.errors import KafkaError
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.consumer_group import ConsumerGroup
from barnabas.client.group.group import Group
from barnabas.client.net.cluster import NetworkClient
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

log = logging.getLogger("barnabas.client.group")

_REFUSALS = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})


class GroupChoice:
    """Makes the group of one consumer.

    Args:
        classic, consumer: make a membership in the protocol of that name.
    """

    def __init__(
        self, cluster: NetworkClient, classic: Callable[[], ClassicGroup], consumer: Callable[[], ConsumerGroup]
    ) -> None:
        self._cluster = cluster
        self._classic = classic
        self._consumer = consumer

    async def first(self) -> Group:
        """The group to start with, by what a broker announces.

        Raises:
            BrokerUnreachable: no broker could be reached in time.
        """
        connection = await self._cluster.ready_connection(None)
        finalized = self._cluster.features().levels.get("group.version", 0) >= 1
        served = finalized and ConsumerGroupHeartbeatRequest.API_KEY in connection.core.versions
        return self._consumer() if served else self._classic()

    def after(self, group: Group, error: KafkaError) -> Group | None:
        """The group to use after a poll of `group` raised `error`; None if the caller must learn of the error."""
        if not isinstance(group, ConsumerGroup) or error.code not in _REFUSALS:
            return None
        if group.member.owned:
            return group  # its next poll reports the loss of the partitions; the join after that is refused again
        log.info("group %s is joined with the classic protocol: %s", group.group_id, error)
        group.end_tasks()
        return self._classic()
