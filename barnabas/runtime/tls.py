"""TLS contexts from Kafka's ssl.* settings, for servers and clients.
Stores are PEM (KIP-651), inline or in a file, and PKCS12 (needs cryptography). Keys and passwords appear in no error, log line or `repr`.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.errors import BarnabasError
from barnabas.runtime.tls_errors import explained

CLIENT_AUTH: Final = ("none", "requested", "required")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_VERSION: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_FLIGHTS_MAX: Final = 4  # of messages in a handshake, each way
CHAIN_TRIED_MAX: Final = 10  # certificates that an error looks at
# Python's ssl cannot select among the suites of TLS 1.3.
_SUITES_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
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


class TlsStores(NamedTuple):
    """The stores of some settings, read once.

    `key` is None without a key store; `trust` has the trusted certificates as PEM text, None without a trust store.
    """

    key: KeyStore | None
    trust: str | None


@dataclass(frozen=True)
class TlsSettings:
    """The ssl.* settings of one listener or client, named without `ssl.`.

    `prefix` is that of the settings' names in errors: "listener.name.x." or "".
    """

    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_key: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    enabled_protocols: tuple[str, ...] = TLS_VERSIONS
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification_algorithm: str = "https"
    prefix: str = ""

    @classmethod
    def from_keys(cls, value: Callable[[str], Any], prefix: str = "") -> TlsSettings:
        """From `value(name)`, which is None for a missing setting."""

        def text_of(name: str) -> str | None:
            return value(name) or None

        def list_of(name: str) -> tuple[str, ...]:
            found = value(name) or ()
            return tuple(found.replace(" ", "").split(",")) if isinstance(found, str) else tuple(found)

        identification = value("ssl.endpoint.identification.algorithm")
        return cls(
            keystore_type=(text_of("ssl.keystore.type") or "JKS").upper(),
            keystore_location=text_of("ssl.keystore.location"),
            keystore_password=text_of("ssl.keystore.password"),
            keystore_key=text_of("ssl.keystore.key"),
            keystore_certificate_chain=text_of("ssl.keystore.certificate.chain"),
            key_password=text_of("ssl.key.password"),
            truststore_type=(text_of("ssl.truststore.type") or "JKS").upper(),
            truststore_location=text_of("ssl.truststore.location"),
            truststore_password=text_of("ssl.truststore.password"),
            truststore_certificates=text_of("ssl.truststore.certificates"),
            client_auth=(text_of("ssl.client.auth") or "none").lower(),
            enabled_protocols=list_of("ssl.enabled.protocols") or TLS_VERSIONS,
            cipher_suites=list_of("ssl.cipher.suites"),
            endpoint_identification_algorithm="https" if identification is None else str(identification).lower(),
            prefix=prefix,
        )

    @property
    def has_key(self) -> bool:
        return bool(self.keystore_location or self.keystore_key or self.keystore_certificate_chain)

    def stores(self) -> TlsStores:
        """Reads the files of the stores. Raises TlsError."""
        return TlsStores(self._key_store(), self._trust_store())

    def _key_store(self) -> KeyStore | None:
        names = f"{self.prefix}ssl.keystore."
        key, chain, location = self.keystore_key, self.keystore_certificate_chain, self.keystore_location
        if key or chain:
            if self.keystore_type != "PEM":
                raise TlsError(f"{names}key and {names}certificate.chain are PEM text: set {names}type=PEM")
            if location:
                raise TlsError(f"{names}location and {names}key are both set: remove one of them")
            if not key or not chain:
                missing = "certificate.chain" if key else "key"
                raise TlsError(
                    f"{names}{missing} is not set, although {names}{'key' if key else 'certificate.chain'} is"
                )
            text = key + "\n" + chain
            return _pem_keys(text, f"{names}key", f"{names}certificate.chain", self.prefix, self.key_password)
        if not location:
            return None
        data = _read(location, f"{names}location")
        if _kind(data, self.keystore_type, location, names) == "PEM":
            place = f"{names}location: {location}"
            return _pem_keys(data.decode("ascii", "replace"), place, place, self.prefix, self.key_password)
        if self.keystore_password is None:
            raise TlsError(f"{names}password is not set: the PKCS12 store {location} needs it")
        return _pkcs12_keys(data, location, self.keystore_password, names)

    def _trust_store(self) -> str | None:
        names = f"{self.prefix}ssl.truststore."
        certificates, location = self.truststore_certificates, self.truststore_location
        if certificates:
            if self.truststore_type != "PEM":
                raise TlsError(f"{names}certificates is PEM text: set {names}type=PEM")
            if location:
                raise TlsError(f"{names}location and {names}certificates are both set: remove one of them")
            return _pem_certificates(certificates, f"{names}certificates")
        if not location:
            return None
        data = _read(location, f"{names}location")
        if _kind(data, self.truststore_type, location, names) == "PEM":
            return _pem_certificates(data.decode("ascii", "replace"), f"{names}location: {location}")
        return _pkcs12_certificates(data, location, self.truststore_password, f"{names}password")


def server_context(settings: TlsSettings, stores: TlsStores | None = None) -> ssl.SSLContext:
    """The context of a listener. Reads `stores` if None. Raises TlsError."""
    prefix = settings.prefix
    if not settings.has_key:
        raise TlsError(f"{prefix}ssl.keystore.location is not set; {working_block(prefix)}")
    stores = stores or settings.stores()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, settings)
    # A client that closes before reading its tickets would reset the connection, and the server lose its last bytes.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    _load_key(context, settings, stores.key)
    if settings.client_auth != "none":
        if stores.trust is None:
            raise TlsError(
                f"{prefix}ssl.client.auth={settings.client_auth} needs {prefix}ssl.truststore.location, the authorities that "
                f"sign the clients' certificates; {working_block(prefix)}"
            )
        _load_trust(context, stores.trust, prefix)
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_auth == "required" else ssl.CERT_OPTIONAL
    return context


def client_context(settings: TlsSettings, stores: TlsStores | None = None) -> ssl.SSLContext:
    """The context of a client, by default with the system's authorities. Reads `stores` if None. Raises TlsError."""
    stores = stores or settings.stores()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit(context, settings)
    checked = settings.endpoint_identification_algorithm
    if checked not in ("", "https"):
        raise TlsError(
            f"{settings.prefix}ssl.endpoint.identification.algorithm is {checked!r}: write https, or nothing for no check"
        )
    context.check_hostname = bool(checked)
    if stores.trust is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_trust(context, stores.trust, settings.prefix)
    if settings.has_key:
        _load_key(context, settings, stores.key)
    return context


