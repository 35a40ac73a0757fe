"""The health of a node: each reason for which it is not ready, in words."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.membership.lifecycle import BrokerState
from barnabas.broker.metrics import loop_watch
from barnabas.broker.metrics.endpoint import Health
from barnabas.broker.node.node import Node
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.broker.nodes import Nodes
from tests.support.broker.scrapes import get, scrape
from tests.support.waiting import until

LISTEN = {"metrics_listen": "127.0.0.1:0"}


@pytest.fixture(autouse=True)
def no_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is not ready after a stall, and a busy machine may suspend the process. Another test is about stalls."""
    monkeypatch.setattr(loop_watch, "STALLED_MS", 0)


async def health(node: Node, path: str = "/readyz") -> tuple[int, str]:
    assert node.metrics is not None
    answer = await get(node.metrics.address, path)
    return answer.status, answer.body.decode().strip()


async def test_a_node_that_waits_for_the_others_loads_metadata(nodes: Nodes) -> None:
    voters = "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3"
    starting = asyncio.ensure_future(
        nodes.start(
            **LISTEN,
            controller_quorum_voters=voters,
            listeners="PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            controller_listener_names="CONTROLLER",
        )
    )
    await until(lambda: nodes.nodes and nodes.nodes[0].metrics is not None and nodes.nodes[0].metrics.address[1])
    node = nodes.nodes[0]
    assert await health(node) == (503, "loading metadata: nothing is replayed yet")
    assert await health(node, "/startupz") == (503, "loading metadata: nothing is replayed yet")
    assert await health(node, "/v1/status/ready") == (503, '{"status":"booting"}')
    assert await health(node, "/livez") == (200, "ok")
    assert (await scrape(node)).value("kafka_server_kafkaserver_brokerstate") == 1
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_failed_log_directory_is_named_and_counted(nodes: Nodes) -> None:
    disks = [FaultyMemoryDisk(f"/{name}") for name in "ab"]
    node = await nodes.start(*disks, **LISTEN)
    peer = await nodes.peer(node)
    await peer.create("t", 4)
    assert await health(node) == (200, "ok")
    before = await scrape(node)
    assert before.value("kafka_log_logmanager_offlinelogdirectorycount") == 0
    assert before.value("kafka_server_replicamanager_partitioncount") == 4

    disks[1].fail("sync", path="*t-*", times=None)
    list(node.log_dirs)[1].fail(OSError(5, "Input/output error", "/b/t-1"))
    await until(lambda: not list(node.log_dirs)[1].online)
    status, reason = await health(node)
    assert status == 503
    assert reason.startswith("log directory failed: ")
    assert "/b" in reason
    assert await health(node, "/livez") == (200, "ok")
    assert await health(node, "/startupz") == (200, "ok")
    found = await scrape(node)
    assert found.value("kafka_log_logmanager_offlinelogdirectorycount") == 1
    assert found.value("kafka_server_replicamanager_offlinereplicacount") == 2
    assert found.value("kafka_server_replicamanager_partitioncount") == 4
    assert len(found.labels("kafka_log_log_size", "partition")) == 2


@pytest.mark.parametrize(
    ("state", "progress", "fenced", "serving", "reason"),
    [
        (BrokerState.STARTING, (0, 0), True, False, "loading metadata: node 1 is not registered yet"),
        (BrokerState.RECOVERY, (3, 10), True, False, "recovering 7 of 10 partitions"),
        (BrokerState.RUNNING, (9, 10), False, True, "recovering 1 of 10 partitions"),
        (BrokerState.RUNNING, (10, 10), True, True, "fenced: the controller has not admitted this broker"),
        (BrokerState.RUNNING, (10, 10), False, False, "fenced: the controller has not admitted this broker"),
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, (10, 10), False, True, "the node stops"),
        (BrokerState.RUNNING, (10, 10), False, True, None),
    ],
)
def test_what_a_broker_says_of_itself(
    state: BrokerState, progress: tuple[int, int], fenced: bool, serving: bool, reason: str | None
) -> None:
    image = SimpleNamespace(offset=5, brokers={1: SimpleNamespace(fenced=fenced)})
    node: Any = SimpleNamespace(
        node_id=1,
        reactor=SimpleNamespace(failure=None),
        config=SimpleNamespace(roles=("broker", "controller")),
        log_dirs=[],
        current_image=SimpleNamespace(image=image),
        lifecycle=SimpleNamespace(state=state),
        replicas=SimpleNamespace(recovery_progress=progress),
        server=SimpleNamespace(serving=serving),
    )
    watch: Any = SimpleNamespace(recent_stall=lambda: None)
    assert Health(node, watch).ready() == reason
    node.reactor.failure = OSError("no space")
    assert Health(node, watch).alive() == Health(node, watch).ready() == "the node has failed: no space"


@pytest.mark.parametrize(
    ("leader", "reason"), [(-1, "loading metadata: no leader of the metadata quorum is known"), (2, None)]
)
def test_a_controller_alone(leader: int, reason: str | None) -> None:
    node: Any = SimpleNamespace(
        reactor=SimpleNamespace(failure=None),
        config=SimpleNamespace(roles=("controller",)),
        log_dirs=[],
        current_image=SimpleNamespace(image=SimpleNamespace(offset=5)),
        quorum=SimpleNamespace(leader_id=leader),
    )
    watch: Any = SimpleNamespace(recent_stall=lambda: None)
    assert Health(node, watch).ready() == reason
