"""TLS contexts from Kafka's settings: stores, errors that name the setting, ciphers; secrets stay hidden."""

from __future__ import annotations

import re
import ssl
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import pkcs12

from barnabas.broker.config.certificate_names import validity
from barnabas.runtime.tls import TlsError, TlsSettings, check_ciphers, client_context, own_certificates, server_context
from tests.support.security.certificates import CertificateAuthority

PREFIX = "listener.name.clients."


def settings(values: dict[str, str]) -> TlsSettings:
    return TlsSettings.from_keys(values.get, PREFIX)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> ssl.SSLObject:
    """The server's side after a handshake in memory. Raises the error of the side that fails first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(3):
        for each in (other, one):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return one


@pytest.mark.parametrize(
    "store", ["inline", "file", "encrypted inline", "encrypted file", "PKCS12", "PKCS12 by default"]
)
def test_key_stores(ca: CertificateAuthority, store: str) -> None:
    identity = ca.issue("store", password="pass word" if "encrypted" in store else None)
    if "inline" in store:
        keys = identity.inline()
    elif "PKCS12" in store:
        keys = {"ssl.keystore.location": str(identity.pkcs12), "ssl.keystore.password": "changeit"}
        keys |= {} if "default" in store else {"ssl.keystore.type": "PKCS12"}
    else:
        keys = identity.by_file()
    server = server_context(settings(keys))
    client = client_context(settings(ca.truststore_inline()))
    assert handshake(server, client).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client, "elsewhere")
    unchecked = settings(ca.truststore() | {"ssl.endpoint.identification.algorithm": ""})
    assert handshake(server, client_context(unchecked), "elsewhere").version() == "TLSv1.3"


def test_pem_text_on_one_line_is_read(ca: CertificateAuthority) -> None:
    keys = {name: text.replace("\n", " ") for name, text in ca.issue("line").inline().items()}
    server_context(settings(keys))


@pytest.mark.parametrize("auth", ["none", "requested", "required"])
def test_client_certificates(ca: CertificateAuthority, tmp_path: Path, auth: str) -> None:
    server = server_context(settings(ca.issue("node").by_file() | ca.truststore() | {"ssl.client.auth": auth}))
    known = client_context(settings(ca.issue("alice").by_file() | ca.truststore()))
    assert (handshake(server, known).getpeercert(binary_form=True) is None) == (auth == "none")
    without = client_context(settings(ca.truststore()))
    if auth == "required":
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            handshake(server, without)
    else:
        handshake(server, without)
    stranger = client_context(settings(CertificateAuthority(tmp_path).issue("eve").by_file() | ca.truststore()))
    if auth != "none":
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(server, stranger)


def turned(chain: str) -> str:
    """A chain with its first certificate at the end."""
    first, second = chain.split("-----END CERTIFICATE-----\n")[:2]
    return "".join(f"{each}-----END CERTIFICATE-----\n" for each in (second, first))


def test_text_of_another_system_and_a_chain_that_a_store_keeps_in_another_order(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    identity = ca.issue("windows")
    crlf = tmp_path / "crlf.pem"
    crlf.write_bytes(b"\xef\xbb\xbf" + identity.both.read_bytes().replace(b"\n", b"\r\n"))
    server_context(settings({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(crlf)}))
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    own, authority = x509.load_pem_x509_certificates(identity.certificate.read_bytes())
    (stranger,) = x509.load_pem_x509_certificates(ca.issue("second key").certificate.read_bytes())[:1]
    store = tmp_path / "several.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"x", key, own, [stranger, authority], serialization.BestAvailableEncryption(b"changeit")
        )
    )
    values = {"ssl.keystore.location": str(store), "ssl.keystore.password": "changeit"}
    chain, others = own_certificates(settings(values).stores().key)
    der = serialization.Encoding.DER
    assert chain == [own.public_bytes(der), authority.public_bytes(der)]
    assert others == [stranger.public_bytes(der)]
    begin, end = validity(chain[0])
    assert (begin, end) == (own.not_valid_before_utc, own.not_valid_after_utc)


def test_errors_name_the_setting_and_the_remedy(ca: CertificateAuthority, tmp_path: Path) -> None:
    identity = ca.issue("wrong", password="planted-word")
    other = ca.issue("other")
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    text = tmp_path / "text.pem"
    text.write_text("no store")
    location = "ssl.keystore.location"
    authority = tmp_path / "ca.p12"
    (trusted,) = x509.load_pem_x509_certificates(ca.certificate.read_bytes())
    encryption = serialization.BestAvailableEncryption(b"changeit")
    authority.write_bytes(pkcs12.serialize_key_and_certificates(b"ca", None, None, [trusted], encryption))
    cases: list[tuple[dict[str, str], str]] = [
        ({}, r"clients\.ssl\.keystore\.location is not set; a working block is: .*ssl\.keystore\.type=PEM"),
        ({location: "/no/such/file"}, "cannot read /no/such/file: No such file or directory"),
        ({location: str(jks)}, "keytool -importkeystore -srckeystore .*store.jks -destkeystore .*store.p12"),
        ({location: str(identity.both)}, r"is JKS, but .* is a PEM file: set listener.*ssl\.keystore\.type=PEM"),
        ({"ssl.keystore.type": "PEM", location: str(text)}, "has no PEM block"),
        ({"ssl.keystore.type": "PEM", location: str(identity.both)}, r"encrypted: set .*ssl\.key\.password"),
        (identity.by_file() | {"ssl.key.password": "wrong"}, r"ssl\.key\.password is wrong"),
        (identity.inline() | {location: "/x"}, "are both set"),
        (identity.inline() | {"ssl.keystore.type": "PKCS12"}, r"set .*ssl\.keystore\.type=PEM"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.key": identity.key_pem}, r"certificate\.chain is not set"),
        (other.inline() | {"ssl.keystore.certificate.chain": identity.certificate_pem}, "is for another key; take"),
        (
            other.inline() | {"ssl.keystore.certificate.chain": turned(other.certificate_pem)},
            r"keystore\.certificate\.chain: .*wrong order: number 2 belongs to the key and must be the first",
        ),
        (
            {"ssl.keystore.type": "PEM", location: str(other.certificate)},
            r"other\.pem has no private key .*: write one together with the certificate chain",
        ),
        (
            {location: str(authority), "ssl.keystore.password": "changeit"},
            r"ca\.p12 has no private key with a certificate: is it a trust store",
        ),
        ({location: str(identity.pkcs12)}, r"keystore\.password is not set"),
        ({location: str(identity.pkcs12), "ssl.keystore.password": "wrong"}, r"keystore\.password is wrong"),
        ({"ssl.keystore.type": "BKS", location: str(identity.pkcs12)}, "BKS is not served: write PEM or PKCS12"),
        (other.by_file() | {"ssl.client.auth": "required"}, r"needs .*ssl\.truststore\.location"),
        (other.by_file() | {"ssl.enabled.protocols": "TLSv1.1"}, r"TLSv1\.1 is not served"),
        (other.by_file() | {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "all suites of TLS 1.3 or none"),
        (other.by_file() | {"ssl.cipher.suites": "NONSENSE"}, "NONSENSE is unknown"),
    ]
    for values, expected in cases:
        with pytest.raises(TlsError, match=expected) as caught:
            server_context(settings(values))
        shown = f"{caught.value!s}{caught.value!r}{settings(values)!r}"
        assert "planted-word" not in shown
        assert not re.search(r"PRIVATE KEY-----[^)]", shown)  # a key; the name of the format alone may be there


def test_pkcs12_without_cryptography(ca: CertificateAuthority, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"ssl.keystore.location": str(ca.issue("p").pkcs12), "ssl.keystore.password": "changeit"}
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TlsError, match=r"pip install 'barnabas\[security\]'"):
        server_context(settings(values))


@pytest.mark.parametrize(
    ("suites", "versions", "expected"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLSv1.2,TLSv1.3", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("", "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("", "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_versions_and_cipher_suites(ca: CertificateAuthority, suites: str, versions: str, expected: str) -> None:
    values = ca.issue("node").by_file() | {"ssl.cipher.suites": suites, "ssl.enabled.protocols": versions}
    cipher = handshake(server_context(settings(values)), client_context(settings(ca.truststore()))).cipher()
    assert cipher is not None
    assert cipher[0] == expected


def test_java_names_of_suites_are_known() -> None:
    known = (
        "TLS_RSA_WITH_AES_128_CBC_SHA TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256 TLS_DHE_RSA_WITH_AES_256_GCM_SHA384 "
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 TLS_RSA_WITH_AES_256_GCM_SHA384"
    )
    assert check_ciphers(tuple(known.split())) is None
    for wrong in ("ALL", "DEFAULT@SECLEVEL=0", "-ALL", "RC4"):
        assert check_ciphers((wrong,)) is not None
