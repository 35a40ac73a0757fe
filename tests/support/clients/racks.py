"""Reading from the nearest replica: three brokers in three racks, each behind a proxy that counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.clients.proxy import Proxy
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.ports import free_port_block
from tests.support.requests import request_of

SELECTOR = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
FETCH = 1
LEADER, NEAREST = 1, 2
FETCH_WAIT_MS = 5_000  # of readers and followers: so long that who waits for the next fetch stands out on any machine


class Racks:
    """Three brokers in the racks 1, 2 and 3, each behind a proxy for clients; broker 1 leads `topic`."""

    def __init__(self, stack: ExitStack) -> None:
        port = free_port_block(3)
        self.proxies = {each: stack.enter_context(Proxy(port + each - 1)) for each in (1, 2, 3)}
        self.cluster = stack.enter_context(
            KitCluster(
                SELECTOR,
                f"replica.fetch.wait.max.ms={FETCH_WAIT_MS}",
                port=port,
                node_config={
                    node_id: {"broker.rack": node_id, "advertised.listeners": f"PLAINTEXT://{proxy.address}"}
                    for node_id, proxy in self.proxies.items()
                },
            )
        )
        self.bootstrap = ",".join(proxy.address for proxy in self.proxies.values())
        self.topic = "near"
        replicas = [{"partition_index": 0, "broker_ids": [1, 2, 3]}]
        topic = {"name": self.topic, "num_partitions": -1, "replication_factor": -1, "assignments": replicas}
        answer = self.cluster.ask(request_of("CreateTopics", topics=[topic], timeout_ms=30_000), 5)
        assert answer.topics[0].error_code == 0, answer
        self.cluster.wait_in_sync(self.topic)

    def sent_bytes(self, client_id: str) -> dict[int, int]:
        """What each broker has sent a reader."""
        return {node_id: proxy.answered_bytes[client_id, FETCH] for node_id, proxy in self.proxies.items()}


@pytest.fixture
def racks() -> Iterator[Racks]:
    with ExitStack() as stack:
        yield Racks(stack)
