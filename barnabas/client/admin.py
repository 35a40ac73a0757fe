"""Admin: topics, configs, records, groups, transactions and the cluster, as coroutines.

Driven by: its caller. Emits: requests to any broker, to leaders or to coordinators; retriable refusals are retried until
`timeout_ms` is over. A call that names several things tries them all, then raises the first refusal; what was done stays
done. Cancelled, a call may or may not have taken effect.
Follows KIP-117, KIP-339 (incremental configs), KIP-516, KIP-664 (transactions), KIP-222 (groups).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from barnabas.client.cluster import Cluster, Purpose
from barnabas.client.deadline import Deadline
from barnabas.client.errors import ClientClosed, KafkaError, code_of, error_for
from barnabas.client.metadata import Broker, TopicInfo
from barnabas.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, committed_offsets, list_offsets
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.ports import Clock, Network, Rng
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from barnabas.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from barnabas.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from barnabas.protocol.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest

__all__ = [
    "Admin",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "NewTopic",
    "QuorumDescription",
    "TransactionDescription",
    "TransactionListing",
]

_TOPIC = 2
_BROKER = 4
_METADATA_TOPIC = "__cluster_metadata"
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_TIMES = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


class NewTopic(NamedTuple):
    """A topic to create; −1 leaves the number to the broker."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


class ConfigEntry(NamedTuple):
    """One config of a topic or broker. `source` as in DescribeConfigs: 1 topic, 4 static broker, 5 default …"""

    name: str
    value: str | None
    source: int
    read_only: bool
    is_sensitive: bool


class GroupListing(NamedTuple):
    """One group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: str


class GroupMemberDescription(NamedTuple):
    """One member of a described group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str


class GroupDescription(NamedTuple):
    """One group as its coordinator describes it."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberDescription, ...]


class QuorumDescription(NamedTuple):
    """The metadata quorum as its leader, the active controller, sees it. Log ends are −1 where it has not heard of one."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: dict[int, int]  # log end offset by node id
    observers: dict[int, int]


NO_TIMEOUT_MS = 2**31 - 1


class TransactionListing(NamedTuple):
    """One transactional id as ListTransactions shows it."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """`start_time_ms` is milliseconds since the Unix epoch, −1 without an open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_two_phase(self) -> bool:
        """Whether it has no timeout: somebody else decides its outcome (KIP-939)."""
        return self.timeout_ms == NO_TIMEOUT_MS


