"""The audit's commands, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from barnabas.testing.node_host import NodeHost


def watch(host: NodeHost, numbers_from: int) -> None:
    """Answers to clients stop from now on, with numbers above `numbers_from`."""
    host.interception.watch.begin(numbers_from)


def unwatch(host: NodeHost) -> None:
    """Answers stop no more; those that were stopped are given."""
    host.interception.watch.end()


def settle_answer(host: NodeHost, number: int, answer: str) -> None:
    """What becomes of a stopped answer: "given", "lost" or an error."""
    host.interception.watch.decide(number, answer)
