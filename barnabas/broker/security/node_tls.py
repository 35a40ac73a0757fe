"""NodeTls: the TLS contexts of a node: of its listeners, and of its connections to other nodes.

Driven by: the node (`open` at the start, `reload` when settings or files change), accepted connections, `NodeNetwork`.
Emits: contexts; principals of client certificates; log lines.

Each listener has one context for connections from clients and one for connections to the same listener of other nodes, with the same
stores. A reload makes both anew; if that fails the old ones stay. Open connections keep the context of their handshake.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NamedTuple

from barnabas.broker.config import BrokerConfig
from barnabas.broker.security.certificate_names import CertificateNameError, mapping_rules, subject_name
from barnabas.broker.security.principal import ANONYMOUS, USER, Principal
from barnabas.broker.security.ssl_keys import SSL_LISTENER_KEYS, TLS_PROTOCOLS
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.runtime.tls import TlsError, TlsSettings, client_context, server_context

__all__ = ["NodeTls", "certificate_principal", "tls_settings"]

log = logger("kafka.server")


class _Contexts(NamedTuple):
    settings: TlsSettings
    server: ssl.SSLContext | None  # None for a listener of other nodes
    client: ssl.SSLContext


class NodeTls:
    """The TLS contexts of one node."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._served = config.tls_listeners
        other = {config.inter_broker_listener, config.controller_listener_name}
        reached = [name for name in sorted(other) if config.security_protocol(name) in TLS_PROTOCOLS]
        self._names = tuple(dict.fromkeys((*self._served, *reached)))
        self._contexts: dict[str, _Contexts] = {}

    def open(self) -> None:
        """Reads the stores of all listeners.

        Raises:
            BrokerError: INVALID_CONFIG, naming the setting.
        """
        for name in self._names:
            try:
                self._contexts[name] = self._made(name, tls_settings(self._config, name))
            except TlsError as error:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"listener {name}: {error}") from None

    def _made(self, name: str, settings: TlsSettings) -> _Contexts:
        server = server_context(settings) if name in self._served else None
        return _Contexts(settings, server, client_context(settings))

    def provider(self, listener: str) -> Callable[[], ssl.SSLContext] | None:
        """Returns the present context for clients of a listener at each call; None for a listener without TLS."""
        if listener not in self._served:
            return None

        def context() -> ssl.SSLContext:
            found = self._contexts[listener].server
            if found is None:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"listener {listener} has no TLS context")
            return found

        return context

    def client(self, listener: str) -> ssl.SSLContext | None:
        """The context for a connection to this listener of another node; None without TLS."""
        if self._config.security_protocol(listener) not in TLS_PROTOCOLS:
            return None
        if listener not in self._contexts:
            self.open()
        return self._contexts[listener].client

    def reload(self, *, changed_only: bool) -> None:
        """Reads the stores again. A listener whose stores cannot be used keeps the old ones, with a log line.

        Args:
            changed_only: whether only listeners with changed settings are read, or all, because files may have changed.
        """
        for name, old in list(self._contexts.items()):
            settings = tls_settings(self._config, name)
            if changed_only and settings == old.settings:
                continue
            try:
                self._contexts[name] = self._made(name, settings)
            except TlsError as error:
                log.error("TLS stores are refused, the old ones stay: listener=%s error=%s", name, error)
            else:
                log.info("TLS stores are reloaded: listener=%s", name)

    def check(self, layer: dict[str, str]) -> None:
        """Tries the stores that these settings of this broker would give.

        Raises:
            BrokerError: INVALID_REQUEST, as Kafka answers, if they cannot be used.
        """
        if not any(name.endswith(SSL_LISTENER_KEYS) for name in layer):
            return
        tried = BrokerConfig(self._config.static)
        tried.reconfigure(self._config.cluster_default, layer)
        for name, old in self._contexts.items():
            settings = tls_settings(tried, name)
            if settings != old.settings:
                try:
                    self._made(name, settings)
                except TlsError as error:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, f"listener {name}: {error}") from None


def tls_settings(config: BrokerConfig, listener: str) -> TlsSettings:
    """The ssl.* settings of one listener."""
    prefix = f"listener.name.{listener.lower()}."
    own = any(name.startswith(prefix) for layer in (config.static, config.dynamic) for name in layer)
    return TlsSettings.from_keys(lambda name: config.tls_value(listener, name), prefix if own else "")


def certificate_principal(config: BrokerConfig, listener: str, certificate: bytes | None) -> Principal:
    """The principal of a client with this certificate (DER); ANONYMOUS without one.

    Raises:
        CertificateNameError: no rule of ssl.principal.mapping.rules matches its subject.
    """
    if certificate is None or config.security_protocol(listener) != "SSL":
        return ANONYMOUS  # with SASL the login gives the principal
    rules = config.listener_value(listener, "ssl.principal.mapping.rules")
    try:
        return Principal(USER, mapping_rules(str(rules))(subject_name(certificate)))
    except ValueError as error:
        raise CertificateNameError(str(error)) from None
