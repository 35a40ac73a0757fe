"""TLS on served brokers: foreign clients, refusals on both sides, new certificates, slow handshakes."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.elsewhere import wait_until
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: listeners of its own
from tests.support.security.certificates import CertificateAuthority, Identity

pytestmark = pytest.mark.process

API_VERSIONS = bytes.fromhex("00000012 0012 0000 00000001 0008 746573742d746c73".replace(" ", ""))


def served(folder: Path, values: dict[str, str]) -> ServedBroker:
    """A broker with a TLS listener (`address`) and a plaintext one (`plain`)."""
    tls, plain = free_ports(2)
    settings = {
        "listeners": f"SSL://127.0.0.1:{tls},PLAINTEXT://127.0.0.1:{plain}",
        "group.initial.rebalance.delay.ms": "0",
        **values,
    }
    broker = ServedBroker(folder / "data", *(f"{key}={text}" for key, text in settings.items()), listens=False)
    broker.plain = ("127.0.0.1", plain)  # type: ignore[attr-defined]
    return broker.start()


@pytest.fixture(scope="module")
def node(ca: CertificateAuthority) -> Identity:
    return ca.issue("tls-node")


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, ca: CertificateAuthority, node: Identity
) -> Iterator[ServedBroker]:
    """Asks for certificates of clients without requiring them."""
    values = node.inline() | ca.truststore_inline() | {"ssl.client.auth": "requested"}
    running = served(tmp_path_factory.mktemp("tls"), values)
    yield running
    running.end()


def rdkafka(broker: ServedBroker, ca: CertificateAuthority, **more: Any) -> dict[str, Any]:
    found = {"bootstrap.servers": broker.address, "security.protocol": "ssl", "ssl.ca.location": str(ca.certificate)}
    return found | {name.replace("_", "."): value for name, value in more.items()}


def context(ca: CertificateAuthority, identity: Identity | None = None) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=ca.certificate)
    if identity is not None:
        found.load_cert_chain(identity.certificate, identity.key)
    return found


def connected(broker: ServedBroker, tls: ssl.SSLContext, name: str = "localhost") -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
    return tls.wrap_socket(raw, server_hostname=name)


def answers(connection: socket.socket) -> bool:
    connection.sendall(API_VERSIONS)
    return len(connection.recv(4_096)) > 4


def test_librdkafka_produces_consumes_and_commits_transactions(broker: ServedBroker, ca: CertificateAuthority) -> None:
    producer = Producer(rdkafka(broker, ca, transactional_id="tls-transaction"))
    producer.init_transactions(60)
    producer.begin_transaction()
    values = [b"%d" % number + b"x" * 3_000 for number in range(500)]
    for value in values:
        producer.produce("tls-transactions", value)
    producer.commit_transaction(60)
    settings = {"group_id": "tls", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer = Consumer(rdkafka(broker, ca, **settings))
    consumer.subscribe(["tls-transactions"])
    found: list[bytes | None] = []

    def consumed() -> bool:
        found.extend(each.value() for each in consumer.consume(500, 0.5))
        return len(found) >= 500

    wait_until(consumed)
    assert found == values
    consumer.commit(asynchronous=False)
    assert consumer.committed([TopicPartition("tls-transactions", 0)], 10)[0].offset > 0
    consumer.close()


@pytest.mark.asyncio
async def test_aiokafka(broker: ServedBroker, ca: CertificateAuthority) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    security: dict[str, Any] = {
        "bootstrap_servers": broker.address,
        "security_protocol": "SSL",
        "ssl_context": context(ca),
    }
    async with AIOKafkaProducer(**security) as producer:
        await producer.send_and_wait("tls-aiokafka", b"one")
    reading = AIOKafkaConsumer("tls-aiokafka", group_id="a", auto_offset_reset="earliest", **security)
    async with reading as consumer:
        assert (await consumer.getone()).value == b"one"


def test_kafka_python(broker: ServedBroker, ca: CertificateAuthority) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    security: dict[str, Any] = {
        "bootstrap_servers": broker.address,
        "security_protocol": "SSL",
        "ssl_cafile": str(ca.certificate),
    }
    producer = KafkaProducer(**security)
    producer.send("tls-kafka-python", b"one").get(60)
    producer.close()
    consumer = KafkaConsumer(
        "tls-kafka-python", auto_offset_reset="earliest", group_id="k", consumer_timeout_ms=60_000, **security
    )
    assert next(consumer).value == b"one"
    consumer.close()


def test_wrong_authority_and_wrong_name_end_at_the_client(
    broker: ServedBroker, ca: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority(tmp_path, "Another CA")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        connected(broker, context(other))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connected(broker, context(ca), "elsewhere.example")
    with pytest.raises(KafkaException) as caught:
        AdminClient(rdkafka(broker, other)).list_topics(timeout=2)
    assert caught.value.args[0].code() == KafkaError._TRANSPORT
    wait_until(lambda: "SSL handshake failed): host=127.0.0.1" in broker.log())
    assert answers(connected(broker, context(ca)))


def test_client_certificates(broker: ServedBroker, ca: CertificateAuthority, tmp_path: Path) -> None:
    assert answers(connected(broker, context(ca, ca.issue("tls-alice"))))
    for wrong in (ca.issue("tls-old", expired=True), CertificateAuthority(tmp_path).issue("tls-eve")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            answers(connected(broker, context(ca, wrong)))


def test_plaintext_on_a_tls_listener_gets_the_alert_of_kafka(broker: ServedBroker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as raw:
        raw.sendall(API_VERSIONS)
        assert raw.recv(100) == bytes.fromhex("15030300020250")
        assert raw.recv(100) == b""
    wait_until(lambda: "speaks PLAINTEXT" in broker.log())


def test_tls_on_a_plaintext_listener_is_closed(broker: ServedBroker, ca: CertificateAuthority) -> None:
    with socket.create_connection(broker.plain, timeout=60) as raw, pytest.raises(ssl.SSLError):  # type: ignore[attr-defined]
        context(ca).wrap_socket(raw, server_hostname="localhost")
    wait_until(lambda: "it looks like TLS" in broker.log())


def test_random_bytes_and_cut_handshakes_do_no_harm(broker: ServedBroker, ca: CertificateAuthority) -> None:
    hello = _hello(context(ca))
    for data in (
        b"\x16",
        hello[:3],
        hello[:50],
        hello[:-1],
        hello + b"\0" * 600,
        b"\x16\x03\x01\xff\xff",
        b"GET / HTTP/1.1",
    ):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as raw:
            raw.sendall(data)
    changed = bytearray(hello)
    for at in range(5, len(hello), 11):
        changed[at] ^= 0xFF
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as raw:
            raw.sendall(changed)
    assert answers(connected(broker, context(ca)))


def _hello(tls: ssl.SSLContext) -> bytes:
    """The first message of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        tls.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def alter(broker: ServedBroker, ca: CertificateAuthority, values: dict[str, str]) -> None:
    admin = AdminClient(rdkafka(broker, ca))
    entries = [
        ConfigEntry(f"listener.name.ssl.{name}", text, incremental_operation=AlterConfigOpType.SET)
        for name, text in values.items()
    ]
    for future in admin.incremental_alter_configs(
        [ConfigResource("broker", "1", incremental_configs=entries)]
    ).values():
        future.result(60)


