"""Decisions on topics, each of a request separately: creation, deletion, new partitions. Error texts are Kafka's.
KIP-4 (create, delete), KIP-195 (partitions), KIP-464 (defaults by −1), KIP-516 (topic ids), KIP-525 (configs in the answer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.entries import topic_entries
from barnabas.broker.config.topic_config import validate_topic_config
from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision, check_record_count
from barnabas.broker.controller.core.placement import UNITS_OF_A_PARTITION, assigned_partition, place_partitions
from barnabas.broker.image.image import TOPIC_RESOURCE, PartitionImage, TopicImage
from barnabas.broker.image.records import ConfigRecord, MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from barnabas.broker.image.topic_names import Collisions, validate_topic_name
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REFUSAL_TEXTS_MAX
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from barnabas.work import Steps, Work

PARTITIONS_MAX: Final = 10_000  # new ones in one request, as in Kafka
NO_ID: Final = bytes(16)
NO_CONFIGS: Final[list[CreatableTopicConfigs]] = []  # shared by all refused topics: never change it
UNITS_OF_A_NAME: Final = 1  # of work: a name that is refused
NAMES_PER_UNIT: Final = 16  # names that are only counted
STATES_PER_UNIT: Final = 8  # topics to delete that are only made
CHARACTERS_PER_UNIT: Final = 64  # of a setting's value that is parsed: a list of 32 kB takes 5 ms
RECORDS_PER_UNIT: Final = 4  # that are only made
UNITS_OF_A_TOPIC: Final = 3  # a created topic, without its records


@LongDecision[CreateTopicsRequest, CreateTopicsResponse]
def create_topics(view: ClusterView, request: CreateTopicsRequest) -> Work:
    """With `validate_only` the answer is the same, without records."""
    creation = _Creation(view)
    records: list[MetadataRecord] = []
    results: list[CreatableTopicResult] = []
    partitions_left = PARTITIONS_MAX
    for topic in (yield from _once(request.topics)):
        name = topic.name if isinstance(topic, CreatableTopic) else topic
        try:
            if not isinstance(topic, CreatableTopic):
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic_records, result = yield from creation.create(topic, partitions_left)
        except BrokerError as error:
            text = error.message if len(results) < REFUSAL_TEXTS_MAX else None
            results.append(
                CreatableTopicResult(name=name, error_code=error.code, error_message=text, configs=NO_CONFIGS)
            )
            yield UNITS_OF_A_NAME
            continue
        partitions_left -= result.num_partitions
        records += topic_records
        results.append(result)
        yield UNITS_OF_A_TOPIC + len(topic.configs)
        check_record_count(len(records))
    return MetadataDecision(CreateTopicsResponse(topics=results), [] if request.validate_only else records)


def _once(topics: Sequence[CreatableTopic]) -> Work:
    """Topics whose name occurs once, and each repeated name alone, in the order of their first appearance."""
    found: dict[str, CreatableTopic | str] = {}
    for at, topic in enumerate(topics):
        if at % NAMES_PER_UNIT == 0:
            yield 1
        found[topic.name] = topic.name if topic.name in found else topic
    return list(found.values())


class _Creation:
    """State shared by the topics of one CreateTopics request."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._collisions = Collisions(view.image.topics_by_name)
        self._told: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}  # by settings

    def create(self, topic: CreatableTopic, partitions_left: int) -> Work:
        """Records and result of one topic. Raises BrokerError if it cannot be created."""
        view = self._view
        validate_topic_name(topic.name)
        if topic.name == CLUSTER_METADATA_TOPIC:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            )
        if view.image.topic(topic.name) is not None:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        collision = self._collisions.topic(topic.name)
        if collision is not None:
            raise BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' collides with existing topic: {collision}"
            )
        overrides: dict[str, str | None] = {}
        for at, config in enumerate(topic.configs, 1):
            yield (at % NAMES_PER_UNIT == 0) + len(config.value or "") // CHARACTERS_PER_UNIT
            overrides[config.name] = config.value
        validate_topic_config(overrides)
        settings = {name: value for name, value in overrides.items() if value is not None}
        topic_id = view.new_id()
        partitions = yield from _new_partitions(view, topic, topic_id, partitions_left)
        view.take_permits(len(partitions))
        records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id)]
        records += _config_records(topic.name, settings)
        yield from _add_partition_records(records, topic_id, 0, partitions)
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=len(partitions),
            replication_factor=len(partitions[0].replicas),
            configs=self._configs(settings),
        )
        return records, result

    def _configs(self, settings: dict[str, str]) -> list[CreatableTopicConfigs]:
        """All settings of a topic; topics with the same settings share a list."""
        key = tuple(settings.items())
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = [
                CreatableTopicConfigs(
                    name=entry.name,
                    value=settings.get(entry.name, entry.value),
                    read_only=entry.read_only,
                    config_source=entry.effective_source,
                    is_sensitive=entry.sensitive,
                )
                for entry in topic_entries(self._view.config, settings)
            ]
        return told


