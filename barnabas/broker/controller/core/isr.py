"""Decisions on ISRs and leaders: AlterPartition, ElectLeaders, leader balance, unclean elections.
Follows KIP-497, KIP-841, KIP-903, KIP-966, KIP-460 (ElectLeaders) and Kafka's ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision, check_record_count
from barnabas.broker.controller.core.elections import ElectionKind, Elections, unclean_elections_enabled
from barnabas.broker.controller.core.registration import check_broker_epoch
from barnabas.broker.image.image import NO_LEADER, RECOVERED, RECOVERING, MetadataImage, PartitionImage, TopicImage
from barnabas.broker.image.records import NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord
from barnabas.broker.image.replay import changed_partition
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElectionResult,
    ReplicaElectionResult,
)
from barnabas.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    BrokerState,
)
from barnabas.work import Work

PREFERRED, UNCLEAN = 0, 1  # election types of ElectLeaders
ELECTIONS_MAX: Final = 1_000  # at the controller's own initiative, in one decision


# --- AlterPartition -------------------------------------------------------------------------------------------------------


@LongDecision[AlterPartitionRequest, AlterPartitionResponse]
def alter_partition(view: ClusterView, request: AlterPartitionRequest) -> Work:
    """A compare-and-set for each partition, based on its leader epoch, partition epoch and members' broker epochs.

    Fenced, stopping and restarted members are refused (INELIGIBLE_REPLICA): fetches before a broker's restart do not count. An epoch that
    is too high means that this controller is no longer active: NOT_CONTROLLER. Raises BrokerError(STALE_BROKER_EPOCH) if the leader
    registered again.
    """
    check_broker_epoch(view.image, request.broker_id, request.broker_epoch)
    elections = Elections(view.image, view.config)
    records: list[MetadataRecord] = []
    topics = []
    for wanted in request.topics:
        topic = view.image.topic_by_id(wanted.topic_id)
        results = []
        for each in wanted.partitions:
            yield 1
            result, change = _alter(elections, topic, request.broker_id, each)
            results.append(result)
            if change is not None:
                records.append(change)
        topics.append(AlterPartitionResponseTopic(topic_id=wanted.topic_id, partitions=results))
    return MetadataDecision(AlterPartitionResponse(topics=topics), records)


def _alter(
    elections: Elections, topic: TopicImage | None, broker_id: int, wanted: AlterPartitionRequestPartition
) -> tuple[AlterPartitionResponsePartition, PartitionChangeRecord | None]:
    number = wanted.partition_index
    result = AlterPartitionResponsePartition(partition_index=number)
    if topic is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return result, None
    if not 0 <= number < len(topic.partitions):
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return result, None
    partition = topic.partitions[number]
    members = wanted.new_isr_with_epochs or [BrokerState(broker_id=member) for member in wanted.new_isr]
    result.error_code = _refusal(elections.image, partition, broker_id, wanted, members)
    if result.error_code:
        return result, None
    isr = [member.broker_id for member in members]
    change = elections.change(topic, number, isr=isr, recovery=wanted.leader_recovery_state)
    if change is not None:
        partition = changed_partition(partition, change)
        if change.leader not in (broker_id, NO_LEADER_CHANGE):
            result.error_code = ErrorCode.NEW_LEADER_ELECTED
            return result, change
    result.leader_id, result.leader_epoch = partition.leader, partition.leader_epoch
    result.isr, result.partition_epoch = list(partition.isr), partition.partition_epoch
    result.leader_recovery_state = partition.leader_recovery_state
    return result, change


def _refusal(
    image: MetadataImage,
    partition: PartitionImage,
    broker_id: int,
    wanted: AlterPartitionRequestPartition,
    members: Sequence[BrokerState],
) -> ErrorCode:
    isr = [member.broker_id for member in members]
    recovering = wanted.leader_recovery_state == RECOVERING
    if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if len(set(isr)) < len(isr) or not set(isr) <= set(partition.replicas) or broker_id not in isr:
        return ErrorCode.INVALID_REQUEST
    if recovering and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return ErrorCode.INELIGIBLE_REPLICA
        if member.broker_epoch not in (-1, broker.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


# --- requested elections --------------------------------------------------------------------------------------------------


@LongDecision[ElectLeadersRequest, ElectLeadersResponse]
def elect_leaders(view: ClusterView, request: ElectLeadersRequest) -> Work:
    """Without partitions it means all; then the answer omits those that need no election. Raises BrokerError(INVALID_REQUEST)."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    wanted: list[tuple[str, Sequence[int]]]
    everything = request.topic_partitions is None
    if request.topic_partitions is None:
        wanted = [(topic.name, range(len(topic.partitions))) for topic in view.image.topics_by_name.values()]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    elections = Elections(view.image, view.config)
    records: dict[tuple[str, int], MetadataRecord] = {}
    results = []
    for name, numbers in wanted:
        outcomes = []
        for number in numbers:
            yield 1
            outcome, record = _elect(elections, name, number, unclean=request.election_type == UNCLEAN)
            if record is not None:
                records[name, number] = record
                check_record_count(len(records))
            if not (everything and outcome.error_code == ErrorCode.ELECTION_NOT_NEEDED):
                outcomes.append(outcome)
        results.append(ReplicaElectionResult(topic=name, partition_result=outcomes))
    return MetadataDecision(ElectLeadersResponse(replica_election_results=results), list(records.values()))


