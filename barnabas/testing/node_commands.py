"""Commands that the kit runs inside a node's event loop: the table of their names, and the kit's own.

A command is a function `command(host, **arguments)`, plain or a coroutine. Its arguments and its value are JSON values, because they
pass a pipe where the node is a process. An extension adds a row to COMMANDS; the module is imported on the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from barnabas.testing.node_host import NodeHost

__all__ = ["COMMANDS"]

# name -> module:function
COMMANDS: Final[dict[str, str]] = {
    "partitions": "barnabas.testing.node_commands:partitions",
    "controller": "barnabas.testing.node_commands:controller",
    "live_brokers": "barnabas.testing.node_commands:live_brokers",
    "connections": "barnabas.testing.node_commands:connections",
}


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


def connections(host: NodeHost) -> list[dict[str, str]]:
    """Client id and address of each open client connection of this node."""
    return [{"client_id": each.client_id or "", "address": repr(each)} for each in host.running.server.connections]
