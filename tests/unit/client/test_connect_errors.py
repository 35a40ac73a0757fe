"""What errors of connecting say: each names the address and what to set."""

from __future__ import annotations

import ssl

import pytest

from barnabas.client.errors import AuthenticationFailed, BrokerUnreachable, KafkaError, NotKafka
from barnabas.client.net.transport import connect_failure, other_protocol, tls_failure


def verification(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            verification(20, "unable to get local issuer certificate"),
            AuthenticationFailed,
            "set ssl_cafile (ssl.truststore.location) to",
        ),
        (
            verification(19, "self-signed certificate in certificate chain"),
            AuthenticationFailed,
            "set ssl_cafile (ssl.truststore.location) to",
        ),
        (verification(62, "Hostname mismatch"), AuthenticationFailed, "connect to a name in the certificate"),
        (verification(20, "unable to get local issuer certificate"), AuthenticationFailed, "send its whole chain"),
        (
            verification(10, "certificate has expired"),
            AuthenticationFailed,
            "certificate has expired; the broker needs a new certificate, unless the clock of this machine is wrong",
        ),
        (
            alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"),
            AuthenticationFailed,
            "refuses this client's certificate (certificate expired): make a new one and set ssl_certfile",
        ),
        (alert("WRONG_VERSION_NUMBER"), NotKafka, "does not answer with TLS"),
        (
            alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            AuthenticationFailed,
            "requires a certificate of this client: set",
        ),
        (
            alert("SSLV3_ALERT_BAD_CERTIFICATE"),
            AuthenticationFailed,
            "requires a certificate of this client, or refuses",
        ),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), AuthenticationFailed, "refuses this client's certificate (unknown ca): set"),
        (alert("SSLV3_ALERT_HANDSHAKE_FAILURE"), AuthenticationFailed, "does it require a certificate"),
        (alert("TLSV1_ALERT_PROTOCOL_VERSION"), AuthenticationFailed, "no TLS version that this client allows"),
        (alert("DECRYPTION_FAILED"), BrokerUnreachable, "ended the TLS connection"),
    ],
)
def test_tls(error: ssl.SSLError, kind: type[KafkaError], words: str) -> None:
    for found in (tls_failure(error, "a", 1, broker=2), connect_failure(error, "a", 1, broker=2, tls=True)):
        assert type(found) is kind
        assert words in found.message
        assert "a:1" in found.message
        assert found.broker == 2
        assert found.retriable is (kind is BrokerUnreachable)


@pytest.mark.parametrize(
    ("error", "tls", "words"),
    [
        (ConnectionResetError(), True, "does this listener use TLS? For one without TLS set security_protocol"),
        (TimeoutError(), True, "timed out, with the TLS handshake"),
        (ConnectionRefusedError(111, "refused"), True, "refused"),
        (ConnectionResetError(104, "reset"), False, "reset"),
        (TimeoutError(), False, "timed out"),
    ],
)
def test_connections(error: OSError | TimeoutError, tls: bool, words: str) -> None:
    found = connect_failure(error, "a", 1, broker=2, tls=tls)
    assert isinstance(found, BrokerUnreachable)
    assert words in found.message


def test_other_protocols() -> None:
    assert "HTTP" in (other_protocol(b"HTTP/1.1") or "")
    assert "set security_protocol to 'SSL' or 'SASL_SSL'" in (other_protocol(b"\x15\x03\x03\x00\x02\x02\x50") or "")
    assert other_protocol(b"\0\0\0\x10") is None
