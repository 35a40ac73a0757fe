"""Handles DescribeLogDirs, versions 1 to 5, of the family `admin`: lists this broker's data directories and their replicas.

Behaviour: every configured directory is listed with the requested replicas and the size of its volume. A failed directory is listed
with KAFKA_STORAGE_ERROR and nothing else. Partitions without a replica here are omitted.

Version notes: v3 top-level error, here CLUSTER_AUTHORIZATION_FAILED only; v4 sizes of the volume; v5 cordoned directories (there are none here).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.api.call import Call, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.admin import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.replica.log_dir import LogDirectory
    from barnabas.broker.replica.log_dirs import LogDirectories

FREED_PER_UNIT: Final = 64


class Needs(Protocol):
    """What these handlers work on."""

    log_dirs: LogDirectories


def describe_log_dirs(needs: Needs, call: Call[DescribeLogDirsRequest]) -> Work:
    """Sizes of replicas and volumes, directory by directory (KIP-113, KIP-827)."""
    try:
        check_permission(call.access, AclOperation.DESCRIBE, AclResourceType.CLUSTER)
    except BrokerError as error:
        return DescribeLogDirsResponse(error_code=error.code)  # below v3 only an empty list, as in Kafka
    asked = None
    if call.request.topics is not None:
        asked = set()
        for topic in call.request.topics:
            for number in topic.partitions:
                asked.add((topic.topic, number))
                yield 1
    results = []
    for directory in needs.log_dirs:
        results.append((yield from _described(directory, asked)))
    while asked:  # freeing all of them at once would take 10 ms
        for _ in range(min(len(asked), FREED_PER_UNIT)):
            asked.pop()
        yield 1
    return DescribeLogDirsResponse(results=results)


def _described(directory: LogDirectory, asked: set[tuple[str, int]] | None) -> Work:
    """Returns the answer for one directory."""
    disk = directory.disk
    if not directory.online:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=disk.root)
    topics: dict[str, DescribeLogDirsTopic] = {}
    for replica in list(directory.replicas):
        yield 1
        if replica.failed or (asked is not None and (replica.topic, replica.partition) not in asked):
            continue
        topic = topics.setdefault(replica.topic, DescribeLogDirsTopic(name=replica.topic))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=replica.partition,
                partition_size=replica.log.size_bytes,
                offset_lag=max(replica.high_watermark - replica.log.log_end_offset, 0),
            )
        )
    return DescribeLogDirsResult(
        log_dir=disk.root,
        topics=list(topics.values()),
        total_bytes=disk.total_bytes(),
        usable_bytes=disk.available_bytes(),
    )


def refuse_describe_log_dirs(call: Call[DescribeLogDirsRequest], error: BrokerError) -> DescribeLogDirsResponse:
    """The error of the whole request; below v3 a directory carries it."""
    if call.version >= 3:
        return DescribeLogDirsResponse(error_code=error.code)
    return DescribeLogDirsResponse(results=[DescribeLogDirsResult(error_code=error.code)])


HANDLERS: Final[Table] = {DescribeLogDirsRequest: (describe_log_dirs, refuse_describe_log_dirs)}
