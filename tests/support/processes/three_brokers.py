"""Three brokers as processes, with few partitions of internal topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes.cluster import Cluster, barnabas_nodes

STATE_TOPICS = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")


StartCluster = Callable[..., Cluster]


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts three nodes: `start_cluster("key=value", …)`."""
    with ExitStack() as started:
        yield lambda *settings, **how: started.enter_context(
            Cluster(barnabas_nodes(tmp_path, *STATE_TOPICS, *settings, **how))
        )


@pytest.fixture
def cluster(start_cluster: StartCluster) -> Cluster:
    """Three nodes that serve."""
    return start_cluster()
