"""Replicas on a memory disk without a node: the test answers their requests to sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.broker.replica.core.machine import Replica
from barnabas.ports import Clock, Disk
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.clock import WALL_MS, ManualClock

TOPIC_ID = bytes(range(16))


def open_replica(
    disk: Disk,
    topic: str,
    partition: int,
    *,
    clock: Clock,
    request_sync: Callable[[Replica], None],
    config: LogConfig | None = None,
    node_id: int = 1,
    **more: Any,
) -> Replica:
    """The replica of a partition, which neither leads nor follows yet; `more` is for `Replica`."""
    opening = LogOpening(now_ms=WALL_MS, topic_id=TOPIC_ID)
    log = PartitionLog.open(disk, f"{topic}-{partition}", config or LogConfig(), opening)
    log.store_topic_id()
    return Replica(topic, partition, TOPIC_ID, log, node_id=node_id, clock=clock, request_sync=request_sync, **more)


def sync_now(disk: Disk, replica: Replica) -> None:
    """Syncs the replica's log and tells the replica."""
    log = replica.log
    disk.sync_now(log.unsynced_files())
    log.mark_synced(log.log_end_offset)
    replica.on_synced(log.log_end_offset)


class ReplicaBench:
    """A replica of t-0 that leads in epoch 0.

    Attributes:
        asked: the replica, once for each request to sync that is not answered.
        session: whether the node's session with the controller runs.
    """

    def __init__(self, *, leads: bool = True, **config: Any) -> None:
        self.disk = FaultyMemoryDisk()
        self.asked: list[Replica] = []
        self.clock = ManualClock()
        self.session = True
        self.replica = open_replica(
            self.disk,
            "t",
            0,
            clock=self.clock,
            request_sync=self.asked.append,
            config=LogConfig(**config),
            followed_since_ms=lambda: None if self.session else self.clock.time_ms - 4_500,
        )
        if leads:
            self.replica.lead(0, (1,), 0)

    def append(self, count: int = 1) -> int:
        """Appends one batch; returns the next offset."""
        info = self.replica.append(build_batch([NewRecord(None, b"v", WALL_MS)] * count))
        return info.last_offset + 1

    def sync(self) -> None:
        """Answers the last request with what the log holds now."""
        self.asked.clear()
        sync_now(self.disk, self.replica)


class ThreeReplicas(ReplicaBench):
    """Node 1 leads in epoch 0, with 2 and 3 as followers."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_insync: int = 1, **config: Any) -> None:
        super().__init__(leads=False, **config)
        self.replica.require(min_insync)
        self.replica.lead(0, isr, 0, replicas=(1, 2, 3))
