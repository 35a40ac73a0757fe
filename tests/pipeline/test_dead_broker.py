"""A sink begins its batches while a broker is away, and decides them while one goes."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

from barnabas.client import Producer
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.pipeline.topic_sink import transactions_of
from barnabas.pipeline.transaction_requests import TransactionRequests
from tests.support.processes.cluster import Cluster


@pytest.mark.parametrize("dead", [1, 2, 3])
async def test_what_the_cluster_offers_is_known_without_a_dead_broker(cluster: Cluster, dead: int) -> None:
    client = NetworkClient(ConnectionConfig(bootstrap_servers=cluster.bootstrap))
    await client.start()
    try:
        assert (await transactions_of(TransactionRequests(client))).two_phase
        cluster.kill(dead)
        assert (await transactions_of(TransactionRequests(client))).two_phase
    finally:
        await client.close()


async def test_what_is_open_is_found_though_its_coordinator_dies(cluster: Cluster) -> None:
    cluster.create_topic("out", 1)
    client = NetworkClient(ConnectionConfig(bootstrap_servers=cluster.bootstrap))
    await client.start()
    try:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, transactional_id="s.1-0.0", two_phase_commit=True
        ) as task:
            await task.begin_transaction()
            await task.send("out", b"row")
            prepared = await task.prepare()
        requests = TransactionRequests(client)
        (before,) = await requests.list_open("s.")
        assert before == ("s.1-0.0", tuple(prepared))
        cluster.wait_in_sync("out", "__transaction_state")
        cluster.kill(cluster.coordinator("s.1-0.0"))
        assert await requests.list_open("s.") == [before]  # the metadata still names the dead one
    finally:
        await client.close()
