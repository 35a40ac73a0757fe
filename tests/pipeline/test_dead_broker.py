"""A sink begins its batches while a broker is away."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

from barnabas.client.cluster import Cluster as Client
from barnabas.pipeline.topic_sink import transactions_of
from barnabas.pipeline.transaction_requests import TransactionRequests
from tests.process.cluster import Cluster


@pytest.mark.parametrize("dead", [1, 2, 3])
async def test_what_the_cluster_offers_is_known_without_a_dead_broker(cluster: Cluster, dead: int) -> None:
    client = Client(cluster.bootstrap, client_id="sink")
    await client.start()
    try:
        assert (await transactions_of(TransactionRequests(client))).two_phase
        cluster.kill(dead)
        assert (await transactions_of(TransactionRequests(client))).two_phase
    finally:
        await client.close()
