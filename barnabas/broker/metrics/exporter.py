"""Collectors of kafka_exporter's series and of Barnabas' own series."""

from __future__ import annotations

from barnabas.broker.metrics.end_offsets import EndOffsets
from barnabas.broker.metrics.exposition import Exposition
from barnabas.broker.metrics.group_series import GroupSeries
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.own_series import OwnSeries
from barnabas.broker.metrics.parts import Observed
from barnabas.broker.metrics.topic_partition_series import TopicPartitionSeries
from barnabas.broker.metrics.transaction_series import TransactionSeries


def add_exporter(exposition: Exposition, node: Observed) -> None:
    """kafka_exporter's partitions, brokers, and lag of groups."""
    exposition.add(TopicPartitionSeries(node.replicas, node.current_image, node.quorum_controller).collect)
    groups = GroupSeries(node.groups, node.current_image, node.replicas)
    groups.ends = EndOffsets(
        node.reactor,
        node.slices,
        node.peers,
        node.current_image,
        node_id=node.node_id,
        listener=node.config.inter_broker_listener,
        wanted=groups.wanted,
    )
    exposition.add_preparation(groups.ends.refresh)
    exposition.add(groups.collect)


def add_own(exposition: Exposition, node: Observed, watch: LoopWatch) -> None:
    """Transactions, fences, refusals, pauses and recovery."""
    exposition.add(TransactionSeries(node.reactor, node.transactions, node.replicas).collect)
    exposition.add(OwnSeries(node, watch).collect)
