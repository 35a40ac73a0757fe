"""Served brokers for tests; none may have crashed inside when it ends.

`served_broker` is one for the test alone, `serve` makes more, with settings; `shared_broker` serves a whole module, for
tests that neither stop it nor fill it and use topics of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.served import ServedBroker

Serve = Callable[..., ServedBroker]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a broker: `serve("num.partitions=3", name="a")`."""
    brokers: list[ServedBroker] = []

    def start(*settings: str, name: str = "data") -> ServedBroker:
        broker = ServedBroker(tmp_path / name, *settings)
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        end(broker)


def end(broker: ServedBroker) -> None:
    """Stops the broker if it still runs; its log must hold no traceback."""
    if broker.alive:
        try:
            assert broker.stop() == 0, broker.log()
        finally:
            broker.kill()
    assert "Traceback" not in broker.log(), broker.log()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """One broker with default settings for all tests of a module."""
    broker = ServedBroker(tmp_path_factory.mktemp("shared") / "data").start()
    yield broker
    end(broker)


@pytest.fixture
def served_broker(serve: Serve) -> ServedBroker:
    """One broker with default settings on an empty directory."""
    return serve()
