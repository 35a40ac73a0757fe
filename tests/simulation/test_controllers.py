"""Three nodes, each broker and controller, on the simulated loop: who decides, who is fenced and when, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.broker.controller.core.features import FEATURES, METADATA_VERSION
from barnabas.broker.image.records import FeatureLevelRecord, encode_record
from barnabas.broker.quorum.core.snapshots import encode_snapshot
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest, ElectLeadersRequest
from barnabas.protocol.messages.cluster import BrokerRegistrationRequest, RegistrationListener
from barnabas.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumRequestTopic
from barnabas.protocol.messages.shared import PartitionIndex
from barnabas.testing.simulation.world import World
from tests.support.simulation.trio import FAILOVER_S, IDS, SESSION_S, Trio, simulate


def test_without_eligible_leaders_the_servers_own_min_isr_counts() -> None:
    """As in a directory that a Kafka below 4.1 formatted: then nobody wrote the cluster's min.insync.replicas down."""

    async def main() -> None:
        formatted = encode_record(
            FeatureLevelRecord(name=METADATA_VERSION, feature_level=FEATURES[METADATA_VERSION].low)
        )
        for process in trio.processes.values():
            data = encode_snapshot([formatted], epoch=0, last_timestamp_ms=0, now_ms=0)
            process.machine.disk.replace("bootstrap.checkpoint", data)
        await trio.start()
        assert trio.node(1).image.feature("eligible.leader.replicas.version") == 0
        await trio.create(1, "t", 1)
        leader = trio.partitions(1)[0].leader
        await trio.until(lambda: trio.node(leader).replicas.get("t", 0) is not None, 1)
        replica = trio.node(leader).replicas.leader("t", 0)
        assert replica.min_insync_replicas == 2

    with World(5) as world:
        trio = Trio(world, **{"min.insync.replicas": "2"})
        world.run(main(), time_limit_s=120)


@pytest.mark.parametrize("seed", range(3))
def test_one_node_decides_and_whoever_asked_has_it(seed: int) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        for node_id in IDS:
            answer = await trio.create(node_id, f"t{node_id}")
            assert answer.topics[0].error_code == 0
            assert trio.node(node_id).image.partition_count(f"t{node_id}") == 3  # where it was asked, at once
        assert trio.controller == active
        for partition in trio.partitions(active):
            assert sorted(partition.isr) == [1, 2, 3]
        assert sorted({partition.leader for partition in trio.partitions(active)}) == [1, 2, 3]
        blocks: list[Any] = []
        for node_id in IDS:
            trio.node(node_id).lifecycle.allocate_producer_ids(blocks.append)
        await trio.until(lambda: len(blocks) == 3, 1)
        assert len({*blocks}) == 3

    simulate(seed, story)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_broker_is_fenced_within_a_second(seed: int) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        await trio.create(active, "t")
        victim, witness = trio.others(active)
        trio.processes[victim].kill()
        await trio.until(lambda: trio.broker(witness, victim).fenced, FAILOVER_S)
        for partition in trio.partitions(witness):
            assert victim not in partition.isr
            assert partition.leader not in (-1, victim)

    simulate(seed, story)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_controller_is_replaced_and_fenced_within_a_second(seed: int) -> None:
    async def story(trio: Trio) -> None:
        former = trio.controller
        await trio.create(former, "t")
        trio.processes[former].kill()
        survivors = trio.others(former)
        await trio.until(lambda: all(trio.broker(each, former).fenced for each in survivors), FAILOVER_S)
        assert all(partition.leader in survivors for partition in trio.partitions(survivors[0]))
        assert trio.controller in survivors

    simulate(seed, story)


@pytest.mark.parametrize("seed", range(2))
def test_a_broker_that_comes_back_at_once_is_registered_at_once(seed: int) -> None:
    async def story(trio: Trio) -> None:
        for victim in (trio.others(trio.controller)[0], trio.controller):
            epoch = trio.broker(victim, victim).epoch
            trio.processes[victim].kill()
            trio.processes[victim].start()
            (witness, _) = trio.others(victim)
            back = await trio.until(
                lambda v=victim, w=witness, e=epoch: trio.broker(w, v).epoch > e and not trio.broker(w, v).fenced,  # type: ignore[misc]
                4,
            )
            assert back < 3
            await trio.until(lambda v=victim: trio.processes[v].serves, 1)  # type: ignore[misc]

    simulate(seed, story)


