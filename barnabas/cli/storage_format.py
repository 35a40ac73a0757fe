"""Formats data directories before the first start of their node, as Kafka's kafka-storage does.

Each directory gets meta.properties, the first one also bootstrap.checkpoint: the features of a new cluster. A directory with
partitions is never formatted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import time_ns
from typing import Final

from barnabas.broker.controller.core.features import FEATURES, METADATA_VERSION
from barnabas.broker.image.records import FeatureLevelRecord, UserScramCredentialRecord, encode_record
from barnabas.broker.quorum.core.snapshots import BOOTSTRAP, encode_snapshot
from barnabas.cli.data_directory import read_data_directory
from barnabas.errors import BarnabasError
from barnabas.ports import Rng
from barnabas.protocol.metadata_versions import metadata_version_level, metadata_version_name
from barnabas.runtime.files import FileDisk, write_private
from barnabas.storage.checkpoints import MetaProperties, decode_uuid, encode_uuid, write_meta_properties

SCRAM_SINCE: Final = "3.5-IV2"


class NotFormatted(BarnabasError):
    """A directory cannot be formatted; none was changed."""


def format_directories(
    paths: Sequence[Path],
    node_id: int,
    cluster_id: str | None,
    metadata_version: int,
    rng: Rng,
    ignore_formatted: bool,
    users: Sequence[UserScramCredentialRecord] = (),
) -> dict[Path, MetaProperties]:
    """Formats the directories of one node; returns those that were formatted, with their identities.

    Args:
        cluster_id: None takes that of the formatted directories, or a random one.
        ignore_formatted: leaves formatted directories as they are, instead of refusing them.
        users: the first SCRAM users of a new cluster.

    Raises:
        ValueError: an id or the level is invalid; the text says what is valid.
        NoDirectory: a path is a file, or cannot be read.
        NotFormatted: a directory is formatted already, holds partitions, or belongs to another node or cluster.
        OSError: the disk failed.
    """
    _check(paths, node_id, cluster_id, metadata_version, users)
    new, cluster_id = _unformatted(paths, node_id, cluster_id, ignore_formatted)
    if users and paths[0] not in new:
        raise NotFormatted(
            f"{paths[0]} is formatted already, so the users would not be written: create them with `user create`"
        )
    cluster_id = cluster_id or encode_uuid(rng.uuid())
    done = {}
    for path in new:
        disk = FileDisk(str(path))
        if path == paths[0]:
            write_private(path / BOOTSTRAP, _bootstrap(metadata_version, users))  # it may have keys of users
        done[path] = MetaProperties(cluster_id, node_id, encode_uuid(rng.uuid()))
        write_meta_properties(disk, done[path])  # last: it makes the directory a formatted one
        disk.close()
    return done


def _check(
    paths: Sequence[Path],
    node_id: int,
    cluster_id: str | None,
    metadata_version: int,
    users: Sequence[UserScramCredentialRecord],
) -> None:
    """Raises ValueError for values that no directory can have."""
    if not 0 <= node_id < 2**31:
        raise ValueError(f"{node_id} is no node id: from 0 to 2147483647")
    if cluster_id is not None:
        decode_uuid(cluster_id)
    levels = FEATURES[METADATA_VERSION]
    if not levels.low <= metadata_version <= levels.high:
        name, lowest, highest = map(metadata_version_name, (metadata_version, levels.low, levels.high))
        raise ValueError(f"a new cluster cannot have metadata.version {name}: it must be from {lowest} to {highest}")
    if len({path.absolute() for path in paths}) < len(paths):
        raise ValueError("a directory is named twice")
    if users and metadata_version < metadata_version_level(SCRAM_SINCE):
        raise ValueError(f"users need metadata.version {SCRAM_SINCE} or later")


def _unformatted(
    paths: Sequence[Path], node_id: int, cluster_id: str | None, ignore_formatted: bool
) -> tuple[list[Path], str | None]:
    """Returns the directories to format, and the id of the cluster if it is known. Raises NotFormatted."""
    new = []
    for path in paths:
        found = None if not path.exists() else read_data_directory(path)
        if found is None or (
            found.meta is None and not found.problems and not found.partitions and found.metadata is None
        ):
            new.append(path)
        elif found.meta is None:
            raise NotFormatted(
                f"{path} holds data of a broker: restore its meta.properties, or give an empty directory"
            )
        elif not ignore_formatted:
            raise NotFormatted(
                f"{path} is formatted, for node {found.meta.node_id}; --ignore-formatted leaves it as it is"
            )
        elif found.meta.node_id != node_id or cluster_id not in (None, found.meta.cluster_id):
            raise NotFormatted(f"{path} belongs to node {found.meta.node_id} of cluster {found.meta.cluster_id}")
        else:
            cluster_id = found.meta.cluster_id
    return new, cluster_id


def _bootstrap(metadata_version: int, users: Sequence[UserScramCredentialRecord]) -> bytes:
    """The feature records of a new cluster, and its first users."""
    levels = {name: each.initial for name, each in FEATURES.items() if each.initial} | {
        METADATA_VERSION: metadata_version
    }
    values = [encode_record(FeatureLevelRecord(name=name, feature_level=level)) for name, level in levels.items()]
    values += [encode_record(each) for each in users]
    return encode_snapshot(values, epoch=0, last_timestamp_ms=0, now_ms=time_ns() // 1_000_000)
