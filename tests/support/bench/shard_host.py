"""The host of coordinator shards with a made-up shard of keys and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp, Undo
from barnabas.broker.coordinator.shard_host import ShardHost
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.replicas import Replicas as NodeReplicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.storage.log_config import LogConfig
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.bench.replica import open_replica, sync_now
from tests.support.clock import ManualClock
from tests.support.loop import ManualLoop

TOPIC = "__state"


class Registry:
    """A map of names to numbers, as a group shard would: staged at once, taken back on failure."""

    def __init__(self, partition: int, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.staged: dict[bytes, int] = {}
        self.settled: list[tuple[bytes, int]] = []
        self.replayed: list[tuple[bytes, int, int]] = []
        self.markers: list[tuple[int, int, bool]] = []
        self.active = False
        self.resigned = False

    def encode(self, record: tuple[bytes, int]) -> tuple[bytes, bytes | None]:
        return record[0], b"%d" % record[1]

    def decode(self, key: bytes | None, value: bytes | None) -> tuple[bytes, int] | None:
        return None if key is None or key == b"strange" or value is None else (key, int(value))

    def stage(self, records: Sequence[tuple[bytes, int]], producer: ProducerStamp | None) -> Undo:
        before = dict(self.staged)
        self.staged.update(records)

        def undo() -> None:
            self.staged = before

        return undo

    def on_committed(self, record: tuple[bytes, int]) -> None:
        self.settled.append(record)

    def replay(self, record: tuple[bytes, int], producer_id: int, producer_epoch: int) -> None:
        self.staged[record[0]] = record[1]
        self.replayed.append((*record, producer_id))

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        self.markers.append((producer_id, producer_epoch, commit))

    def on_active(self) -> None:
        self.active = True

    def size(self) -> int:
        return 0

    def on_resigned(self) -> None:
        self.resigned = True


class Replicas:
    def __init__(self) -> None:
        self.all: dict[int, Replica] = {}

    def get(self, topic: str, partition: int) -> Replica | None:
        return self.all.get(partition)

    def leader(self, topic: str, partition: int) -> Replica:
        replica = self.all.get(partition)
        if replica is None or not replica.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica


def raising(error: Exception) -> None:
    """Nothing fatal is expected."""
    raise error


def nothing() -> None:
    """No collector is held."""


Threaded = tuple[Callable[[], None], Callable[[Exception | None], None]]


def ask(beside: list[Threaded], work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
    """A thread that runs C code when the test says so."""
    beside.append((work, done))


class HostBench(ManualLoop):
    """A host, its node, and one partition whose syncs are answered by hand (with flush_messages=1)."""

    def __init__(self, **config: int) -> None:
        super().__init__()
        self.disk = FaultyMemoryDisk()
        self.config = LogConfig(**config)  # type: ignore[arg-type]  # numbers, as given
        self.clock = ManualClock()
        self.replicas = Replicas()
        self.epoch = 0
        self.slices = Slices(self.later.append, raising, on_busy=nothing, on_idle=nothing)
        self.open()
        self.host = self.new_host()

    def new_host(self, answer_timeout_ms: Callable[[], int] | None = None, **more: Any) -> ShardHost[Registry]:
        return ShardHost(
            TOPIC,
            cast(Reactor, self),  # it has what a host uses of them, and no more
            cast(NodeReplicas, self.replicas),
            Registry,
            lambda: len(self.replicas.all),
            self.slices,
            answer_timeout_ms=answer_timeout_ms,
            **more,
        )

    def open(self) -> None:
        self.replica = open_replica(
            self.disk, TOPIC, 0, clock=self.clock, request_sync=lambda _: None, config=self.config
        )
        self.replica.lead(self.epoch, (1,), 0)
        self.replicas.all[0] = self.replica

    def sync(self) -> None:
        sync_now(self.disk, self.replica)

    def elect(self) -> Registry:
        self.host.on_elected(0, self.epoch)
        return self.host.shard(0)

    def put(self, name: bytes, number: int, producer: ProducerStamp | None = None) -> list[Any]:
        """Writes one record; what comes of it is in the list later."""
        outcome: list[Any] = []
        self.host.write(0, lambda shard, now_ms: Decision(f"{number}", ((name, number),), producer), outcome.append)
        return outcome

    def look(self, name: bytes) -> list[Any]:
        """Asks for what is staged, writing nothing."""
        outcome: list[Any] = []
        self.host.write(0, lambda shard, now_ms: Decision(shard.staged.get(name)), outcome.append)
        return outcome

    def batches(self) -> list[list[tuple[bytes | None, bytes | None]]]:
        data = self.replica.log.read(0, 1 << 20, end_offset=self.replica.log.log_end_offset).records
        return [[(r.key, r.value) for r in decode_records(data, at, header)] for at, header in iter_batches(data)]
