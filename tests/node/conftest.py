"""Nodes in the test's process, with a connection to each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from barnabas.broker.node.node import Node
from tests.support.broker.nodes import Nodes, Peer


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """For tests that need several nodes, or settings."""
    every = Nodes()
    yield every
    await every.end()


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    """One node with default settings on an empty memory disk."""
    return await nodes.start()


@pytest.fixture
async def peer(nodes: Nodes, node: Node) -> Peer:
    """A connection to `node`."""
    return await nodes.peer(node)


@pytest.fixture
async def another(nodes: Nodes, node: Node) -> Callable[[], Awaitable[Peer]]:
    """Makes further connections to `node`."""
    return lambda: nodes.peer(node)
