"""What tests of several folders share: a real Kafka, a certificate authority, a disk that is full, and a search for passwords.

Kafka 4.3.1 is started once a session where Java and Maven are: for comparisons, and for tests that run against both. `kafka` is its
bootstrap address. Tests share it, so each uses topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.security.certificates import CertificateAuthority

pytest.register_assert_rewrite("tests.support")

from tests.support.oracle.real_kafka import (  # noqa: E402  # after the line above: it acts on later imports
    KAFKA_UP,
    SETTINGS,
    START_SECONDS_MAX,
    needs_java,
)
from tests.support.processes.ports import free_port_block  # noqa: E402  # as above
from tests.support.security.planted import pytest_runtest_makereport  # noqa: E402  # as above

__all__ = ["pytest_runtest_makereport"]  # a hook: no test shows a password


@pytest.fixture(scope="session")
def kafka_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A running Kafka: its address, and the folder with its data directory `node-1/data`."""
    needs_java()
    folder = tmp_path_factory.mktemp("kafka")
    port = free_port_block(2)
    command = ["bash", str(KAFKA_UP), "start", "--port", str(port), "--dir", str(folder)]
    for setting in SETTINGS:
        command += ["--set", setting]
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
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The certificate authority of the session: it signs node and client certificates."""
    from tests.support.security.certificates import CertificateAuthority  # tests without it need no cryptography

    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond 32 KiB: the same end as a full disk, which needs no file system of its own to try."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