def _new_partitions(
    view: ClusterView, topic: CreatableTopic, topic_id: bytes, partitions_left: int
) -> Steps[list[PartitionImage]]:
    if topic.assignments:
        return (yield from _assigned(view, topic, partitions_left))
    count, replication_factor = topic.num_partitions, topic.replication_factor
    if count == 0 or count < -1:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    if replication_factor == 0 or replication_factor < -1:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count == -1:
        count = view.config.get_int("num.partitions")
    if replication_factor == -1:
        replication_factor = view.config.get_int("default.replication.factor")
    _check_partitions_left(count, partitions_left)
    return (yield from place_partitions(view.image, count, replication_factor, topic_id[0] << 8 | topic_id[1]))


def _assigned(view: ClusterView, topic: CreatableTopic, partitions_left: int) -> Steps[list[PartitionImage]]:
    for field, value in (("replication factor", topic.replication_factor), ("numPartitions", topic.num_partitions)):
        if value != -1:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {field} was not set to -1.",
            )
    count = len(topic.assignments)
    _check_partitions_left(count, partitions_left)
    partitions: dict[int, PartitionImage] = {}
    replication_factor = None
    for assignment in topic.assignments:
        number, brokers = assignment.partition_index, assignment.broker_ids
        if number in partitions:
            text = f"Found multiple manual partition assignments for partition {number}"
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        partitions[number] = assigned_partition(view.image, number, brokers, replication_factor)
        replication_factor = len(brokers)
        yield UNITS_OF_A_PARTITION
    if min(partitions) != 0 or max(partitions) != count - 1:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return [partitions[number] for number in range(count)]


def _check_partitions_left(count: int, partitions_left: int) -> None:
    if count > partitions_left:
        raise BrokerError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _config_records(topic: str, settings: dict[str, str]) -> list[MetadataRecord]:
    return [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)
        for name, value in settings.items()
    ]


def _add_partition_records(
    records: list[MetadataRecord], topic_id: bytes, first: int, partitions: Sequence[PartitionImage]
) -> Work:
    for number, partition in enumerate(partitions, first):
        if number % RECORDS_PER_UNIT == 0:
            yield 1
        records.append(
            PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=list(partition.replicas),
                isr=list(partition.isr),
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                directories=list(partition.directories),
            )
        )


def states_of_names(request: DeleteTopicsRequest) -> Steps[list[DeleteTopicState]]:
    states = []
    for number, name in enumerate(request.topic_names):
        if number % STATES_PER_UNIT == 0:
            yield 1
        states.append(DeleteTopicState(name=name))
    return states


@LongDecision[Sequence[DeleteTopicState], DeleteTopicsResponse]
def delete_topics(view: ClusterView, states: Sequence[DeleteTopicState]) -> Work:
    """Raises BrokerError(TOPIC_DELETION_DISABLED) if delete.topic.enable is false."""
    if not view.config.get_bool("delete.topic.enable"):
        raise BrokerError(ErrorCode.TOPIC_DELETION_DISABLED)
    records: list[MetadataRecord] = []
    results: list[DeletableTopicResult] = []
    names: Counter[str | None] = Counter()
    ids: Counter[bytes] = Counter()
    resolved = []
    for state in states:
        names[state.name] += 1
        found = _resolve(view, state)
        resolved.append(found)
        if isinstance(found, TopicImage):
            ids[found.topic_id] += 1
        yield 1
    answered: set[str | bytes] = set()  # names and ids
    for state, topic in zip(states, resolved, strict=True):
        yield 1
        if isinstance(topic, TopicImage):
            if topic.topic_id in answered:
                continue
            answered.add(topic.topic_id)
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        refusal = topic if isinstance(topic, BrokerError) else None
        if state.name is not None and names[state.name] > 1:
            if state.name in answered:
                continue
            answered.add(state.name)
            refusal = _DUPLICATE_NAME
        elif isinstance(topic, TopicImage) and ids[topic.topic_id] > 1:
            what = "Duplicate topic id."
            if topic.name in names:
                what = "The provided topic name maps to an ID that was already supplied."
            refusal = BrokerError(ErrorCode.INVALID_REQUEST, what)
            result.topic_id = topic.topic_id
        if refusal is not None:
            result.error_code, result.error_message = refusal.code, refusal.message
        elif isinstance(topic, TopicImage):
            result.name, result.topic_id = topic.name, topic.topic_id
            try:
                view.take_permits(len(topic.partitions))
            except BrokerError as error:
                result.error_code, result.error_message = error.code, error.message
                results.append(result)
                continue
            records.append(RemoveTopicRecord(topic_id=topic.topic_id))
            check_record_count(len(records))
        results.append(result)
    return MetadataDecision(DeleteTopicsResponse(responses=results), records)


