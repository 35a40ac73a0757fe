"""Three brokers as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.processes.cluster import Cluster
from tests.support.processes.kit_cluster import KitCluster

StartCluster = Callable[..., Cluster]


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Starts three nodes: `start_cluster("key=value", …)`."""
    with ExitStack() as started:
        yield lambda *settings: started.enter_context(KitCluster(*settings))


@pytest.fixture
def cluster(start_cluster: StartCluster) -> Cluster:
    """Three nodes that serve."""
    return start_cluster()
