"""Three nodes, each broker and controller, whose listeners SECURE and CONTROLLER have the security that a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker

NODES = (1, 2, 3)


def _nothing(_node: int) -> Mapping[str, str]:
    return {}


@contextmanager
def secured_nodes(
    folder: Path, protocol: str, settings: Mapping[str, str], own: Callable[[int], Mapping[str, str]] = _nothing
) -> Iterator[list[ServedBroker]]:
    """Starts the nodes, and stops them at the end; their logs must hold no planted secret.

    Args:
        folder: for their data.
        protocol: of both listeners.
        settings: of all nodes.
        own: more settings of one node, by its id.
    """
    ports = free_ports(2 * len(NODES))
    controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
    common = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SECURE",
        "listener.security.protocol.map": f"SECURE:{protocol},CONTROLLER:{protocol}",
        **settings,
    }
    nodes = []
    for node, port in zip(NODES, ports, strict=False):
        listeners = {
            "listeners": f"SECURE://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[node]}",
            "advertised.listeners": f"SECURE://127.0.0.1:{port}",
        }
        texts = [f"{key}={value}" for key, value in {**common, **listeners, **own(node)}.items()]
        served = ServedBroker(folder / f"node-{node}", *texts, node_id=node, listens=False)
        served.port = port
        nodes.append(served)
    try:
        for each in nodes:
            each.launch()
        for each in nodes:
            each.await_ready()
        yield nodes
        for each in nodes:
            each.end()
    finally:
        for each in nodes:
            each.kill()
    for each in nodes:
        assert "planted" not in each.log()