def _elect(
    elections: Elections, name: str, number: int, *, unclean: bool
) -> tuple[PartitionElectionResult, PartitionChangeRecord | None]:
    result = PartitionElectionResult(partition_id=number, error_message=None)
    topic = elections.image.topic(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        what = f"topic as {name}" if topic is None else f"partition as {name}-{number}"
        result.error_message = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {what}").message
        return result, None
    partition = topic.partitions[number]
    if partition.leader != NO_LEADER if unclean else partition.leader == partition.replicas[0]:
        result.error_code = ErrorCode.ELECTION_NOT_NEEDED
        result.error_message = "Leader election not needed for topic partition."
        return result, None
    kind = ElectionKind.UNCLEAN if unclean else ElectionKind.PREFERRED
    record = elections.change(topic, number, kind=kind)
    if record is None:
        if unclean:
            result.error_code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            result.error_message = "Eligible topic partition leaders are not available."
        else:
            result.error_code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            result.error_message = "The preferred leader was not available."
    return result, record


# --- elections at the controller's own initiative -------------------------------------------------------------------------


def balance_leaders(view: ClusterView) -> MetadataDecision[bool]:
    """Elects preferred replicas that are in sync again. The answer is whether more remain."""
    misplaced = _misplaced(view)
    records = _preferred_elections(view, misplaced, misplaced)
    return MetadataDecision(len(records) >= ELECTIONS_MAX, records)


def give_leaderships_back(view: ClusterView, brokers: Collection[int]) -> MetadataDecision[frozenset[int]]:
    """Elects unfenced brokers where they are preferred. The answer names those that cannot lead all such partitions yet."""
    misplaced = _misplaced(view)
    records = _preferred_elections(view, misplaced, brokers)
    waiting = {each for each in brokers if each in misplaced}
    moved = {(record.topic_id, record.partition_id) for record in records}
    for each in list(waiting):
        if all((topic.topic_id, number) in moved for topic, number in misplaced[each]):
            waiting.remove(each)
    return MetadataDecision(frozenset(waiting), records)


def _misplaced(view: ClusterView) -> dict[int, list[tuple[TopicImage, int]]]:
    """Partitions that their preferred replica does not lead, by preferred replica."""
    found: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic, number, partition in view.image.partitions():
        if partition.leader != partition.replicas[0]:
            found.setdefault(partition.replicas[0], []).append((topic, number))
    return found


def _preferred_elections(
    view: ClusterView, misplaced: Mapping[int, Sequence[tuple[TopicImage, int]]], brokers: Iterable[int]
) -> list[PartitionChangeRecord]:
    elections = Elections(view.image, view.config)
    found = chain.from_iterable(misplaced.get(each, ()) for each in brokers)
    led = (each for each in found if each[0].partitions[each[1]].leader != NO_LEADER)
    changes = (elections.change(topic, number, kind=ElectionKind.PREFERRED) for topic, number in led)
    return list(islice((change for change in changes if change is not None), ELECTIONS_MAX))


def elect_unclean_leaders(view: ClusterView) -> MetadataDecision[bool]:
    """Elects out-of-sync leaders for partitions without one, if their topics allow it. The answer is whether more remain."""
    elections = Elections(view.image, view.config)
    records: list[MetadataRecord] = []
    for topic, number, partition in view.image.partitions():
        if partition.leader != NO_LEADER or not unclean_elections_enabled(view.image, view.config, topic.name):
            continue
        change = elections.change(topic, number, kind=ElectionKind.UNCLEAN)
        if change is not None:
            records.append(change)
            if len(records) >= ELECTIONS_MAX:
                return MetadataDecision(True, records)
    return MetadataDecision(False, records)
