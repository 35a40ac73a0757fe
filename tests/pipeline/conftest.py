"""One Spark session for the tests of this folder, and brokers for them to read and write.

A session costs 10 to 25 seconds, so the tests share `spark`. `make test-pipeline` has two processes, each with a session. A test that
kills a driver starts a process for it. The tests are skipped without the extra `pipeline`, and those of Spark's own connector
(`kafka_connector`) where Maven does not bring it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline.connector import NoConnector, connector_jars
from tests.support.pipeline.spark_cluster import JAVA_OPTIONS
from tests.support.processes.cluster import Cluster
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = ("group.initial.rebalance.delay.ms=0",)


@dataclass(frozen=True)
class Connector:
    """Spark's own connector: its jars, or why there are none."""

    jars: list[Path] = field(default_factory=list)
    missing: str = ""


@pytest.fixture(scope="session")
def connector(tmp_path_factory: pytest.TempPathFactory) -> Connector:
    """The jars that `spark` is started with."""
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    from barnabas.pipeline.java import java_home

    try:
        return Connector(jars=connector_jars(tmp_path_factory.mktemp("connector"), java_home() / "bin" / "java"))
    except NoConnector as error:
        return Connector(missing=str(error))


@pytest.fixture(scope="session")
def spark(connector: Connector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests of this folder share: leave its configuration as it is, or set it back."""
    from barnabas.pipeline import session

    running = session(
        "barnabas-tests",
        jars=connector.jars,
        spark__driver__defaultJavaOptions=JAVA_OPTIONS,
        spark__sql__shuffle__partitions=2,
        spark__sql__session__timeZone="UTC",
        spark__sql__warehouse__dir=tmp_path_factory.mktemp("warehouse"),
    )
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kafka_connector(spark: SparkSession, connector: Connector) -> str:
    """The name of Spark's own source and sink, `kafka`; skips where it cannot be had."""
    if connector.missing:
        pytest.skip(f"Spark's own connector cannot be had: {connector.missing}")
    return "kafka"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """One broker for all tests that neither stop nor fill it and use topics of their own."""
    served = ServedBroker(tmp_path_factory.mktemp("broker") / "data", *SETTINGS).start()
    yield served
    served.end()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers for the test alone, to be killed and started again."""
    with KitCluster("default.replication.factor=3", "min.insync.replicas=2", *SETTINGS) as nodes:
        yield nodes
