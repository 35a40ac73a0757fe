"""KerberosLogins: GSSAPI logins of a node's listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.config.kerberos_names import local_names
from barnabas.broker.config.sasl_settings import SaslSettings
from barnabas.broker.scheduling.slices import Offload, in_place
from barnabas.broker.security.core.gssapi_server import GssapiServer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.kerberos import GSSAPI_MECHANISM, GssContext, GssFailed
from barnabas.runtime.offload import WorkerThread

if TYPE_CHECKING:
    from barnabas.runtime.kerberos import KerberosAcceptor

log = logger("kafka.network.SocketServer")


class KerberosLogins:
    """GSSAPI logins: steps run in one thread, acceptors are cached by keytab and principal.

    `offload` is `in_place` without threads. Raises BrokerError (INVALID_CONFIG) without the library or a usable keytab.
    """

    def __init__(self, settings: list[SaslSettings], offload: Offload) -> None:
        self.offload: Offload = offload if offload is in_place else WorkerThread().run
        self._acceptors: dict[tuple[str, str], KerberosAcceptor] = {}
        self._realm: str | None = None
        self._names: dict[tuple[str, ...], Callable[[str], str]] = {}
        for each in settings:
            if GSSAPI_MECHANISM in each.mechanisms:
                self._check(each)

    def exchange(self, settings: SaslSettings) -> GssapiServer:
        context = _AcceptorsContext(lambda: self._acceptor(settings))
        return GssapiServer(context, self._local_name(settings), _log_refused)

    def _check(self, settings: SaslSettings) -> None:
        from barnabas.runtime.kerberos import kerberos_is_missing

        missing = kerberos_is_missing()
        if missing is not None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, missing)
        service = settings.kerberos_service()
        try:
            self._acceptor(settings)
            self._local_name(settings)
        except GssFailed as error:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value for configuration {settings.jaas_key(GSSAPI_MECHANISM)}: the keytab {service.keytab} cannot be used "
                f"for {service.principal}: {error}. Export its keys (for MIT: kadmin -q 'ktadd -k {service.keytab} {service.principal}') "
                f"and let this process read the file",
            ) from None

    def _acceptor(self, settings: SaslSettings) -> KerberosAcceptor:
        from barnabas.runtime.kerberos import KerberosAcceptor

        service = settings.kerberos_service()
        key = service.keytab, service.principal
        found = self._acceptors.get(key)
        if found is None:
            found = KerberosAcceptor(*key)
            self._acceptors = {**self._acceptors, key: found}
        return found

    def _local_name(self, settings: SaslSettings) -> Callable[[str], str]:
        from barnabas.runtime.kerberos import default_realm

        rules = settings.kerberos_rules()
        found = self._names.get(rules)
        if found is None:
            if self._realm is None:
                self._realm = default_realm()
            found = local_names(rules, self._realm)
            self._names = {rules: found} if len(self._names) > 100 else {**self._names, rules: found}
        return found


class _AcceptorsContext:
    """An acceptor's context, created in the first step: reading its keytab blocks."""

    def __init__(self, find: Callable[[], KerberosAcceptor]) -> None:
        self._find = find
        self._found: GssContext | None = None

    @property
    def complete(self) -> bool:
        return self._found is not None and self._found.complete

    @property
    def client(self) -> str:
        return self._context().client

    def step(self, token: bytes) -> bytes:
        return self._context().step(token)

    def wrap(self, data: bytes) -> bytes:
        return self._context().wrap(data)

    def unwrap(self, data: bytes) -> bytes:
        return self._context().unwrap(data)

    def _context(self) -> GssContext:
        if self._found is None:
            try:
                self._found = self._find().context()
            except BrokerError as error:  # of settings that were altered
                raise GssFailed(str(error)) from None
        return self._found


def _log_refused(reason: str) -> None:
    log.info("A Kerberos login is refused: reason=%s", reason)
