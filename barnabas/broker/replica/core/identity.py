"""BrokerIdentity: identifies a data directory, or prepares a new one (KIP-858 directory ids, KIP-966 broker epoch of a clean stop)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.errors import BarnabasError
from barnabas.ports import Disk, Rng
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.storage.checkpoints import (
    META_PROPERTIES,
    MalformedCheckpoint,
    MetaProperties,
    decode_uuid,
    encode_uuid,
    read_meta_properties,
    take_clean_shutdown,
    write_clean_shutdown,
    write_meta_properties,
)


class WrongDirectory(BarnabasError):
    """The data directory belongs to another node or cluster; nothing in it was changed."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The identity stored in a data directory."""

    cluster_id: str
    directory_id: bytes
    previous_broker_epoch: int | None  # of the last clean stop; None if the last stop was not clean, or there was none

    @property
    def clean(self) -> bool:
        return self.previous_broker_epoch is not None

    @property
    def broker_epoch(self) -> int:
        """Of the previous clean stop, for the registration; −1 if the last stop was not clean."""
        return -1 if self.previous_broker_epoch is None else self.previous_broker_epoch

    def undo_open(self, disk: Disk) -> None:
        """Undoes `open_directory`. Only valid if nothing was written to the directory's logs."""
        if self.previous_broker_epoch is not None:
            write_clean_shutdown(disk, self.previous_broker_epoch)


def open_directory(disk: Disk, config: BrokerConfig, rng: Rng, cluster_id: str | None = None) -> BrokerIdentity:
    """Identifies the directory, or makes a new one's identity, with the lock held. Removes the clean-shutdown file durably.

    `cluster_id` is that of the node's other directories, if known. Raises WrongDirectory for a directory of another node or cluster, or
    with a log but no meta.properties; OSError.
    """
    expected = cluster_id or config.get_str("cluster.id")
    try:
        meta = read_meta_properties(disk)
    except MalformedCheckpoint as error:
        raise WrongDirectory(f"cannot tell whose data directory {disk.root} is: {error}") from error
    if meta is None:
        meta = _new_directory(disk, config, rng, expected)
    if meta.node_id != config.node_id:
        raise WrongDirectory(
            f"data directory {disk.root} belongs to node {meta.node_id} ({META_PROPERTIES}), this is node {config.node_id}: "
            f"start with node.id={meta.node_id}, or give another directory"
        )
    if expected is not None and meta.cluster_id != expected:
        raise WrongDirectory(
            f"data directory {disk.root} belongs to cluster {meta.cluster_id} ({META_PROPERTIES}), not to {expected}: "
            f"give the directory of this cluster, or an empty one"
        )
    try:
        directory_id = decode_uuid(meta.directory_id)
    except ValueError as error:
        raise WrongDirectory(f"{disk.root}/{META_PROPERTIES} has an invalid directory.id: {error}") from error
    return BrokerIdentity(meta.cluster_id, directory_id, take_clean_shutdown(disk))


def _new_directory(disk: Disk, config: BrokerConfig, rng: Rng, cluster_id: str | None) -> MetaProperties:
    if disk.exists(CLUSTER_METADATA_FOLDER):
        raise WrongDirectory(
            f"there is a metadata log in {disk.root} but no {META_PROPERTIES}: restore that file, or give an empty directory"
        )
    meta = MetaProperties(
        cluster_id=cluster_id or cluster_id_of(config) or encode_uuid(rng.uuid()),
        node_id=config.node_id,
        directory_id=encode_uuid(rng.uuid()),
    )
    write_meta_properties(disk, meta)
    return meta


def cluster_id_of(config: BrokerConfig) -> str | None:
    """The cluster id that every node derives from the list of voters without communication; None without a list."""
    if not config.voter_endpoints:
        return None
    listed = ",".join(f"{voter}@{each.host}:{each.port}" for voter, each in config.voter_endpoints.items())
    drawn = bytearray(hashlib.sha256(f"barnabas cluster {listed}".encode()).digest()[:16])
    drawn[0] &= 0x7F  # no id begins with "-": it would look like an option on a command line
    drawn[6] = drawn[6] & 0x0F | 0x40  # marked as a random UUID (version 4), as Kafka's are
    drawn[8] = drawn[8] & 0x3F | 0x80
    return encode_uuid(bytes(drawn))
