"""The kit's own commands to one node: what it knows, and the topics of the coordinators. `node_commands.py` has their names."""

from __future__ import annotations

import asyncio
from typing import Any

from barnabas.errors import BrokerError
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.node_host import NodeHost


def partitions(host: NodeHost, topic: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """The partitions of a topic, or of all topics, as this node knows them: leader (−1: none), replicas and in-sync replicas."""
    topics = host.running.image.topics_by_name
    return {
        name: [
            {"leader": each.leader, "replicas": list(each.replicas), "isr": list(each.isr)} for each in found.partitions
        ]
        for name, found in topics.items()
        if topic is None or name == topic
    }


def controller(host: NodeHost) -> int:
    """Node id of the active controller, as this node knows it; −1 if it knows none."""
    return host.running.quorum.leader_id


def live_brokers(host: NodeHost) -> list[int]:
    """Ids of the brokers that are registered and unfenced, as this node knows them."""
    return sorted(each.broker_id for each in host.running.image.alive_brokers())


def connections(host: NodeHost) -> list[dict[str, Any]]:
    """The open connections of clients."""
    return [
        {"client_id": each.client_id or "", "host": each.client_host, "port": each.client_port}
        for each in host.running.server.connections
        if each.listener_name != INTERNAL_LISTENER
    ]


def metrics_address(host: NodeHost) -> tuple[str, int] | None:
    """Host and port of the broker's metrics; None if `metrics.listen` is not set."""
    metrics = host.running.metrics
    return None if metrics is None else metrics.address


async def ensure_internal_topics(host: NodeHost) -> None:
    """Creates the topics of groups and of transactions, as the first client of each would. Raises BrokerError."""
    for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        ensured: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        host.running.controller.ensure_topic(name, ensured.set_result)
        problem = await ensured
        if problem is not None:
            raise problem
