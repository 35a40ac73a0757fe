"""Both sides of every comparison: a real Kafka 4.3.1 (`kafka`, see the conftest above) and a served Barnabas.

`kafka` and `barnabas` are bootstrap addresses. Tests share both, so each uses topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.oracle.real_kafka import KAFKA_UP, SETTINGS, START_SECONDS_MAX, needs_java, running_kafka, stop_kafka
from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.secured_world import SecuredWorld, served_world

AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)


@pytest.fixture(scope="session")
def barnabas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a served Barnabas with the same settings; it must not have crashed inside, and end cleanly."""
    broker = ServedBroker(tmp_path_factory.mktemp("barnabas") / "data", *SETTINGS).start()
    yield broker.address
    broker.end()


@pytest.fixture
def kafka_on(tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Opens a data directory with Kafka."""
    needs_java()
    folder = tmp_path / "opened"

    def open_on(data: Path) -> str:
        port = free_port_block(2)
        command = ["bash", str(KAFKA_UP), "open", "--data", str(data), "--node-id", "1", "--port", str(port)]
        with (tmp_path / "open.log").open("w") as output:
            subprocess.run(
                [*command, "--dir", str(folder)], stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=True
            )
        return f"127.0.0.1:{port}"

    yield open_on
    stop_kafka(folder)


@pytest.fixture(scope="session")
def authorized_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a Kafka with an authorizer, whose clients without authentication are super users."""
    port = free_port_block(2)
    with running_kafka(tmp_path_factory.mktemp("authorized-kafka"), port, AUTHORIZER):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def authorized_barnabas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a served Barnabas with the same settings."""
    broker = ServedBroker(tmp_path_factory.mktemp("authorized-barnabas") / "data", *AUTHORIZER).start()
    yield broker.address
    broker.end()


@pytest.fixture(scope="session")
def secured_worlds(
    tmp_path_factory: pytest.TempPathFactory, ca: CertificateAuthority
) -> Iterator[dict[str, SecuredWorld]]:
    """A Kafka and a served Barnabas with a listener for each security protocol, by side. The users of SCRAM are not made yet."""
    needs_java()
    folder = tmp_path_factory.mktemp("secured")
    kafka = SecuredWorld(ca, folder)
    given = [f"{key}={value}" for key, value in kafka.settings(controller=True).items()]
    with (
        served_world(ca, folder) as barnabas,
        running_kafka(folder / "kafka", kafka.ports["PLAINTEXT"], given),
    ):
        yield {"Kafka": kafka, "Barnabas": barnabas}
