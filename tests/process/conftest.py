"""Served brokers for tests: `served_broker` is one, `serve` makes more; each ends with its test, and must not have crashed inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.served import ServedBroker

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
        if broker.alive:
            try:
                assert broker.stop() == 0, broker.log()
            finally:
                broker.kill()
        assert "Traceback" not in broker.log(), broker.log()


@pytest.fixture
def served_broker(serve: Serve) -> ServedBroker:
    """One broker with default settings on an empty directory."""
    return serve()
