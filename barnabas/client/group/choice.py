"""Protocol choice for `group_protocol="auto"`: KIP-848 if `group.version` 1 is finalized and offered, else classic."""

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
    """Creates the group of one consumer. `classic` and `consumer` create a membership in the protocol of that name."""

    def __init__(
        self, cluster: NetworkClient, classic: Callable[[], ClassicGroup], consumer: Callable[[], ConsumerGroup]
    ) -> None:
        self._cluster = cluster
        self._classic = classic
        self._consumer = consumer

    async def first(self) -> Group:
        """The first membership, by the broker's features. Raises BrokerUnreachable."""
        connection = await self._cluster.ready_connection(None)
        finalized = self._cluster.features().levels.get("group.version", 0) >= 1
        served = finalized and ConsumerGroupHeartbeatRequest.API_KEY in connection.core.versions
        return self._consumer() if served else self._classic()

    def after(self, group: Group, error: KafkaError) -> Group | None:
        """The membership after a failed poll of `group`; None if the caller must get the error.

        A coordinator may still reject the join: GROUP_ID_NOT_FOUND if classic members cannot be converted
        (`group.consumer.migration.policy`), UNSUPPORTED_VERSION if the protocol is disabled. The member then stays
        classic.
        """
        if not isinstance(group, ConsumerGroup) or error.code not in _REFUSALS:
            return None
        if group.member.owned:
            return group  # its next poll reports the loss of the partitions; the join after that is rejected again
        log.info("group %s is joined with the classic protocol: %s", group.group_id, error)
        group.end_tasks()
        return self._classic()
