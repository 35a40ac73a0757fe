"""Voters of a metadata quorum on the simulated loop: their own shell, peers, handlers and logs, and nothing else of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from barnabas.broker.api.router import Router
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.front.server import Server
from barnabas.broker.image.records import MetadataRecord, TopicRecord, decode_record, encode_record
from barnabas.broker.node.node import Node
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestTopic,
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
)
from barnabas.protocol.messages.shared import PartitionIndex
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.protocol.schema import Message
from barnabas.testing.simulation.world import Ports, World
from barnabas.work import finished

VOTERS = (1, 2, 3)
QUORUM = ",".join(f"{voter}@n{voter}:9093" for voter in VOTERS)
START_MS = 1_000  # from the first process to a leader that may write
BUSY_MS = 3  # how long a listener takes for what it was given
FAILOVER_MS = 1_000  # from a kill to the next one


def topic_value(name: str) -> bytes:
    """An encoded record."""
    return encode_record(TopicRecord(name=name, topic_id=bytes(15) + b"\x09"))


class Voter:
    """A process of one voter: it plays the part of the node and of the loader, which takes a while for what it is given."""

    def __init__(self, node_id: int, *, quorum: str = QUORUM, observer: bool = False) -> None:
        self.node_id = node_id
        self.settings = {
            "node.id": str(node_id),
            "controller.quorum.voters": quorum,
            "process.roles": "broker" if observer else "broker,controller",
            "listeners": f"PLAINTEXT://n{node_id}:9092" + ("" if observer else f",CONTROLLER://n{node_id}:9093"),
            "controller.listener.names": "CONTROLLER",
            "metadata.max.retention.bytes": "1000",
        }
        self.node: Node | None = None
        self.events: list[str] = []
        self.names: list[str] = []
        self.busy = False  # not done with what was committed
        self.stop = asyncio.Event()

    async def run(self, ports: Ports) -> None:
        self.stop = asyncio.Event()
        config = BrokerConfig(self.settings)
        node = Node(
            config,
            clock=ports.clock,
            rng=ports.rng,
            disk=ports.disk,
            network=ports.network,
            on_fatal=lambda error: self.events.append(f"fatal {type(error).__name__}"),
        )
        node.reactor.attach()
        node.cluster_id = "the-cluster"
        node.directory_id = bytes([self.node_id]) * 16
        node._alive = True
        self.node = node
        self.names = []
        self.busy = False
        node.quorum.open(node.cluster_id, node.directory_id, self, clean=False)
        if config.controller_listener is not None:
            server = Server(node.reactor, node.config, ports.network, Router(node, "controller"), node.slices)
            await server.bind(config.controller_listener)
            await server.accept()
            server.serve()
        await node.quorum.start()
        await self.stop.wait()
        await node.quorum.stop()

    @property
    def leads(self) -> bool:
        return "leads" in self.events[-1:]

    # --- the listener

    def on_snapshot(self, snapshot: SnapshotId, values: Iterable[bytes]) -> None:
        self.names = [record.name for value in values if isinstance(record := decode_record(value), TopicRecord)]

    def on_committed(self, batches: Buffer) -> None:
        for position, header in iter_batches(batches):
            if not header.is_control:
                for each in decode_records(batches, position, header):
                    record: MetadataRecord = decode_record(each.value or b"")
                    assert isinstance(record, TopicRecord)
                    self.names.append(record.name)
        assert not self.busy, "given more before it was done"
        if self.node is not None and self.node.quorum.hold():
            self.busy = True
            self.node.reactor.call_later(BUSY_MS, partial(self.go_on, self.node))

    def go_on(self, node: Node) -> None:
        self.busy = False
        node.quorum.resume()

    def on_leading(self, epoch: int) -> None:
        assert not self.busy, "leads before everything committed is replayed"
        self.events.append("leads")

    def on_not_leading(self) -> None:
        self.events.append("leads no more")

    def on_leader(self, leader_id: int, epoch: int) -> None:
        pass


class Quorums:
    """Three voters in a world, and what a test asks of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.voters = {voter: Voter(voter) for voter in VOTERS}
        self.number = 0

    def start(self, *voters: int) -> None:
        for voter in voters or VOTERS:
            self.world.machine(f"n{voter}").start(self.voters[voter].run)

    def kill(self, voter: int) -> None:
        self.world.machine(f"n{voter}").kill()
        self.voters[voter].node = None
        self.voters[voter].events.append("killed")

    def leader(self) -> Voter | None:
        leading = [voter for voter in self.voters.values() if voter.leads]
        return max(leading, key=lambda voter: voter.node.quorum.leader_epoch, default=None)  # type: ignore[union-attr]  # it leads

    async def until(self, condition: Callable[[], object], limit_ms: int) -> float:
        """Milliseconds until it holds."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while not condition():
            assert loop.time() - start < limit_ms / 1000, f"not within {limit_ms} ms"
            await asyncio.sleep(0.001)
        return (loop.time() - start) * 1000

    async def create(self) -> str:
        """A record, committed by whoever leads, also through failovers."""
        self.number += 1
        name = f"t{self.number}"
        while True:
            await self.until(self.leader, 5_000)
            leader = self.leader()
            assert leader is not None
            assert leader.node is not None
            committed: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
            try:
                last_offset = leader.node.quorum.append([topic_value(name)])
            except BrokerError:
                continue
            leader.node.quorum.when_committed(last_offset + 1, committed.set_result)
            if await asyncio.wait_for(committed, 5) is None:
                return name


def in_world(program: Callable[[Quorums], object], seed: int = 1) -> None:
    with World(seed) as world:

        async def main() -> None:
            await program(Quorums(world))  # type: ignore[misc]  # a coroutine function

        world.run(main())


@pytest.mark.parametrize("seed", range(5))
def test_three_voters_elect_a_leader_and_replicate(seed: int) -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        names = [await quorums.create() for _ in range(20)]
        await quorums.until(lambda: all(voter.names == names for voter in quorums.voters.values()), 1_000)

    in_world(program, seed)


@pytest.mark.parametrize("seed", range(5))
def test_after_the_leaders_end_another_leads_within_a_second(seed: int) -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        names = []
        for _ in range(4):
            names.append(await quorums.create())
            leader = quorums.leader()
            assert leader is not None
            quorums.kill(leader.node_id)
            await quorums.until(quorums.leader, FAILOVER_MS)
            names.append(await quorums.create())
            quorums.start(leader.node_id)
            await quorums.until(lambda: all(voter.names == names for voter in quorums.voters.values()), 2_000)

    in_world(program, seed)


def test_a_leader_that_stops_hands_over_at_once() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        leader = quorums.leader()
        assert leader is not None
        leader.stop.set()
        assert await quorums.until(lambda: quorums.leader() not in (None, leader), 200) < 200
        assert "leads no more" in leader.events

    in_world(program)


def test_a_leader_without_a_majority_gives_up_and_its_records_are_replaced() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        await quorums.create()
        old = quorums.leader()
        assert old is not None
        assert old.node is not None
        quorums.world.network.isolate(f"n{old.node_id}")
        answers: list[BrokerError | None] = []
        last_offset = old.node.quorum.append([topic_value("lost")])
        old.node.quorum.when_committed(last_offset + 1, answers.append)
        await quorums.until(lambda: not old.leads, 6_000)
        assert [str(answer) for answer in answers] == ["NOT_CONTROLLER: leadership of the metadata quorum was lost"]
        await quorums.until(lambda: quorums.leader() is not None, 3_000)
        name = await quorums.create()
        quorums.world.network.heal()
        await quorums.until(lambda: old.names == ["t1", name], 5_000)

    in_world(program)


def test_all_at_once_killed_all_come_back() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        names = [await quorums.create() for _ in range(5)]
        for voter in VOTERS:
            quorums.kill(voter)
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        names.append(await quorums.create())
        await quorums.until(lambda: all(voter.names == names for voter in quorums.voters.values()), 1_000)

    in_world(program)


def test_lists_of_voters_that_disagree_end_the_node_that_follows() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.voters[3] = Voter(3, quorum="2@n2:9093,3@n3:9093")
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        stranger = Voter(4, quorum="1@n1:9093,2@n2:9093", observer=True)
        quorums.world.machine("n4").start(stranger.run)
        await quorums.until(lambda: "fatal VotersDisagree" in stranger.events, 1_000)
        assert quorums.leader() is not None

    in_world(program)


def test_a_node_with_a_wrong_list_takes_nobody_down_before_the_others_have_settled_it() -> None:
    """Node 3 takes itself and 2 for the whole quorum, and is there with 2 first: whichever of them is elected, the other one
    must not follow, for who is wrong is not known. Once 1 has come, it is."""

    async def program(quorums: Quorums) -> None:
        quorums.voters[3] = Voter(3, quorum="2@n2:9093,3@n3:9093")
        quorums.start(2, 3)
        await asyncio.sleep(10)
        assert [quorums.voters[voter].events for voter in (2, 3)] == [[], []]
        quorums.start(1)
        await quorums.until(lambda: "fatal VotersDisagree" in quorums.voters[3].events, 10_000)
        await quorums.until(lambda: quorums.voters[1].leads or quorums.voters[2].leads, 5_000)
        await quorums.create()
        assert not any("fatal" in event for voter in (1, 2) for event in quorums.voters[voter].events)

    in_world(program)


def test_a_broker_observes() -> None:
    async def program(quorums: Quorums) -> None:
        observer = Voter(9, observer=True)
        quorums.world.machine("n9").start(observer.run)
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        names = [await quorums.create()]
        leader = quorums.leader()
        assert leader is not None
        quorums.kill(leader.node_id)
        names.append(await quorums.create())
        await quorums.until(lambda: observer.names == names, 1_000)
        assert observer.node is not None
        assert not observer.node.quorum.is_voter
        now_leading = quorums.leader()
        assert now_leading is not None
        endpoint = (now_leading.node_id, f"n{now_leading.node_id}", 9093)
        assert observer.node.quorum.leader_endpoint() == endpoint

    in_world(program)


def test_a_leader_whose_disk_fails_hands_over_and_ends() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        await quorums.create()
        leader = quorums.leader()
        assert leader is not None
        assert leader.node is not None
        quorums.world.machine(f"n{leader.node_id}").disk.fail("sync")
        leader.node.quorum.append([topic_value("unsynced")])
        await quorums.until(lambda: "fatal OSError" in leader.events, 1_000)
        assert await quorums.until(lambda: quorums.leader() not in (None, leader), FAILOVER_MS) < 300

    in_world(program)


def test_a_voter_that_was_away_takes_the_snapshot() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        names = [await quorums.create()]
        leader = quorums.leader()
        assert leader is not None
        away = next(voter for voter in VOTERS if voter != leader.node_id)
        quorums.kill(away)
        for _ in range(2):
            names += [await quorums.create() for _ in range(10)]
            leader = quorums.leader()
            assert leader is not None
            assert leader.node is not None
            quorum = leader.node.quorum
            epoch, end_offset = quorum.leader_epoch, quorum.high_watermark
            work = quorum.snapshots.encode(map(topic_value, names), epoch, last_timestamp_ms=0)
            await quorum.snapshots.store(SnapshotId(end_offset, epoch), finished(work))
        assert quorum.log_start_offset > 1
        quorums.start(away)
        await quorums.until(lambda: quorums.voters[away].names == names, 1_000)
        names.append(await quorums.create())
        await quorums.until(lambda: all(voter.names == names for voter in quorums.voters.values()), 1_000)

    in_world(program)


def test_what_a_member_refuses() -> None:
    async def program(quorums: Quorums) -> None:
        quorums.start()
        await quorums.until(quorums.leader, START_MS)
        observer = Voter(9, observer=True)
        quorums.world.machine("n9").start(observer.run)
        await quorums.create()
        await quorums.until(lambda: observer.names, 1_000)
        leader = quorums.leader()
        assert leader is not None
        assert observer.node is not None
        leader_id, epoch = leader.node_id, observer.node.quorum.leader_epoch

        async def ask(request: Message, to: int = leader_id) -> Any:
            assert observer.node is not None
            return await observer.node.peers.to(f"n{to}", 9093, "test").request(request, timeout_ms=1_000)

        def vote(epoch: int, candidate: int, *, cluster_id: str = "the-cluster", voter_id: int = -1) -> VoteRequest:
            partition = VoteRequestPartition(
                partition_index=0,
                replica_epoch=epoch,
                replica_id=candidate,
                last_offset_epoch=max(epoch - 1, 0),
                pre_vote=not epoch,
                last_offset=1_000_000,
            )
            topic = VoteRequestTopic(topic_name="__cluster_metadata", partitions=[partition])
            return VoteRequest(cluster_id=cluster_id, voter_id=voter_id, topics=[topic])

        assert (await ask(vote(epoch, 2, cluster_id="another"))).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert (await ask(vote(epoch, 2, voter_id=77))).error_code == ErrorCode.INVALID_VOTER_KEY
        assert (await ask(VoteRequest(cluster_id="the-cluster", topics=[]))).error_code == ErrorCode.INVALID_REQUEST
        other = next(voter for voter in VOTERS if voter != leader_id)
        stranger = (await ask(vote(epoch + 5, 77), other)).topics[0].partitions[0]
        assert (stranger.error_code, stranger.vote_granted) == (ErrorCode.INCONSISTENT_VOTER_SET, False)
        old = (await ask(vote(0, leader_id), other)).topics[0].partitions[0]
        assert (old.error_code, old.leader_id, old.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, leader_id, epoch)
        assert quorums.leader() is leader

        def describe(name: str = "__cluster_metadata") -> DescribeQuorumRequest:
            partition = PartitionIndex(partition_index=0)
            return DescribeQuorumRequest(topics=[DescribeQuorumRequestTopic(topic_name=name, partitions=[partition])])

        described = await ask(describe())
        found = described.topics[0].partitions[0]
        assert (found.leader_id, found.leader_epoch) == (leader_id, epoch)
        assert leader.node is not None
        assert found.high_watermark == leader.node.quorum.high_watermark
        assert [(each.replica_id, each.log_end_offset) for each in found.current_voters] == [
            (voter, found.high_watermark) for voter in VOTERS
        ]
        assert [each.replica_id for each in found.observers] == [9]
        assert [node.node_id for node in described.nodes] == list(VOTERS)
        assert (await ask(describe(), other)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        wrong = (await ask(describe("orders"))).topics[0]
        assert (wrong.topic_name, wrong.partitions[0].error_code) == ("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    in_world(program)
