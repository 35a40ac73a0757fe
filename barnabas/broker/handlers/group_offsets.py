"""Handles offsets of consumer groups.

OffsetCommit 2–10, OffsetFetch 1–10, OffsetDelete 0, of the family `groups`. TxnOffsetCommit is in `txn_offsets`.

Behaviour: this module looks up topics; the group's shard checks members and generations. An answer is sent once its changes are
committed. An unknown topic or partition is refused alone; an error of the group refuses the rest.

Version notes: OffsetCommit v5 drops the retention, v6 adds leader epochs, v7 static members, v9 member epochs (KIP-848), v10 topic ids;
OffsetFetch v2 adds all topics and a top-level error, v5 leader epochs, v7 require_stable (KIP-447), v8 several groups, v9 member
epochs (KIP-848), v10 topic ids.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Computed, Pending, Rest, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission
from barnabas.broker.config.key import INT64_MAX
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.groups.records import NO_EXPIRY, NO_TOPIC_ID, AnyRecord, CommittedOffset, OffsetRecord
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.offset_checks import OffsetChecks
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from barnabas.protocol.messages.shared import PartitionResult, TopicResult
from barnabas.work import Steps, Work

if TYPE_CHECKING:
    from barnabas.broker.image.image import MetadataImage

_new = tuple.__new__  # the constructor of a named tuple takes three times as long
NO_OFFSET = -1
FIRST_WITH_GROUP_ERROR: Final = 2  # version of OffsetFetch
GROUPS_PER_UNIT: Final = 16


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


def offset_commit(needs: Needs, call: Call[OffsetCommitRequest]) -> Computed:
    """Commits offsets of a member, or of a client without membership while the group is empty."""
    request = call.request
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    now_ms = needs.reactor.clock.now_ms()
    retention_ms = request.retention_time_ms
    offsets = OffsetChecks(
        request.group_id,
        needs.groups.settings.offset_metadata_bytes_max,
        now_ms,
        expire_ms=NO_EXPIRY if retention_ms < 0 else min(now_ms + retention_ms, INT64_MAX),
        unknown=ErrorCode.UNKNOWN_TOPIC_ID if call.version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        keeps_topic_ids=True,
    )
    return Computed(call, partial(_check_offsets, needs, call, needs.current_image.image, offsets))


def _check_offsets(
    needs: Needs, call: Call[OffsetCommitRequest], image: MetadataImage, offsets: OffsetChecks, access: Access
) -> OffsetCommitResponse | Rest:
    by_id = call.version >= 10
    readable = AllowedNames(access, AclOperation.READ, AclResourceType.TOPIC)
    response = OffsetCommitResponse()
    for topic in call.request.topics:
        known = image.topic_by_id(topic.topic_id) if by_id else image.topic(topic.name)
        allowed = topic.name in readable if not by_id else known is None or known.name in readable
        answers: list[PartitionResult] = []
        response.topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        for partition in topic.partitions:
            answer = PartitionResult(partition_index=partition.partition_index)
            answers.append(answer)
            if allowed:
                offsets.check(known, partition, answer)
            else:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return partial(_commit, needs, call, offsets, response) if offsets.accepted else response


def _commit(
    needs: Needs, call: Call[OffsetCommitRequest], offsets: OffsetChecks, response: OffsetCommitResponse
) -> Pending[OffsetCommitResponse]:
    request = call.request
    committer = Committer(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        call.version,
    )
    pending: Pending[OffsetCommitResponse] = Pending()
    offsets.commit(needs.groups, committer, None, lambda: pending.resolve(response))
    return pending


def _topic_id(needs: Needs, name: str) -> bytes:
    topic = needs.current_image.image.topic(name)
    return NO_TOPIC_ID if topic is None else topic.topic_id


# -- OffsetFetch -------------------------------------------------------------------------------------------------------


def offset_fetch(needs: Needs, call: Call[OffsetFetchRequest]) -> Work:
    """Returns committed offsets of one group or (v8) of several groups."""
    request = call.request
    wanted = (yield from _once(request.groups)) if call.version >= 8 else [_as_group(request)]
    found: list[OffsetFetchResponseGroup | _Found | None] = [None] * len(wanted)
    pending: Pending[OffsetFetchResponse] = Pending()
    open_groups = len(wanted)

    def done(index: int, outcome: _Found | BrokerError) -> None:
        nonlocal open_groups
        if isinstance(outcome, BrokerError):
            if call.version < FIRST_WITH_GROUP_ERROR:
                pending.resolve(Computed(call, lambda _access: refuse_offset_fetch(call, outcome)))
            found[index] = _no_offsets(wanted[index], outcome.code)
        else:
            found[index] = outcome
        open_groups -= 1
        if not open_groups:
            answered = [group for group in found if group is not None]
            elements = sum(len(topic[1]) for group in answered if isinstance(group, _Found) for topic in group.topics)
            pending.resolve(Computed(call, partial(_computed_fetch, answered, call.version), elements))

    for index, group in enumerate(wanted):
        yield 3
        if not (
            call.access.unrestricted or call.access.allows(AclOperation.DESCRIBE, AclResourceType.GROUP, group.group_id)
        ):
            done(index, BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        needs.groups.write(group.group_id, partial(_decide_fetch, needs, call, group), partial(done, index))
    if not wanted:
        pending.resolve(OffsetFetchResponse())
    return pending


def _once(groups: list[OffsetFetchRequestGroup]) -> Steps[list[OffsetFetchRequestGroup]]:
    """Returns the groups without repeated requests for all offsets: their answers may be long."""
    everything: set[str] = set()
    found = []
    for number, group in enumerate(groups):
        if number % GROUPS_PER_UNIT == 0:
            yield 1
        if group.topics is None:
            if group.group_id in everything:
                continue
            everything.add(group.group_id)
        found.append(group)
    return found


def _decide_fetch(
    needs: Needs, call: Call[OffsetFetchRequest], group: OffsetFetchRequestGroup, shard: GroupShard, _at: At
) -> Decision[_Found, AnyRecord]:
    shard.group(group.group_id).check_fetch(group.member_id, group.member_epoch)
    return Decision(_fetch(needs, shard, group, call))


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """Converts a request before v8 to the later form."""
    topics = None
    if request.topics is not None:
        topics = [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


# ErrorCode if the offset cannot be answered; None without an offset.
_Position = CommittedOffset | ErrorCode | None


class _Found(NamedTuple):
    """The offsets of one group as of the decision about the request."""

    group_id: str
    topics: list[tuple[OffsetFetchRequestTopics, list[_Position]]]


def _fetch(needs: Needs, shard: GroupShard, group: OffsetFetchRequestGroup, call: Call[OffsetFetchRequest]) -> _Found:
    by_id = call.version >= 10
    stable = call.request.require_stable
    topics = group.topics
    described = AllowedNames(call.access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
    if topics is None:
        topics = [
            OffsetFetchRequestTopics(name=name, topic_id=_topic_id(needs, name), partition_indexes=list(partitions))
            for name, partitions in shard.offsets.topics(group.group_id).items()
            if name in described
        ]
        if by_id:
            topics = [topic for topic in topics if topic.topic_id != NO_TOPIC_ID]
    found = _Found(group.group_id, [])
    for topic in topics:
        name: str | None = topic.name
        if by_id:
            known = needs.current_image.image.topic_by_id(topic.topic_id)
            name = None if known is None else known.name
        positions: list[_Position]
        if name is None:
            positions = [ErrorCode.UNKNOWN_TOPIC_ID] * len(topic.partition_indexes)
        elif name not in described:
            positions = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * len(topic.partition_indexes)
        else:
            positions = _positions(shard, group.group_id, name, topic, stable=stable)
        found.topics.append((topic, positions))
    return found


def _positions(
    shard: GroupShard, group_id: str, name: str, topic: OffsetFetchRequestTopics, *, stable: bool
) -> list[_Position]:
    """The offsets of one topic as of now; does little work for each, because it runs in one turn of the loop."""
    offsets = shard.offsets
    found: list[_Position] = [*offsets.of_partitions(group_id, name, topic.partition_indexes)]
    if topic.topic_id != NO_TOPIC_ID:  # an offset may belong to an earlier topic of this name
        found = [
            each if isinstance(each, CommittedOffset) and each.topic_id in (NO_TOPIC_ID, topic.topic_id) else None
            for each in found
        ]
    if stable and offsets.has_pending(group_id):
        for at, partition in enumerate(topic.partition_indexes):
            if offsets.is_pending(group_id, name, partition):
                found[at] = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return found


def _computed_fetch(
    groups: list[OffsetFetchResponseGroup | _Found], version: int, _access: Access
) -> OffsetFetchResponse:
    """Returns the answer."""
    responses = []
    for group in groups:
        if isinstance(group, OffsetFetchResponseGroup):
            responses.append(group)
            continue
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=list(map(_shown, topic.partition_indexes, positions)),
            )
            for topic, positions in group.topics
        ]
        responses.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
    return _fetched(responses, version)


def _shown(partition: int, committed: _Position) -> OffsetFetchResponsePartitions:
    if committed is None or isinstance(committed, ErrorCode):
        return _no_position(partition, committed or ErrorCode.NONE)
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _no_position(partition: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=-1,
        metadata="",
        error_code=code,
    )


def _no_offsets(group: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)


def _as_single(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    """Converts a partition of an answer to the form before v8."""
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


def _fetched(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    if version >= 8:
        return OffsetFetchResponse(groups=groups)
    topics = [
        OffsetFetchResponseTopic(name=topic.name, partitions=[_as_single(each) for each in topic.partitions])
        for topic in groups[0].topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=groups[0].error_code)


# -- OffsetDelete ------------------------------------------------------------------------------------------------------


def offset_delete(needs: Needs, call: Call[OffsetDeleteRequest]) -> Computed:
    """Deletes offsets of topics to which the group is not subscribed."""
    check_permission(call.access, AclOperation.DELETE, AclResourceType.GROUP, call.request.group_id)
    if not call.request.group_id:
        raise BrokerError(ErrorCode.INVALID_GROUP_ID)
    return Computed(call, partial(_check_deletion, needs, call.request, needs.current_image.image))


# Topics with the answers and the numbers of their partitions that exist.
_Deletable = list[tuple[str, list[PartitionResult], list[int]]]


def _check_deletion(needs: Needs, request: OffsetDeleteRequest, image: MetadataImage, access: Access) -> Rest:
    readable = AllowedNames(access, AclOperation.READ, AclResourceType.TOPIC)
    response = OffsetDeleteResponse()
    deletable: _Deletable = []
    for topic in request.topics:
        allowed, count = topic.name in readable, image.partition_count(topic.name)
        answers = [PartitionResult(partition_index=one.partition_index) for one in topic.partitions]
        response.topics.append(TopicResult(name=topic.name, partitions=answers))
        for answer in answers:
            if not allowed:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= answer.partition_index < count:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = [answer for answer in answers if not answer.error_code]
        deletable.append((topic.name, found, [answer.partition_index for answer in found]))
    return partial(_delete_offsets, needs, request.group_id, response, deletable)


def _delete_offsets(
    needs: Needs, group_id: str, response: OffsetDeleteResponse, deletable: _Deletable
) -> Pending[OffsetDeleteResponse]:
    pending: Pending[OffsetDeleteResponse] = Pending()

    def decide(shard: GroupShard, _at: At) -> Decision[None, AnyRecord]:
        group = shard.group(group_id)
        group.check_offset_delete()
        records: list[AnyRecord] = []
        for topic, answers, partitions in deletable:
            if group.is_subscribed_to(topic):
                for answer in answers:
                    answer.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            existing = shard.offsets.existing(group_id, topic, partitions)
            records += [_new(OffsetRecord, (group_id, topic, partition, None)) for partition in existing]
        return Decision(None, records)

    def done(outcome: BrokerError | None) -> None:
        pending.resolve(response if outcome is None else OffsetDeleteResponse(error_code=outcome.code))

    needs.groups.write(group_id, decide, done)
    return pending


# -- refusals ----------------------------------------------------------------------------------------------------------


def refuse_offset_fetch(call: Call[OffsetFetchRequest], error: BrokerError) -> OffsetFetchResponse:
    """The same error for every group; in v1, for every partition."""
    request = call.request
    if call.version >= 8:
        groups = [_no_offsets(group, error.code) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    if call.version >= FIRST_WITH_GROUP_ERROR:
        return OffsetFetchResponse(error_code=error.code)
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[_as_single(_no_position(partition, error.code)) for partition in topic.partition_indexes],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(topics=topics)


HANDLERS: Final[Table] = {
    OffsetCommitRequest: (offset_commit, refuse_each),
    OffsetFetchRequest: (offset_fetch, refuse_offset_fetch),
    OffsetDeleteRequest: (offset_delete, refuse),
}
