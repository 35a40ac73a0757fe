"""Admin: topics, configs, records, groups, transactions and the cluster, as coroutines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from operator import attrgetter
from types import EllipsisType
from typing import Any, Final, Literal, NamedTuple, Self, Unpack, get_args

from barnabas.client.admin.types import (
    AclBinding,
    AclBindingFilter,
    BrokerDescription,
    ClientQuotas,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    DelegationToken,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    LogDirDescription,
    NewTopic,
    PartitionLag,
    PartitionReassignment,
    ProducerDescription,
    QuorumDescription,
    QuorumReplicaDescription,
    QuotaEntityType,
    ReplicaDescription,
    ResourceType,
    ScramMechanism,
    TransactionDescription,
    TransactionListing,
)
from barnabas.client.errors import ClientClosed, IllegalState, KafkaError, code_of, error_for
from barnabas.client.group.committed_offsets import commit_offsets, committed_offsets
from barnabas.client.group.core.classic_member import assigned_partitions
from barnabas.client.loop_affinity import LoopBound, bound_to_loop
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.net.core.metadata import BrokerEndpoint, TopicInfo
from barnabas.client.net.deadline import Deadline, ask_broker, ask_leaders
from barnabas.client.net.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.client.types import (
    ConsumerGroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.network_port import Network
from barnabas.ports import Clock, Rng
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC
from barnabas.protocol.messages.acls import (
    AclCreation,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcl,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    FeatureUpdateKey,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.cluster import UnregisterBrokerRequest
from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
)
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from barnabas.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumRequestTopic
from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaComponent,
    QuotaOperation,
)
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from barnabas.protocol.messages.shared import PartitionIndex, TopicPartitionIndexes, TopicPartitions
from barnabas.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)

_DESCRIBE_CLUSTER = 60
_UPGRADE_TYPES = {"refuse": 1, "safe": 2, "unsafe": 3}
_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class _Kind(NamedTuple):
    code: int  # in DescribeConfigs and IncrementalAlterConfigs
    of_broker: bool  # its name is a node id, and only that broker knows its configs


RESOURCE_TYPES: Final[dict[ResourceType, _Kind]] = {
    "topic": _Kind(2, of_broker=False),
    "broker": _Kind(4, of_broker=True),
    "broker-logger": _Kind(8, of_broker=True),
    "client-metrics": _Kind(16, of_broker=False),
    "group": _Kind(32, of_broker=False),
}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_RESOURCES_PER_REQUEST: Final = 200  # a response has about 35 configs for each, with their synonyms
_EXACT, _DEFAULT, _SPECIFIED = range(3)
_TYPES: Final = frozenset(map(int, AclResourceType))
_OPERATIONS: Final = frozenset(map(int, AclOperation))
_ORDER: Final[Callable[[AclBinding], Any]] = attrgetter(
    "resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"
)
_MECHANISMS: Final[Mapping[str, tuple[int, str]]] = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
_SALTED_MAX: Final = 20_000  # iterations that are computed; brokers refuse more than 16,384


def _whole(response: Any) -> Any:
    return response


@bound_to_loop()
class Admin(LoopBound):
    """Administers a cluster: topics, configs, records, groups, transactions, brokers (KIP-117).

    Use as `async with Admin(bootstrap_servers="localhost:9092") as admin:` or with `start` … `stop`.

    Every call repeats its requests after retriable errors, until its time limit has passed: `timeout_ms` in milliseconds, by
    default `request_timeout_ms`. Then it raises RequestTimedOut. It raises ClientClosed before `start` and after `stop`, and
    otherwise the KafkaError that a broker answered. A call with several items raises the first error after it has tried all.

    Args:
        bootstrap_servers, client_id, retry_backoff_ms: as in Producer.
        request_timeout_ms: time limit of an answer in milliseconds, and of a call without `timeout_ms`.
        clock, rng, network: the ports; the real ones by default.
        security: the settings of TLS and SASL, as in Producer.

    Raises:
        IllegalState: a setting is invalid.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "barnabas-admin",
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 20,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        config = ConnectionConfig.from_arguments(locals())
        self._cluster = NetworkClient(config, clock, rng, network)
        self._home = self._cluster.home
        self._started = False

    async def start(self) -> None:
        """Connects. Raises KafkaError if no broker can be reached."""
        if not self._started:
            self._started = True
            try:
                await self._cluster.start()
            except BaseException:
                await self._cluster.close()
                raise

    async def stop(self) -> None:
        """Closes the connections."""
        if self._home.is_closed(f"{type(self).__name__}.stop"):
            self._cluster.abandon()
        else:
            await self._cluster.close()

    close = stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self.stop()

    def _check_open(self) -> None:
        if not self._started or self._cluster.closed:
            raise ClientClosed("the admin client is not started, or was closed")

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        wanted = None if topics is None else [MetadataRequestTopic(name=t) for t in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response: MetadataResponse = await self._ask(request, None)
        return response

    # -- the cluster and its brokers -----------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """Cluster id, controller id (−1 unknown) and the live brokers (KIP-700)."""
        response: DescribeClusterResponse = await self._ask(DescribeClusterRequest())
        brokers = [BrokerEndpoint(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def list_brokers(self) -> list[BrokerDescription]:
        """Returns the registered brokers by id, also fenced ones (KIP-1073) from Kafka 4.0 on."""
        response: DescribeClusterResponse = await self._ask(DescribeClusterRequest(include_fenced_brokers=True))
        connection = self._cluster.any_connection()
        told = connection is not None and connection.core.versions.get(_DESCRIBE_CLUSTER, (0, 0))[1] >= 2
        return sorted(
            BrokerDescription(b.broker_id, b.host, b.port, b.rack, b.is_fenced if told else None)
            for b in response.brokers
        )

    async def describe_features(self) -> list[FeatureDescription]:
        """Returns every supported or finalized feature, by name (KIP-584)."""
        response: ApiVersionsResponse = await self._ask(
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
        self._check_open()
        await self._cluster.ready_connection(None)  # a broker announces them when it is connected
        return dict(self._cluster.features().levels)

    async def describe_quorum(self) -> QuorumDescription:
        """Returns the quorum's leader and the log ends of voters and observers (KIP-595)."""
        topic = DescribeQuorumRequestTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[PartitionIndex()])
        response = await self._ask(DescribeQuorumRequest(topics=[topic]))
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
        response = await self._ask(
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
        response = await self._ask(
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
            response = await self._ask(DescribeLogDirsRequest(topics=None), node_id=node_id)
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
        await self._ask(UnregisterBrokerRequest(broker_id=broker_id))

    # -- topics and records --------------------------------------------------------------------------------------------

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        refused: MutableMapping[str, KafkaError] | None = None,
    ) -> dict[str, tuple[int, int]]:
        """Creates topics (KIP-4).

        Args:
            refused: gets the errors by topic, instead of raising the first.

        Returns:
            Partitions and replication factor of each created topic; −1 if unknown (before KIP-525).

        Raises:
            TopicAlreadyExists, InvalidTopic, KafkaError: the first error; the other topics were created.
        """
        left = {t.name: t for t in topics}
        created: dict[str, tuple[int, int]] = {}

        def request(budget_ms: int) -> CreateTopicsRequest:
            return CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=t.name,
                        num_partitions=t.num_partitions,
                        replication_factor=t.replication_factor,
                        assignments=[
                            CreatableReplicaAssignment(partition_index=p, broker_ids=list(nodes))
                            for p, nodes in t.replica_assignments.items()
                        ],
                        configs=[CreatableTopicConfig(name=k, value=v) for k, v in t.configs.items()],
                    )
                    for t in left.values()
                ],
                timeout_ms=budget_ms,
                validate_only=validate_only,
            )

        def results(response: CreateTopicsResponse) -> list[CreatableTopicResult]:
            for each in response.topics:
                if not each.error_code:
                    created[each.name] = (each.num_partitions, each.replication_factor)
            return response.topics

        await self._each(request, results, left, timeout_ms, refused=refused)
        return created

    async def delete_topics(
        self,
        topics: Iterable[str],
        *,
        timeout_ms: int | None = None,
        refused: MutableMapping[str, KafkaError] | None = None,
    ) -> None:
        """Deletes topics with their records (KIP-4).

        Args:
            refused: gets the errors by topic, instead of raising the first.

        Raises:
            UnknownTopicOrPartition, KafkaError: the first error; the other topics were deleted.
        """
        left = dict.fromkeys(topics)

        def request(budget_ms: int) -> DeleteTopicsRequest:
            return DeleteTopicsRequest(
                topics=[DeleteTopicState(name=t) for t in left], topic_names=list(left), timeout_ms=budget_ms
            )

        await self._each(
            request,
            lambda r: r.responses,
            left,
            timeout_ms,
            final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
            refused=refused,
        )

    async def create_partitions(self, counts: Mapping[str, int], *, timeout_ms: int | None = None) -> None:
        """Increases the number of partitions to the given totals (KIP-195). Raises KafkaError for a lower total."""
        left = dict(counts)

        def request(budget_ms: int) -> CreatePartitionsRequest:
            return CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=t, count=n, assignments=None) for t, n in left.items()],
                timeout_ms=budget_ms,
            )

        await self._each(request, lambda r: r.results, left, timeout_ms)

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Returns the names of all topics, sorted."""
        response = await self._metadata(None)
        return sorted(t.name for t in response.topics if t.name and (include_internal or not t.is_internal))

    async def describe_topics(
        self, topics: Iterable[str], *, refused: MutableMapping[str, KafkaError] | None = None
    ) -> dict[str, TopicInfo]:
        """Returns ids, partitions and leaders of topics.

        Args:
            refused: gets the errors by topic, instead of raising the first.

        Raises:
            UnknownTopicOrPartition, KafkaError: the first error.
        """
        wanted = list(dict.fromkeys(topics))
        if not wanted:
            return {}
        response = await self._metadata(wanted)
        errors = {t.name or "": error_for(t.error_code, topic=t.name) for t in response.topics if t.error_code}
        if errors and refused is None:
            raise next(iter(errors.values()))
        (refused if refused is not None else {}).update(errors)
        self._cluster.metadata.update(response, self._cluster.clock.monotonic_ms(), whole=False)
        return {name: self._cluster.metadata.topics[name] for name in wanted if name not in errors}

    # -- records and offsets -------------------------------------------------------------------------------------------

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, int | str],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Returns the offset of one position in each partition (KIP-396).

        Args:
            partitions: "earliest", "latest", "max_timestamp", or a timestamp in ms since the Unix epoch (the first
                record from it on).

        Returns:
            Offset −1 without such a record.

        Raises:
            IllegalState: a position is none of these.
            UnknownTopicOrPartition: the cluster has no such topic or partition.
        """
        unknown = [at for at in partitions.values() if isinstance(at, str) and at not in _TIMES]
        if unknown:
            raise IllegalState(
                f"Admin.list_offsets: {unknown[0]!r} is neither a timestamp nor one of {', '.join(_TIMES)}"
            )
        if isolation_level not in get_args(IsolationLevel):
            raise IllegalState(
                f"Admin.list_offsets: isolation_level={isolation_level!r} is not one of {get_args(IsolationLevel)}"
            )
        self._check_open()
        wanted = {TopicPartition(*tp): _TIMES[t] if isinstance(t, str) else t for tp, t in partitions.items()}
        return await list_offsets(
            self._cluster, wanted, read_committed=isolation_level == "read_committed", timeout_ms=timeout_ms
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below an offset (KIP-107). Returns the new first offset of each partition.

        Args:
            before: the first offset to keep in each partition; −1: the high watermark.

        Raises:
            KafkaError: an offset is above the high watermark (OFFSET_OUT_OF_RANGE), or the topic is only compacted.
        """
        self._check_open()

        def request(offsets: Mapping[TopicPartition, int], left_ms: int) -> DeleteRecordsRequest:
            topics: dict[str, DeleteRecordsTopic] = {}
            for tp, offset in offsets.items():
                topics.setdefault(tp.topic, DeleteRecordsTopic(name=tp.topic)).partitions.append(
                    DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
                )
            return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=left_ms)

        wanted = {TopicPartition(*tp): offset for tp, offset in before.items()}
        found = await ask_leaders(self._cluster, wanted, request, timeout_ms=timeout_ms)
        return {tp: result.low_watermark for tp, result in found.items()}

    # -- configurations ------------------------------------------------------------------------------------------------

    async def describe_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
        names: Sequence[str] | None = None,
    ) -> dict[str, ConfigEntry]:
        """Returns the configs of a topic, a group or a broker: all, or those in `names` (KIP-133).

        Without topic, group and broker: the dynamic defaults of all brokers.
        """
        resource = _resource(topic, broker, group)
        return (await self.describe_config_resources([resource], names=names))[resource]

    async def describe_config_resources(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Returns the configs of several resources: all or those in `names`, with synonyms or documentation if wanted.

        Raises:
            KafkaError: a resource does not exist (UNKNOWN_TOPIC_OR_PARTITION for a topic), or its broker does not
                answer.
        """
        found: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for node_id, several in _by_broker(resources).items():
            for start in range(0, len(several), _RESOURCES_PER_REQUEST):
                part = several[start : start + _RESOURCES_PER_REQUEST]
                response = await self._describe_part(part, node_id, names, synonyms, documentation, timeout_ms)
                raise_first(response.results)
                for result in response.results:
                    kind = next(name for name, kind in RESOURCE_TYPES.items() if kind.code == result.resource_type)
                    resource = ConfigResource(kind, result.resource_name)
                    found[resource] = {config.name: _entry(config) for config in result.configs}
        return found

    async def _describe_part(
        self,
        part: list[ConfigResource],
        node_id: int | None,
        names: Sequence[str] | None,
        synonyms: bool,
        documentation: bool,
        timeout_ms: int | None,
    ) -> DescribeConfigsResponse:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=RESOURCE_TYPES[each.type].code,
                    resource_name=each.name,
                    configuration_keys=None if names is None else list(names),
                )
                for each in part
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        alone = (lambda r: r.results[0]) if len(part) == 1 else None
        response: DescribeConfigsResponse = await self._ask(request, alone, node_id=node_id, timeout_ms=timeout_ms)
        return response

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """Returns the resources of these types (default: all); groups and client metrics only with configs.

        Raises UnsupportedByBroker before Kafka 4.1 (KIP-1142).
        """
        request = ListConfigResourcesRequest(resource_types=[RESOURCE_TYPES[each].code for each in types])
        response: ListConfigResourcesResponse = await self._ask(request)
        names = {kind.code: name for name, kind in RESOURCE_TYPES.items()}
        return [
            ConfigResource(names[each.resource_type], each.resource_name)
            for each in response.config_resources
            if each.resource_type in names
        ]

    async def alter_configs(
        self,
        configs: Mapping[str, str | None],
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
    ) -> None:
        """Sets configs of a topic, group or broker (None: the default), all or none (KIP-339). Raises KafkaError."""
        await self.alter_config_resource(_resource(topic, broker, group), configs)

    async def alter_config_resource(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Changes configs of one resource, all or none; others stay unchanged (KIP-339).

        Args:
            configs: the new values; None restores the default.
            append, subtract: values, separated by commas, to add to lists or to remove from them.
            validate_only: checks without changes.

        Raises:
            KafkaError: a config is unknown, is no list, or its value is invalid (INVALID_CONFIG). Nothing has changed
                then.
        """
        changes = [
            *((name, _DELETE if value is None else _SET, value) for name, value in configs.items()),
            *((name, _APPEND, value) for name, value in (append or {}).items()),
            *((name, _SUBTRACT, value) for name, value in (subtract or {}).items()),
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=RESOURCE_TYPES[resource.type].code,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(name=name, config_operation=operation, value=value)
                        for name, operation, value in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        node_id = _node_of(resource)
        await self._ask(request, lambda r: r.responses[0], node_id=node_id, timeout_ms=timeout_ms)

    # -- client quotas (KIP-546) ---------------------------------------------------------------------------------------

    async def describe_client_quotas(
        self,
        entity: Mapping[QuotaEntityType, str | EllipsisType | None] | None = None,
        *,
        strict: bool = False,
        timeout_ms: int | None = None,
    ) -> list[ClientQuotas]:
        """Returns matching entities with quotas, all by default, in ascending order.

        Args:
            entity: a name by type, None for the default, `...` for any name and the default.
            strict: only entities without other types.

        Raises:
            KafkaError: the filter is invalid (INVALID_REQUEST): a type is unknown, or an ip is combined with other types.
        """
        request = DescribeClientQuotasRequest(
            components=[_component(kind, name) for kind, name in (entity or {}).items()], strict=strict
        )
        response: DescribeClientQuotasResponse = await self._ask(request, timeout_ms=timeout_ms)
        found = [
            ClientQuotas(
                tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
                {each.key: each.value for each in entry.values},
            )
            for entry in response.entries or ()
        ]
        return sorted(found, key=lambda each: [(kind, name is not None, name or "") for kind, name in each.entity])

    async def alter_client_quotas(
        self,
        entity: Mapping[QuotaEntityType, str | None],
        quotas: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Sets and removes quotas of one entity, all or none; its other quotas stay unchanged.

        Args:
            entity: a name by type, None for the default: user, client-id, both, or ip.
            quotas: values by name, None removes one: producer_byte_rate and consumer_byte_rate (bytes a second),
                request_percentage, controller_mutation_rate (partitions a second); of an ip connection_creation_rate
                (connections a second).
            validate_only: checks without changes.

        Raises:
            KafkaError: the entity, a name or a value is invalid (INVALID_REQUEST). Nothing has changed then.
        """
        entry = QuotaAlteration(
            entity=[AlteredQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[
                QuotaOperation(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in quotas.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
        await self._ask(request, lambda answer: answer.entries[0], timeout_ms=timeout_ms)

    # -- ACLs (KIP-140) ------------------------------------------------------------------------------------------------

    async def create_acls(self, acls: Iterable[AclBinding], *, timeout_ms: int | None = None) -> None:
        """Creates ACLs; existing ones stay.

        Raises:
            KafkaError: an ACL is invalid (INVALID_REQUEST), the valid ones were created; the brokers have no authorizer
                (SECURITY_DISABLED); the client may not ALTER the cluster (CLUSTER_AUTHORIZATION_FAILED).
        """
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in acls
            ]
        )
        alone = (lambda answer: answer.results[0]) if len(request.creations) == 1 else None
        response: CreateAclsResponse = await self._ask(request, alone, timeout_ms=timeout_ms)
        raise_first(response.results)

    async def describe_acls(
        self, wanted: AclBindingFilter | None = None, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Returns matching ACLs, all by default, sorted by resource, principal and operation.

        Raises:
            KafkaError: the brokers have no authorizer (SECURITY_DISABLED); the client may not DESCRIBE the cluster.
        """
        request = DescribeAclsRequest(**_fields(wanted or AclBindingFilter()))
        response: DescribeAclsResponse = await self._ask(request, timeout_ms=timeout_ms)
        found = [
            _binding(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
            for resource in response.resources
            for acl in resource.acls
        ]
        return sorted(found, key=_ORDER)

    async def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Deletes the ACLs that match a filter. Returns them, each once, sorted as by `describe_acls`.

        Raises:
            KafkaError: as `create_acls`; more than 10,000 ACLs match (INVALID_REQUEST), none was deleted then.
        """
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(each)) for each in filters])
        alone = (lambda answer: answer.filter_results[0]) if len(request.filters) == 1 else None
        response: DeleteAclsResponse = await self._ask(request, alone, timeout_ms=timeout_ms)
        deleted: set[AclBinding] = set()
        for result in response.filter_results:
            raise_first([result, *result.matching_acls])
            deleted |= {
                _binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in result.matching_acls
            }
        return sorted(deleted, key=_ORDER)

    # -- SCRAM credentials (KIP-554) -----------------------------------------------------------------------------------

    async def describe_scram_users(
        self, users: Iterable[str] = (), *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Returns iterations by user and mechanism, by default of all users. Raises KafkaError (RESOURCE_NOT_FOUND)."""
        names = [ScramUserName(name=each) for each in users]
        request = DescribeUserScramCredentialsRequest(users=names or None)
        response: DescribeUserScramCredentialsResponse = await self._ask(request, timeout_ms=timeout_ms)
        by_number = {number: name for name, (number, _) in _MECHANISMS.items()}
        found: dict[str, dict[str, int]] = {}
        results = sorted(response.results, key=lambda each: each.user)
        raise_first(results)
        for result in results:
            found[result.user] = {
                by_number[info.mechanism]: info.iterations
                for info in result.credential_infos
                if info.mechanism in by_number
            }
        return found

    async def set_scram_password(
        self,
        user: str,
        password: str,
        *,
        mechanism: ScramMechanism = "SCRAM-SHA-512",
        iterations: int = 4_096,
        timeout_ms: int | None = None,
    ) -> None:
        """Creates or replaces a user's credential for one mechanism. The password itself is not sent.

        Args:
            iterations: 4,096 to 16,384; each login computes as many hashes.

        Raises:
            IllegalState: the mechanism is unknown, or the password is empty.
            KafkaError: the number of iterations is rejected (UNACCEPTABLE_CREDENTIAL).
        """
        number, function = _mechanism(mechanism)
        if not password:
            raise IllegalState("the password is empty")
        if not 1 <= iterations <= 2**31 - 1:
            raise IllegalState(f"iterations={iterations}: 4096 to 16384 are possible")
        salt = hashlib.sha256(self._cluster.rng.uuid() + self._cluster.rng.uuid()).digest()
        salted = hashlib.pbkdf2_hmac(function, password.encode(), salt, min(iterations, _SALTED_MAX))
        request = AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
                )
            ]
        )
        await self._ask(request, lambda answer: answer.results[0], timeout_ms=timeout_ms)

    async def delete_scram_credential(
        self, user: str, mechanism: ScramMechanism, *, timeout_ms: int | None = None
    ) -> None:
        """Deletes a user's credential for one mechanism. Authenticated connections stay.

        Raises:
            IllegalState: the mechanism is unknown.
            KafkaError: the user has no such credential (RESOURCE_NOT_FOUND).
        """
        deletion = ScramCredentialDeletion(name=user, mechanism=_mechanism(mechanism)[0])
        request = AlterUserScramCredentialsRequest(deletions=[deletion])
        await self._ask(request, lambda answer: answer.results[0], timeout_ms=timeout_ms)

    # -- delegation tokens (KIP-48, KIP-373) ---------------------------------------------------------------------------

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
        timeout_ms: int | None = None,
    ) -> DelegationToken:
        """Creates a token.

        Args:
            owner: a user; by default the authenticated one.
            renewers: other users that may renew it.
            max_lifetime_ms: its maximum lifetime; -1: the longest that the broker allows.

        Raises:
            KafkaError: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED,
                DELEGATION_TOKEN_AUTHORIZATION_FAILED.
        """
        named = tuple(renewers)
        request = CreateDelegationTokenRequest(
            owner_principal_type=None if owner is None else "User",
            owner_principal_name=owner,
            renewers=_users(named),
            max_lifetime_ms=max_lifetime_ms,
        )
        made: CreateDelegationTokenResponse = await self._ask(request, timeout_ms=timeout_ms)
        return DelegationToken(
            made.token_id,
            bytes(made.hmac),
            made.principal_name,
            made.token_requester_principal_name,
            named,
            made.issue_timestamp_ms,
            made.expiry_timestamp_ms,
            made.max_timestamp_ms,
        )

    async def renew_delegation_token(
        self, hmac: bytes, *, renew_period_ms: int = -1, timeout_ms: int | None = None
    ) -> int:
        """Extends a token; returns its expiry in ms since 1970.

        Raises:
            KafkaError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        return await self._expiry(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=renew_period_ms), timeout_ms)

    async def expire_delegation_token(
        self, hmac: bytes, *, expiry_period_ms: int = -1, timeout_ms: int | None = None
    ) -> int:
        """Sets a token's expiry (negative: now); returns it in ms since 1970. Raises as `renew_delegation_token`."""
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=expiry_period_ms)
        return await self._expiry(request, timeout_ms)

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> list[DelegationToken]:
        """Returns the visible tokens of these users, by default of all users."""
        request = DescribeDelegationTokenRequest(owners=None if owners is None else _users(owners))
        response: DescribeDelegationTokenResponse = await self._ask(request, timeout_ms=timeout_ms)
        return [
            DelegationToken(
                each.token_id,
                bytes(each.hmac),
                each.principal_name,
                each.token_requester_principal_name,
                tuple(renewer.principal_name for renewer in each.renewers),
                each.issue_timestamp,
                each.expiry_timestamp,
                each.max_timestamp,
            )
            for each in response.tokens
        ]

    async def _expiry(
        self, request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest, timeout_ms: int | None
    ) -> int:
        answer: Any = await self._ask(request, timeout_ms=timeout_ms)
        expiry_ms: int = answer.expiry_timestamp_ms
        return expiry_ms

    # -- partition reassignments (KIP-455) -----------------------------------------------------------------------------

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> None:
        """Starts to move partitions to other brokers (KIP-455); `list_partition_reassignments` lists those in progress.

        Args:
            targets: the new replicas of each partition, the preferred leader first; None cancels a reassignment.

        Raises:
            KafkaError: the first error, with topic and partition; the other reassignments were started.
        """
        topics: dict[str, ReassignableTopic] = {}
        for tp, brokers in targets.items():
            partition = ReassignablePartition(
                partition_index=tp.partition, replicas=None if brokers is None else list(brokers)
            )
            topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic)).partitions.append(partition)
        response = await self._ask(
            lambda left_ms: AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=left_ms),
            timeout_ms=timeout_ms,
        )
        for topic in response.responses:
            for p in topic.partitions:
                if p.error_code:
                    raise error_for(p.error_code, p.error_message, topic=topic.name, partition=p.partition_index)

    async def list_partition_reassignments(
        self, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the reassignments in progress (KIP-455)."""
        response = await self._ask(
            lambda left_ms: ListPartitionReassignmentsRequest(topics=None, timeout_ms=left_ms),
            timeout_ms=timeout_ms,
        )
        return {
            TopicPartition(topic.name, p.partition_index): PartitionReassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in response.topics
            for p in topic.partitions
        }

    # -- consumer groups and their committed offsets -------------------------------------------------------------------

    async def list_groups(self) -> list[GroupListing]:
        """Returns all groups of the cluster, of both protocols (KIP-222)."""
        self._check_open()
        found = []
        for node_id in sorted(self._cluster.metadata.brokers):
            response = await self._ask(ListGroupsRequest(), node_id=node_id)
            found += [GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]
        return found

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Returns state and members of a group, of either protocol (KIP-222, KIP-848).

        A missing group is "Dead", or raises UnknownGroup, as the broker answers.
        """
        try:
            found = await self._describe_classic(group_id)
        except KafkaError as error:
            consumer = None
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                consumer = await self._describe_consumer(group_id)
            if consumer is None:
                raise
            return consumer
        if found.state == "Dead":
            return await self._describe_consumer(group_id) or found
        return found

    async def _described(self, group_id: str, request: Any) -> Any:
        return (await self._ask(request, lambda r: r.groups[0], coordinator=("group", group_id))).groups[0]

    async def _describe_classic(self, group_id: str) -> GroupDescription:
        g = await self._described(group_id, DescribeGroupsRequest(groups=[group_id]))
        members = tuple(
            GroupMemberDescription(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                _assigned(m.member_assignment) if g.protocol_type == "consumer" else (),
            )
            for m in g.members
        )
        return GroupDescription(g.group_id, g.group_state, g.protocol_type, g.protocol_data, members, "classic")

    async def _describe_consumer(self, group_id: str) -> GroupDescription | None:
        """None if the group does not exist in the consumer protocol (KIP-848), or the broker does not support it."""
        try:
            g = await self._described(group_id, ConsumerGroupDescribeRequest(group_ids=[group_id]))
        except KafkaError:
            return None
        members = tuple(
            GroupMemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                tuple(TopicPartition(t.topic_name, p) for t in m.assignment.topic_partitions for p in t.partitions),
            )
            for m in g.members
        )
        return GroupDescription(g.group_id, g.group_state, "consumer", g.assignor_name, members, "consumer")

    async def find_group_coordinator(self, group_id: str) -> int:
        """Returns the node id of the present coordinator of a group."""
        self._check_open()
        return await self._cluster.find_coordinator("group", group_id)

    async def delete_group(self, group_id: str) -> None:
        """Deletes an empty group with its offsets (KIP-229). Raises KafkaError (NON_EMPTY_GROUP) if it has members."""
        await self._ask(
            DeleteGroupsRequest(groups_names=[group_id]), lambda r: r.results[0], coordinator=("group", group_id)
        )

    async def remove_group_members(
        self, group_id: str, *, member_ids: Iterable[str] = (), instance_ids: Iterable[str] = ()
    ) -> None:
        """Removes members, static ones by `group_instance_id` (KIP-345). Raises KafkaError (UNKNOWN_MEMBER_ID)."""
        members = [MemberIdentity(member_id=each) for each in member_ids]
        members += [MemberIdentity(member_id="", group_instance_id=each) for each in instance_ids]
        request = LeaveGroupRequest(group_id=group_id, members=members)
        response = await self._ask(request, coordinator=("group", group_id))
        for member in response.members:
            if member.error_code:
                who = member.group_instance_id or member.member_id
                raise error_for(member.error_code, f"{who!r} is not a member of group {group_id!r}")

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns all committed offsets of a group; none if the group does not exist."""
        self._check_open()
        return await committed_offsets(self._cluster, ConsumerGroupMetadata(group_id), None)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, timeout_ms: int | None = None
    ) -> None:
        """Commits offsets for a group without members (KIP-396). Raises CommitFailed if it has members."""
        self._check_open()
        chosen = {
            TopicPartition(*tp): OffsetAndMetadata(at) if isinstance(at, int) else at for tp, at in offsets.items()
        }
        await commit_offsets(self._cluster, ConsumerGroupMetadata(group_id), chosen, timeout_ms=timeout_ms)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Deletes committed offsets (KIP-496). Raises KafkaError (GROUP_SUBSCRIBED_TO_TOPIC) for subscribed topics."""
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, OffsetDeleteRequestTopic(name=tp.topic)).partitions.append(
                PartitionIndex(partition_index=tp.partition)
            )
        request = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
        response = await self._ask(request, coordinator=("group", group_id))
        for topic in response.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise error_for(p.error_code, topic=topic.name, partition=p.partition_index)

    async def group_lag(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        """Returns the committed offset and the last stable offset of each partition with a committed offset."""
        committed = await self.list_group_offsets(group_id)
        ends = await list_offsets(self._cluster, dict.fromkeys(committed, LATEST), read_committed=True)
        return {tp: PartitionLag(at.offset, ends[tp].offset) for tp, at in sorted(committed.items())}

    # -- transactions and producers ------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionListing]:
        """Returns the transactional ids of the cluster with their state (KIP-664), filtered unless a filter is empty."""
        self._check_open()
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
        found = []
        for node_id in sorted(self._cluster.metadata.brokers):
            response = await self._ask(request, node_id=node_id)
            found += [
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
                for t in response.transaction_states
            ]
        return found

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Returns the state of a transactional id (KIP-664). Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
        response = await self._ask(
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda r: r.transaction_states[0],
            coordinator=("transaction", transactional_id),
        )
        t = response.transaction_states[0]
        return TransactionDescription(
            t.transactional_id,
            t.producer_id,
            t.producer_epoch,
            t.transaction_state,
            t.transaction_timeout_ms,
            t.transaction_start_time_ms,
            tuple(TopicPartition(d.topic, p) for d in t.topics for p in d.partitions),
        )

    async def find_transaction_coordinator(self, transactional_id: str) -> int:
        """Returns the node id of the present coordinator of a transactional id."""
        self._check_open()
        self._cluster.forget_coordinator("transaction", transactional_id)
        return await self._cluster.find_coordinator("transaction", transactional_id)

    async def describe_producers(
        self, partition: TopicPartition, *, timeout_ms: int | None = None
    ) -> list[ProducerDescription]:
        """Returns the producers of a partition with their open transactions, from its leader (KIP-664)."""
        self._check_open()
        self._cluster.add_topics([partition.topic])
        topic = TopicPartitionIndexes(name=partition.topic, partition_indexes=[partition.partition])
        response = await self._ask(
            DescribeProducersRequest(topics=[topic]),
            lambda r: r.topics[0].partitions[0],
            leader=partition,
            timeout_ms=timeout_ms,
        )
        return [
            ProducerDescription(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_timestamp,
                p.current_txn_start_offset,
                p.coordinator_epoch,
            )
            for p in response.topics[0].partitions[0].active_producers
        ]

    async def abort_transaction(
        self, partition: TopicPartition, producer: ProducerDescription, *, timeout_ms: int | None = None
    ) -> None:
        """Aborts a transaction in one partition that its coordinator no longer knows (KIP-664).

        The producer, or the next one with its transactional id, ends a transaction that the coordinator knows.

        Args:
            producer: a result of `describe_producers`.
        """
        self._check_open()
        self._cluster.add_topics([partition.topic])
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[TopicPartitionIndexes(name=partition.topic, partition_indexes=[partition.partition])],
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )
        await self._ask(
            WriteTxnMarkersRequest(markers=[marker]),
            lambda r: r.markers[0].topics[0].partitions[0],
            leader=partition,
            timeout_ms=timeout_ms,
        )

    # -- internal ------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Any, result_of: Callable[[Any], Any] | None = _whole, **to: Any) -> Any:
        """Sends a request until it succeeds, and returns the response; the arguments `to` are those of `ask_broker`.

        `result_of` selects the part of the response that has error_code (and error_message); None: nothing is checked.
        """
        self._check_open()
        topic, partition = to.get("leader", (None, None))

        def failure_of(response: Any) -> KafkaError | None:
            result = response if result_of is None else result_of(response)
            if result_of is None or not result.error_code:
                return None
            text = getattr(result, "error_message", None)
            return error_for(result.error_code, text, topic=topic, partition=partition)

        return await ask_broker(self._cluster, request, failure_of, **to)

    async def _each(
        self,
        request: Callable[[int], Any],
        results: Callable[[Any], Iterable[Any]],
        left: dict[str, Any],
        timeout_ms: int | None,
        *,
        final: frozenset[ErrorCode] = frozenset(),
        refused: MutableMapping[str, KafkaError] | None = None,
    ) -> None:
        """Sends a request for several topics with retries; then raises the first final error.

        Args:
            request: creates the request for the topics in `left` from the milliseconds left.
            results: selects the results of the response, which have name, error_code and error_message.
            left: remaining topics.
            final: retriable codes that are not retried here.
            refused: gets the errors by topic, instead of raising the first.
        """
        self._check_open()
        deadline = Deadline(self._cluster, timeout_ms)
        refusals: MutableMapping[str, KafkaError] = {} if refused is None else refused
        while left:
            try:
                response = await self._cluster.request(request(deadline.left_ms), timeout_ms=deadline.left_ms)
            except KafkaError as error:
                await deadline.pause(error)
                continue
            problem: KafkaError | None = None
            for result in results(response):
                if result.error_code:
                    refusal = error_for(result.error_code, result.error_message, topic=result.name)
                    if refusal.retriable and refusal.code not in final:
                        problem = refusal
                        continue
                    refusals.setdefault(result.name or "", refusal)
                left.pop(result.name or "", None)
            if problem is not None:
                await deadline.missing(problem)
        if refused is None and refusals:
            raise next(iter(refusals.values()))


