"""The active controller is stopped by SIGSTOP under an exactly-once copy, and continues after others have taken over.

A stopped process keeps its connections open and its listener accepts, so only timeouts show that it is gone: the voters elect
another controller, and a broker among the stopped ones is fenced when its session ends. As in Kafka, acks=all waits until then, because the
stopped broker is in sync. What it costs is asserted by the soak only, which wants a machine without other work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from tests.support.processes.cluster import (  # after the check that librdkafka is there
    Cluster,
    Node,
)
from tests.support.processes.kills import Gaps, Killing, killed_copy
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: controllers that are no brokers

pytestmark = pytest.mark.process

TOPICS = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4", "min.insync.replicas=2")
SHORT_SESSION = ("broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500")
SESSION_SECONDS = 9.0
ELECTION_SECONDS = 3.0  # of another controller: the fetch timeout of the voters (2 s) and a vote
NOTICED_SECONDS = 3.0  # from the end of the session until the bundled client is served by others
GAP_SECONDS_MAX = 1.0  # where the stopped controller is no broker


@contextmanager
def of_two_roles(folder: Path) -> Iterator[tuple[Cluster, dict[int, ServedBroker]]]:
    """Brokers 1 to 3, and the controllers 101 to 103."""
    ids = range(101, 104)
    voters = ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in zip(ids, free_ports(len(ids)), strict=True))
    arguments = ("--quorum", voters)
    with ExitStack() as stack:
        controllers = {}
        for voter in ids:
            controller = controllers[voter] = ServedBroker(
                folder / f"controller-{voter}",
                "process.roles=controller",
                *TOPICS,
                node_id=voter,
                arguments=arguments,
                listens=False,
            )
            controller.launch()
            stack.callback(controller.kill)
        brokers = [
            ServedBroker(folder / f"broker-{n}", "process.roles=broker", *TOPICS, node_id=n, arguments=arguments)
            for n in (1, 2, 3)
        ]
        yield stack.enter_context(Cluster(brokers)), controllers


def freeze(cluster: Cluster, folder: Path, frozen: Node, seconds: float | None) -> Gaps:
    """Nothing acknowledged may be lost or repeated; another controller is elected."""
    with killed_copy(cluster, folder, "barnabas") as run:
        gaps = Killing(run, seed=1).freeze(frozen, seconds)
        run.judge()
    assert cluster.controller() not in (-1, frozen.node_id), str(gaps)
    return gaps


def test_the_copy_goes_on_while_the_controller_that_is_a_broker_too_is_stopped(tmp_path: Path) -> None:
    with KitCluster(*TOPICS, *SHORT_SESSION) as cluster:
        freeze(cluster, tmp_path, cluster.nodes[cluster.controller()], None)


@pytest.mark.soak
def test_a_stopped_controller_that_is_a_broker_too_costs_an_election_and_a_session(tmp_path: Path) -> None:
    with KitCluster(*TOPICS) as cluster:
        gaps = freeze(cluster, tmp_path, cluster.nodes[cluster.controller()], 20.0)
        assert gaps.longest("copier") < ELECTION_SECONDS + SESSION_SECONDS + NOTICED_SECONDS, str(gaps)


@pytest.mark.soak
def test_a_stopped_controller_that_is_no_broker_costs_nothing(tmp_path: Path) -> None:
    with of_two_roles(tmp_path) as (cluster, controllers):
        gaps = freeze(cluster, tmp_path, controllers[cluster.controller()], 14.0)
        assert gaps.seconds()[-1] < GAP_SECONDS_MAX, str(gaps)
