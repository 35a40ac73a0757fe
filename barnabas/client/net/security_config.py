"""TLS and SASL settings, validated; names as in aiokafka and kafka-python. Constructors take them as `**security`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

from barnabas.client.errors import IllegalState

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]

_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_LOGIN: Final = ("sasl_plain_username", "sasl_plain_password")
_SERVICE: Final = "kafka"
_KERBEROS: Final = (
    "sasl_kerberos_domain_name",
    "sasl_kerberos_principal",
    "sasl_kerberos_keytab",
    "sasl_kerberos_ticket_cache",
)


class TokenProvider(Protocol):
    """Provides tokens for OAUTHBEARER.

    Optional methods: `extensions() -> Mapping[str, str]` (KIP-342), and `token_refused(token: str) -> None` after a
    failed login.
    """

    async def token(self) -> str:
        """A valid token, before each authentication. An exception fails the authentication."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """TLS and SASL settings.

    Attributes:
        security_protocol: of the listener: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL".
        ssl_context: replaces the files.
        ssl_cafile: trusted certificate authorities, in PEM; by default those of the system.
        ssl_certfile: the client's certificate and its chain, in PEM.
        ssl_keyfile: the client's private key, in PEM; by default it is in `ssl_certfile`.
        ssl_password: of the private key.
        ssl_properties: Kafka's `ssl.*` client properties, instead of the files: for stores in PKCS12 and PEM texts.
        ssl_check_hostname: whether the broker's certificate must have the host of the connection.
        sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER" or "GSSAPI".
        sasl_plain_username, sasl_plain_password: for PLAIN and SCRAM.
        sasl_delegation_token: these are the id and the HMAC (base64) of a delegation token (KIP-48); for SCRAM.
        sasl_oauth_token_provider: for OAUTHBEARER.
        sasl_kerberos_service_name: GSSAPI: the first component of the brokers' principals.
        sasl_kerberos_domain_name: GSSAPI: the host in the brokers' principals; by default the host of the connection.
        sasl_kerberos_principal: GSSAPI: this client's principal; by default that of the ticket cache.
        sasl_kerberos_keytab: GSSAPI: the file with the keys of `sasl_kerberos_principal`, instead of a ticket cache.
        sasl_kerberos_ticket_cache: GSSAPI: the ticket cache; by default that of KRB5CCNAME or krb5.conf.

    Raises:
        IllegalState: a setting is invalid, missing, or has no effect with the other settings.
    """

    security_protocol: SecurityProtocol = "PLAINTEXT"
    ssl_context: Any = field(default=None, repr=False)  # an ssl.SSLContext, which this module does not import
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)
    ssl_properties: Mapping[str, str] | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    sasl_mechanism: SaslMechanism | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    sasl_delegation_token: bool = False
    sasl_oauth_token_provider: TokenProvider | None = field(default=None, repr=False)
    sasl_kerberos_service_name: str = _SERVICE
    sasl_kerberos_domain_name: str | None = None
    sasl_kerberos_principal: str | None = None
    sasl_kerberos_keytab: str | None = None
    sasl_kerberos_ticket_cache: str | None = None

    def __post_init__(self) -> None:
        if self.security_protocol not in get_args(SecurityProtocol):
            raise IllegalState(
                f"security_protocol={self.security_protocol!r} is none of {', '.join(map(repr, get_args(SecurityProtocol)))}"
            )
        self._check_tls()
        self._check_sasl()

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate by SASL."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def _check_tls(self) -> None:
        files = [name for name in _FILES if getattr(self, name) is not None]
        given = [name for name in ("ssl_context", "ssl_properties") if getattr(self, name) is not None] + files
        if given and not self.uses_tls:
            raise IllegalState(
                f"{given[0]} needs security_protocol='SSL' or 'SASL_SSL', not {self.security_protocol!r}: "
                f"without it the connection is not encrypted"
            )
        if len(given) > len(files) and len(given) > 1:
            raise IllegalState(f"{given[0]} and {given[1]} exclude each other")
        if len(given) > len(files) and not self.ssl_check_hostname:
            instead = "check_hostname of the context" if self.ssl_context is not None else "the property of Kafka"
            raise IllegalState(f"{given[0]} and ssl_check_hostname exclude each other: set {instead}")
        for name in ("ssl_keyfile", "ssl_password"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise IllegalState(f"{name} needs ssl_certfile, the client's certificate")

    def _check_sasl(self) -> None:
        mechanism = self.sasl_mechanism
        given = [name for name in _LOGIN if getattr(self, name) is not None]
        if self.sasl_oauth_token_provider is not None:
            given.append("sasl_oauth_token_provider")
        given += [name for name in _KERBEROS if getattr(self, name) is not None]
        if self.sasl_kerberos_service_name != _SERVICE:
            given.append("sasl_kerberos_service_name")
        if not self.uses_sasl:
            unused = given if mechanism is None else ["sasl_mechanism", *given]
            if unused:
                raise IllegalState(
                    f"{unused[0]} needs security_protocol='SASL_SSL' or 'SASL_PLAINTEXT', not {self.security_protocol!r}"
                )
            return
        mechanisms = ", ".join(map(repr, get_args(SaslMechanism)))
        if mechanism is None:
            raise IllegalState(
                f"security_protocol={self.security_protocol!r} needs sasl_mechanism, one of {mechanisms}"
            )
        if mechanism not in get_args(SaslMechanism):
            raise IllegalState(f"sasl_mechanism={mechanism!r} is none of {mechanisms}")
        needed: tuple[str, ...] = _LOGIN
        if mechanism == "GSSAPI":
            self._check_kerberos()
            needed, given = (), [name for name in given if not name.startswith("sasl_kerberos")]
        if mechanism == "OAUTHBEARER":
            needed = ("sasl_oauth_token_provider",)
            if not callable(getattr(self.sasl_oauth_token_provider, "token", None)):
                raise IllegalState(
                    "sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider, an object with `async def token(self) -> str`"
                )
        for name in needed:
            value = getattr(self, name)
            if name in _LOGIN and (not isinstance(value, str) or not value or "\0" in value):
                raise IllegalState(f"sasl_mechanism={mechanism!r} needs {name}, a text that is not empty")
        for name in given:
            if name not in needed:
                raise IllegalState(f"sasl_mechanism={mechanism!r} does not use {name}")
        if self.sasl_delegation_token and not mechanism.startswith("SCRAM"):
            raise IllegalState("sasl_delegation_token needs sasl_mechanism='SCRAM-SHA-256' or 'SCRAM-SHA-512'")

    def _check_kerberos(self) -> None:
        for name in ("sasl_kerberos_service_name", *_KERBEROS):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value or "\0" in value):
                raise IllegalState(f"{name}={value!r} must be a text that is not empty")
        if self.sasl_kerberos_keytab is not None:
            if self.sasl_kerberos_principal is None:
                raise IllegalState("sasl_kerberos_keytab needs sasl_kerberos_principal, the account whose keys it has")
            if self.sasl_kerberos_ticket_cache is not None:
                raise IllegalState("sasl_kerberos_keytab and sasl_kerberos_ticket_cache exclude each other")
