"""Handles DescribeLogDirs, versions 1 to 5, of the family `admin`: lists this broker's data directories and their replicas.

Behaviour: every configured directory is listed with the requested replicas and the size of its volume. A failed directory is listed
with KAFKA_STORAGE_ERROR and nothing else. Partitions without a replica here are omitted.

Version notes: v3 top-level error, here CLUSTER_AUTHORIZATION_FAILED only; v4 sizes of the volume; v5 cordoned directories (there are none here).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Computed, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.handlers.needs import Needs
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.admin import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from barnabas.broker.replica.log_dir import LogDirectory

_Replica = tuple[str, int, int, int]  # topic, partition, size in bytes, lag of its high watermark


class _Found(NamedTuple):
    """A directory as of now; `replicas` is None if it has failed."""

    root: str
    replicas: list[_Replica] | None
    total_bytes: int = -1
    usable_bytes: int = -1


def describe_log_dirs(needs: Needs, call: Call[DescribeLogDirsRequest]) -> DescribeLogDirsResponse | Computed:
    """Sizes of replicas and volumes, directory by directory (KIP-113, KIP-827)."""
    try:
        check_permission(call.access, AclOperation.DESCRIBE, AclResourceType.CLUSTER)
    except BrokerError as error:
        return DescribeLogDirsResponse(error_code=error.code)  # below v3 only an empty list, as in Kafka
    found = [_found(directory) for directory in needs.log_dirs]
    return Computed(call, partial(_described, call.request, found), sum(len(each.replicas or ()) for each in found))


def _found(directory: LogDirectory) -> _Found:
    disk = directory.disk
    if not directory.online:
        return _Found(disk.root, None)
    replicas = [
        (each.topic, each.partition, each.log.size_bytes, each.high_watermark - each.log.log_end_offset)
        for each in directory.replicas
        if not each.failed
    ]
    return _Found(disk.root, replicas, disk.total_bytes(), disk.available_bytes())


def _described(request: DescribeLogDirsRequest, found: list[_Found], _access: Access) -> DescribeLogDirsResponse:
    asked: set[tuple[str, int]] | None = None
    if request.topics is not None:
        asked = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    return DescribeLogDirsResponse(results=[_directory(each, asked) for each in found])


def _directory(found: _Found, asked: set[tuple[str, int]] | None) -> DescribeLogDirsResult:
    if found.replicas is None:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=found.root)
    topics: dict[str, DescribeLogDirsTopic] = {}
    for name, partition, size_bytes, lag in found.replicas:
        if asked is None or (name, partition) in asked:
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
            topic.partitions.append(
                DescribeLogDirsPartition(partition_index=partition, partition_size=size_bytes, offset_lag=max(lag, 0))
            )
    return DescribeLogDirsResult(
        log_dir=found.root,
        topics=list(topics.values()),
        total_bytes=found.total_bytes,
        usable_bytes=found.usable_bytes,
    )


def refuse_describe_log_dirs(call: Call[DescribeLogDirsRequest], error: BrokerError) -> DescribeLogDirsResponse:
    """The error of the whole request; below v3 a directory carries it."""
    if call.version >= 3:
        return DescribeLogDirsResponse(error_code=error.code)
    return DescribeLogDirsResponse(results=[DescribeLogDirsResult(error_code=error.code)])


HANDLERS: Final[Table] = {DescribeLogDirsRequest: (describe_log_dirs, refuse_describe_log_dirs)}
