"""A client of HTTP/1.1 for tests: requests as JSON, and raw bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

DEADLINE_S = 60.0


def call(method: str, url: str, body: object = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON value of the answer. A body of bytes is sent as it is."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=DEADLINE_S)
    try:
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, target, sent, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def raw(url: str, sent: bytes, *, end: bool = True) -> bytes:
    """What comes back for these bytes until the other side closes; with `end` this side closes its half first."""
    parts = urlsplit(url)
    found = bytearray()
    with socket.create_connection((parts.hostname, parts.port), DEADLINE_S) as peer:
        try:
            peer.sendall(sent)
            if end:
                peer.shutdown(socket.SHUT_WR)
            while piece := peer.recv(65_536):
                found += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    return bytes(found)
