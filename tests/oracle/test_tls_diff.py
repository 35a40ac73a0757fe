"""What clients learn when TLS fails: the same from a real Kafka and from Barnabas, with the same certificates and listeners."""

from __future__ import annotations

import re
import socket
import ssl
import time
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.security.certificates import CertificateAuthority
from tests.support.security.secured_world import SecuredWorld

# Listener, certificate file of the client or None, authority of the client.
CASES = {
    "fits": ("SSL", None, "ours"),
    "wrong authority": ("SSL", None, "other"),
    "wrong name": ("ELSEWHERE", None, "ours"),
    "expired": ("EXPIRED", None, "ours"),
    "certificate": ("MUTUAL", "client", "ours"),
    "no certificate": ("MUTUAL", None, "ours"),
    "expired certificate": ("MUTUAL", "old", "ours"),
    "certificate of another authority": ("MUTUAL", "stranger", "ours"),
    "TLS to plaintext": ("PLAINTEXT", None, "ours"),
}
# Both sides refuse with an alert; OpenSSL's names the reason, Java's does not. Clients show it as a part of the same error.
ALERTS = {
    "no certificate": ("SSLError SSLV3_ALERT_BAD_CERTIFICATE", "SSLError TLSV13_ALERT_CERTIFICATE_REQUIRED"),
    "expired certificate": ("SSLError SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLError SSLV3_ALERT_CERTIFICATE_EXPIRED"),
    "certificate of another authority": ("SSLError SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLError TLSV1_ALERT_UNKNOWN_CA"),
}
HOST = "127.0.0.1"  # in the certificates; a network namespace need not resolve "localhost" for librdkafka
LEARNT_SECONDS_MAX = 60.0
# With TLS 1.3 a client has sent its first request when the refusal of its certificate arrives: it learns the alert or the close.
# A broker without TLS closes in the middle of the handshake or after it. `by_python` compares them.
RACED = frozenset({"no certificate", "expired certificate", "certificate of another authority", "TLS to plaintext"})


class Sides:
    """Both brokers' ports by listener, and the clients' files."""

    def __init__(self, kafka: dict[str, int], barnabas: dict[str, int], files: dict[str, Any]) -> None:
        self.ports = {"Kafka": kafka, "Barnabas": barnabas}
        self.files = files


@pytest.fixture(scope="module")
def sides(secured_worlds: dict[str, SecuredWorld], ca: CertificateAuthority) -> Sides:
    theirs, ours = secured_worlds["Kafka"], secured_worlds["Barnabas"]
    files = {
        "ours": ca.certificate,
        "other": ours.other.certificate,
        "client": ours.client,
        "old": ours.old_client,
        "stranger": ours.other.issue("stranger"),
    }
    _await(theirs.ports["SSL"], ca)
    return Sides(theirs.ports, ours.ports, files)


def _await(port: int, ca: CertificateAuthority) -> None:
    """Waits until Kafka answers over TLS."""
    end = time.monotonic() + 120
    while True:
        try:
            settings: dict[str, Any] = {
                "bootstrap.servers": f"{HOST}:{port}",
                "security.protocol": "ssl",
                "log_level": 0,
            }
            AdminClient(settings | {"ssl.ca.location": str(ca.certificate)}).list_topics(timeout=5)
        except KafkaException:
            assert time.monotonic() < end
        else:
            return


def context(sides: Sides, case: str) -> ssl.SSLContext:
    _, identity, authority = CASES[case]
    found = ssl.create_default_context(cafile=sides.files[authority])
    if identity is not None:
        found.load_cert_chain(sides.files[identity].certificate, sides.files[identity].key)
    return found


def by_python(sides: Sides, side: str, case: str) -> str:
    """The error of Python's ssl, on which aiokafka and kafka-python are built."""
    listener, _, _ = CASES[case]
    try:
        with (
            socket.create_connection((HOST, sides.ports[side][listener]), timeout=60) as raw,
            context(sides, case).wrap_socket(raw, server_hostname=HOST) as wrapped,
        ):
            wrapped.sendall(bytes.fromhex("00000012001200000000000100 0874657374746c7331".replace(" ", "")))
            return "answer" if wrapped.recv(100) else "closed"
    except ssl.SSLCertVerificationError as error:
        return f"SSLCertVerificationError {error.verify_message}"
    except OSError as error:
        return f"{type(error).__name__} {getattr(error, 'reason', '')}"


def by_librdkafka(sides: Sides, side: str, case: str) -> str:
    listener, identity, authority = CASES[case]
    found: list[str] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": f"{HOST}:{sides.ports[side][listener]}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(sides.files[authority]),
        "error_cb": lambda error: found.append(f"{error.name()} {error.str()}"),
        "log_level": 0,
    }
    if identity is not None:
        settings["ssl.certificate.location"] = str(sides.files[identity].certificate)
        settings["ssl.key.location"] = str(sides.files[identity].key)
    admin = AdminClient(settings)
    deadline = time.monotonic() + LEARNT_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            admin.list_topics(timeout=1)
        except KafkaException:
            admin.poll(0.2)
        else:
            return "answer"
        shown = sorted({_bare(each) for each in found if "ALL_BROKERS" not in each})
        if shown:
            return shown[0]
    raise AssertionError(f"neither an answer nor an error from {side}")


def _bare(text: str) -> str:
    """Without ports, times and the path of the thread."""
    return re.sub(r"ssl://\S+: |:\d{4,5}", "", text.partition(" (after ")[0])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", [by_python, by_librdkafka], ids=lambda each: str(each.__name__))
def test_a_client_learns_the_same(sides: Sides, client: Any, case: str) -> None:
    theirs, ours = client(sides, "Kafka", case), client(sides, "Barnabas", case)
    if client is by_python and case in ALERTS:
        assert (theirs, ours) == ALERTS[case]
    elif client is by_librdkafka and case in RACED:
        assert theirs == ours or {theirs.split()[0], ours.split()[0]} <= {"_SSL", "_TRANSPORT"}
    else:
        assert theirs == ours
