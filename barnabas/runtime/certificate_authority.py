"""Certificate authority for a private cluster: PEM files, P-256 keys readable by their owner (extra `security`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.errors import BarnabasError
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.files import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_FILE: Final = "ca.pem"
AUTHORITY_KEY_FILE: Final = "ca.key"
AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 825  # the longest time that Apple's clients accept
RENEW_DAYS: Final = 30
EARLY: Final = timedelta(hours=1)  # a certificate is valid on machines whose clocks are behind by this much


class CertificatesUnavailable(BarnabasError):
    """Certificates cannot be created; the text says why and what to do."""


class Authority:
    """A certificate authority in a directory: `ca.pem`, which clients trust, and `ca.key`.

    Args:
        directory: created if missing, for this user only. An existing authority is reused.

    Raises:
        CertificatesUnavailable: the package cryptography is missing, or a file holds something else.
        OSError: a file cannot be read or written.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from cryptography.hazmat.primitives import serialization
        except ImportError:
            raise CertificatesUnavailable(
                "certificates need the package cryptography: pip install 'barnabas[security]'"
            ) from None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self.file = directory / AUTHORITY_FILE
        key_file = directory / AUTHORITY_KEY_FILE
        if not self.file.exists():
            key, certificate = _new_authority()
            write_private(key_file, _key_text(key))
            self.file.write_text(_certificate_text(certificate))
        try:
            loaded = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
            self._certificate = _certificates(self.file.read_bytes())[0]
        except FileNotFoundError:
            raise CertificatesUnavailable(
                f"{key_file} is missing: put it back, or remove {self.file} to make a new authority"
            ) from None
        except (ValueError, TypeError, IndexError):
            raise CertificatesUnavailable(
                f"{self.file} and {key_file} are no certificate and key in PEM: remove both to make a new authority"
            ) from None
        self._key: ec.EllipticCurvePrivateKey = loaded  # type: ignore[assignment]  # checked by the signature below
        if loaded.public_key() != self._certificate.public_key():
            raise CertificatesUnavailable(f"{key_file} is not the key of {self.file}")

    def issue(self, name: str, hosts: Sequence[str] = ()) -> Path:
        """Creates a certificate unless a good one exists; returns its file with key and certificate in PEM.

        Existing certificates are kept unless a host is missing or they expire within RENEW_DAYS.

        Args:
            name: common name, and name of the file.
            hosts: host names and IP addresses of the node; empty for a client.
        """
        file = self.directory / f"{name}.pem"
        if not file.exists() or not self._still_good(file.read_bytes(), hosts):
            key, certificate = self._issued(name, hosts)
            write_private(file, _key_text(key) + _certificate_text(certificate))
        return file

    def _still_good(self, data: bytes, hosts: Sequence[str]) -> bool:
        from cryptography import x509

        try:
            certificate = _certificates(data)[0]
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:
            return False
        if certificate.not_valid_after_utc < _now() + timedelta(days=RENEW_DAYS):
            return False
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return not hosts
        return set(_general_names(hosts)) <= set(names)

    def _issued(self, name: str, hosts: Sequence[str]) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key, builder = _begun(name, CERTIFICATE_DAYS)
        builder = (
            builder.issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(_general_names(hosts)), critical=False)
        return key, builder.sign(self._key, hashes.SHA256())


def _new_authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key, builder = _begun("Barnabas development CA", AUTHORITY_DAYS)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        builder.issuer_name(_name("Barnabas development CA"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return key, builder.sign(key, hashes.SHA256())


def _begun(name: str, days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.CertificateBuilder]:
    """A new key and a certificate for it, without issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    now = _now()
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now_ms() // 1_000, UTC)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _certificates(data: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    return x509.load_pem_x509_certificates(data)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _certificate_text(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()