def check_own_certificate(settings: TlsSettings, stores: TlsStores) -> None:
    """A handshake with itself, as in Kafka. Raises TlsError if nodes with this trust store would reject it."""
    client_side = client_context(replace(settings, endpoint_identification_algorithm=""), stores)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_side.wrap_bio(to_client, to_server),
        server_context(settings, stores).wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_FLIGHTS_MAX):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                raise TlsError(
                    f"other nodes would not accept this node's certificate: {explained(error)}; {settings.prefix}ssl.keystore needs a "
                    f"valid certificate, {settings.prefix}ssl.truststore the authority that signed it"
                ) from None


def own_certificates(store: KeyStore | None) -> tuple[list[bytes], list[bytes]]:
    """The chain of a key store, and the store's other certificates, as DER."""
    if store is None:
        return [], []
    return _as_der(store.chain), _as_der(store.others)


def _as_der(certificates: Sequence[str]) -> list[bytes]:
    plain = (each.replace("X509 CERTIFICATE", "CERTIFICATE") for each in certificates)
    return [ssl.PEM_cert_to_DER_cert(each) for each in plain]


def working_block(prefix: str) -> str:
    return (
        f"a working block is: {prefix}ssl.keystore.type=PEM, {prefix}ssl.keystore.location=/path/node.pem (key and "
        f"certificate chain), {prefix}ssl.truststore.type=PEM, {prefix}ssl.truststore.location=/path/ca.pem"
    )


