"""Requests about the cluster and its brokers: description, metadata quorum, features, elections, log directories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from barnabas.client.admin.requests import AdminRequests, raise_first
from barnabas.client.admin.types import (
    BrokerDescription,
    ClusterDescription,
    FeatureDescription,
    LogDirDescription,
    QuorumDescription,
    QuorumReplicaDescription,
    ReplicaDescription,
)
from barnabas.client.errors import code_of
from barnabas.client.net.core.metadata import BrokerEndpoint
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC
from barnabas.protocol.messages.admin import (
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.cluster import UnregisterBrokerRequest
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from barnabas.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumRequestTopic
from barnabas.protocol.messages.shared import PartitionIndex, TopicPartitions

_DESCRIBE_CLUSTER = 60
_UPGRADE_TYPES = {"refuse": 1, "safe": 2, "unsafe": 3}


class ClusterAdmin(AdminRequests):
    """Requests about the cluster and its brokers."""

    async def describe_cluster(self) -> ClusterDescription:
        """Cluster id, controller id (−1 unknown) and the live brokers (KIP-700)."""
        response: DescribeClusterResponse = await self._retried(DescribeClusterRequest())
        brokers = [BrokerEndpoint(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def list_brokers(self) -> list[BrokerDescription]:
        """Returns the registered brokers by id, also fenced ones (KIP-1073) from Kafka 4.0 on."""
        response: DescribeClusterResponse = await self._retried(DescribeClusterRequest(include_fenced_brokers=True))
        connection = self._cluster.any_connection()
        told = connection is not None and connection.core.versions.get(_DESCRIBE_CLUSTER, (0, 0))[1] >= 2
        return sorted(
            BrokerDescription(b.broker_id, b.host, b.port, b.rack, b.is_fenced if told else None)
            for b in response.brokers
        )

    async def describe_features(self) -> list[FeatureDescription]:
        """Returns every supported or finalized feature, by name (KIP-584)."""
        response: ApiVersionsResponse = await self._retried(
            ApiVersionsRequest(client_software_name="barnabas", client_software_version="admin")
        )
        finalized = {each.name: each.max_version_level for each in response.finalized_features}
        supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
        return [
            FeatureDescription(name, *supported.get(name, (0, 0)), finalized.get(name, 0))
            for name in sorted({*finalized, *supported})
        ]

    async def features(self) -> dict[str, int]:
        """Returns the finalized features and their levels, such as transaction.version (KIP-584)."""
        await self._connected()
        await self._cluster.ready_connection(None)  # a broker announces them when it is connected
        return dict(self._cluster.features().levels)

    async def describe_quorum(self) -> QuorumDescription:
        """Returns the quorum's leader and the log ends of voters and observers (KIP-595)."""
        topic = DescribeQuorumRequestTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[PartitionIndex()])
        response = await self._retried(DescribeQuorumRequest(topics=[topic]))
        found = response.topics[0].partitions[0]
        raise_first([found])
        endpoints = {
            node.node_id: tuple(f"{each.name}://{each.host}:{each.port}" for each in node.listeners)
            for node in response.nodes
        }
        return QuorumDescription(
            found.leader_id,
            found.leader_epoch,
            found.high_watermark,
            {voter.replica_id: voter.log_end_offset for voter in found.current_voters},
            {observer.replica_id: observer.log_end_offset for observer in found.observers},
            tuple(
                QuorumReplicaDescription(
                    each.replica_id,
                    each.replica_directory_id,
                    is_voter,
                    each.log_end_offset,
                    each.last_fetch_timestamp,
                    each.last_caught_up_timestamp,
                    endpoints.get(each.replica_id, ()) if is_voter else (),
                )
                for is_voter, several in ((True, found.current_voters), (False, found.observers))
                for each in several
            ),
        )

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: Literal["refuse", "safe", "unsafe"] = "refuse",
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Finalizes features at the given levels, all or none (KIP-584); level 0 removes a feature.

        Args:
            downgrade: whether a level may be lowered: never, only without loss of information, or always.
        """
        updates = [
            FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                upgrade_type=_UPGRADE_TYPES[downgrade],
                allow_downgrade=downgrade != "refuse",
            )
            for name, level in levels.items()
        ]
        response = await self._retried(
            lambda left_ms: UpdateFeaturesRequest(
                feature_updates=updates, validate_only=validate_only, timeout_ms=left_ms
            ),
            timeout_ms=timeout_ms,
        )
        raise_first(response.results)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Elects preferred leaders; `unclean` elects any replica of a leaderless partition, which may lose records.

        `partitions` None means all. Returns for each tried partition NONE or the reason (ELECTION_NOT_NEEDED, …).
        """
        topics: dict[str, TopicPartitions] | None = None
        if partitions is not None:
            topics = {}
            for tp in partitions:
                topics.setdefault(tp.topic, TopicPartitions(topic=tp.topic)).partitions.append(tp.partition)
        response = await self._retried(
            lambda left_ms: ElectLeadersRequest(
                election_type=int(unclean),
                topic_partitions=None if topics is None else list(topics.values()),
                timeout_ms=left_ms,
            ),
            timeout_ms=timeout_ms,
        )
        return {
            TopicPartition(topic.topic, p.partition_id): code_of(p.error_code)
            for topic in response.replica_election_results
            for p in topic.partition_result
        }

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> dict[int, list[LogDirDescription]]:
        """Returns the log directories of brokers (None: all live brokers), with their replicas."""
        chosen = (
            sorted(b.node_id for b in (await self.describe_cluster()).brokers) if brokers is None else list(brokers)
        )
        found: dict[int, list[LogDirDescription]] = {}
        for node_id in chosen:
            response = await self._retried(DescribeLogDirsRequest(topics=None), node_id=node_id)
            found[node_id] = [
                LogDirDescription(
                    directory.log_dir,
                    code_of(directory.error_code),
                    directory.total_bytes,
                    directory.usable_bytes,
                    {
                        TopicPartition(topic.name, p.partition_index): ReplicaDescription(
                            p.partition_size, p.offset_lag, p.is_future_key
                        )
                        for topic in directory.topics
                        for p in topic.partitions
                    },
                    directory.is_cordoned,
                )
                for directory in response.results
            ]
        return found

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes the registration of a broker that will not return."""
        await self._retried(UnregisterBrokerRequest(broker_id=broker_id))
