"""Factories of custom fixtures, like those of pytest-postgresql. Session fixtures take the arguments of `Cluster`; `kafka` makes a function fixture.

kafka_old_proc = factories.kafka_proc(brokers=3, config={"transaction.version": 1})
kafka_old = factories.kafka("kafka_old_proc")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pytest

from barnabas.testing.errors import named_arguments

if TYPE_CHECKING:
    from barnabas.testing.backend import Mode
    from barnabas.testing.cluster import Cluster


class ClusterOptions(TypedDict, total=False):
    """Arguments of `Cluster`; it describes them."""

    config: Mapping[str, object]
    node_config: Mapping[int, Mapping[str, object]]
    topics: Mapping[str, int]
    internal_topics: bool
    port: int
    timeout: float
    as_version: str
    seed: int
    admin_port: int
    security_protocol: str
    log_dirs: int


def kafka_proc(*, brokers: int = 1, **options: Unpack[ClusterOptions]) -> Callable[..., Any]:
    """A session fixture: broker processes with files in a temporary directory. Raises KitError, TypeError for a wrong argument."""
    return _of_session(brokers, "process", options)


def kafka_cluster(*, brokers: int = 3, **options: Unpack[ClusterOptions]) -> Callable[..., Any]:
    """A session fixture: brokers in threads of the test process. Raises KitError, TypeError for a wrong argument."""
    return _of_session(brokers, "thread", options)


def _of_session(brokers: int, mode: Mode, options: ClusterOptions) -> Callable[..., Any]:
    from barnabas.testing.cluster import Cluster

    Cluster(brokers, mode=mode, **options)  # refuses wrong arguments here, and not in the first test

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Iterator[Cluster]:
        from barnabas.testing.fixtures import session_of

        yield from session_of(pytestconfig).started(brokers, mode=mode, **options)

    return fixture


@named_arguments
def kafka_noproc(*, bootstrap_servers: str | None = None) -> Callable[..., Any]:
    """A session fixture for a running Kafka, by default that of --kafka-bootstrap."""

    @pytest.fixture(scope="session")
    def fixture(pytestconfig: pytest.Config) -> Iterator[Cluster]:
        from barnabas.testing.fixtures import session_of

        yield from session_of(pytestconfig).running(bootstrap_servers)

    return fixture


@named_arguments
def kafka(session_fixture: str) -> Callable[..., Any]:
    """A function fixture: each test gets its own namespace on the Kafka of a session fixture, named by `session_fixture`."""

    @pytest.fixture
    def fixture(request: pytest.FixtureRequest) -> Iterator[Cluster]:
        from barnabas.testing.fixtures import for_test

        yield from for_test(request, session_fixture)

    return fixture
