"""What tests of several folders share: a real Kafka, a certificate authority and a search for passwords.

Kafka 4.3.1 is started once a session where Java and Maven are: for comparisons, and for tests that run against both. `kafka` is its
bootstrap address. Tests share it, so each uses topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

settings.register_profile("suite", deadline=None)  # a busy machine is slow
settings.load_profile("suite")

# The suite starts hundreds of Python processes. Without cached bytecode each of them compiles the whole package first.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if TYPE_CHECKING:
    from tests.support.security.certificates import CertificateAuthority

pytest.register_assert_rewrite("tests.support")

from tests.support.oracle.real_kafka import SETTINGS, running_kafka  # noqa: E402  # after the line above: it acts on later imports
from tests.support.processes.ports import free_port_block  # noqa: E402  # as above
from tests.support.security.planted import pytest_runtest_makereport  # noqa: E402  # as above

__all__ = ["pytest_runtest_makereport"]  # a hook: no test shows a password

# Java starts in a third of the CPU time without the compiler for long runs and with one thread for garbage.
os.environ.setdefault("KAFKA_UP_JVM", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def kafka_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A running Kafka: its address, and the folder with its data directory `node-1/data`."""
    folder = tmp_path_factory.mktemp("kafka")
    port = free_port_block(2)
    with running_kafka(folder, port, SETTINGS):
        yield f"127.0.0.1:{port}", folder


@pytest.fixture(scope="session")
def kafka(kafka_data: tuple[str, Path]) -> str:
    """Bootstrap address of the real Kafka."""
    return kafka_data[0]


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The certificate authority of the session: it signs node and client certificates."""
    from tests.support.security.certificates import CertificateAuthority  # tests without it need no cryptography

    return CertificateAuthority(tmp_path_factory.mktemp("ca"))
