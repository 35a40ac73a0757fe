"""A third node that is not what its cluster takes it for, and peers that send nonsense to the quorum: each is told what is wrong
and where, and the two nodes that are right go on."""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.processes.cluster import Cluster, barnabas_nodes  # not the kit: the third node is a wrong one
from tests.support.processes.ports import free_ports
from tests.support.processes.served import READY_SECONDS_MAX, ServedBroker  # not the kit: the third node is a wrong one

pytestmark = pytest.mark.process

COMPLAINT_SECONDS_MAX = READY_SECONDS_MAX  # to say what is wrong, or to end with it
FOREIGN_CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of a module; the third is stopped, and its directory is what it was."""
    with Cluster(barnabas_nodes(tmp_path_factory.mktemp("cluster"))) as cluster:
        cluster.create_topic("kept", 1)
        cluster.stop(3)
        cluster.wait_until(lambda: cluster.controller() in (1, 2), "one of the two controls")
        yield cluster
        cluster.start_node(3)
        cluster.wait_in_sync("kept")


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The same, asked after each test whether it still decides."""
    yield running
    running.create_topic(f"after-{time.monotonic_ns()}", 1, replication_factor=2)


def served(cluster: Cluster, node_id: int) -> ServedBroker:
    node = cluster.nodes[node_id]
    assert isinstance(node, ServedBroker)
    return node


class Third:
    """What the third node is started with, unless a test says otherwise."""

    def __init__(self, cluster: Cluster, scratch: Path) -> None:
        node = served(cluster, 3)
        self.node_id = 3
        self.data = node.data
        self.port = 0
        self.controller_listen = node.arguments[1]
        self.voters = node.arguments[3].split(",")
        self.settings: list[str] = []
        self.stderr = scratch / "third"

    def launch(self) -> ServedBroker:
        broker = ServedBroker(
            self.data,
            *self.settings,
            node_id=self.node_id,
            port=self.port,
            arguments=("--controller-listen", self.controller_listen, "--quorum", ",".join(self.voters)),
        )
        broker.stderr_path = self.stderr
        broker.launch()
        return broker


@pytest.fixture
def third(cluster: Cluster, tmp_path: Path) -> Third:
    """To be made wrong by the test."""
    return Third(cluster, tmp_path)


def cluster_id(cluster: Cluster) -> str:
    found = re.search(r"cluster\.id=(\S+)", (served(cluster, 1).data / "meta.properties").read_text())
    assert found is not None
    return found[1]


def refused(third: Third, *texts: str) -> None:
    """It ends with 1 and one line that says all of this."""
    broker = third.launch()
    try:
        assert broker.process is not None
        assert broker.process.wait(COMPLAINT_SECONDS_MAX) == 1, broker.log()
        last = broker.log().strip().splitlines()[-1]
        assert last.startswith("barnabas serve: ")
        for text in texts:
            assert text in last
        assert "Traceback" not in broker.log()
    finally:
        broker.kill()


def complained(third: Third, texts: Sequence[str], *others: tuple[ServedBroker, str]) -> None:
    """It goes on asking, and says why in vain; so do others whom it reaches. It ends when told."""
    broker = third.launch()
    try:
        wanted = [*((broker, text) for text in texts), *others]
        deadline = time.monotonic() + COMPLAINT_SECONDS_MAX
        while not all(text in who.log() for who, text in wanted):
            assert time.monotonic() < deadline, [text for who, text in wanted if text not in who.log()] + [broker.log()]
            assert broker.alive, broker.log()
            time.sleep(0.05)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log()
    finally:
        broker.kill()


def test_the_directory_of_another_node(third: Third) -> None:
    third.node_id = 2
    third.controller_listen = f"127.0.0.1:{free_ports(1)[0]}"
    refused(third, f"data directory {third.data} belongs to node 3", "this is node 2", "start with node.id=3")


def test_the_directory_of_another_cluster(cluster: Cluster, third: Third) -> None:
    third.settings = [f"cluster.id={FOREIGN_CLUSTER}"]
    refused(third, f"data directory {third.data} belongs to cluster {cluster_id(cluster)}", f"not to {FOREIGN_CLUSTER}")


def test_an_empty_directory_and_the_id_of_another_cluster(cluster: Cluster, third: Third, tmp_path: Path) -> None:
    third.settings, third.data = [f"cluster.id={FOREIGN_CLUSTER}"], tmp_path / "empty"
    complained(
        third,
        [
            "node_id=3 refused_by=1 error=INCONSISTENT_CLUSTER_ID",
            f"it is of cluster {cluster_id(cluster)}, this node of {FOREIGN_CLUSTER}",
        ],
        (served(cluster, 1), f"it is of cluster {FOREIGN_CLUSTER}, this node of {cluster_id(cluster)}"),
    )


