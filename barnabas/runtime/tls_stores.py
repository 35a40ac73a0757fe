"""Key stores and trust stores of ssl.* settings: PEM (KIP-651), inline or in a file, and PKCS12 (needs cryptography).
No error holds a key or password.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.errors import BarnabasError

STORE_BYTES_MAX: Final = 4 * 1024 * 1024
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_JAVA_DEFAULT: Final = "JKS"  # Java reads PKCS12 files under this type, too


class TlsError(BarnabasError):
    """Unusable TLS settings. The text names the setting and what to do."""


class KeyStore(NamedTuple):
    """A private key, encrypted if `password` is set, and its certificate chain as PEM text.

    `others` are certificates outside of the chain, `place` is the file, or the setting with the text.
    """

    key: str
    chain: tuple[str, ...]
    password: str | None = None
    others: tuple[str, ...] = ()
    place: str = ""

    def __repr__(self) -> str:
        return "KeyStore([hidden])"


def key_store(
    kind: str,
    *,
    prefix: str = "",
    key: str | None = None,
    chain: str | None = None,
    location: str | None = None,
    password: str | None = None,
    key_password: str | None = None,
) -> KeyStore | None:
    """The key store of ssl.keystore.type `kind`, or None. Raises TlsError with names that begin with `prefix`."""
    names = f"{prefix}ssl.keystore."
    if key or chain:
        if kind != "PEM":
            raise TlsError(f"{names}key and {names}certificate.chain are PEM text: set {names}type=PEM")
        if location:
            raise TlsError(f"{names}location and {names}key are both set: remove one of them")
        if not key or not chain:
            missing = "certificate.chain" if key else "key"
            raise TlsError(f"{names}{missing} is not set, although {names}{'key' if key else 'certificate.chain'} is")
        return _pem_keys(key + "\n" + chain, f"{names}key", f"{names}certificate.chain", prefix, key_password)
    if not location:
        return None
    data = _read(location, f"{names}location")
    kind = _kind(data, kind, location, names)
    if kind == "PEM":
        text = data.decode("ascii", "replace")
        place = f"{names}location: {location}"
        return _pem_keys(text, place, place, prefix, key_password)
    if password is None:
        raise TlsError(f"{names}password is not set: the PKCS12 store {location} needs it")
    return _pkcs12_keys(data, location, password, names)


def trust_store(
    kind: str,
    *,
    prefix: str = "",
    certificates: str | None = None,
    location: str | None = None,
    password: str | None = None,
) -> str | None:
    """The trusted certificates as PEM text; None without any. Raises TlsError."""
    names = f"{prefix}ssl.truststore."
    if certificates:
        if kind != "PEM":
            raise TlsError(f"{names}certificates is PEM text: set {names}type=PEM")
        if location:
            raise TlsError(f"{names}location and {names}certificates are both set: remove one of them")
        return _pem_certificates(certificates, f"{names}certificates")
    if not location:
        return None
    data = _read(location, f"{names}location")
    if _kind(data, kind, location, names) == "PEM":
        return _pem_certificates(data.decode("ascii", "replace"), f"{names}location: {location}")
    return _pkcs12_certificates(data, location, password, f"{names}password")


def _read(location: str, name: str) -> bytes:
    try:
        path = Path(location)
        if path.exists() and not path.is_file():  # to open a pipe or a terminal would wait for its other end
            raise TlsError(f"{name}: {location} is no regular file")
        with path.open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(f"{name}: cannot read {location}: {error.strerror}") from None
    if len(data) > STORE_BYTES_MAX:
        raise TlsError(f"{name}: {location} has more than {STORE_BYTES_MAX} bytes, so it is no store")
    return data


def _kind(data: bytes, kind: str, location: str, names: str) -> str:
    """PEM or PKCS12. Raises TlsError for JKS, and for a file of another type than the setting's."""
    if data.startswith(_JKS_MAGIC):
        target = f"{location.removesuffix('.jks')}.p12"
        raise TlsError(
            f"{names}location: {location} is a JKS store, which only Java reads; convert it with: keytool -importkeystore "
            f"-srckeystore {location} -destkeystore {target} -deststoretype PKCS12; then set {names}type=PKCS12 and "
            f"{names}location={target}"
        )
    if kind not in ("PEM", "PKCS12", _JAVA_DEFAULT):
        raise TlsError(f"{names}type: {kind} is not served: write PEM or PKCS12")
    is_pem = b"-----BEGIN " in data
    if is_pem and kind != "PEM":
        raise TlsError(f"{names}type is {kind}, but {location} is a PEM file: set {names}type=PEM")
    if not is_pem and kind == "PEM":
        raise TlsError(f"{names}location: {location} has no PEM block (-----BEGIN …)")
    return "PEM" if is_pem else "PKCS12"


