"""NodeTls: TLS contexts of a node's listeners and of its connections to other nodes.
A failed reload keeps the old contexts; open connections keep theirs. Earlier reloads never replace later ones.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.api.principal import ANONYMOUS, USER, Principal
from barnabas.broker.config.broker_config import TLS_PROTOCOLS, BrokerConfig
from barnabas.broker.config.certificate_names import CertificateNameError, mapping_rules, subject_name, validity
from barnabas.broker.config.table import SSL_LISTENER_KEYS
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.runtime.tls import (
    TlsError,
    TlsSettings,
    TlsStores,
    check_own_certificate,
    client_context,
    own_certificates,
    server_context,
)
from barnabas.work import Steps, Work

if TYPE_CHECKING:
    from barnabas.broker.scheduling.reactor import Reactor

log = logger("kafka.server")

DAY_MS: Final = 24 * 3_600_000  # between two looks at the certificates
WARNING_DAYS: Final = 14  # before the end of a certificate
OTHERS_NAMED_MAX: Final = 5


class _Contexts(NamedTuple):
    settings: TlsSettings
    server: ssl.SSLContext | None  # None for a listener of other nodes
    client: ssl.SSLContext
    chain: list[bytes]  # its own certificates, as DER
    others: list[bytes]  # certificates of the key store that are not used


class NodeTls:
    """TLS contexts of one node."""

    def __init__(self, config: BrokerConfig, reactor: Reactor) -> None:
        self._config = config
        self._reactor = reactor
        self._served = config.tls_listeners
        other = {config.inter_broker_listener, config.controller_listener_name}
        reached = [name for name in sorted(other) if config.security_protocol(name) in TLS_PROTOCOLS]
        self._between_nodes = other & set(self._served) if config.has_other_nodes else set()
        self._names = tuple(dict.fromkeys((*self._served, *reached)))
        self._contexts: dict[str, _Contexts] = {}
        self._watches = False
        self._reloads = 0  # begun so far
        self._reloaded: dict[str, int] = {}  # the reload that created a listener's contexts

    def open(self) -> None:
        """Reads the stores of all listeners. Raises BrokerError (INVALID_CONFIG), naming the setting."""
        for name in self._names:
            try:
                settings = tls_settings(self._config, name)
                stores = settings.stores()
                self._contexts[name] = self._made(name, settings, stores)
                if name in self._between_nodes:
                    check_own_certificate(settings, stores)
            except TlsError as error:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"listener {name}: {error}") from None
            self._tell_others(name)
        if not self._watches:
            self._watches = True
            self._watch()

    def _watch(self) -> None:
        """Checks the certificates now, and each day."""
        self._tell_ends(list(self._contexts))
        self._reactor.call_later(DAY_MS, self._watch)

    def _tell_ends(self, names: Sequence[str]) -> None:
        """Logs invalid or soon ending certificates of these listeners, shared ones only once."""
        now = datetime.fromtimestamp(self._reactor.clock.now_ms() / 1_000, UTC)
        having: dict[bytes, list[str]] = {}
        for name in names:
            for each in self._contexts[name].chain:
                having.setdefault(each, []).append(name)
        for certificate, listeners in having.items():
            try:
                begin, end = validity(certificate)
                subject = subject_name(certificate)
            except (ValueError, IndexError, CertificateNameError):
                continue  # OpenSSL has read it, so clients may, too
            where = ",".join(listeners)
            if now < begin:
                log.warning(
                    "Certificate is not valid yet, clients refuse it: listeners=%s subject=%s begins=%s",
                    *(where, subject, begin.isoformat()),
                )
            elif now > end:
                log.warning(
                    "Certificate has ended, clients refuse it; replace it and send SIGHUP: listeners=%s subject=%s ended=%s",
                    *(where, subject, end.isoformat()),
                )
            elif end - now < timedelta(days=WARNING_DAYS):
                log.warning(
                    "Certificate ends soon; replace it and send SIGHUP: listeners=%s subject=%s ends=%s",
                    *(where, subject, end.isoformat()),
                )

    def _tell_others(self, name: str) -> None:
        contexts = self._contexts[name]
        if not contexts.others:
            return
        try:
            used, *others = map(subject_name, (contexts.chain[0], *contexts.others[:OTHERS_NAMED_MAX]))
        except CertificateNameError:
            return
        log.warning(
            "Key store has more than one chain; the first key is used, keep one in a store: listener=%s used=%s others=%s",
            *(name, used, " and ".join(others)),
        )

    def _made(self, name: str, settings: TlsSettings, stores: TlsStores) -> _Contexts:
        server = server_context(settings, stores) if name in self._served else None
        return _Contexts(settings, server, client_context(settings, stores), *own_certificates(stores.key))

    def provider(self, listener: str) -> Callable[[], ssl.SSLContext] | None:
        """Returns the present context for clients of a listener; None without TLS."""
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

    def reload(self, *, changed_only: bool) -> Work:
        """Reads the stores again, all or only changed settings'. Unusable ones keep the old context, with a log line."""
        self._reloads += 1
        number = self._reloads
        wanted = {name: tls_settings(self._config, name) for name in self._contexts}
        if changed_only:
            wanted = {name: each for name, each in wanted.items() if each != self._contexts[name].settings}
        found = yield from self._read(wanted)
        reloaded: list[str] = []
        for name, made in found.items():
            if isinstance(made, TlsError):
                log.error("TLS stores are refused, the old ones stay: listener=%s error=%s", name, made)
            elif self._reloaded.get(name, 0) < number:
                self._contexts[name] = made
                self._reloaded[name] = number
                log.info("TLS stores are reloaded: listener=%s", name)
                self._tell_others(name)
                reloaded.append(name)
        self._tell_ends(reloaded)

    def check(self, layer: dict[str, str]) -> Work:
        """Tries the stores of these broker settings. Raises BrokerError (INVALID_REQUEST, as in Kafka)."""
        if not any(name.endswith(SSL_LISTENER_KEYS) for name in layer):
            return
        tried = BrokerConfig(self._config.static, self._config.resolve)
        tried.reconfigure(self._config.cluster_default, layer)
        wanted = {name: tls_settings(tried, name) for name in self._contexts}
        found = yield from self._read(
            {name: each for name, each in wanted.items() if each != self._contexts[name].settings}
        )
        for name, made in found.items():
            if isinstance(made, TlsError):
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"listener {name}: {made}")

    def _read(self, wanted: dict[str, TlsSettings]) -> Steps[dict[str, _Contexts | TlsError]]:
        """Contexts of listeners with these settings, read in a thread: files and passwords may be slow."""
        found: dict[str, _Contexts | TlsError] = {}

        def read() -> None:
            for name, settings in wanted.items():
                try:
                    found[name] = self._made(name, settings, settings.stores())
                except TlsError as error:
                    found[name] = error.with_traceback(None)

        if wanted:
            yield read
        return found


def tls_settings(config: BrokerConfig, listener: str) -> TlsSettings:
    prefix = f"listener.name.{listener.lower()}."
    own = any(name.startswith(prefix) for layer in (config.static, config.dynamic) for name in layer)
    return TlsSettings.from_keys(lambda name: config.tls_value(listener, name), prefix if own else "")


def certificate_principal(config: BrokerConfig, listener: str, certificate: bytes | None) -> Principal:
    """Principal of a client certificate (DER); ANONYMOUS without one. Raises CertificateNameError."""
    if certificate is None or config.security_protocol(listener) != "SSL":
        return ANONYMOUS  # with SASL the login gives the principal
    rules = config.listener_value(listener, "ssl.principal.mapping.rules")
    try:
        return Principal(USER, mapping_rules(str(rules))(subject_name(certificate)))
    except ValueError as error:
        raise CertificateNameError(str(error)) from None
