"""Both sides of every comparison: a real Kafka 4.3.1, started once a session where Java and Maven are, and a served Barnabas.

`kafka` and `barnabas` are bootstrap addresses. Tests share both, so each uses topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.served import ServedBroker

KAFKA_UP = Path(__file__).with_name("kafka-up")
START_SECONDS_MAX = 240  # the first start on a machine downloads Kafka
# What kafka-up sets on Kafka and differs from the defaults.
SETTINGS = ("group.initial.rebalance.delay.ms=0",)


def _free_ports() -> int:
    """The first of two neighbouring free ports."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


@pytest.fixture(scope="session")
def kafka_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A running Kafka: its address, and the folder with its data directory `node-1/data`."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no real Kafka to compare with: {' and '.join(missing)} not installed")
    folder = tmp_path_factory.mktemp("kafka")
    port = _free_ports()
    command = ["bash", str(KAFKA_UP), "start", "--port", str(port), "--dir", str(folder)]
    # Its output goes to a file: the broker inherits it, and a pipe would stay open as long as Kafka runs.
    with (folder / "kafka-up.log").open("w") as output:
        started = subprocess.run(command, stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=False)
    try:
        if started.returncode:
            pytest.skip(f"Kafka did not start: {(folder / 'kafka-up.log').read_text()[-500:]}")
        yield f"127.0.0.1:{port}", folder
    finally:
        subprocess.run(["bash", str(KAFKA_UP), "stop", "--dir", str(folder)], timeout=60, check=False)


@pytest.fixture(scope="session")
def kafka(kafka_data: tuple[str, Path]) -> str:
    """Bootstrap address of the real Kafka."""
    return kafka_data[0]


@pytest.fixture(scope="session")
def barnabas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a served Barnabas with the same settings; it must not have crashed inside, and end cleanly."""
    broker = ServedBroker(tmp_path_factory.mktemp("barnabas") / "data", *SETTINGS).start()
    try:
        yield broker.address
        assert broker.stop() == 0, broker.log()
    finally:
        broker.kill()
    assert "Traceback" not in broker.log(), broker.log()


@pytest.fixture
def kafka_on(tmp_path: Path, kafka: str) -> Iterator[Callable[[Path], str]]:
    """Opens a data directory with Kafka; `kafka` is asked for so that there is one."""
    folder = tmp_path / "opened"

    def open_on(data: Path) -> str:
        port = _free_ports()
        command = ["bash", str(KAFKA_UP), "open", "--data", str(data), "--node-id", "1", "--port", str(port)]
        with (tmp_path / "open.log").open("w") as output:
            subprocess.run(
                [*command, "--dir", str(folder)], stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=True
            )
        return f"127.0.0.1:{port}"

    yield open_on
    subprocess.run(["bash", str(KAFKA_UP), "stop", "--dir", str(folder)], timeout=60, check=False)