class Admin:
    """Administers a cluster. Use as `async with Admin(bootstrap_servers=…) as admin:` or with `start` … `stop`.

    Args:
        bootstrap_servers, client_id, request_timeout_ms, retry_backoff_ms: as in Producer.
        clock, rng, network: the ports; the real ones by default.
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
    ) -> None:
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            clock=clock,
            rng=rng,
            network=network,
        )
        self._started = False

    async def start(self) -> None:
        """Connects. Raises KafkaError where no broker can be reached."""
        if not self._started:
            self._started = True
            try:
                await self._cluster.start()
            except BaseException:
                await self._cluster.close()
                raise

    async def stop(self) -> None:
        """Closes the connections."""
        await self._cluster.close()

    close = stop

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- cluster -------------------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> tuple[str | None, int, list[Broker]]:
        """Cluster id, controller id (−1 unknown) and the live brokers (KIP-700)."""
        response: DescribeClusterResponse = await self._retried(lambda _: DescribeClusterRequest(), lambda r: r)
        if response.error_code:
            raise error_for(response.error_code, response.error_message)
        brokers = [Broker(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        return response.cluster_id, response.controller_id, brokers

    async def features(self) -> dict[str, int]:
        """The finalized features and their levels, e.g. transaction.version."""
        await self._connected()
        return dict(self._cluster.features().levels)

    async def describe_quorum(self) -> QuorumDescription:
        """Who leads the metadata quorum, and how far its voters and observers have come (KIP-595)."""
        topic = DescribeQuorumRequestTopic(topic_name=_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartition()])
        response = await self._retried(lambda _: DescribeQuorumRequest(topics=[topic]), lambda r: r)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise error_for(found.error_code, found.error_message)
        return QuorumDescription(
            found.leader_id,
            found.leader_epoch,
            found.high_watermark,
            {voter.replica_id: voter.log_end_offset for voter in found.current_voters},
            {observer.replica_id: observer.log_end_offset for observer in found.observers},
        )

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> None:
        """Creates topics.

        Raises:
            TopicAlreadyExists, InvalidTopic, KafkaError: the first refusal.
        """
        left = {t.name: t for t in topics}

        def request(budget_ms: int) -> CreateTopicsRequest:
            return CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=t.name,
                        num_partitions=t.num_partitions,
                        replication_factor=t.replication_factor,
                        configs=[CreatableTopicConfig(name=k, value=v) for k, v in t.configs.items()],
                    )
                    for t in left.values()
                ],
                timeout_ms=budget_ms,
                validate_only=validate_only,
            )

        await self._each(
            request, lambda r: [(t.name, t.error_code, t.error_message) for t in r.topics], left, timeout_ms
        )

    async def delete_topics(self, topics: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Deletes topics with their records. Raises UnknownTopicOrPartition, KafkaError."""
        left = dict.fromkeys(topics)

        def request(budget_ms: int) -> DeleteTopicsRequest:
            return DeleteTopicsRequest(
                topics=[DeleteTopicState(name=t) for t in left], topic_names=list(left), timeout_ms=budget_ms
            )

        await self._each(
            request,
            lambda r: [(t.name, t.error_code, t.error_message) for t in r.responses],
            left,
            timeout_ms,
            final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
        )

    async def create_partitions(self, counts: Mapping[str, int], *, timeout_ms: int | None = None) -> None:
        """Raises the number of partitions of topics to the given totals."""
        left = dict(counts)

        def request(budget_ms: int) -> CreatePartitionsRequest:
            return CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=t, count=n, assignments=None) for t, n in left.items()],
                timeout_ms=budget_ms,
            )

        await self._each(
            request, lambda r: [(t.name, t.error_code, t.error_message) for t in r.results], left, timeout_ms
        )

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted."""
        response = await self._metadata(None)
        return sorted(t.name for t in response.topics if t.name and (include_internal or not t.is_internal))

    async def describe_topics(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Ids, partitions and leaders of topics. Raises UnknownTopicOrPartition."""
        wanted = list(topics)
        response = await self._metadata(wanted)
        for topic in response.topics:
            if topic.error_code:
                raise error_for(topic.error_code, topic=topic.name)
        self._cluster.metadata.update(response, self._cluster.clock.monotonic_ms(), whole=False)
        return {name: self._cluster.metadata.topics[name] for name in wanted}

    # -- configs -------------------------------------------------------------------------------------------------------

    async def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None, names: Sequence[str] | None = None
    ) -> dict[str, ConfigEntry]:
        """The configs of a topic or of a broker, all or those named."""
        kind, resource, node_id = _resource(topic, broker)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind,
                    resource_name=resource,
                    configuration_keys=None if names is None else list(names),
                )
            ]
        )
        response = await self._retried(lambda _: request, lambda r: r.results[0], node_id=node_id)
        return {
            c.name: ConfigEntry(c.name, c.value, c.config_source, c.read_only, c.is_sensitive)
            for c in response.results[0].configs
        }

    async def alter_configs(
        self, configs: Mapping[str, str | None], *, topic: str | None = None, broker: int | None = None
    ) -> None:
        """Sets configs of a topic or of a broker, leaving others as they are; None takes a config back to its default."""
        kind, resource, node_id = _resource(topic, broker)
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=kind,
                    resource_name=resource,
                    configs=[
                        AlterableConfig(name=name, config_operation=1 if value is None else 0, value=value)
                        for name, value in configs.items()
                    ],
                )
            ]
        )
        await self._retried(lambda _: request, lambda r: r.responses[0], node_id=node_id)

    # -- records and offsets -------------------------------------------------------------------------------------------

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, int | str],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets of partitions: at "earliest", "latest", "max_timestamp" or a timestamp in ms. Offset −1: no such record."""
        await self._connected()
        wanted = {TopicPartition(*tp): _TIMES[t] if isinstance(t, str) else t for tp, t in partitions.items()}
        return await list_offsets(
            self._cluster, wanted, read_committed=isolation_level == "read_committed", timeout_ms=timeout_ms
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes records before an offset (−1: the high watermark); returns each partition's new first offset."""
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        left = {TopicPartition(*tp): offset for tp, offset in before.items()}
        done: dict[TopicPartition, int] = {}
        self._cluster.add_topics(tp.topic for tp in left)
        while left:
            problem: KafkaError | None = None
            by_node: dict[int, dict[str, DeleteRecordsTopic]] = {}
            for tp, offset in left.items():
                leader = self._cluster.metadata.leaders.get(tp)
                if leader is None:
                    problem = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=tp.topic, partition=tp.partition)
                    continue
                topics = by_node.setdefault(leader, {})
                topics.setdefault(tp.topic, DeleteRecordsTopic(name=tp.topic)).partitions.append(
                    DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
                )
            for node_id, topics in by_node.items():
                try:
                    response = await self._cluster.request(
                        DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=deadline.left_ms),
                        node_id=node_id,
                        timeout_ms=deadline.left_ms,
                    )
                except KafkaError as error:
                    problem = error
                    continue
                for topic in response.topics:
                    for p in topic.partitions:
                        tp = TopicPartition(topic.name, p.partition_index)
                        if p.error_code:
                            problem = error_for(p.error_code, broker=node_id, topic=tp.topic, partition=tp.partition)
                        elif left.pop(tp, None) is not None:
                            done[tp] = p.low_watermark
            if problem is not None:
                self._cluster.want_update()
                await deadline.pause(problem)
        return done

    # -- groups --------------------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupListing]:
        """Every group that some broker coordinates."""
        await self._connected()
        found = []
        for node_id in sorted(self._cluster.metadata.brokers):
            response = await self._retried(lambda _: ListGroupsRequest(), lambda r: r, node_id=node_id)
            found += [GroupListing(g.group_id, g.protocol_type, g.group_state) for g in response.groups]
        return found

    async def describe_group(self, group_id: str) -> GroupDescription:
        """State and members of a group. A group that is not there is "Dead", or UnknownGroup, as the broker has it."""
        response = await self._coordinated(
            "group", group_id, DescribeGroupsRequest(groups=[group_id]), lambda r: r.groups[0]
        )
        g = response.groups[0]
        members = tuple(
            GroupMemberDescription(m.member_id, m.group_instance_id, m.client_id, m.client_host) for m in g.members
        )
        return GroupDescription(g.group_id, g.group_state, g.protocol_type, g.protocol_data, members)

    async def delete_group(self, group_id: str) -> None:
        """Deletes a group that has no members, with its offsets."""
        await self._coordinated("group", group_id, DeleteGroupsRequest(groups_names=[group_id]), lambda r: r.results[0])

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Everything that a group has committed."""
        await self._connected()
        return await committed_offsets(self._cluster, ConsumerGroupMetadata(group_id), None)

    # -- transactions --------------------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionListing]:
        """Transactional ids that some broker coordinates, with their state."""
        await self._connected()
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
        found = []
        for node_id in sorted(self._cluster.metadata.brokers):
            response = await self._retried(lambda _: request, lambda r: r, node_id=node_id)
            found += [
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
                for t in response.transaction_states
            ]
        return found

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What the coordinator knows of a transactional id. Raises KafkaError with TRANSACTIONAL_ID_NOT_FOUND."""
        response = await self._coordinated(
            "transaction",
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda r: r.transaction_states[0],
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
        """Id of the broker that coordinates a transactional id now."""
        await self._connected()
        self._cluster.forget_coordinator("transaction", transactional_id)
        return await self._cluster.find_coordinator("transaction", transactional_id)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _connected(self) -> None:
        if not self._started or self._cluster.closed:
            raise ClientClosed("the admin client is not started, or was closed")

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        wanted = None if topics is None else [MetadataRequestTopic(name=t) for t in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response: MetadataResponse = await self._retried(lambda _: request, None)
        return response

    async def _retried(
        self,
        request: Callable[[int], Any],
        judge: Callable[[Any], Any] | None,
        *,
        node_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """A request to one broker until it is answered without a retriable error.

        Args:
            request: makes it, from the milliseconds left.
            judge: picks what carries error_code (and error_message) in the response.
        """
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        while True:
            try:
                response = await self._cluster.request(
                    request(deadline.left_ms), node_id=node_id, timeout_ms=deadline.left_ms
                )
            except KafkaError as error:
                await deadline.pause(error)
                continue
            judged = judge(response) if judge is not None else None
            if judged is None or not judged.error_code:
                return response
            await deadline.pause(error_for(judged.error_code, getattr(judged, "error_message", None)))

    async def _coordinated(
        self, kind: str, key: str, request: Any, judge: Callable[[Any], Any], *, timeout_ms: int | None = None
    ) -> Any:
        """A request to a coordinator, following it where it moves."""
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        while True:
            try:
                node_id = await self._cluster.find_coordinator(kind, key, timeout_ms=deadline.left_ms)
                response = await self._cluster.request(
                    request, node_id=node_id, purpose=Purpose.COORDINATOR, timeout_ms=deadline.left_ms
                )
            except KafkaError as error:
                self._cluster.forget_coordinator(kind, key)
                await deadline.pause(error)
                continue
            judged = judge(response)
            code = code_of(judged.error_code)
            if code is ErrorCode.NONE:
                return response
            if code in _MOVED:
                self._cluster.forget_coordinator(kind, key)
            await deadline.pause(error_for(code, getattr(judged, "error_message", None)))

    async def _each(
        self,
        request: Callable[[int], Any],
        results: Callable[[Any], list[tuple[str | None, int, str | None]]],
        left: dict[str, Any],
        timeout_ms: int | None,
        *,
        final: frozenset[ErrorCode] = frozenset(),
    ) -> None:
        """A request about several topics, repeated for those that a retriable error refused; then the first refusal is raised.

        Args:
            final: retriable codes that are an answer here.
        """
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        refusal: KafkaError | None = None
        while left:
            try:
                response = await self._cluster.request(request(deadline.left_ms), timeout_ms=deadline.left_ms)
            except KafkaError as error:
                await deadline.pause(error)
                continue
            problem: KafkaError | None = None
            for name, number, message in results(response):
                refused = error_for(number, message, topic=name)
                if number and refused.retriable and refused.code not in final:
                    problem = refused
                    continue
                left.pop(name or "", None)
                if number and refusal is None:
                    refusal = refused
            if problem is not None:
                await deadline.pause(problem)
        if refusal is not None:
            raise refusal


def _resource(topic: str | None, broker: int | None) -> tuple[int, str, int | None]:
    """Type, name and the broker to ask; a broker's own configs only it can tell."""
    if topic is not None:
        return _TOPIC, topic, None
    return _BROKER, "" if broker is None else str(broker), broker
