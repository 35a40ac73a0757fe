"""A certificate authority for tests: node and client certificates with EC keys, valid for a day, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID

HOSTS = ("localhost", "127.0.0.1", "::1")
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate with its key.

    Attributes:
        certificate: file of the certificate and the authority's (the chain).
        key: file of the key (PKCS8), encrypted if there is a password.
        both: file of the chain and the key, as `ssl.keystore.location` of type PEM names it.
        pkcs12: file of both as PKCS12, with the password (or "changeit").
    """

    certificate: Path
    key: Path
    both: Path
    pkcs12: Path
    password: str | None = None

    @property
    def certificate_pem(self) -> str:
        return self.certificate.read_text()

    @property
    def key_pem(self) -> str:
        return self.key.read_text()

    def inline(self) -> dict[str, str]:
        """The key store as settings with the PEM text inline."""
        found = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": self.key_pem,
            "ssl.keystore.certificate.chain": self.certificate_pem,
        }
        return found | ({"ssl.key.password": self.password} if self.password else {})

    def by_file(self) -> dict[str, str]:
        """The key store as settings that name a PEM file."""
        found = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.both)}
        return found | ({"ssl.key.password": self.password} if self.password else {})


class CertificateAuthority:
    """Signs certificates and writes them into a folder.

    Attributes:
        certificate: the file of its own certificate (PEM).
    """

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name.from_rfc4514_string(f"CN={name},O=Tests")
        self._certificate = (
            _builder(self._subject, self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.pem"
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def truststore(self) -> dict[str, str]:
        """The trust store as settings that name the PEM file."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.certificate)}

    def truststore_inline(self) -> dict[str, str]:
        """The trust store as settings with the PEM text inline."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.certificate.read_text()}

    def issue(
        self,
        name: str,
        *,
        subject: str | None = None,
        hosts: Sequence[str] = HOSTS,
        expired: bool = False,
        password: str | None = None,
    ) -> Identity:
        """Makes a certificate for servers and clients.

        Args:
            name: of the files; the same name again replaces them.
            subject: the distinguished name (RFC 4514); by default CN=name.
            hosts: DNS names and IP addresses that it is for.
            expired: whether it was valid only until yesterday.
            password: of the encrypted key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        who = x509.Name.from_rfc4514_string(subject or f"CN={name}")
        until = datetime.datetime.now(datetime.UTC) - DAY if expired else None
        builder = (
            _builder(who, self._subject, key.public_key(), until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        secret = password.encode() if password else None
        encryption = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        chain = certificate.public_bytes(pem) + self._certificate.public_bytes(pem)
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
        found = Identity(
            self.folder / f"{name}.pem",
            self.folder / f"{name}.key",
            self.folder / f"{name}.both.pem",
            self.folder / f"{name}.p12",
            password,
        )
        found.certificate.write_bytes(chain)
        found.key.write_bytes(private)
        found.both.write_bytes(private + chain)
        found.pkcs12.write_bytes(
            pkcs12.serialize_key_and_certificates(
                name.encode(),
                key,
                certificate,
                [self._certificate],
                serialization.BestAvailableEncryption(secret or b"changeit"),
            )
        )
        return found


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    until: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    last = until or datetime.datetime.now(datetime.UTC) + DAY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(last - 2 * DAY)
        .not_valid_after(last)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
