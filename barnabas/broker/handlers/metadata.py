"""Handles ApiVersions (key 18) 0 to 4, Metadata (3) 0 to 13, DescribeTopicPartitions (75) 0. DescribeCluster is in `describe_cluster`.

Behaviour: this node's metadata image answers all of them. Metadata creates a missing topic if both the request and
`auto.create.topics.enable` allow it, and answers once the image has it (deviation: Kafka answers UNKNOWN_TOPIC_OR_PARTITION, and the
client retries after a back-off). A broker whose connections to this node have just ended is not named as a leader. An answer about
named topics waits while such a broker leads one of them, at most 800 ms (`failover_purgatory.py`); after that the answer is
LEADER_NOT_AVAILABLE. `listing.py` decides which brokers are listed. `unsupported_api_versions` answers ApiVersions in an unknown
version, in version 0 (KIP-511).

Version notes: in Metadata v0 an empty list means all topics, in v1 null does; v4 allow_auto_topic_creation; v10 topic ids in answers,
v12 in requests; v13 a top-level error, never used here. ApiVersions v3 validates the client's software name and version, and
omits features with a minimum of 0 (KAFKA-17011), v4 lists them; no version lists unserved features (share and streams groups), which
Kafka lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import ELEMENTS_AT_ONCE, Answer, Call, Computed, Pending, Table
from barnabas.broker.authorization.permissions import AllowedNames
from barnabas.broker.controller.core.features import is_served
from barnabas.broker.handlers import describe_cluster
from barnabas.broker.handlers.describe_cluster import NOT_ASKED, cluster_operations, named_controller
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.broker.image.image import NO_LEADER
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import TOPIC_NAME_LENGTH_MAX
from barnabas.loggers import logger
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import INTERNAL_TOPICS
from barnabas.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from barnabas.protocol.registry import API_VERSIONS_KEY

if TYPE_CHECKING:
    from barnabas.broker.image.image import MetadataImage, PartitionImage, TopicImage

log = logger("kafka.request.logger")

NO_ID: Final = bytes(16)
CREATED_AT_ONCE: Final = 1_000  # missing topics of all requests of a node: the client's next request creates the others

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


# -- ApiVersions -------------------------------------------------------------------------------------------------------


def api_versions(needs: Needs, call: Call[ApiVersionsRequest]) -> ApiVersionsResponse:
    """Lists the served APIs and the features of the cluster."""
    request = call.request
    if call.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    if call.version >= 3:
        call.connection.software = (request.client_software_name, request.client_software_version)
    image = needs.current_image.image
    registered = image.brokers.get(needs.config.node_id) or image.controllers.get(needs.config.node_id)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
            for api in call.connection.apis.values()
            if api.family != "telemetry" or needs.telemetry is not None  # KIP-714: only where it is exported
        ],
        supported_features=[
            SupportedFeatureKey(
                name=feature.name,
                min_version=feature.min_supported_version,
                max_version=feature.max_supported_version,
            )
            for feature in (registered.features if registered is not None else ())
            if is_served(feature.name) and (call.version >= 4 or feature.min_supported_version > 0)
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
            if is_served(name)
        ],
    )


def unsupported_api_versions(served: tuple[int, int]) -> ApiVersionsResponse:
    """The answer, in version 0, to an ApiVersions request of an unknown version: the error and the range that is served."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=API_VERSIONS_KEY, min_version=served[0], max_version=served[1])],
    )


# -- Metadata ----------------------------------------------------------------------------------------------------------


def metadata(needs: Needs, call: Call[MetadataRequest]) -> Answer:
    """Lists brokers and the requested topics; a topic that is named twice is answered once, as in Kafka."""
    request = call.request
    if call.version < 12 and any(topic.topic_id != NO_ID or topic.name is None for topic in request.topics or ()):
        raise BrokerError(ErrorCode.INVALID_REQUEST)  # versions 10 and 11 do not support the id field in requests
    creates = request.allow_auto_topic_creation and needs.config.get_bool("auto.create.topics.enable")
    open_names: dict[str, None] = {}
    seen = _Seen(call)
    asked = request.topics or []
    topics = needs.current_image.image.topics_by_name
    missing = (
        each.name for each in asked if each.topic_id == NO_ID and each.name is not None and each.name not in topics
    )
    for name in islice(missing, max(CREATED_AT_ONCE - needs.controller.waiting, 0)) if creates else ():
        if seen.may_create(name) and _is_topic_name(name):
            open_names[name] = None
    if not open_names:
        if asked and not needs.alone:
            leaders = _leaders(needs, asked[:CREATED_AT_ONCE], seen)
            if needs.awaited_leaders.may_be_missing(leaders):
                return needs.awaited_leaders.pending(leaders, lambda: _answer(needs, call, seen))
        return _answer(needs, call, seen)
    pending: Pending[MetadataResponse] = Pending(blocks=True)

    def created(name: str, error: BrokerError | None) -> None:
        open_names.pop(name, None)
        if error is not None:
            log.info("Topic that a client asked for cannot be created: topic=%s error=%s", name, error)
        if not open_names:
            pending.resolve(_answer(needs, call, seen))

    for name in list(open_names):
        needs.controller.ensure_topic(name, partial(created, name), access=call.access)
    return pending