def raise_first(results: Iterable[Any]) -> None:
    """Raises the error of the first result that has one."""
    for each in results:
        if each.error_code:
            raise error_for(each.error_code, each.error_message)


def _resource(topic: str | None, broker: int | None, group: str | None) -> ConfigResource:
    if group is not None:
        return ConfigResource("group", group)
    if topic is not None:
        return ConfigResource("topic", topic)
    return ConfigResource("broker", "" if broker is None else str(broker))


def _node_of(resource: ConfigResource) -> int | None:
    """The broker to ask: only a broker knows its configs; None: any. Raises IllegalState for an invalid node id."""
    if not RESOURCE_TYPES[resource.type].of_broker or not resource.name:
        return None
    if not resource.name.isascii() or not resource.name.isdigit():
        raise IllegalState(f"{resource.name!r} is no node id of a broker, a number such as 1")
    return int(resource.name)


def _by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    found: dict[int | None, list[ConfigResource]] = {}
    for resource in dict.fromkeys(resources):
        found.setdefault(_node_of(resource), []).append(resource)
    return found


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.config_source,
        config.read_only,
        config.is_sensitive,
        tuple(ConfigSynonym(each.name, each.value, each.source) for each in config.synonyms),
        config.documentation,
    )


def _component(kind: str, name: str | EllipsisType | None) -> QuotaComponent:
    if name is ...:
        return QuotaComponent(entity_type=kind, match_type=_SPECIFIED, match=None)
    if name is None:
        return QuotaComponent(entity_type=kind, match_type=_DEFAULT, match=None)
    return QuotaComponent(entity_type=kind, match_type=_EXACT, match=name)


def _fields(wanted: AclBindingFilter) -> dict[str, Any]:
    """A filter as the fields of DescribeAcls and DeleteAcls."""
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(resource_type: int, name: str, pattern_type: int, entry: AclDescription | DeletedAcl) -> AclBinding:
    return AclBinding(
        AclResourceType(resource_type) if resource_type in _TYPES else AclResourceType.UNKNOWN,
        name,
        entry.principal,
        AclOperation(entry.operation) if entry.operation in _OPERATIONS else AclOperation.UNKNOWN,
        AclPermission(entry.permission_type) if entry.permission_type in (2, 3) else AclPermission.UNKNOWN,
        PatternType(pattern_type) if pattern_type in (3, 4) else PatternType.UNKNOWN,
        entry.host,
    )


def _mechanism(name: str) -> tuple[int, str]:
    if name not in _MECHANISMS:
        raise IllegalState(f"mechanism {name!r} is not one of {', '.join(_MECHANISMS)}")
    return _MECHANISMS[name]


def _users(names: Iterable[str]) -> list[TokenPrincipal]:
    return [TokenPrincipal(principal_type="User", principal_name=each) for each in names]


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    try:
        return assigned_partitions(data)
    except RemoteProtocolError:
        return ()