def test_a_broker_that_falls_silent_has_a_whole_session() -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        trio.world.network.isolate(f"n{victim}")
        took = await trio.until(lambda: trio.broker(witness, victim).fenced, SESSION_S + 1)
        assert took > SESSION_S - 2.1  # since its last heartbeat
        trio.world.network.heal()
        await trio.until(lambda: not trio.broker(witness, victim).fenced, 3)

    simulate(7, story)


def test_a_lost_heartbeat_connection_alone_fences_nobody() -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        await asyncio.sleep(3)
        trio.world.network.reset_links(f"n{victim}", f"n{active}")
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 3:
            assert not trio.broker(witness, victim).fenced
            await asyncio.sleep(0.01)

    simulate(8, story)


@pytest.mark.parametrize("later_ms", [30, 150, 600])
def test_a_suspicion_lasts_until_the_broker_is_heard_of(later_ms: int) -> None:
    """Its heartbeat connection is lost, its listener still accepts, and then it dies."""

    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        trio.processes[victim].machine.pause()
        trio.world.network.reset_links(f"n{victim}", f"n{active}")
        await asyncio.sleep(later_ms / 1000)
        trio.processes[victim].kill()
        await trio.until(lambda: trio.broker(witness, victim).fenced, 2 * FAILOVER_S)

    simulate(later_ms, story)


def test_another_process_with_the_id_of_a_live_broker_is_refused() -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        former = trio.broker(active, trio.others(active)[0])
        request = BrokerRegistrationRequest(
            broker_id=former.broker_id,
            cluster_id=trio.node(active).cluster_id,
            incarnation_id=b"another process.",
            listeners=[RegistrationListener(name="PLAINTEXT", host="elsewhere", port=9092)],
            log_dirs=[b"another director"],
        )
        await asyncio.sleep(3)
        answer = await trio.ask(active, request)
        assert isinstance(answer, BrokerError)
        assert answer.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        request.cluster_id = "another"
        answer = await trio.ask(trio.others(active)[1], request)
        assert isinstance(answer, BrokerError)
        assert answer.code == ErrorCode.INCONSISTENT_CLUSTER_ID

    simulate(9, story)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_asked_survives_its_controller(seed: int) -> None:
    async def story(trio: Trio) -> None:
        former = trio.controller
        asker = trio.others(former)[0]
        answers = [asyncio.ensure_future(trio.create(asker, f"t{number}", replicas=2)) for number in range(20)]
        await asyncio.sleep(0.0002 * seed)
        trio.processes[former].kill()
        async with asyncio.timeout(4):
            codes = [(await answer).topics[0].error_code for answer in answers]
        assert set(codes) <= {0, ErrorCode.TOPIC_ALREADY_EXISTS}
        assert len(trio.node(asker).image.topics_by_name) == 20

    simulate(seed, story)


@pytest.mark.parametrize("seed", range(3))
def test_the_quorum_is_described_through_an_election_also_by_who_is_elected_meanwhile(seed: int) -> None:
    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        former = trio.controller
        one, other = trio.others(former)
        trio.processes[former].kill()
        topic = DescribeQuorumRequestTopic(
            topic_name="__cluster_metadata", partitions=[PartitionIndex(partition_index=0)]
        )
        answers: list[asyncio.Future[Any]] = []

        def elected() -> bool:
            for asking, asked in ((one, other), (other, one)):
                answers.append(loop.create_future())
                peer = trio.node(asking).peers.to(f"n{asked}", 9092, "test", node_id=asked)
                peer.send(DescribeQuorumRequest(topics=[topic]), answers[-1].set_result, timeout_ms=5_000)
            return trio.processes[one].active or trio.processes[other].active

        await trio.until(elected, 5)
        told = [(await answer).topics[0].partitions[0] for answer in answers[2:]]  # the first connect
        assert {described.error_code for described in told} == {0}
        assert {described.leader_id for described in told} == {trio.controller}

    simulate(seed, story)


def test_without_a_controller_a_request_waits_and_then_is_told() -> None:
    async def story(trio: Trio) -> None:
        asker = trio.others(trio.controller)[0]
        for other in trio.others(asker):
            trio.processes[other].kill()
        answer = await trio.ask(asker, CreateTopicsRequest(topics=[CreatableTopic(name="t")]), timeout_ms=2_000)
        assert isinstance(answer, BrokerError)
        assert answer.code == ErrorCode.REQUEST_TIMED_OUT

    simulate(10, story)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_created_while_a_broker_is_dead(name: str) -> None:
    """As Kafka does: the dead broker is a replica outside the ISR, and joins it after its return."""

    async def story(trio: Trio) -> None:
        asker, dead = trio.others(trio.controller)
        trio.processes[dead].kill()
        await trio.until(lambda: trio.broker(asker, dead).fenced, SESSION_S + 2)
        answers: list[Any] = []
        trio.processes[asker].call(trio.node(asker).controller.ensure_topic, name, answers.append)
        await trio.until(lambda: answers, 2)
        assert answers == [None]
        for partition in trio.partitions(asker):
            assert sorted(partition.replicas) == [1, 2, 3]
            assert sorted(partition.isr) == sorted({1, 2, 3} - {dead})
            assert partition.leader != dead
        trio.processes[dead].start()
        await trio.until(lambda: all(len(partition.isr) == 3 for partition in trio.partitions(asker)), 20)

    simulate(12, story)