class _Seen:
    """What the client of one request may see of topics; they are hidden from it otherwise, also whether they exist.

    Attributes:
        described: topics that it may describe.
        refused: missing topics that it may describe, but not create.
    """

    __slots__ = ("_access", "_creatable", "_creates_any", "described", "refused")

    def __init__(self, call: Call[MetadataRequest]) -> None:
        request = call.request
        everything = request.topics is None or (call.version == 0 and not request.topics)
        self._access = call.access
        self._creatable = AllowedNames(call.access, AclOperation.CREATE, AclResourceType.TOPIC)
        self._creates_any: bool | None = None
        self.described = AllowedNames(
            call.access, AclOperation.DESCRIBE, AclResourceType.TOPIC, log_denied=not everything
        )
        self.refused: dict[str, None] = {}

    def ask(self, access: Access) -> None:
        """Asks another access from now on."""
        self.described.ask(access)

    def may_create(self, name: str) -> bool:
        """Whether the client may create a missing topic."""
        if self.described.all:
            return True
        if name not in self.described:
            return False
        if self._creates_any is None:
            self._creates_any = self._access.allows(AclOperation.CREATE, AclResourceType.CLUSTER, log=False)
        if self._creates_any or name in self._creatable:
            return True
        self.refused[name] = None
        return False


def _found(image: MetadataImage, asked: MetadataRequestTopic) -> TopicImage | None:
    return image.topic_by_id(asked.topic_id) if asked.topic_id != NO_ID else image.topic(asked.name or "")


def _leaders(needs: Needs, asked: list[MetadataRequestTopic], seen: _Seen) -> set[int]:
    """Returns the ids of the brokers that lead partitions of the requested topics."""
    found = [_found(needs.current_image.image, topic) for topic in asked]
    return {
        partition.leader
        for topic in found
        if topic is not None and topic.name in seen.described
        for partition in topic.partitions
    }


class _Brokers(NamedTuple):
    """Brokers as of one answer."""

    alive: set[int]
    present: set[int]  # those whose connections to this node have not just ended
    listed: list[MetadataResponseBroker]
    controller_id: int
    cluster_id: str


def _answer(needs: Needs, call: Call[MetadataRequest], seen: _Seen) -> Computed:
    image, asked = needs.current_image.image, call.request.topics
    alive = {broker.broker_id for broker, _ in needs.listing.live(call.listener)}
    present = alive - needs.awaited_leaders.missing()
    brokers = _Brokers(
        alive,
        present,
        [
            MetadataResponseBroker(node_id=broker.broker_id, host=address.host, port=address.port, rack=broker.rack)
            for broker, address in needs.listing.listed(call.listener)
        ],
        named_controller(needs, present),
        needs.cluster_id,
    )
    everything = asked is None or (call.version == 0 and not asked)
    topics = image.topics_by_name.values() if everything else (_found(image, each) for each in asked or ())
    return Computed(call, partial(_metadata, call, image, brokers, seen), visited(topics))


def visited(topics: Iterable[TopicImage | None]) -> int:
    """The number of topics and partitions; those of the first ELEMENTS_AT_ONCE topics, because more are many anyway."""
    return sum(
        1 + (len(topic.partitions) if topic is not None else 0) for topic in islice(topics, ELEMENTS_AT_ONCE + 1)
    )


