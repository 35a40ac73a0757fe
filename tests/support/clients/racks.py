"""Reading from the nearest replica: three brokers in three racks, each behind a proxy that counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from barnabas.protocol.messages.admin import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.support.clients.proxy import Proxy
from tests.support.processes.cluster import Cluster, barnabas_nodes
from tests.support.processes.ports import free_ports

SELECTOR = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"


FETCH = 1


LEADER, NEAREST = 1, 2


FETCH_WAIT_MS = 5_000  # of readers and followers: so long that who waits for the next fetch stands out on any machine


class Racks:
    """Three brokers in the racks 1, 2 and 3, each behind a proxy for clients; broker 1 leads `topic`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        nodes = barnabas_nodes(
            folder,
            SELECTOR,
            "offsets.topic.num.partitions=2",
            "transaction.state.log.num.partitions=2",
            f"replica.fetch.wait.max.ms={FETCH_WAIT_MS}",
        )
        self.proxies: dict[int, Proxy] = {}
        for node, port in zip(nodes, free_ports(len(nodes)), strict=True):
            proxy = self.proxies[node.node_id] = stack.enter_context(Proxy(port))
            node.listens = False  # by one address alone
            node.settings = (
                *node.settings,
                f"broker.rack={node.node_id}",
                f"listeners=PLAINTEXT://{node.address},CLIENTS://127.0.0.1:{port}",
                f"advertised.listeners=PLAINTEXT://{node.address},CLIENTS://{proxy.address}",
                "inter.broker.listener.name=PLAINTEXT",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            )
        self.cluster = stack.enter_context(Cluster(nodes))
        self.bootstrap = ",".join(proxy.address for proxy in self.proxies.values())
        self.topic = "near"
        replicas = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, 3])]
        topic = CreatableTopic(name=self.topic, num_partitions=-1, replication_factor=-1, assignments=replicas)
        answer = self.cluster.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
        assert answer.topics[0].error_code == 0, answer
        self.cluster.wait_in_sync(self.topic)

    def sent_bytes(self, client_id: str) -> dict[int, int]:
        """What each broker has sent a reader."""
        return {node_id: proxy.answered_bytes[client_id, FETCH] for node_id, proxy in self.proxies.items()}


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    with ExitStack() as stack:
        yield Racks(tmp_path, stack)
