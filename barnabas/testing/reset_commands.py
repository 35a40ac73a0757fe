"""Reset commands inside a node's event loop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.transactions.shard import TransactionShard
from barnabas.testing.errors import KitError
from barnabas.testing.node_host import NodeHost

DISK_BYTES_MAX: Final = 8 * 1024 * 1024  # in memory, with the files of deleted topics


def lasting_state(host: NodeHost) -> list[str]:
    """What a test can change in this node, or in what it knows of the cluster, as text."""
    node, image = host.running, host.running.image
    groups = [each.group_id for _, shard in node.groups.host.active_shards() for each in shard.groups()]
    ids = [each for _, shard in node.transactions.host.active_shards() for each in shard.transactions]
    replicas = sorted((each.topic, each.partition, each.leader_epoch) for each in node.replicas.all())
    metadata: tuple[Mapping[Any, Any], ...] = (
        *(image.features, image.configs, image.topics_by_name, image.brokers, image.controllers),
        *(image.acls, image.scram_credentials, image.delegation_tokens, image.quotas),
    )
    return [repr(sorted(map(repr, each.items()))) for each in metadata] + [repr((image.foreign, replicas, groups, ids))]


def forget_test(host: NodeHost) -> None:
    """Deletes the groups without members and the transactional ids without a transaction that this node coordinates.

    Raises KitError: the test has left more in memory than another one should pay for.
    """
    used = sum(each.total_bytes() - each.available_bytes() for each in host.disks)
    if used > DISK_BYTES_MAX:
        raise KitError(f"broker {host.node_id} has {used} bytes of files")
    node = host.running
    for _, groups in node.groups.host.active_shards():
        for group in groups.groups():
            node.groups.write(group.group_id, partial(_without_group, group.group_id), _ignored)
    for partition, transactions in node.transactions.host.active_shards():
        now_ms = host.clock.now_ms()
        for transactional_id in transactions.expirable(now_ms):
            node.transactions.host.write(partition, partial(_without_id, transactional_id), _ignored)
    host.recorder.begin_anew()


def _without_group(group_id: str, shard: GroupShard, _at: Any) -> Any:
    return shard.delete_group(group_id)


def _without_id(transactional_id: str, shard: TransactionShard, now_ms: int) -> Any:
    return shard.expire(transactional_id, now_ms)


def _ignored(_outcome: object) -> None:
    """What was refused is still there, so the states differ."""
