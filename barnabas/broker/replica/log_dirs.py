"""LogDirectories: finds the directory of each replica of a node, and chooses one for a new replica (KIP-112, KIP-858)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.replica.core.identity import BrokerIdentity
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.loggers import logger
from barnabas.ports import Rng
from barnabas.storage.checkpoints import TopicPartition

log = logger("kafka.log.LogManager")

UNASSIGNED_DIRECTORY: Final = bytes(16)  # the broker chooses
LOST_DIRECTORY: Final = bytes(15) + b"\x01"  # the former directory is unknown
MIGRATING_DIRECTORY: Final = bytes(15) + b"\x02"  # placed before directories had ids


class LogDirectories:
    """The log directories of a node, in the order of `log.dirs`.

    A replica is in the directory that has its folder. One without a folder is placed by the metadata log, else in the online directory with
    the fewest replicas, the first of those. While a directory is offline, a replica that the metadata log places in an unknown directory is
    not created: the failed directory may hold it.
    """

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._all = tuple(directories)
        self._homes: dict[TopicPartition, LogDirectory] = {}

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._all)

    @property
    def main(self) -> LogDirectory:
        """The first directory, with the metadata log; the node needs it."""
        return self._all[0]

    @property
    def cluster_id(self) -> str:
        """Empty before `open`."""
        return "" if self.main.identity is None else self.main.identity.cluster_id

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self._all if directory.online]

    def online_ids(self) -> list[bytes]:
        """For the registration."""
        return [directory.directory_id for directory in self._all if directory.online]

    def offline_ids(self) -> list[bytes]:
        """For heartbeats; a directory whose id was never read has none."""
        return [directory.directory_id for directory in self._all if not directory.online and directory.directory_id]

    def open(self, config: BrokerConfig, rng: Rng) -> BrokerIdentity:
        """Locks and identifies every directory. A directory that cannot be read is offline; the first must be readable.

        Returns the cluster, the first directory, and the broker epoch of the last stop if that was clean in all of them: a new directory
        may replace another, whose replicas are lost.

        Raises:
            DirectoryInUse: another live process has one of them, or one is named twice.
            WrongDirectory: one belongs to another node or cluster.
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

    def undo_open(self) -> None:
        """Undoes `open`, if no log was written. Raises OSError if a disk fails."""
        for directory in self.online():
            if directory.identity is not None:
                directory.identity.undo_open(directory.disk)

    def release(self) -> None:
        for directory in self._all:
            directory.release()

    def find(
        self, assigned: Callable[[TopicPartition], bytes | None], set_aside: Callable[[LogDirectory, str], None]
    ) -> None:
        """Finds the folder of every partition.

        `assigned` returns the directory in the metadata log, None for partitions of other nodes. `set_aside` gets a folder without
        partition, or whose partition has a folder in another directory.
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
        """The present or chosen directory of the replica; None if that has failed."""
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
        self._homes.pop(key, None)