def test_fewer_voters_than_the_directory_knows(third: Third) -> None:
    third.voters = third.voters[1:]
    where = f"quorum-state in {third.data}/__cluster_metadata-0"
    refused(third, f"{where} names the voters 1, 2, 3, controller.quorum.voters 2, 3", "give node 3 the list")


def test_fewer_voters_and_an_empty_directory(cluster: Cluster, third: Third, tmp_path: Path) -> None:
    third.settings, third.data = [f"cluster.id={cluster_id(cluster)}"], tmp_path / "empty"
    third.voters = third.voters[1:]
    leader = cluster.controller()
    if leader == 1:
        complained(third, ["give every node the same list: node_id=1 voters=2,3"])
    else:
        refused(third, "leads the metadata quorum of the voters 1, 2, 3; controller.quorum.voters names 2, 3 here")


def test_a_voter_that_nobody_else_knows(cluster: Cluster, third: Third, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    third.settings, third.data = [f"cluster.id={cluster_id(cluster)}"], tmp_path / "empty"
    third.node_id, third.controller_listen = 4, f"127.0.0.1:{port}"
    third.voters.append(f"4@127.0.0.1:{port}")
    refused(
        third,
        f"node {cluster.controller()} leads the metadata quorum of the voters 1, 2, 3; "
        "controller.quorum.voters names 1, 2, 3, 4 here: give every node the same list",
    )


def test_voters_with_each_others_addresses(cluster: Cluster, third: Third) -> None:
    first, second = (voter.partition("@")[2] for voter in third.voters[:2])
    third.voters[:2] = [f"1@{second}", f"2@{first}"]
    complained(
        third,
        [f"node_id=3 refused_by={node_id} error=INVALID_VOTER_KEY" for node_id in (1, 2)],
        (served(cluster, 1), "it means voter 2, this is node 1"),
        (served(cluster, 2), "it means voter 1, this is node 2"),
    )


def test_a_second_process_with_the_id_of_a_living_node(cluster: Cluster, third: Third, tmp_path: Path) -> None:
    third.settings, third.data = [f"cluster.id={cluster_id(cluster)}"], tmp_path / "empty"
    third.node_id, third.controller_listen = 2, f"127.0.0.1:{free_ports(1)[0]}"
    if cluster.controller() == 2:
        complained(third, ["each node needs an id and a directory of its own: node_id=2"])
    else:
        fetched = "each node needs an id of its own: node_id=2"
        complained(
            third, ['node_id=2 step=register reason="DUPLICATE_BROKER_REGISTRATION: '], (served(cluster, 1), fetched)
        )


@pytest.mark.parametrize("which", ["clients", "controllers"])
def test_a_port_in_use(third: Third, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if which == "clients":
            third.port = port
        else:
            third.controller_listen = f"127.0.0.1:{port}"
            third.voters[2] = f"3@127.0.0.1:{port}"
        refused(third, str(port), "address already in use")


def test_nonsense_on_the_quorum_port(cluster: Cluster) -> None:
    """Each connection is closed with a line in the log; the quorum goes on, led by whom it was led by."""
    leader = cluster.controller()
    node = served(cluster, leader)
    host, _, port = node.arguments[1].rpartition(":")
    rng = random.Random(4)
    before = (len(node.log().splitlines()), node.rss_bytes())
    nonsense = [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),  # the beginning of TLS
        b"\x7f\xff\xff\xff",  # a frame of 2 GiB
        b"\xff\xff\xff\xff",  # of a negative size
        b"\x00\x00\x00\x00",
        *(rng.randbytes(rng.randrange(4, 3_000)) for _ in range(50)),
        *(  # a proper header of every API of the listener, and no body that could be meant
            len(frame).to_bytes(4, "big") + frame
            for key in (1, 52, 53, 54, 55, 59, 56, 62, 63, 67)
            for frame in (key.to_bytes(2, "big") + bytes(7) + b"\xff\xff\x00" + rng.randbytes(40),)
        ),
    ]
    for sent in nonsense:
        with socket.create_connection((host, int(port)), timeout=60) as peer:
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            try:
                while peer.recv(65_536):
                    pass
            except ConnectionError:
                pass  # closed with some of it unread
    assert node.alive
    assert cluster.controller() == leader
    assert "Traceback" not in node.log()
    said = len(node.log().splitlines()) - before[0]
    assert 5 <= said <= len(nonsense)
    assert node.rss_bytes() - before[1] < 32 * 1024 * 1024
