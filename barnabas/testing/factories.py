"""Makes fixtures of the user's own, as pytest-postgresql's factories do:

    from barnabas.testing import factories

    kafka_old_proc = factories.kafka_proc(brokers=3, config={"transaction.version": 1})
    kafka_old = factories.kafka("kafka_old_proc")

A factory for brokers makes a session fixture. `kafka` makes a function fixture on top of one: each test gets a namespace of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.testing.errors import named_arguments

if TYPE_CHECKING:
    from barnabas.testing.cluster import Cluster

__all__ = ["kafka", "kafka_cluster", "kafka_noproc", "kafka_proc"]


@named_arguments
def kafka_proc(*, brokers: int = 1, config: Mapping[str, object] | None = None, port: int = 0) -> Callable[..., Any]:
    """A session fixture: broker processes with files in a temporary directory."""

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Iterator[Cluster]:
        from barnabas.testing.fixtures import session_of

        yield from session_of(pytestconfig).process(config, brokers, port)

    return fixture


@named_arguments
def kafka_cluster(*, brokers: int = 3, config: Mapping[str, object] | None = None, port: int = 0) -> Callable[..., Any]:
    """A session fixture: brokers in threads of the test process."""

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Iterator[Cluster]:
        from barnabas.testing.cluster import Cluster
        from barnabas.testing.fixtures import session_of

        settings = {**session_of(pytestconfig).config, **(config or {})}
        with Cluster(brokers, config=settings, port=port) as kafka:
            yield kafka

    return fixture


@named_arguments
def kafka_noproc(*, bootstrap_servers: str | None = None) -> Callable[..., Any]:
    """A session fixture: a Kafka that runs already, by default that of --kafka-bootstrap."""

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Iterator[Cluster]:
        from barnabas.testing.fixtures import session_of

        yield from session_of(pytestconfig).running(bootstrap_servers)

    return fixture


@named_arguments
def kafka(session_fixture: str) -> Callable[..., Any]:
    """A function fixture: a namespace of the Kafka of a session fixture, which is given by its name."""

    @pytest.fixture
    def fixture(request: pytest.FixtureRequest) -> Iterator[Cluster]:
        from barnabas.testing.fixtures import for_test

        yield from for_test(request, session_fixture)

    return fixture