def _resolve(view: ClusterView, state: DeleteTopicState) -> TopicImage | BrokerError:
    if state.name is None and state.topic_id == NO_ID:
        return _UNNAMED
    if state.name is not None and state.topic_id != NO_ID:
        return _NAMED_TWICE
    if state.name is None:
        return view.image.topic_by_id(state.topic_id) or _UNKNOWN_ID
    return view.image.topic(state.name) or _UNKNOWN_NAME


# Shared refusals: a request may name 100,000 topics.
_DUPLICATE_NAME: Final = BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
_UNNAMED: Final = BrokerError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
_NAMED_TWICE: Final = BrokerError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
_UNKNOWN_ID: Final = BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
_UNKNOWN_NAME: Final = BrokerError(
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
)


@LongDecision[CreatePartitionsRequest, CreatePartitionsResponse]
def create_partitions(view: ClusterView, request: CreatePartitionsRequest) -> Work:
    """With `validate_only` the answer is the same, without records."""
    records: list[MetadataRecord] = []
    results: list[CreatePartitionsTopicResult] = []
    wanted: dict[str, CreatePartitionsTopic | None] = {}  # None: named more than once
    for at, topic in enumerate(request.topics):
        if at % NAMES_PER_UNIT == 0:
            yield 1
        wanted[topic.name] = None if topic.name in wanted else topic
    partitions_left = PARTITIONS_MAX
    for name, once in wanted.items():
        yield UNITS_OF_A_NAME
        result = CreatePartitionsTopicResult(name=name)
        results.append(result)
        try:
            if once is None:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            added = yield from _widen(view, once, partitions_left)
        except BrokerError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        partitions_left -= len(added)
        records += added
    return MetadataDecision(CreatePartitionsResponse(results=results), [] if request.validate_only else records)


def _widen(view: ClusterView, request: CreatePartitionsTopic, partitions_left: int) -> Steps[list[MetadataRecord]]:
    topic = view.image.topic(request.name)
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(topic.partitions)
    if request.count == present:
        raise BrokerError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if request.count < present:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {request.count} would not be an increase.",
        )
    additional = request.count - present
    _check_partitions_left(additional, partitions_left)
    records: list[MetadataRecord] = []
    if request.assignments is None or len(request.assignments) == additional:
        view.take_permits(additional)
    replication_factor = len(topic.partitions[0].replicas)
    if request.assignments is None:
        added = yield from place_partitions(view.image, additional, replication_factor, topic.topic_id[0] + present)
        yield from _add_partition_records(records, topic.topic_id, present, added)
        return records
    if len(request.assignments) != additional:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only {len(request.assignments)} "
            f"assignment(s) were specified.",
        )
    assigned = []
    for number, assignment in enumerate(request.assignments, present):
        assigned.append(assigned_partition(view.image, number, assignment.broker_ids, replication_factor))
        yield UNITS_OF_A_PARTITION
    yield from _add_partition_records(records, topic.topic_id, present, assigned)
    return records


def topic_to_ensure(name: str, config: BrokerConfig) -> CreatableTopic:
    """The topic to create: an internal topic with its own settings and never fewer replicas, another with the cluster's defaults."""
    settings: dict[str, str] = {}
    partitions, replication_factor = -1, -1
    if name == GROUP_METADATA_TOPIC:
        partitions = config.get_int("offsets.topic.num.partitions")
        replication_factor = config.get_int("offsets.topic.replication.factor")
        settings = {
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
            "compression.type": "producer",
            "cleanup.policy": "compact",
        }
    elif name == TRANSACTION_STATE_TOPIC:
        partitions = config.get_int("transaction.state.log.num.partitions")
        replication_factor = config.get_int("transaction.state.log.replication.factor")
        settings = {
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
        }
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
