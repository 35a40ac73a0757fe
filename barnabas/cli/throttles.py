"""Replication throttles of reassignments, as in kafka-reassign-partitions (KIP-73, KIP-455): rates of brokers, and replicas of topics: leaders' present ones,
followers' new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from barnabas.client.admin import Admin, ConfigResource, PartitionReassignment
from barnabas.client.errors import BrokerUnreachable, RequestTimedOut
from barnabas.client.types import TopicPartition

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"


async def set_throttles(
    admin: Admin,
    rate: int,
    targets: Mapping[TopicPartition, Sequence[int]],
    present: Mapping[TopicPartition, Sequence[int]],
    ongoing: Mapping[TopicPartition, PartitionReassignment],
) -> list[int]:
    """Throttles the moves from `present` to `targets` and those in progress; returns the brokers with a rate, ascending."""
    leaders: dict[str, set[str]] = {}
    followers: dict[str, set[str]] = {}
    brokers: set[int] = set()
    for partition in {*targets, *ongoing}:
        move = ongoing.get(partition)
        sources = set(present.get(partition, ())) if move is None else set(move.replicas) - set(move.adding)
        adding = set(targets[partition]) - sources if partition in targets else set(move.adding if move else ())
        brokers |= sources | adding
        for found, nodes in ((leaders, sources), (followers, adding)):
            found.setdefault(partition.topic, set()).update(f"{partition.partition}:{node}" for node in nodes)
    for node in sorted(brokers):
        await admin.alter_config_resource(_rates_of(node), dict.fromkeys(RATES, str(rate)))
    for topic in sorted(leaders):
        lists = {LEADERS: leaders[topic], FOLLOWERS: followers[topic]}
        values: dict[str, str | None] = {name: ",".join(sorted(nodes)) for name, nodes in lists.items() if nodes}
        await admin.alter_config_resource(ConfigResource("topic", topic), values)
    return sorted(brokers)


async def remove_throttles(admin: Admin, topics: Iterable[str]) -> tuple[list[str], list[str]]:
    """Removes the rates of all brokers and the throttled replicas of these topics.

    Returns:
        In words: what was throttled; the brokers that did not answer, whose rates may remain.
    """
    names = {*topics} & {*await admin.list_topics(include_internal=True)}
    removed: list[str] = []
    unreached: list[str] = []
    resources = [
        *(ConfigResource("topic", topic) for topic in sorted(names)),
        *(_rates_of(broker.node_id) for broker in await admin.list_brokers() if not broker.is_fenced),
    ]
    for resource in resources:
        keys = (LEADERS, FOLLOWERS) if resource.type == "topic" else RATES
        own = 1 if resource.type == "topic" else 2  # the source of a config that is set on the resource itself
        try:
            found = (await admin.describe_config_resources([resource], names=keys)).get(resource, {})
            set_there = [name for name, entry in found.items() if entry.source == own]
            if set_there:
                await admin.alter_config_resource(resource, dict.fromkeys(set_there))
                removed.append(f"{resource.type} {resource.name}")
        except (BrokerUnreachable, RequestTimedOut):
            unreached.append(f"{resource.type} {resource.name}")
    return removed, unreached


def _rates_of(node_id: int) -> ConfigResource:
    return ConfigResource("broker", str(node_id))
