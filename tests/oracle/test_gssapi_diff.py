"""GSSAPI with Kafka and with Barnabas: the recorded answers of Kafka are those of the real one, with the same keytab."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracle.gssapi_script import LISTENERS, gssapi_settings, held
from tests.support.oracle.real_kafka import KAFKA_UP, START_SECONDS_MAX, needs_java
from tests.support.oracle.sasl_timing import goes_as
from tests.support.processes.ports import free_port_block
from tests.support.security.kdc import Kdc, running_kdc

pytestmark = pytest.mark.oracle

RECORDED = Path(__file__).parents[1] / "golden" / "sasl" / "gssapi.json"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as found:
        yield found


@pytest.fixture(scope="module")
def kafka_with_kerberos(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of the listeners of a Kafka."""
    needs_java()
    folder = tmp_path_factory.mktemp("kerberos-kafka")
    port = free_port_block(5)
    addresses = {"PLAINTEXT": f"127.0.0.1:{port}"}
    addresses |= {name: f"127.0.0.1:{port + 2 + number}" for number, name in enumerate(LISTENERS)}
    listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
    mapped = ",".join(f"{name}:SASL_PLAINTEXT" for name in LISTENERS)
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,{mapped}",
        "inter.broker.listener.name": "PLAINTEXT",
        "group.initial.rebalance.delay.ms": "0",
        **gssapi_settings(kdc),
    }
    command = ["bash", str(KAFKA_UP), "start", "--port", str(port), "--dir", str(folder)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    realm = {**os.environ, "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={kdc.config}"}
    with (folder / "kafka-up.log").open("w") as output:
        started = subprocess.run(
            command, stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=False, env=realm
        )
    try:
        if started.returncode:
            pytest.fail(f"Kafka did not start: {(folder / 'kafka-up.log').read_text()[-500:]}")
        yield addresses
    finally:
        subprocess.run(["bash", str(KAFKA_UP), "stop", "--dir", str(folder)], timeout=60, check=False)


def test_the_recorded_conversations_are_those_of_kafka(kafka_with_kerberos: dict[str, str], kdc: Kdc) -> None:
    said = held(kafka_with_kerberos, kdc)
    recorded = json.loads(RECORDED.read_text())
    assert {name: each for name, each in said.items() if not goes_as(each, recorded[name])} == {}
    assert said.keys() == recorded.keys()
