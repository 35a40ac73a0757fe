"""Kafka's ssl.* keys of the broker, and validation of TLS listeners. Store keys are dynamic only with a listener's prefix, as in Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.broker.config.certificate_names import check_mapping_rules
from barnabas.broker.config.key import (
    ConfigKey,
    ConfigType,
    ConfigValue,
    boolean,
    one_of,
    several,
    string,
    without_effect,
)
from barnabas.errors import BrokerError, ErrorCode

TLS_PROTOCOLS: Final = frozenset({"SSL", "SASL_SSL"})
_OPENSSL: Final = "TLS is OpenSSL's, Java's providers are not loaded"


def _secret(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.PASSWORD, None, doc, None, True)


_STORES: Final = [
    _secret("ssl.key.password", "Password of an encrypted private key."),
    _secret("ssl.keystore.certificate.chain", "Certificate chain as PEM text, the node's certificate first."),
    _secret("ssl.keystore.key", "Private key as PEM text (PKCS8)."),
    string(
        "ssl.keystore.location", None, "File with key and certificate chain, of type ssl.keystore.type.", dynamic=True
    ),
    _secret("ssl.keystore.password", "Password of a PKCS12 key store."),
    string(
        "ssl.keystore.type",
        "JKS",
        "PEM, or PKCS12 (needs the extra security). A PKCS12 file is read under the name JKS as well, as in Java.",
        dynamic=True,
    ),
    _secret("ssl.truststore.certificates", "Trusted certificates as PEM text."),
    string("ssl.truststore.location", None, "File with the trusted certificates.", dynamic=True),
    _secret("ssl.truststore.password", "Password of a PKCS12 trust store."),
    string("ssl.truststore.type", "JKS", "PEM or PKCS12, as ssl.keystore.type.", dynamic=True),
]

SSL_KEYS: Final[list[ConfigKey]] = [
    without_effect(
        boolean("ssl.allow.dn.changes", False, "Whether a new certificate may have another subject."),
        "a new certificate may have any subject",
    ),
    without_effect(
        boolean("ssl.allow.san.changes", False, "Whether a new certificate may have other alternative names."),
        "a new certificate may have any names",
    ),
    several(
        "ssl.cipher.suites",
        (),
        "Allowed cipher suites, by Java's or OpenSSL's names; OpenSSL's default where empty. Of TLS 1.3 all suites or none.",
    ),
    string(
        "ssl.client.auth",
        "none",
        "Whether clients must have a certificate: none, requested or required.",
        one_of("required", "requested", "none"),
    ),
    several(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        "Allowed versions of TLS.",
        one_of("TLSv1.2", "TLSv1.3"),
    ),
    string(
        "ssl.endpoint.identification.algorithm",
        "https",
        "How this node checks the name in another node's certificate: https, or empty for no check.",
        one_of("https", "HTTPS", ""),
    ),
    without_effect(string("ssl.keymanager.algorithm", "SunX509", "Java's key manager."), _OPENSSL),
    string(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How a client certificate's subject becomes a principal: RULE:pattern/replacement/[LU] or DEFAULT, the first match.",
        check_mapping_rules,
    ),
    without_effect(
        string("ssl.protocol", "TLSv1.3", "Name of Java's TLS context.", one_of("TLSv1.2", "TLSv1.3", "TLS")),
        "ssl.enabled.protocols decides",
    ),
    without_effect(string("ssl.provider", None, "Java's security provider."), _OPENSSL),
    without_effect(string("ssl.secure.random.implementation", None, "Java's random numbers."), _OPENSSL),
    without_effect(string("ssl.trustmanager.algorithm", "PKIX", "Java's trust manager."), _OPENSSL),
    *_STORES,
]
SSL_STORE_KEYS: Final = frozenset(key.name for key in _STORES)
# Keys that one listener may have for itself.
SSL_LISTENER_KEYS: Final = tuple(key.name for key in SSL_KEYS if key.no_effect is None)


def check_tls(listener: str, value: Callable[[str], ConfigValue]) -> None:
    """Requires a key, and authorities if the listener asks for certificates. Raises BrokerError(INVALID_CONFIG) with a working example."""
    prefix = f"listener.name.{listener.lower()}."
    missing = None
    if not value("ssl.keystore.location") and not value("ssl.keystore.key"):
        missing, why = "ssl.keystore.location", "TLS needs a private key and a certificate"
    elif value("ssl.client.auth") != "none" and not (
        value("ssl.truststore.location") or value("ssl.truststore.certificates")
    ):
        missing, why = "ssl.truststore.location", f"ssl.client.auth={value('ssl.client.auth')} needs authorities"
    if missing:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"{missing} is not set (nor {prefix}{missing}) and listener {listener} speaks TLS: {why}. A working block: "
            f"ssl.keystore.type=PEM, ssl.keystore.location=/path/node.pem (key and certificate chain), "
            f"ssl.truststore.type=PEM, ssl.truststore.location=/path/ca.pem",
        )