def test_internal_topics_wait_for_enough_brokers() -> None:
    with World(11) as world:
        trio = Trio(world)

        async def main() -> None:
            for each in (1, 2):
                trio.processes[each].start()
            await trio.until(lambda: all(trio.processes[each].serves for each in (1, 2)), 5)
            answers: list[Any] = []
            trio.processes[1].call(trio.node(1).controller.ensure_topic, "__consumer_offsets", answers.append)
            await trio.until(lambda: answers, 2)
            assert answers[0].code == ErrorCode.INVALID_REPLICATION_FACTOR
            trio.processes[3].start()
            await trio.until(lambda: len(trio.node(1).image.alive_brokers()) == 3, 5)
            trio.processes[1].call(trio.node(1).controller.ensure_topic, "__consumer_offsets", answers.append)
            await trio.until(lambda: len(answers) == 2, 2)
            assert answers[1] is None
            assert len(trio.partitions(1)[0].isr) == 3

        world.run(main(), time_limit_s=60)


def test_a_broker_that_was_fenced_is_listed_for_a_session() -> None:
    """Clients forget for good what an answer of Metadata lacks."""

    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        active = trio.controller
        victim, witness = trio.others(active)

        def listed(by: int = witness) -> set[int]:
            return {broker.broker_id for broker, _ in trio.node(by).listing.listed("PLAINTEXT")}

        def live(by: int = witness) -> set[int]:
            return {broker.broker_id for broker, _ in trio.node(by).listing.live("PLAINTEXT")}

        await trio.create(active, "t", 6)
        trio.processes[victim].kill()
        await trio.until(lambda: trio.broker(witness, victim).fenced, FAILOVER_S)
        assert live() == {active, witness}
        assert listed() == {1, 2, 3}
        fenced_at = loop.time()
        trio.processes[victim].start()  # it registers anew, and is fenced until it serves
        while not trio.processes[victim].serves or trio.broker(witness, victim).fenced:
            assert listed() == {1, 2, 3}
            await asyncio.sleep(0.001)
        await trio.until(lambda: loop.time() > fenced_at + SESSION_S, SESSION_S + 1)
        assert listed() == {1, 2, 3}  # it serves
        trio.processes[victim].kill()
        await trio.until(lambda: trio.broker(witness, victim).fenced, 2 * SESSION_S)
        took = await trio.until(lambda: listed() == {active, witness}, SESSION_S + 1)
        assert took > SESSION_S - 1
        trio.processes[witness].kill()
        trio.processes[witness].start()  # it knows no more of the victim than that it is fenced
        await trio.until(lambda: trio.processes[witness].serves, 5)
        assert listed() == {1, 2, 3}
        await trio.until(lambda: listed() == {active, witness}, SESSION_S + 1)
        leaving = loop.create_task(trio.node(active).lifecycle.shut_down())  # which leads everything
        while not leaving.done():
            assert listed() == {active, witness}
            await asyncio.sleep(0.001)
        assert live() == {witness}
        assert listed() == {active, witness}

    simulate(11, story)


def test_a_request_waits_for_a_controller_as_long_as_the_setting_says_at_most() -> None:
    """Also if its client asks for more time."""
    days_ms = 10 * 24 * 3_600_000

    async def story(trio: Trio) -> None:
        asked = trio.others(trio.controller)[0]
        for each in trio.others(asked):
            trio.processes[each].kill()
        answers: list[Any] = []
        channel = trio.node(asked).controller
        channel.request(CreateTopicsRequest(topics=[CreatableTopic(name="t")]), answers.append)
        channel.request(ElectLeadersRequest(timeout_ms=days_ms), answers.append, timeout_ms=days_ms)
        waited_s = await trio.until(lambda: len(answers) == 2, 5)
        assert [each.code for each in answers] == [ErrorCode.REQUEST_TIMED_OUT] * 2
        assert 0.7 <= waited_s < 0.8

    simulate(1, story, **{"controller.socket.timeout.ms": "700"})
