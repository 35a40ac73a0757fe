"""Identity: whose data directory this is.

Driven by: `Node.start`, first of all, with the directory's lock held. Emits: meta.properties in a new directory; the cluster's and
the directory's id; whether the last stop was clean; a refusal that says what to do where the directory is not this node's.

A new directory's cluster is the one that was asked for (cluster.id). Where none was, nodes that are told the same voters must
agree without speaking to each other: their cluster id is drawn from the list of voters. A lone node takes a random one.

Invariants: the clean-shutdown file is taken away, durably, before any log is written to; a directory of another node, cluster
or format is never written to. Follows KIP-858 (directory ids), KIP-966 (broker epoch in the clean-shutdown file).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from barnabas.broker.config import BrokerConfig
from barnabas.broker.quorum.raft_log import METADATA_DIRECTORY
from barnabas.errors import BarnabasError
from barnabas.ports import Disk, Rng
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

__all__ = ["Identity", "WrongDirectory", "cluster_id_of", "open_directory"]


class WrongDirectory(BarnabasError):
    """The data directory is not this node's; nothing in it was changed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a data directory says of itself.

    Attributes:
        previous_broker_epoch: of the last clean stop; None where the last stop was not clean, or there was none.
    """

    cluster_id: str
    directory_id: bytes
    previous_broker_epoch: int | None

    @property
    def clean(self) -> bool:
        """Whether the last stop was clean, so that its files need no check."""
        return self.previous_broker_epoch is not None

    @property
    def broker_epoch(self) -> int:
        """What a registration says of the life before: its epoch, −1 where that did not end cleanly."""
        return -1 if self.previous_broker_epoch is None else self.previous_broker_epoch

    def give_back(self, disk: Disk) -> None:
        """Undoes `open_directory`: the directory is not for this broker, and nothing was written to its logs."""
        if self.previous_broker_epoch is not None:
            write_clean_shutdown(disk, self.previous_broker_epoch)


def open_directory(disk: Disk, config: BrokerConfig, rng: Rng, cluster_id: str | None = None) -> Identity:
    """Identifies the directory, or makes a new one's identity. To be called with its lock held.

    Args:
        cluster_id: of the node's other directories, where it is known.

    Raises:
        WrongDirectory: it belongs to another node or cluster, or holds a log and no meta.properties.
        OSError: the disk failed.
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
        raise WrongDirectory(f"{disk.root}/{META_PROPERTIES} has a directory.id that is none: {error}") from error
    return Identity(meta.cluster_id, directory_id, take_clean_shutdown(disk))


def _new_directory(disk: Disk, config: BrokerConfig, rng: Rng, cluster_id: str | None) -> MetaProperties:
    if disk.exists(METADATA_DIRECTORY):
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
    """The cluster id that every node with this list of voters comes to; None where there is no list."""
    if not config.voter_endpoints:
        return None
    listed = ",".join(f"{voter}@{each.host}:{each.port}" for voter, each in config.voter_endpoints.items())
    drawn = bytearray(hashlib.sha256(f"barnabas cluster {listed}".encode()).digest()[:16])
    drawn[0] &= 0x7F  # no id begins with "-": it would look like an option on a command line
    drawn[6] = drawn[6] & 0x0F | 0x40  # marked as a random UUID (version 4), as Kafka's are
    drawn[8] = drawn[8] & 0x3F | 0x80
    return encode_uuid(bytes(drawn))
