"""A transactional producer of raw requests on a cluster of three nodes, which asks the current coordinator itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from barnabas.errors import ErrorCode
from tests.support.clients.committed import committed_values
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import GROUP, Cluster
from tests.support.requests import request_of

PARTITIONS = 6


# A decision waits until a frozen replica is out of sync; asked again it is no answer any more.
ANSWER_SECONDS_MAX = 10.0
SESSION = ("broker.session.timeout.ms=6000", "broker.heartbeat.interval.ms=500")

PASSING = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)

TV1, TV2 = 1, 2
SETTINGS = ("offsets.topic.num.partitions=6", "transaction.state.log.num.partitions=6", *SESSION)


def prepare(cluster: Cluster) -> None:
    """A topic with three replicas, one with one, and coordinators."""
    cluster.create_topic("safe", PARTITIONS)
    cluster.create_topic("single", PARTITIONS, replication_factor=1)
    cluster.wait_until(lambda: cluster.coordinator("any") > 0, "there are transaction coordinators")
    cluster.wait_until(lambda: cluster.coordinator("any", GROUP) > 0, "there are group coordinators")
    cluster.wait_in_sync("__transaction_state", "__consumer_offsets")


def patiently(ask: Callable[[], int], seconds: float = 20.0) -> ErrorCode:
    """Asks again while what stands against it passes, as a client would."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            code = ErrorCode(ask())
        except OSError:
            code = ErrorCode.NETWORK_EXCEPTION
        if (code not in PASSING and code is not ErrorCode.NETWORK_EXCEPTION) or time.monotonic() > deadline:
            return code
        time.sleep(0.05)


class Producer:
    """A transactional producer that says what it is told to, to whom it concerns at the moment."""

    def __init__(self, cluster: Cluster, name: str, version: int) -> None:
        self.cluster = cluster
        self.name = name
        self.version = version
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def coordinator(self) -> int:
        return self.cluster.coordinator(self.name)

    def ask(self, request: Any, version: int) -> Any:
        """The coordinator's answer."""
        node_id = self.coordinator
        if node_id < 0:
            raise ConnectionRefusedError("no coordinator")
        return self.cluster.ask(request, version, of=node_id, seconds=ANSWER_SECONDS_MAX)

    def init(self) -> None:
        def ask() -> int:
            request = request_of("InitProducerId", transactional_id=self.name, transaction_timeout_ms=60_000)
            answer = self.ask(request, 4)
            if not answer.error_code:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequences.clear()
            return int(answer.error_code)

        assert patiently(ask) is ErrorCode.NONE

    def add(self, *keys: tuple[str, int], **identity: int) -> ErrorCode:
        """AddPartitionsToTxn, as clients of TV1 do."""
        request = request_of(
            "AddPartitionsToTxn",
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=identity.get("epoch", self.epoch),
            v3_and_below_topics=[{"name": topic, "partitions": [part]} for topic, part in keys],
        )

        def ask() -> int:
            results = self.ask(request, 3).results_by_topic_v3_and_below
            return int(results[0].results_by_partition[0].partition_error_code)

        return patiently(ask)

    def produce_once(self, topic: str, partition: int, value: bytes, **identity: int) -> ErrorCode:
        """Produce to the leader, once: nothing is added before."""
        with Wire(self.cluster.nodes[self.cluster.leader(topic, partition)].address) as wire:
            answer = wire.produce(
                12 if self.version >= TV2 else 11,
                topic,
                partition,
                [value],
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=identity.get("epoch", self.epoch),
                base_sequence=identity.get("sequence", self.sequences.get((topic, partition), 0)),
            )
        return ErrorCode(answer.error_code)

    def produce(self, topic: str, partition: int, value: bytes) -> ErrorCode:
        """Adds where that is needed, and produces until it is in."""
        if self.version < TV2:
            assert self.add((topic, partition)) is ErrorCode.NONE
        code = patiently(lambda: self.produce_once(topic, partition, value))
        if code is ErrorCode.NONE:
            self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + 1
        return code

    def end(self, *, commit: bool = True, once: bool = False, **identity: int) -> ErrorCode:
        request = request_of(
            "EndTxn",
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=identity.get("epoch", self.epoch),
            committed=commit,
        )

        def ask() -> int:
            answer = self.ask(request, 5 if self.version >= TV2 else 3)
            if not answer.error_code and self.version >= TV2:
                if answer.producer_epoch != self.epoch:
                    self.sequences.clear()
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            return int(answer.error_code)

        return ErrorCode(ask()) if once else patiently(ask)

    def state(self) -> str:
        answer = self.ask(request_of("DescribeTransactions", transactional_ids=[self.name]), 0)
        return str(answer.transaction_states[0].transaction_state)

    def await_state(self, state: str, seconds: float = 20.0) -> None:
        self.cluster.wait_until(lambda: self.state() == state, f"{self.name} is in {state}", seconds)


def named(cluster: Cluster, fits: Callable[[int], bool], prefix: str = "tx") -> str:
    """A transactional id whose coordinator fits."""
    for number in range(1_000):
        if fits(cluster.coordinator(f"{prefix}-{number}")):
            return f"{prefix}-{number}"
    raise AssertionError("no transactional id has such a coordinator")


def read_committed(cluster: Cluster, topic: str, partition: int) -> list[bytes]:
    """What a read_committed reader sees, up to the last stable offset."""
    with Wire(cluster.nodes[cluster.leader(topic, partition)].address) as wire:
        return committed_values(wire, topic, partition, held_back=True)


def is_stable(cluster: Cluster, partition: int, topic: str = "safe") -> bool:
    """Whether no transaction is open there."""
    with Wire(cluster.nodes[cluster.leader(topic, partition)].address) as wire:
        answer = wire.fetch(topic, partition, 0, isolation_level=1)
    return bool(answer.last_stable_offset == answer.high_watermark)
