"""The audit's commands inside a node's event loop."""

from __future__ import annotations

from barnabas.testing.node_host import NodeHost


def watch(host: NodeHost, numbers_from: int) -> None:
    """Holds responses to clients from now on, numbered from `numbers_from` + 1."""
    host.interception.watch.begin(numbers_from)


def unwatch(host: NodeHost) -> None:
    """Stops holding responses and sends the held ones."""
    host.interception.watch.end()


def settle_answer(host: NodeHost, number: int, answer: str) -> None:
    """`answer`: "given", "lost" or the name of an error."""
    host.interception.watch.decide(number, answer)
