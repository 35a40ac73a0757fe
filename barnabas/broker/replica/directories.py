"""Log directories of a node: where each replica lies, and where a new one goes.

Driven by: `find` at the start, `home_of` for every replica that is opened, I/O errors of a directory.
Emits: the directory of a replica, or None where that has failed; ids for registration and heartbeats.

A replica lies where its folder is. One without a folder goes where the metadata log says, else to the working directory with the
fewest replicas, the first of those. While a directory is offline, a replica that the metadata log puts into a directory unknown
here is not made anew: it may lie in the one that failed.

Invariants: a partition's folder is in one directory; the first directory holds the metadata log. Follows KIP-112, KIP-858.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from barnabas.broker.config import BrokerConfig
from barnabas.broker.identity import Identity
from barnabas.broker.replica.directory import LogDirectory, TopicPartition
from barnabas.ports import Rng

__all__ = ["LOST_DIRECTORY", "UNASSIGNED_DIRECTORY", "LogDirectories"]

log = logging.getLogger(__name__)

UNASSIGNED_DIRECTORY: Final = bytes(16)  # the broker is to choose
LOST_DIRECTORY: Final = bytes(15) + b"\x01"  # where it was is not known any more
MIGRATING_DIRECTORY: Final = bytes(15) + b"\x02"  # from a time without directory ids


class LogDirectories:
    """See the module.

    Args:
        directories: in the order of `log.dirs`; the first holds the metadata log.
    """

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._all = tuple(directories)
        self._homes: dict[TopicPartition, LogDirectory] = {}

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._all)

    @property
    def main(self) -> LogDirectory:
        """The one with the metadata log: without it the node cannot go on."""
        return self._all[0]

    @property
    def cluster_id(self) -> str:
        """The cluster that they belong to; empty before `open`."""
        return "" if self.main.identity is None else self.main.identity.cluster_id

    def online(self) -> list[LogDirectory]:
        """Those that work."""
        return [directory for directory in self._all if directory.online]

    def online_ids(self) -> list[bytes]:
        """Ids of those that work, for the registration."""
        return [directory.directory_id for directory in self._all if directory.online]

    def offline_ids(self) -> list[bytes]:
        """Ids of those that failed, for heartbeats; one whose id was never read has none."""
        return [directory.directory_id for directory in self._all if not directory.online and directory.directory_id]

    def open(self, config: BrokerConfig, rng: Rng) -> Identity:
        """Takes every lock and looks whose directories they are. One that cannot be read is offline, but for the first.

        Returns:
            The node's identity: the cluster, the first directory, and the broker epoch of the last stop, where that was
            clean in all of them. One that is new may stand in the place of another, and its replicas are gone: that is not clean.

        Raises:
            DirectoryInUse: another live process has one of them, or one is named twice.
            WrongDirectory: one is not this node's.
            OSError: the first cannot be read.
        """
        main = self.main.open(config, rng)
        epoch = main.previous_broker_epoch
        for directory in self._all[1:]:
            try:
                identity = directory.open(config, rng, main.cluster_id)
            except OSError as error:
                directory.fail(error)
            else:
                if identity.previous_broker_epoch == epoch:
                    continue
            epoch = None
        return replace(main, previous_broker_epoch=epoch)

    def give_back(self) -> None:
        """Undoes `open`: nothing was written to any log. Raises OSError as the disks say."""
        for directory in self.online():
            if directory.identity is not None:
                directory.identity.give_back(directory.disk)

    def release(self) -> None:
        """Gives every lock back."""
        for directory in self._all:
            directory.release()

    def find(
        self, assigned: Callable[[TopicPartition], bytes | None], set_aside: Callable[[LogDirectory, str], None]
    ) -> None:
        """Looks where every partition's folder is.

        Args:
            assigned: the directory that the metadata log gives a partition of this node, None where it is not this node's.
            set_aside: called for a folder that belongs to no partition, or to one whose folder in another directory is taken.
        """
        for directory in self.online():
            try:
                folders = directory.read()
            except OSError as error:
                if directory is self.main:
                    raise
                directory.fail(error)
                continue
            for folder in folders:
                topic, _, number = folder.rpartition("-")
                key = (topic, int(number))
                wanted = assigned(key)
                other = self._homes.get(key)
                if wanted is None:
                    if directory.disk.exists(f"{folder}/partition.metadata"):
                        set_aside(directory, folder)
                elif other is None:
                    self._homes[key] = directory
                elif directory.directory_id == wanted:
                    self._homes[key] = directory
                    set_aside(other, folder)
                else:
                    set_aside(directory, folder)

    def home_of(self, key: TopicPartition, assigned: bytes) -> LogDirectory | None:
        """Where the replica lies, or from now on shall lie; None where that has failed."""
        home = self._homes.get(key)
        if home is None:
            home = next((each for each in self._all if each.directory_id == assigned), None)
        if home is None and (
            assigned in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY) or len(self.online()) == len(self._all)
        ):
            home = min(self.online(), key=lambda each: len(each.replicas))
        if home is None or not home.online:
            return None
        self._homes[key] = home
        return home

    def forget(self, key: TopicPartition) -> None:
        """The partition is not this node's any more."""
        self._homes.pop(key, None)
