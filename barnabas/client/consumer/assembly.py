"""Assembly of a consumer's parts from its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from barnabas.client.consumer.commits import Commits
from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.fetching import FetchConfig, Fetcher
from barnabas.client.consumer.positions import Positions
from barnabas.client.consumer.reader import Reader
from barnabas.client.consumer.subscription import Subscription
from barnabas.client.group.choice import GroupChoice
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.group.consumer_group import ConsumerGroup
from barnabas.client.group.core.classic_member import ClassicMember
from barnabas.client.group.group import GroupHooks
from barnabas.client.net.client_ports import ClientPorts
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.types import TopicPartition


class ConsumerParts(NamedTuple):
    """The parts of one consumer."""

    cluster: NetworkClient
    fetcher: Fetcher
    reader: Reader
    positions: Positions
    subscription: Subscription
    commits: Commits


def assemble_consumer(
    config: ConsumerConfig,
    apply_assignment: Callable[[Sequence[TopicPartition]], None],
    ports: ClientPorts,
) -> ConsumerParts:
    cluster = NetworkClient(config, ports)
    fetcher = Fetcher(
        _fetch_config(config),
        cluster.metadata,
        cluster.rng,
        key_deserializer=config.key_deserializer,
        value_deserializer=config.value_deserializer,
    )
    subscription = Subscription(cluster, fetcher, config.group_id)
    reader = Reader(cluster, fetcher, subscription.reading_member)
    commits = Commits(
        cluster,
        fetcher,
        group=lambda: subscription.member,
        who=subscription.group_metadata,
        interval_ms=config.auto_commit_interval_ms if config.commits_automatically else None,
    )
    if config.group_id is not None:
        hooks = GroupHooks(apply_assignment, commits.before_revoke, reader.notify)
        classic = partial(_classic_group, config, config.group_id, cluster, hooks)
        consumer = partial(_consumer_group, config, config.group_id, cluster, hooks)
        if config.group_protocol == "auto":
            subscription.choice = GroupChoice(cluster, classic, consumer)
        else:
            subscription.group = consumer() if config.group_protocol == "consumer" else classic()
    positions = Positions(cluster, fetcher, reader)
    return ConsumerParts(cluster, fetcher, reader, positions, subscription, commits)


def _fetch_config(config: ConsumerConfig) -> FetchConfig:
    return FetchConfig(
        fetch_min_bytes=config.fetch_min_bytes,
        fetch_max_bytes=config.fetch_max_bytes,
        fetch_max_wait_ms=config.fetch_max_wait_ms,
        max_partition_fetch_bytes=config.max_partition_fetch_bytes,
        read_committed=config.read_committed,
        check_crcs=config.check_crcs,
        auto_offset_reset=config.auto_offset_reset,
        retry_backoff_ms=config.retry_backoff_ms,
        rack_id=config.client_rack,
        raw_records=config.raw_records,
        value_runs=config.value_runs,
    )


def _consumer_group(config: ConsumerConfig, group_id: str, cluster: NetworkClient, hooks: GroupHooks) -> ConsumerGroup:
    return ConsumerGroup(
        cluster,
        group_id,
        hooks,
        group_instance_id=config.group_instance_id,
        rack_id=config.client_rack or None,
        server_assignor=config.group_remote_assignor,
        max_poll_interval_ms=config.max_poll_interval_ms,
    )


def _classic_group(config: ConsumerConfig, group_id: str, cluster: NetworkClient, hooks: GroupHooks) -> ClassicGroup:
    member = ClassicMember(
        group_id,
        group_instance_id=config.group_instance_id,
        rack_id=config.client_rack or None,
        strategies=config.partition_assignment_strategy,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
    )
    return ClassicGroup(cluster, member, hooks)
