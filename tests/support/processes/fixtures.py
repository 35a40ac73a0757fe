"""Brokers of the test kit, one process each; none may have crashed inside when it ends.

`served_broker` is one for the test alone, `serve` makes more, with settings; `shared_broker` serves a whole module, for
tests that neither stop it nor fill it and use topics of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from barnabas.testing import Broker
from barnabas.testing.backend import Mode

Serve = Callable[..., Broker]

START_SECONDS_MAX = 120.0  # far above what it takes: two cores may be busy with much else


def process_broker(*settings: str, mode: Mode = "process", port: int = 0) -> Broker:
    """A broker as a process, not started yet; settings as "key=value"."""
    config = dict(setting.split("=", 1) for setting in settings)
    return Broker(mode=mode, config=config, port=port, timeout=START_SECONDS_MAX)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a broker: `serve("num.partitions=3")`."""
    brokers: list[Broker] = []

    def start(*settings: str) -> Broker:
        brokers.append(process_broker(*settings))
        return brokers[-1].start()

    yield start
    for broker in brokers:
        end(broker)


def end(broker: Broker) -> None:
    """Stops the broker cleanly if it still runs. The log of a process must hold no traceback; for threads see `no_errors`."""
    try:
        if broker.broker(1).state == "running":
            broker.stop_broker()
        log = broker.broker(1).log if broker.mode == "process" else ""
    finally:
        broker.stop()
    assert "Traceback" not in log, log


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Brokers in threads of this process must log no error during the test."""
    yield
    errors = [each.getMessage() for each in caplog.get_records("call") if each.levelno >= logging.ERROR]
    assert not errors, "\n".join(errors)


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    """One broker with default settings for all tests of a module."""
    broker = process_broker().start()
    yield broker
    end(broker)


@pytest.fixture
def served_broker(serve: Serve) -> Broker:
    """One broker with default settings on an empty directory."""
    return serve()


def restart(broker: Broker, *, kill: bool) -> None:
    """Kills the broker or stops it cleanly, and starts it again on its data."""
    if kill:
        broker.kill()
    broker.restart()
