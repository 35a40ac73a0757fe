"""Foreign clients over GSSAPI: aiokafka, kafka-python and kcat produce and consume, and say what is wrong without a ticket."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from barnabas.runtime.offload import WorkerThread
from tests.support.clients.kafka_python import kafka_python_round
from tests.support.oracle.gssapi_script import LISTENERS, gssapi_settings
from tests.support.security.kdc import REALM, Kdc, running_kdc
from tests.support.security.sasl_node import address_of, sasl_node

pytestmark = pytest.mark.clients

WAIT_S = 60


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as found:
        yield found


@pytest.fixture
async def address(kdc: Kdc) -> AsyncIterator[str]:
    settings = {**gssapi_settings(kdc), "group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    async with sasl_node(settings, *LISTENERS, offload=WorkerThread().run) as node:
        yield address_of(node, "SASL")


@pytest.fixture
def alice(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has tickets of alice."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.tickets('alice')}")


def config_of(address: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_domain_name": "localhost",
    }


@pytest.mark.usefixtures("alice")
async def test_aiokafka(address: str) -> None:
    config = config_of(address)
    async with AIOKafkaProducer(transactional_id="t", **config) as producer, producer.transaction():
        await producer.send_and_wait("aiokafka", b"value")
    async with AIOKafkaConsumer("aiokafka", group_id="g", auto_offset_reset="earliest", **config) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"value"


@pytest.mark.usefixtures("alice")
async def test_kafka_python(address: str) -> None:
    assert await asyncio.to_thread(kafka_python_round, config_of(address)) == b"value"


@pytest.mark.usefixtures("kdc")
async def test_without_a_ticket(address: str) -> None:
    refused = pytest.importorskip("gssapi").exceptions.GSSError
    producer = AIOKafkaProducer(**config_of(address))
    with pytest.raises((KafkaError, refused)):
        await producer.start()
    await producer.stop()


def kcat_has_gssapi() -> bool:
    return "sasl_gssapi" in subprocess.run(["kcat", "-X", "dump"], capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
async def test_kcat(address: str, kdc: Kdc) -> None:
    if not await asyncio.to_thread(kcat_has_gssapi):
        pytest.skip("kcat is built without GSSAPI")
    config = (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=GSSAPI",
        "sasl.kerberos.service.name=kafka",
        f"sasl.kerberos.principal=alice@{REALM}",
        f"sasl.kerberos.keytab={kdc.keytab_of('alice')}",
    )
    kcat = ["kcat", "-b", address, *(part for each in config for part in ("-X", each)), "-t", "kcat"]
    own = {**kdc.full_environment, "KRB5CCNAME": f"FILE:{kdc.folder / 'kcat-tickets'}"}

    def run(*arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [*kcat, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=60, env=own
        )
        if "No worthy mechs found" in done.stderr:
            pytest.skip("libsasl2 has no GSSAPI (Debian: apt-get install libsasl2-modules-gssapi-mit)")
        assert done.returncode == 0, done.stderr
        return done.stdout

    await asyncio.to_thread(run, "-P", stdin="value\n")
    assert await asyncio.to_thread(run, "-C", "-o", "beginning", "-e", "-q") == "value\n"
