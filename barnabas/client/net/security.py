"""TLS context and SASL conversations of a client's connections. No error or log contains a password."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barnabas.client.errors import IllegalState
from barnabas.client.net.security_config import SecurityConfig
from barnabas.errors import BarnabasError
from barnabas.ports import Rng
from barnabas.protocol.exchange import Exchange
from barnabas.protocol.kerberos import GSSAPI_MECHANISM, GssapiClient
from barnabas.protocol.sasl import OAuthBearerClient, PlainClient, SaslClient, SaslFailed
from barnabas.runtime.offload import WorkerThread, in_own_thread

if TYPE_CHECKING:
    from barnabas.protocol.scram import ScramKeys
    from barnabas.runtime.kerberos import KerberosInitiator


class ClientSecurity:
    """TLS and SASL of one client. Raises IllegalState for unreadable files or a missing GSSAPI package."""

    def __init__(self, config: SecurityConfig, rng: Rng) -> None:
        self.config = config
        self.tls = _context(config) if config.uses_tls else None
        self._kerberos = _initiator(config)
        self._rng = rng
        self._keys: ScramKeys | None = None
        self._token = ""
        self._extensions: Mapping[str, str] = {}
        self._thread = WorkerThread()

    @property
    def mechanism(self) -> str | None:
        return self.config.sasl_mechanism if self.config.uses_sasl else None

    def exchange(self, client_id: str, request_timeout_ms: int, host: str) -> Exchange:
        if not self.config.uses_sasl:
            return Exchange(client_id, request_timeout_ms=request_timeout_ms)
        jitter = self._rng.random()
        sasl = partial(self._conversation, self.config.sasl_kerberos_domain_name or host)
        return Exchange(client_id, request_timeout_ms=request_timeout_ms, sasl=sasl, jitter=jitter)

    async def prepare(self, timeout_ms: int) -> None:
        """Gets a token for the next conversation. Raises SaslFailed if the token provider failed."""
        provider: Any = self.config.sasl_oauth_token_provider
        if not self.config.uses_sasl or provider is None:
            return
        timeout_ms = getattr(provider, "timeout_ms", timeout_ms)
        limit = asyncio.timeout(timeout_ms / 1_000)
        try:
            async with limit:
                token = await provider.token()
                extensions = provider.extensions() if hasattr(provider, "extensions") else {}
        except BarnabasError as error:  # of a provider of this package
            raise SaslFailed(f"OAUTHBEARER: no token: {error}") from None
        except Exception as error:  # of the caller's own code, of any kind
            if limit.expired():
                raise SaslFailed(f"OAUTHBEARER: the token provider gave no token within {timeout_ms} ms") from None
            raise SaslFailed(f"OAUTHBEARER: the token provider failed: {type(error).__name__}: {error}") from error
        if not isinstance(token, str):
            raise SaslFailed(f"OAUTHBEARER: the token provider must return a str, not {type(token).__name__}")
        self._token, self._extensions = token, extensions or {}

    def refused(self) -> None:
        """A login has failed: the token provider need not repeat the token."""
        token_refused = getattr(self.config.sasl_oauth_token_provider, "token_refused", None)
        if token_refused is not None and self._token:
            token_refused(self._token)

    async def compute(self, work: Callable[[], None]) -> None:
        if self._kerberos is not None:
            # which may wait for a KDC: neither other connections nor the end of the process wait with it
            await in_own_thread(work)
        else:
            await self._thread.run(work)

    def _conversation(self, host: str) -> SaslClient:
        config = self.config
        if self._kerberos is not None:
            return GssapiClient(self._kerberos.context(host))
        username, password = config.sasl_plain_username or "", config.sasl_plain_password or ""
        if config.sasl_mechanism == "PLAIN":
            return PlainClient(username, password)
        if config.sasl_mechanism == "OAUTHBEARER":
            return OAuthBearerClient(self._token, self._extensions)
        from barnabas.protocol.scram import ScramClient, ScramKeys  # here: it imports the hashes of OpenSSL

        mechanism = config.sasl_mechanism or ""
        if self._keys is None:
            self._keys = ScramKeys(mechanism, password)
        nonce = self._rng.uuid().hex() + self._rng.uuid().hex()
        return ScramClient(mechanism, username, self._keys, nonce, token=config.sasl_delegation_token)


def check_security(arguments: Mapping[str, Any]) -> None:
    """Checks security settings and that their files are readable. Raises IllegalState."""
    config = SecurityConfig(**arguments)
    _initiator(config)
    if config.uses_tls:
        _context(config)


def _initiator(config: SecurityConfig) -> KerberosInitiator | None:
    if not config.uses_sasl or config.sasl_mechanism != GSSAPI_MECHANISM:
        return None
    # here, because the package is optional
    from barnabas.runtime.kerberos import KerberosInitiator, kerberos_is_missing

    missing = kerberos_is_missing()
    if missing is not None:
        raise IllegalState(missing)
    return KerberosInitiator(
        config.sasl_kerberos_service_name,
        principal=config.sasl_kerberos_principal,
        keytab=config.sasl_kerberos_keytab,
        ticket_cache=config.sasl_kerberos_ticket_cache,
    )


def _context(config: SecurityConfig) -> ssl.SSLContext:
    if config.ssl_context is not None:
        own: ssl.SSLContext = config.ssl_context
        return own
    if config.ssl_properties is not None:
        from barnabas.runtime.tls import TlsError, TlsSettings, client_context

        try:
            return client_context(TlsSettings.from_keys(config.ssl_properties.get))
        except TlsError as error:
            raise IllegalState(str(error)) from None
    try:
        context = ssl.create_default_context(cafile=config.ssl_cafile)
    except OSError as error:
        raise _unusable("ssl_cafile", config.ssl_cafile, error, "certificates in PEM") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.ssl_check_hostname
    if config.ssl_certfile is not None:
        for name in ("ssl_certfile", "ssl_keyfile"):
            path = getattr(config, name)
            if path is not None:
                try:
                    Path(path).open("rb").close()
                except OSError as error:
                    raise _unusable(name, path, error, "") from None
        try:
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, config.ssl_password or "")
        except OSError as error:
            where = "ssl_certfile" if config.ssl_keyfile is None else "ssl_keyfile"
            needs = "a private key in PEM that belongs to ssl_certfile"
            if config.ssl_password is None:
                needs += "; set ssl_password if it is encrypted"
            elif "KEY_VALUES_MISMATCH" not in str(error):
                needs += "; ssl_password must decrypt it"
            raise _unusable(where, getattr(config, where), error, needs) from None
    return context


def _unusable(name: str, path: str | None, error: OSError, needs: str) -> IllegalState:
    if isinstance(error, ssl.SSLError):
        return IllegalState(f"{name}={path!r} cannot be used: it must contain {needs} ({error.reason or error})")
    return IllegalState(f"{name}={path!r} cannot be read: {error.strerror or error}")