def serial(connection: ssl.SSLSocket) -> Any:
    found = connection.getpeercert()
    assert found is not None
    return found["serialNumber"]


def test_altered_certificates_are_used_and_broken_ones_are_refused(
    broker: ServedBroker, ca: CertificateAuthority
) -> None:
    with connected(broker, context(ca)) as before:
        first = serial(before)
        with pytest.raises(KafkaException, match="has no certificate") as caught:
            alter(broker, ca, {"ssl.keystore.certificate.chain": "broken"})
        assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST
        with connected(broker, context(ca)) as unchanged:
            assert serial(unchanged) == first
        alter(broker, ca, ca.issue("tls-rotated").inline())
        with connected(broker, context(ca)) as after:
            assert serial(after) != first
        assert answers(before), "an open connection stays"
    assert "PRIVATE KEY" not in broker.log()


def test_sighup_reads_the_files_again(tmp_path: Path, ca: CertificateAuthority) -> None:
    identity = ca.issue("tls-sighup", password="planted-secret")
    broker = served(tmp_path, identity.by_file() | ca.truststore())
    try:
        with connected(broker, context(ca)) as before:
            identity.both.write_text("broken")
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda: "TLS stores are refused, the old ones stay: listener=SSL" in broker.log())
            ca.issue("tls-sighup", password="planted-secret")
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda: "TLS stores are reloaded: listener=SSL" in broker.log())
            with connected(broker, context(ca)) as after:
                assert serial(after) != serial(before)
            assert answers(before)
    finally:
        broker.end()
    assert "planted-secret" not in broker.log()
    assert not re.search("BEGIN [A-Z ]*PRIVATE KEY", broker.log())


def test_required_certificates(tmp_path: Path, ca: CertificateAuthority, node: Identity) -> None:
    values = {f"listener.name.ssl.{name}": text for name, text in (node.by_file() | ca.truststore()).items()}
    broker = served(tmp_path, values | {"listener.name.ssl.ssl.client.auth": "required"})
    try:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            answers(connected(broker, context(ca)))
        wait_until(lambda: "the client sent no certificate (ssl.client.auth=required)" in broker.log())
        assert answers(connected(broker, context(ca, ca.issue("tls-alice"))))
    finally:
        broker.end()


def test_the_principal_of_a_certificate_is_authorized(tmp_path: Path, ca: CertificateAuthority) -> None:
    identity = ca.issue("tls-broker", subject="CN=broker,OU=nodes,O=Tests")
    port, controller = free_ports(2)
    settings = {
        "listeners": f"SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=nodes,.*$/$1/U,RULE:^CN=([^,]*)$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:BROKER;User:tls-admin",
        **identity.by_file(),
        **ca.truststore(),
    }
    broker = ServedBroker(tmp_path / "data", *(f"{key}={text}" for key, text in settings.items()), listens=False)
    broker.start()
    try:
        outcomes = {}
        for name in ("tls-admin", "tls-alice", None):
            more: dict[str, Any] = {}
            if name is not None:
                client = ca.issue(name)
                more = {"ssl_certificate_location": str(client.certificate), "ssl_key_location": str(client.key)}
            admin = AdminClient(rdkafka(broker, ca, **more))  # must live until its answer is there
            (future,) = admin.create_topics([NewTopic(f"of-{name}", 1, 1)]).values()
            try:
                future.result(60)
                outcomes[name] = "created"
            except KafkaException as error:
                outcomes[name] = error.args[0].name()
        refused = "TOPIC_AUTHORIZATION_FAILED"
        assert outcomes == {"tls-admin": "created", "tls-alice": refused, None: refused}
        with connected(broker, context(ca, ca.issue("tls-unmapped", subject="CN=a,OU=b,O=c"))) as unmapped:
            assert unmapped.recv(1) == b""
        wait_until(lambda: "no rule of ssl.principal.mapping.rules matches 'CN=a,OU=b,O=c'" in broker.log())
    finally:
        broker.end()
