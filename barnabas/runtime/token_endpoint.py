"""TokenCall: one POST to a token endpoint, blocking.
A redirection would carry the client's secret to another place: it is not followed. No proxy is used.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from barnabas.protocol.oauth import ANSWER_BYTES_MAX
from barnabas.protocol.oauth_settings import OAuthInvalid

if TYPE_CHECKING:
    import http.client

_READ_BYTES: Final = 65_536  # at once


class TokenCall:
    """One request.

    Args:
        tls: creates the TLS context for https; it may read files.

    Attributes:
        status: 0 before the response.
        answer: cut after ANSWER_BYTES_MAX + 1 bytes.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        body: str,
        *,
        connect_timeout_ms: int,
        read_timeout_ms: int,
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        parts = self._parts = urlsplit(url)
        self._connect_timeout_s = connect_timeout_ms / 1_000
        self._tls = tls
        self._connection: http.client.HTTPConnection | None = None
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = headers
        self._body = body.encode()
        self._read_timeout_s = read_timeout_ms / 1_000
        self._aborted = False
        self.status = 0
        self.answer = b""

    def run(self) -> None:
        """Sends the request and reads the response. Raises OSError, HTTPException."""
        import http.client  # 1.6 MB, and every node imports this module

        https = self._parts.scheme == "https"
        made = partial(http.client.HTTPSConnection, context=self._tls()) if https else http.client.HTTPConnection
        connection = made(self._parts.hostname or "", self._parts.port, timeout=self._connect_timeout_s)
        self._connection = connection
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(self._read_timeout_s)
            if self._aborted:
                return
            connection.request("POST", self._path, self._body, dict(self._headers))
            response = connection.getresponse()
            data = bytearray()
            while len(data) <= ANSWER_BYTES_MAX and (part := response.read1(_READ_BYTES)):
                data += part
            if response.length and len(data) <= ANSWER_BYTES_MAX:
                raise http.client.IncompleteRead(b"", response.length)
            self.status, self.answer = response.status, bytes(data[: ANSWER_BYTES_MAX + 1])
        finally:
            connection.close()

    def abort(self) -> None:
        """Ends an overdue request, from another thread."""
        self._aborted = True
        connected = None if self._connection is None else self._connection.sock
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


def endpoint_tls(url: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    """None if the URL is not https. Without a trust store the system's authorities are trusted. Raises OAuthInvalid."""
    if not url.startswith("https:"):
        return None
    from barnabas.runtime.tls import TlsError, TlsSettings, client_context

    try:
        return client_context(TlsSettings.from_keys(options.get, "sasl.jaas.config: "))
    except TlsError as error:
        raise OAuthInvalid(str(error)) from None
