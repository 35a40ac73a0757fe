"""Kerberos security contexts: an acceptor with a keytab, an initiator with a keytab or ticket cache (extra `gssapi`).
All methods but constructors block on files or the KDC: call them in a thread. Each login reads the keytab again.
"""

from __future__ import annotations

import hashlib
import importlib
from importlib.util import find_spec
from typing import Any, Final

from barnabas.protocol.kerberos import GssContext, GssFailed

MISSING: Final = "GSSAPI needs the package gssapi: pip install 'barnabas[gssapi]'"
_Store = dict[bytes, bytes]  # not of str: the package would free their encoded texts before the library reads them
_TEXT_LENGTH_MAX: Final = 400


def kerberos_is_missing() -> str | None:
    """What to install; None if the package and its library can be loaded."""
    if find_spec("gssapi") is None:
        return MISSING
    try:
        _raw()
    except (ImportError, OSError) as error:
        return f"the package gssapi cannot be loaded: {error}"
    return None


def default_realm() -> str:
    raw = _raw()
    try:
        name = raw.import_name(b"any", raw.NameType.user)
        shown: bytes = raw.display_name(raw.canonicalize_name(name, raw.MechType.kerberos), False).name
    except raw.GSSError:
        return ""
    return shown.decode("utf-8", "replace").rpartition("@")[2]


class KerberosAcceptor:
    """A service that accepts clients.

    Args:
        keytab: path of a file with the keys of the service.
        principal: SERVICE/HOST@REALM; without a host, any host of the service in the keytab.

    Raises:
        GssFailed: the keytab is unreadable or lacks the principal.
    """

    def __init__(self, keytab: str, principal: str) -> None:
        raw = _raw()
        first = principal.partition("@")[0]
        self._service = None if "/" in first else first
        try:
            name = None
            if self._service is None:
                name = raw.import_name(principal.encode(), raw.NameType.kerberos_principal)
            self._credentials = raw.acquire_cred_from(
                {b"keytab": _file(keytab)}, name, mechs=[raw.MechType.kerberos], usage="accept"
            ).creds
        except raw.GSSError as error:
            raise _failed(error) from None

    def context(self) -> GssContext:
        return _Accepting(self._credentials, self._service)


class KerberosInitiator:
    """A client of a service.

    Args:
        service: first component of the brokers' principals.
        principal: of this client; may be None with a ticket cache.
        keytab: path of a file with its keys; None: tickets come from a ticket cache.
        ticket_cache: path or name of the cache; None: that of KRB5CCNAME or krb5.conf.
    """

    def __init__(
        self, service: str, *, principal: str | None = None, keytab: str | None = None, ticket_cache: str | None = None
    ) -> None:
        self._service = service
        self._principal = principal
        self._store: _Store = {}
        if keytab is not None:
            whose = hashlib.sha256(f"{keytab} {principal}".encode()).hexdigest()[:32]
            self._store = {b"client_keytab": _file(keytab), b"ccache": f"MEMORY:barnabas-{whose}".encode()}
        elif ticket_cache is not None:
            self._store = {b"ccache": ticket_cache.encode()}

    def context(self, host: str) -> GssContext:
        return _Initiating(self._service, host, self._principal, self._store)


class _Context:
    """Common part of both sides."""

    def __init__(self) -> None:
        self.complete = False
        self.client = ""
        self._context: Any = None

    def wrap(self, data: bytes) -> bytes:
        raw = _raw()
        try:
            wrapped: bytes = raw.wrap(self._context, data, False).message
        except raw.GSSError as error:
            raise _failed(error) from None
        return wrapped

    def unwrap(self, data: bytes) -> bytes:
        raw = _raw()
        try:
            own = bytes(bytearray(data))  # the library rotates the message in place
            message: bytes = raw.unwrap(self._context, own).message
        except raw.GSSError as error:
            raise _failed(error) from None
        return message


class _Accepting(_Context):
    def __init__(self, credentials: Any, service: str | None) -> None:
        super().__init__()
        self._credentials = credentials
        self._service = service

    def step(self, token: bytes) -> bytes:
        raw = _raw()
        try:
            result = raw.accept_sec_context(token, self._credentials, self._context)
            self._context = result.context
            if result.more_steps:
                return result.token or b""
            names = raw.inquire_context(self._context)
            self.client = _text(raw, names.initiator_name)
            target = _text(raw, names.target_name)
        except raw.GSSError as error:
            raise _failed(error) from None
        if self._service is not None and target.partition("@")[0].partition("/")[0].lower() != self._service.lower():
            raise GssFailed(f"the client's ticket is for {target}")
        self.complete = True
        return result.token or b""


class _Initiating(_Context):
    def __init__(self, service: str, host: str, principal: str | None, store: _Store) -> None:
        super().__init__()
        self._target = f"{service}@{host}"
        self._principal = principal
        self._store = store
        self._credentials: Any = None

    def step(self, token: bytes) -> bytes:
        raw = _raw()
        mechanism, flags = raw.MechType.kerberos, raw.RequirementFlag
        try:
            if self._credentials is None:
                name = None
                if self._principal is not None:
                    name = raw.import_name(self._principal.encode(), raw.NameType.kerberos_principal)
                self._credentials = raw.acquire_cred_from(
                    self._store or None, name, mechs=[mechanism], usage="initiate"
                ).creds
            result = raw.init_sec_context(
                raw.import_name(self._target.encode(), raw.NameType.hostbased_service),
                self._credentials,
                self._context,
                mechanism,
                [flags.mutual_authentication, flags.integrity],
                input_token=token or None,
            )
        except raw.GSSError as error:
            raise _failed(error) from None
        self._context = result.context
        self.complete = not result.more_steps
        return result.token or b""


def _raw() -> Any:  # the same type with and without the package
    return importlib.import_module("gssapi.raw")  # here, because the package is optional


def _file(path: str) -> bytes:
    """A keytab's path with its type; Java allows the prefix `file:`."""
    return (path if path.startswith("FILE:") else f"FILE:{path.removeprefix('file:')}").encode()


def _text(raw: Any, name: Any) -> str:
    shown: bytes = raw.display_name(name, False).name
    return shown.decode("utf-8", "replace")


def _failed(error: Any) -> GssFailed:
    """The library's texts, in the thread of the call: it keeps them for that thread only."""
    texts = error.get_all_statuses(error.min_code, False) if error.min_code else []
    if not texts or "Unknown error" in texts[0]:
        texts = error.get_all_statuses(error.maj_code, True)
    return GssFailed("; ".join(texts)[:_TEXT_LENGTH_MAX])
