"""Handles ListOffsets (key 2), versions 1 to 11, and OffsetForLeaderEpoch (key 23), versions 2 to 4.

Behaviour: ListOffsets finds the first offset at or after a timestamp below the high watermark (read_committed: below the last
stable offset), or by a special timestamp: -1 latest, -2 earliest, -3 the record with the greatest timestamp (v7), -4 earliest
local (v8), -5 latest tiered (v9) and -6 earliest pending upload (v11). Without tiered storage -4 is the log start, and the last two
are unknown (-1). A follower's latest offset is the end of its log. A leader whose high watermark has not reached the start of its epoch
does not know its latest offset yet and answers OFFSET_NOT_AVAILABLE (KIP-207; LEADER_NOT_AVAILABLE before v5), so that offsets never
go back. OffsetForLeaderEpoch returns the end offset of an epoch, for clients that check for truncation (KIP-320).

If a search reads a damaged batch, its partition is answered CORRUPT_MESSAGE.

A topic that the client may not describe is answered TOPIC_AUTHORIZATION_FAILED. A partition named twice in ListOffsets is answered INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from barnabas.broker.api.call import Call, Table
from barnabas.broker.authorization.permissions import AllowedNames
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse_each
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from barnabas.work import Steps, Work

READ_COMMITTED: Final = 1
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_WITH_NOT_AVAILABLE: Final = 5
SEARCH_UNITS: Final = 20  # of a search by timestamp, which reads from the log (slices.Work)

# The first version that supports each special timestamp.
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

_Found = tuple[int, int, int]  # timestamp, offset, leader epoch; -1 each where unknown
_UNKNOWN: Final[_Found] = (-1, -1, -1)


def list_offsets(needs: Needs, call: Call[ListOffsetsRequest]) -> Work:
    """Finds offsets by timestamp; see the module's docstring."""
    request = call.request
    committed = request.isolation_level == READ_COMMITTED
    named: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        for one in topic.partitions:
            named[topic.name, one.partition_index] += 1
            yield 1
    described = AllowedNames(call.access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
    topics = []
    for topic in request.topics:
        answers = []
        for one in topic.partitions:
            yield 1 if one.timestamp in (LATEST, EARLIEST) else SEARCH_UNITS
            times = named[topic.name, one.partition_index]
            if not times:
                continue  # a repetition: Kafka answers it once
            answer = ListOffsetsPartitionResponse(partition_index=one.partition_index)
            answers.append(answer)
            try:
                if topic.name not in described:
                    raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if times > 1:
                    named[topic.name, one.partition_index] = 0
                    raise BrokerError(ErrorCode.INVALID_REQUEST)
                if one.timestamp < 0 and call.version < _SINCE.get(one.timestamp, 2**15):
                    raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
                replica = needs.replicas.leader(topic.name, one.partition_index)
                if units := needs.replicas.take_opened_units():
                    yield units
                replica.check_epoch(one.current_leader_epoch)
                if request.replica_id >= 0 and one.timestamp == LATEST:
                    answer.offset, answer.leader_epoch = replica.log.log_end_offset, replica.leader_epoch
                    continue
                found = yield from _find(replica, one.timestamp, committed)
                if replica.high_watermark < replica.epoch_start_offset and _is_open(found, one.timestamp):
                    raise BrokerError(
                        ErrorCode.OFFSET_NOT_AVAILABLE
                        if call.version >= FIRST_WITH_NOT_AVAILABLE
                        else ErrorCode.LEADER_NOT_AVAILABLE
                    )
                answer.timestamp, answer.offset, answer.leader_epoch = found
            except BrokerError as error:
                answer.error_code = error.code
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def offset_for_leader_epoch(needs: Needs, call: Call[OffsetForLeaderEpochRequest]) -> Work:
    """Returns the end offsets of leader epochs."""
    described = AllowedNames(call.access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
    # Brokers may ask about every topic.
    described.all = described.all or call.access.allows(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, log=False)
    topics = []
    for topic in call.request.topics:
        answers = []
        for one in topic.partitions:
            yield 1
            answer = EpochEndOffset(partition=one.partition)
            answers.append(answer)
            try:
                if topic.topic not in described:
                    raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                replica = needs.replicas.leader(topic.topic, one.partition)
                if units := needs.replicas.take_opened_units():
                    yield units
                replica.check_epoch(one.current_leader_epoch)
                answer.leader_epoch, answer.end_offset = replica.log.epochs.end_offset_for_epoch(
                    one.leader_epoch, replica.log.log_end_offset
                )
                if answer.end_offset < 0:
                    replica.check_leads(by_followers=False)  # another broker that leads by now may know the epoch
            except BrokerError as error:
                answer.error_code = error.code
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)


def _is_open(found: _Found, timestamp: int) -> bool:
    """Whether the answer may change when the high watermark reaches everything that the previous leader had committed."""
    return timestamp == LATEST or (found == _UNKNOWN and timestamp not in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD))


def _find(replica: Replica, timestamp: int, committed: bool) -> Steps[_Found]:
    """Returns timestamp, offset and leader epoch of the result; an unknown offset is no error."""
    log = replica.log
    end_offset = replica.last_stable_offset if committed else replica.high_watermark
    if timestamp == LATEST:
        return -1, end_offset, replica.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.epochs.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN
    if timestamp == MAX_TIMESTAMP:
        search = log.max_timestamp_offset(end_offset)
    else:
        search = log.offset_for_timestamp(timestamp, end_offset=end_offset)
    try:
        found = yield from search  # decompresses large batches in a thread: 24 MiB take 10 to 110 ms
    except OSError as error:
        raise replica.broken(error) from error
    return _UNKNOWN if found is None else (found.timestamp, found.offset, found.leader_epoch)


HANDLERS: Final[Table] = {
    ListOffsetsRequest: (list_offsets, refuse_each),
    OffsetForLeaderEpochRequest: (offset_for_leader_epoch, refuse_each),
}