def _metadata(
    call: Call[MetadataRequest], image: MetadataImage, brokers: _Brokers, seen: _Seen, access: Access
) -> MetadataResponse:
    request = call.request
    seen.ask(access)
    described = seen.described
    alive, present = brokers.alive, brokers.present

    def operations(name: str) -> int:
        asked = request.include_topic_authorized_operations
        return access.operations(AclResourceType.TOPIC, name) if asked else NOT_ASKED

    topics: list[MetadataResponseTopic] = []
    if request.topics is None or (call.version == 0 and not request.topics):
        for topic in image.topics_by_name.values():
            if topic.name in described:
                topics.append(_topic(topic, alive, present, operations(topic.name), call.version))
    else:
        answered: set[str | bytes] = set()
        for asked in request.topics:
            by_id = asked.topic_id != NO_ID
            key = asked.topic_id if by_id else asked.name or ""
            if key in answered:
                continue
            answered.add(key)
            found = _found(image, asked)
            if not described.all and (found is not None or not by_id):
                topic_name = found.name if found is not None else asked.name or ""
                if topic_name not in described:
                    topics.append(_hidden(asked, by_id))
                    continue
            if found is not None:
                topics.append(_topic(found, alive, present, operations(found.name), call.version))
                continue
            if by_id:
                topics.append(
                    MetadataResponseTopic(
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                        name=None if call.version >= 12 else "",
                        topic_id=asked.topic_id,
                    )
                )
                continue
            topics.append(_missing(asked.name or "", seen, operations))
    return MetadataResponse(
        brokers=brokers.listed,
        cluster_id=brokers.cluster_id,
        controller_id=brokers.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(access) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _missing(name: str, seen: _Seen, operations: Callable[[str], int]) -> MetadataResponseTopic:
    """The answer for a name without a topic, also one that could not be created: the client retries, and more brokers may be there then."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if _is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    refused = name in seen.refused
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED if refused else code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=NOT_ASKED if refused else operations(name),
    )


def _hidden(asked: MetadataRequestTopic, by_id: bool) -> MetadataResponseTopic:
    """The answer for a topic that the client may not describe: without its name if it was asked for by id."""
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=None if by_id else asked.name or "",
        topic_id=asked.topic_id if by_id else NO_ID,
    )


def _topic(
    topic: TopicImage, alive: set[int], present: set[int], operations: int, version: int
) -> MetadataResponseTopic:
    """Returns a topic in the form of Metadata."""
    described = _partition_v0 if version == 0 else _partition
    partitions = [described(number, partition, alive, present) for number, partition in enumerate(topic.partitions)]
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def _partition(number: int, partition: PartitionImage, alive: set[int], present: set[int]) -> MetadataResponsePartition:
    led = partition.leader in present
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=partition.leader if led else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[replica for replica in partition.replicas if replica not in alive],
    )


def _partition_v0(
    number: int, partition: PartitionImage, alive: set[int], present: set[int]
) -> MetadataResponsePartition:
    """Version 0 names only live replicas, and reports missing ones by an error."""
    described = _partition(number, partition, alive, present)
    if described.offline_replicas:
        described.replica_nodes = [replica for replica in partition.replicas if replica in alive]
        described.isr_nodes = [replica for replica in partition.isr if replica in alive]
        described.error_code = described.error_code or ErrorCode.REPLICA_NOT_AVAILABLE
    return described


def _is_topic_name(name: str) -> bool:
    return bool(_TOPIC_NAME.fullmatch(name)) and len(name) <= TOPIC_NAME_LENGTH_MAX and name not in (".", "..")


# -- DescribeTopicPartitions -------------------------------------------------------------------------------------------


def describe_topic_partitions(needs: Needs, call: Call[DescribeTopicPartitionsRequest]) -> Computed:
    """Topics by name, in pages of partitions (KIP-966)."""
    request = call.request
    image = needs.current_image.image
    limit = max(min(request.response_partition_limit, needs.config.get_int("max.request.partition.size.limit")), 1)
    if request.cursor is not None and request.cursor.partition_index < 0:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    alive = {broker.broker_id for broker, _ in needs.listing.live(call.listener)}
    named = (image.topic(topic.name) for topic in request.topics)
    elements = visited(named if request.topics else image.topics_by_name.values())
    return Computed(call, partial(_describe_topic_partitions, call, image, limit, alive), elements)


def _describe_topic_partitions(
    call: Call[DescribeTopicPartitionsRequest], image: MetadataImage, limit: int, alive: set[int], access: Access
) -> DescribeTopicPartitionsResponse:
    request, cursor = call.request, call.request.cursor
    names = list({topic.name for topic in request.topics} or image.topics_by_name)
    heapify(names)  # `sorted` would hold the interpreter's lock for 50 ms
    response = DescribeTopicPartitionsResponse()
    operations = access.operations
    described = AllowedNames(access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
    hidden: list[DescribeTopicPartitionsResponseTopic] = []
    while names:
        name = heappop(names)
        if cursor is not None and name < cursor.topic_name:
            continue
        if name not in described:
            if request.topics:
                hidden.append(
                    DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
                )
            continue
        if limit <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topic(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if _is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=code, name=name, topic_authorized_operations=operations(AclResourceType.TOPIC, name)
                )
            )
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        page = list(enumerate(topic.partitions))[first : first + limit]
        limit -= len(page)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=[_described(number, partition, alive) for number, partition in page],
                topic_authorized_operations=operations(AclResourceType.TOPIC, name),
            )
        )
        if first + len(page) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=first + len(page))
            break
    response.topics += hidden
    return response


def _described(number: int, partition: PartitionImage, alive: set[int]) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(  # no error for a partition without leader, as in Kafka
        partition_index=number,
        leader_id=partition.leader if partition.leader in alive else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible_leader_replicas),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=[replica for replica in partition.replicas if replica not in alive],
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refuse_metadata(call: Call[MetadataRequest], error: BrokerError) -> MetadataResponse:
    topics = [
        MetadataResponseTopic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id)
        for topic in call.request.topics or ()
    ]
    return MetadataResponse(error_code=error.code, topics=topics)


HANDLERS: Final[Table] = {
    ApiVersionsRequest: (api_versions, refuse),
    MetadataRequest: (metadata, _refuse_metadata),
    **describe_cluster.HANDLERS,
    DescribeTopicPartitionsRequest: (describe_topic_partitions, refuse_each),
}
CONTROLLER_HANDLERS: Final[Table] = {
    ApiVersionsRequest: (api_versions, refuse),
    **describe_cluster.CONTROLLER_HANDLERS,
}
