"""The TLS stores of a node: warnings about certificates that end, and about key stores with several keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import pkcs12

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.security.node_tls import DAY_MS, NodeTls
from barnabas.errors import BrokerError
from barnabas.runtime.clock import SystemClock
from barnabas.work import finished
from tests.support.security.certificates import CertificateAuthority


class Time:
    """A reactor's clock, moved by the test, and its timers."""

    def __init__(self, days: float = 0) -> None:
        self.ms = SystemClock().now_ms() + int(days * DAY_MS)
        self.timers: list[tuple[int, Callable[[], None]]] = []

    @property
    def clock(self) -> Time:
        return self

    def now_ms(self) -> int:
        return self.ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self.timers.append((delay_ms, callback))


def node_tls(values: dict[str, str], time: Any) -> NodeTls:
    listeners = {
        "node.id": "1",
        "listeners": "SSL://127.0.0.1:0,MORE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "SSL:SSL,MORE:SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    return NodeTls(BrokerConfig({**listeners, **values}), time)


@pytest.mark.parametrize(
    ("days", "begins"),
    [
        (-3, "Certificate is not valid yet, clients refuse it: listeners=SSL,MORE subject=CN=dated begins="),
        (0, "Certificate ends soon; replace it and send SIGHUP: listeners=SSL,MORE subject=CN=dated ends="),
        (
            3,
            "Certificate has ended, clients refuse it; replace it and send SIGHUP: listeners=SSL,MORE subject=CN=dated",
        ),
    ],
)
def test_a_certificate_that_is_not_valid_is_named(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, days: int, begins: str
) -> None:
    """It is for a day only; the authority's, which is in the chain, is for a day, too."""
    tls = node_tls(ca.issue("dated").by_file(), Time(days))
    tls.open()
    own, authority = (record.getMessage() for record in caplog.records)
    assert own.startswith(begins)
    assert "subject=CN=Test CA,O=Tests" in authority
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_each_day_and_after_a_reload(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    time = Time(-30)  # before, the warning says so
    identity = ca.issue("watched")
    tls = node_tls(identity.by_file(), time)
    tls.open()
    ((delay_ms, again),) = time.timers
    assert delay_ms == DAY_MS
    caplog.clear()
    time.ms += 60 * DAY_MS
    again()
    assert len(time.timers) == 2
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "Certificate has ended, clients refuse it"
    ] * 2
    caplog.clear()
    caplog.set_level(logging.INFO)
    finished(tls.reload(changed_only=False))
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["TLS stores are reloaded: listener=SSL", "TLS stores are reloaded: listener=MORE"]
    assert [each.partition(",")[0] for each in said[2:]] == ["Certificate has ended"] * 2


def test_a_key_store_with_several_keys(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    identity = ca.issue("first")
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    (own, authority), (other, _) = (
        x509.load_pem_x509_certificates(each.certificate.read_bytes()) for each in (identity, ca.issue("second"))
    )
    store = tmp_path / "several.p12"
    encryption = serialization.BestAvailableEncryption(b"changeit")
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"first", key, own, [other, authority], encryption))
    node_tls({"ssl.keystore.location": str(store), "ssl.keystore.password": "changeit"}, Time()).open()
    assert (
        "Key store has more than one chain; the first key is used, keep one in a store: listener=SSL used=CN=first "
        "others=CN=second"
    ) in [record.getMessage() for record in caplog.records]


def test_a_reload_that_ends_late_does_not_replace_later_stores(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The files of the first one are read before they change, and those of the second one afterwards."""
    identity = ca.issue("reloaded")
    tls = node_tls(identity.by_file(), Time(-30))
    tls.open()
    context = tls.provider("SSL")
    assert context is not None
    caplog.set_level(logging.INFO)
    caplog.clear()
    early, late = tls.reload(changed_only=False), tls.reload(changed_only=False)
    read_early, read_late = next(early), next(late)
    assert callable(read_early), "in a thread"
    assert callable(read_late)
    read_early()
    read_late()
    assert caplog.records == []
    finished(late)
    assert [each.getMessage() for each in caplog.records[:2]] == [
        "TLS stores are reloaded: listener=SSL",
        "TLS stores are reloaded: listener=MORE",
    ]
    present = context()
    caplog.clear()
    finished(early)
    assert context() is present
    assert caplog.records == []


def test_a_reload_that_is_refused_leaves_an_earlier_one_its_effect(ca: CertificateAuthority, tmp_path: Path) -> None:
    identity = ca.issue("damaged")
    tls = node_tls(identity.by_file(), Time(-30))
    tls.open()
    context = tls.provider("SSL")
    assert context is not None
    before = context()
    early, late = tls.reload(changed_only=False), tls.reload(changed_only=False)
    read_early = next(early)
    assert callable(read_early)
    read_early()
    good = identity.both.read_bytes()
    identity.both.write_bytes(b"nothing")
    try:
        finished(late)
        assert context() is before
    finally:
        identity.both.write_bytes(good)
    finished(early)
    assert context() is not before


def test_a_certificate_that_other_nodes_would_refuse_is_refused_at_the_start_as_in_kafka(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    cluster = {
        "inter.broker.listener.name": "SSL",
        "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2",
        "ssl.client.auth": "required",
    }
    node = ca.issue("inner", hosts=("elsewhere",), password="planted-1")
    node_tls({**node.by_file(), **ca.truststore(), **cluster}, Time()).open()  # the name is not compared
    other = CertificateAuthority(tmp_path)
    for identity, trusted, why in (
        (ca.issue("late", expired=True), ca, "the certificate is refused: certificate has expired"),
        (node, other, "the certificate is refused: self"),
    ):
        settings = {**identity.by_file(), **trusted.truststore()}
        with pytest.raises(BrokerError) as refused:
            node_tls({**settings, **cluster}, Time()).open()
        said = f"INVALID_CONFIG: listener SSL: other nodes would not accept this node's certificate: {why}"
        assert str(refused.value).startswith(said)
        assert str(refused.value).endswith("ssl.truststore the authority that signed it")
        node_tls(settings, Time()).open()  # clients may trust it


def test_a_store_is_read_once(ca: CertificateAuthority, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contexts and certificates come from one reading of the file, even if the file is replaced meanwhile."""
    read: list[str] = []

    def reading(location: str, name: str) -> bytes:
        read.append(location)
        return Path(location).read_bytes()

    monkeypatch.setattr("barnabas.runtime.tls._read", reading)
    identity, settings = (
        ca.issue("once"),
        {"inter.broker.listener.name": "SSL", "controller.quorum.voters": "1@a:1,2@b:2"},
    )
    tls = node_tls({**identity.by_file(), **ca.truststore(), **settings}, Time())
    tls.open()
    both = [str(identity.both), str(ca.certificate)]
    assert read == both * 2, "once for each listener"
    finished(tls.reload(changed_only=False))
    assert read == both * 4
