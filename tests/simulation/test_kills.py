"""What a kill costs on the simulated network: addresses that vanish, brokers that are killed again, leaders after a start."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.controller.core.sessions import CRASHES_FREE, UNFENCE_DELAY_MS
from barnabas.testing.simulation.world import World, WorldFailed
from tests.support.requests import request_of
from tests.support.simulation.cluster_story import Story
from tests.support.simulation.trio import FAILOVER_S, Trio, simulate
from tests.support.simulation.workload import Broker

pytestmark = pytest.mark.simulation

# From a kill until a broker is fenced whose name vanished with it, and where its machine refused for some milliseconds.
VANISHED_S = {"no name": 2.0, "no route": 0.9}
HEARD_S = 0.3  # until a new controller has heard of every broker that runs


def vanish(trio: Trio, node_id: int, how: str) -> None:
    """Kills a node as an engine kills a container: its connections are closed, then nothing answers at its address."""
    trio.processes[node_id].kill()
    name = f"n{node_id}"
    if how == "no name":
        trio.world.network.nameless.add(name)
    else:
        asyncio.get_running_loop().call_later(0.005, trio.world.network.isolate, name)


@pytest.mark.parametrize("how", ["no name", "no route"])
def test_a_broker_whose_address_vanishes_is_fenced_without_its_session(how: str) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        await trio.create(active, "t")
        victim, witness = trio.others(active)
        vanish(trio, victim, how)
        await trio.until(lambda: trio.broker(witness, victim).fenced, VANISHED_S[how])
        assert all(partition.leader not in (-1, victim) for partition in trio.partitions(witness))

    simulate(1, story)


@pytest.mark.parametrize("how", ["no name", "no route"])
@pytest.mark.parametrize("seed", [1, 2, 3])  # fencing takes 3.5 s in seed 0: no connection is refused
def test_a_controller_whose_address_vanishes_is_replaced_and_fenced_without_its_session(how: str, seed: int) -> None:
    async def story(trio: Trio) -> None:
        former = trio.controller
        await trio.create(former, "t")
        vanish(trio, former, how)
        survivors = trio.others(former)
        await trio.until(lambda: all(trio.broker(each, former).fenced for each in survivors), VANISHED_S[how])
        assert all(partition.leader in survivors for partition in trio.partitions(survivors[0]))

    simulate(seed, story)


def test_a_broker_that_reconnects_within_a_second_is_not_fenced_where_its_listener_was_out_of_reach() -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        network = trio.world.network
        await asyncio.sleep(3)
        network.nameless.add(f"n{victim}")
        network.cut(f"n{active}", f"n{victim}")
        network.reset_links(f"n{victim}", f"n{active}")
        await asyncio.sleep(0.7)
        network.heal()
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 12:
            assert not trio.broker(witness, victim).fenced
            await asyncio.sleep(0.01)

    simulate(8, story)


def test_a_broker_that_hangs_keeps_its_session_while_its_listener_accepts() -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        trio.processes[victim].machine.pause()
        trio.world.network.reset_links(f"n{victim}", f"n{active}")
        took = await trio.until(lambda: trio.broker(witness, victim).fenced, 10)
        assert took > 6.9  # its session, since its last heartbeat

    simulate(4, story)


@pytest.mark.parametrize("again_s", [0.05, 1.0, 4.0])
def test_a_broker_that_is_killed_again_after_it_came_back_is_fenced_as_soon(again_s: float) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        for _ in range(2):
            trio.processes[victim].kill()
            await trio.until(lambda: trio.broker(witness, victim).fenced, FAILOVER_S)
            trio.processes[victim].start()
            await trio.until(lambda: trio.processes[victim].serves and not trio.broker(witness, victim).fenced, 5)
            await asyncio.sleep(again_s)

    simulate(2, story)


def test_a_broker_that_crashes_again_and_again_is_unfenced_later_each_time() -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        loop = asyncio.get_running_loop()
        took_s = []
        for _ in range(CRASHES_FREE + 2):
            trio.processes[victim].kill()
            await trio.until(lambda: trio.broker(witness, victim).fenced, FAILOVER_S)
            trio.processes[victim].start()
            began = loop.time()
            await trio.until(lambda: not trio.broker(witness, victim).fenced, 10)
            took_s.append(loop.time() - began)
        assert max(took_s[:CRASHES_FREE]) < UNFENCE_DELAY_MS / 1000
        assert took_s[CRASHES_FREE] > UNFENCE_DELAY_MS / 1000
        assert took_s[CRASHES_FREE + 1] > 2 * UNFENCE_DELAY_MS / 1000
        await asyncio.sleep(60)
        trio.processes[victim].kill()
        trio.processes[victim].start()
        assert await trio.until(lambda: trio.processes[victim].serves, 5) < UNFENCE_DELAY_MS / 1000

    simulate(3, story)


def test_a_new_controller_hears_of_every_broker_at_once() -> None:
    async def story(trio: Trio) -> None:
        former = trio.controller
        trio.processes[former].kill()
        await trio.until(lambda: any(trio.processes[each].active for each in trio.others(former)), 2)
        active = trio.controller
        (other,) = [each for each in trio.others(former) if each != active]
        controller = trio.node(active).quorum_controller
        assert controller is not None
        await trio.until(lambda: controller.liveness.sessions.connected(other), HEARD_S)

    simulate(5, story)


async def everything_killed(trio: Trio) -> None:
    """All nodes are killed and come back one after another, so that the first one leads everything."""
    for process in trio.processes.values():
        process.kill()
    trio.processes[1].start()
    trio.processes[2].start()
    await trio.until(lambda: trio.processes[1].serves and trio.processes[2].serves, 20)
    await asyncio.sleep(1)
    trio.processes[3].start()
    await trio.until(lambda: trio.processes[3].serves, 20)


def leaders(trio: Trio) -> Counter[int]:
    return Counter(partition.leader for partition in trio.partitions(trio.controller))


def test_leaders_are_balanced_as_soon_as_replicas_are_in_sync_after_a_start() -> None:
    async def story(trio: Trio) -> None:
        await trio.create(trio.controller, "t", partitions=9)
        before = leaders(trio)
        assert set(before.values()) == {3}
        await everything_killed(trio)
        await trio.until(lambda: leaders(trio) == before, 3)

    simulate(6, story)


def test_without_rebalance_leaders_stay_where_they_are() -> None:
    async def story(trio: Trio) -> None:
        await trio.create(trio.controller, "t", partitions=9)
        before = leaders(trio)
        await everything_killed(trio)
        await asyncio.sleep(40)
        assert leaders(trio) != before

    simulate(
        6,
        story,
        **{"auto.leader.rebalance.enable": "false", "leader.imbalance.check.interval.seconds": "5"},
    )


def test_a_broker_that_died_twice_lately_gets_its_leaderships_back_by_the_periodic_balance() -> None:
    async def story(trio: Trio) -> None:
        await trio.create(trio.controller, "t", partitions=9)
        before = leaders(trio)
        victim = trio.others(trio.controller)[0]
        for _ in range(2):
            trio.processes[victim].kill()
            await trio.until(lambda: trio.broker(trio.controller, victim).fenced, FAILOVER_S)
            trio.processes[victim].start()
            await trio.until(lambda: trio.processes[victim].serves, 5)
        await asyncio.sleep(10)
        assert leaders(trio)[victim] == 0
        await trio.until(lambda: leaders(trio) == before, 31)

    simulate(7, story, **{"leader.imbalance.check.interval.seconds": "30"})


def test_a_broker_that_finds_no_controller_gives_up_after_its_registration_timeout() -> None:
    with World(1) as world:
        trio = Trio(world, **{"initial.broker.registration.timeout.ms": "5000"})

        async def main() -> None:
            trio.processes[1].start()
            await asyncio.sleep(60)

        with pytest.raises(WorldFailed, match=r"could not register within 5000 ms"):
            world.run(main(), time_limit_s=120)
        assert 5.0 <= world.loop.time() < 5.5


@pytest.mark.parametrize("enabled", [True, False])
def test_leaderships_are_handed_over_where_controlled_shutdown_is_enabled(enabled: bool) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        await trio.create(active, "t")
        leaving, witness = trio.others(active)
        await trio.until(lambda: len(trio.partitions(witness)) == 3, 1)
        await trio.node(leaving).lifecycle.shut_down()
        if enabled:
            await trio.until(lambda: trio.broker(witness, leaving).fenced, 0.1)
        assert trio.broker(witness, leaving).fenced is enabled
        led = [partition.leader for partition in trio.partitions(witness)]
        assert (leaving not in led) is enabled
        trio.processes[leaving].kill()
        await trio.until(lambda: trio.broker(witness, leaving).fenced, FAILOVER_S)
        assert leaving not in [partition.leader for partition in trio.partitions(witness)]

    simulate(9, story, **{"controlled.shutdown.enable": str(enabled).lower()})


@pytest.mark.parametrize("what", ["min.insync.replicas", "eligible.leader.replicas.version"])
def test_the_last_replica_leads_after_its_return_although_a_setting_of_eligible_leaders_changed(what: str) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        await trio.create(active, "t", replicas=1)
        victim, witness = trio.others(active)
        trio.processes[victim].kill()
        await trio.until(lambda: any(not partition.isr for partition in trio.partitions(witness)), FAILOVER_S)
        if what == "min.insync.replicas":
            config = {"name": what, "config_operation": 0, "value": "2"}
            resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
            answer = await trio.ask(witness, request_of("IncrementalAlterConfigs", resources=[resource]))
            assert answer.responses[0].error_code == 0
        else:
            update = {"feature": what, "max_version_level": 0, "upgrade_type": 2}
            answer = await trio.ask(witness, request_of("UpdateFeatures", feature_updates=[update]))
            assert answer.error_code == 0
        trio.processes[victim].start()
        await trio.until(lambda: all(partition.leader > 0 for partition in trio.partitions(witness)), 5)

    simulate(9, story)


@pytest.mark.parametrize("closed", [False, True], ids=["at a take-over", "when connections closed"])
def test_brokers_whose_listeners_refuse_the_controllers_keep_their_sessions(closed: bool) -> None:
    async def story(there: Story) -> None:
        world = there.world
        world.network.refused |= {(controller, broker) for controller in there.controllers for broker in there.brokers}
        await there.start()
        (active,) = [name for name, each in there.controllers.items() if controller_of(each).active]
        for name in there.brokers:
            world.machine(name).pause()
            if closed:
                world.network.reset_links(name, active)
        if not closed:
            world.machine(active).kill()
        await asyncio.sleep(1.5)
        for name in there.brokers:
            world.machine(name).resume()
        await asyncio.sleep(3)
        assert any(controller_of(each).active for name, each in there.controllers.items() if closed or name != active)
        assert not any(controller_of(each).liveness.sessions.probe_fences for each in there.controllers.values())

    def controller_of(broker: Broker) -> QuorumController:
        assert broker.node is not None
        assert broker.node.quorum_controller is not None
        return broker.node.quorum_controller

    with World(1) as world:
        world.run(story(Story(world, **{"process.roles": "broker"})), time_limit_s=60)


@pytest.mark.parametrize("probes", [True, False])
def test_probes_can_be_turned_off(probes: bool) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim, witness = trio.others(active)
        trio.processes[victim].kill()
        took = await trio.until(lambda: trio.broker(witness, victim).fenced, 10)
        assert (took < FAILOVER_S) is probes

    simulate(4, story, **{"broker.probe.enable": str(probes).lower()})