def _blocks(text: str) -> list[tuple[str, str]]:
    """(label, block) of a PEM text with lines of 64 characters: settings may join the lines."""
    found = []
    for label, body in _BLOCK.findall(text):
        if ":" not in body:  # the older format of encrypted keys has header lines
            body = "\n" + "\n".join(textwrap.wrap("".join(body.split()), 64)) + "\n"
        found.append((label, f"-----BEGIN {label}-----{body}-----END {label}-----\n"))
    return found


def _pem_keys(text: str, key_name: str, chain_name: str, prefix: str, key_password: str | None) -> KeyStore:
    blocks = _blocks(text)
    keys = [(label, block) for label, block in blocks if label.endswith("PRIVATE KEY")]
    chain = [block for label, block in blocks if label in ("CERTIFICATE", "X509 CERTIFICATE")]
    if len(keys) != 1:
        raise TlsError(
            f"{key_name} has {len(keys) or 'no'} private key{'s' if keys else ''} (-----BEGIN PRIVATE KEY-----): write one"
            f"{' together with the certificate chain' if key_name == chain_name else ''}"
        )
    if not chain:
        raise TlsError(
            f"{chain_name} has no certificate (-----BEGIN CERTIFICATE-----): write the certificate of the key and those "
            f"of its authorities"
        )
    label, key = keys[0]
    encrypted = "ENCRYPTED" in label or "ENCRYPTED" in key
    if encrypted and key_password is None:
        raise TlsError(f"{key_name} is encrypted: set {prefix}ssl.key.password")
    return KeyStore(key, tuple(chain), key_password if encrypted else None, place=chain_name)


def _pem_certificates(text: str, name: str) -> str:
    found = [block for label, block in _blocks(text) if label in ("CERTIFICATE", "X509 CERTIFICATE")]
    if not found:
        raise TlsError(f"{name} has no certificate (-----BEGIN CERTIFICATE-----)")
    return "".join(found)


def _pkcs12(data: bytes, location: str, password: str | None, name: str) -> Any:
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise TlsError(
            f"{location}: PKCS12 stores need cryptography: pip install 'barnabas[security]', or use PEM files"
        ) from None
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        wrong = "not set, and the store has one" if password is None else "wrong"
        raise TlsError(f"{location} is no PKCS12 store, or {name} is {wrong}") from None


def _pkcs12_keys(data: bytes, location: str, password: str, names: str) -> KeyStore:
    store = _pkcs12(data, location, password, f"{names}password")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if store.key is None or store.cert is None:
        raise TlsError(f"{names}location: {location} has no private key with a certificate: is it a trust store?")
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain, others = [store.cert.certificate], [each.certificate for each in store.additional_certs]
    while chain[-1].issuer != chain[-1].subject:  # a store does not keep the order of a chain
        issuers = [each for each in others if each.subject == chain[-1].issuer]
        if not issuers:
            break
        chain.append(issuers[0])
        others.remove(issuers[0])

    def pem(certificates: list[Any]) -> tuple[str, ...]:
        return tuple(each.public_bytes(Encoding.PEM).decode() for each in certificates)

    return KeyStore(key, pem(chain), others=pem(others), place=f"{names}location: {location}")


def _pkcs12_certificates(data: bytes, location: str, password: str | None, name: str) -> str:
    store = _pkcs12(data, location, password, name)
    from cryptography.hazmat.primitives.serialization import Encoding

    every = (*([store.cert] if store.cert else []), *store.additional_certs)
    if not every:
        raise TlsError(f"{location} has no certificate")
    return "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in every)