def check_ciphers(names: tuple[str, ...]) -> str | None:
    """What is wrong with ssl.cipher.suites, or None."""
    suites_1_3 = [name for name in names if name in _SUITES_1_3]
    if suites_1_3 and len(set(suites_1_3)) < len(_SUITES_1_3):
        return f"name all suites of TLS 1.3 or none, Python cannot select among them: {','.join(_SUITES_1_3)}"
    for name in names:
        if name in _SUITES_1_3:
            continue
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(_openssl_name(name))
        except ssl.SSLError:
            return f"{name} is unknown to {ssl.OPENSSL_VERSION}; Java's and OpenSSL's names are possible"
    return None


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = [_VERSION[name] for name in TLS_VERSIONS if name in settings.enabled_protocols]
    unknown = [name for name in settings.enabled_protocols if name not in _VERSION]
    if unknown or not versions:
        raise TlsError(
            f"{settings.prefix}ssl.enabled.protocols: {','.join(unknown) or 'nothing'} is not served: write TLSv1.2,TLSv1.3"
        )
    suites = settings.cipher_suites
    if suites:
        wrong = check_ciphers(suites)
        older = [name for name in suites if name not in _SUITES_1_3]
        if not older:
            versions = [each for each in versions if each is ssl.TLSVersion.TLSv1_3]
        elif len(older) == len(suites):
            versions = [each for each in versions if each is ssl.TLSVersion.TLSv1_2]
        if not wrong and not versions:
            wrong = f"no suite fits ssl.enabled.protocols={','.join(settings.enabled_protocols)}"
        if wrong:
            raise TlsError(f"{settings.prefix}ssl.cipher.suites: {wrong}")
        if older:
            context.set_ciphers(":".join(map(_openssl_name, older)))
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a TLS 1.2 suite with Java's or OpenSSL's name."""
    if not name.startswith("TLS_"):
        # A list of suites, no expression: @SECLEVEL=0 or ALL would weaken more than they name.
        return name if name.replace("-", "").isalnum() and "-" in name else "none"
    exchange, _, rest = name.removeprefix("TLS_").partition("_WITH_")
    cipher = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "").replace("_", "-")
    cipher = cipher.replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"


def _load_trust(context: ssl.SSLContext, certificates: str, prefix: str) -> None:
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as error:
        raise TlsError(f"{prefix}ssl.truststore: the certificates cannot be used: {_reason(error)}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # each certificate of the store is trusted, as in Java


def _load_key(context: ssl.SSLContext, settings: TlsSettings, store: KeyStore | None) -> None:
    if store is None:
        raise TlsError(f"{settings.prefix}ssl.keystore.location is not set; {working_block(settings.prefix)}")
    try:
        _load_chain(context, store, store.chain)
    except ssl.SSLError as error:
        reason = _reason(error)
        if "key values mismatch" in reason or "key type mismatch" in reason:
            reason = _mismatch(store)
        elif store.password is not None:
            reason = f"{settings.prefix}ssl.key.password is wrong, or the key is damaged"
        raise TlsError(f"{store.place}: the key or certificate cannot be used: {reason}") from None


def _load_chain(context: ssl.SSLContext, store: KeyStore, chain: tuple[str, ...]) -> None:
    with _file_of(store.key + "".join(chain)) as path:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(path, password=store.password or "")


def _mismatch(store: KeyStore) -> str:
    for number, each in enumerate(store.chain[1:CHAIN_TRIED_MAX], 2):
        try:
            _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), store, (each,))
        except ssl.SSLError:
            continue
        return (
            f"the certificates are in the wrong order: number {number} belongs to the key and must be the first, followed by "
            "the one that signed it"
        )
    return "key values mismatch: the first certificate is for another key; take the key and the certificate that belong together"


@contextlib.contextmanager
def _file_of(text: str) -> Iterator[str]:
    """A path under which OpenSSL can read a text: memfd, or a private temporary file that is removed at once."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()  # readable by this user alone
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


# -- stores


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
