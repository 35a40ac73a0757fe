"""The admin port: faults and brokers of a cluster over HTTP on 127.0.0.1, for tests in any language. Off by default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from barnabas.runtime.http_server import HttpAnswer, HttpRefusal, HttpRequest, HttpServer
from barnabas.runtime.network import AsyncioNetwork
from barnabas.testing.admin_routes import AdminRoutes
from barnabas.testing.errors import KitError
from barnabas.testing.faults.document import DOCUMENT_BYTES_MAX
from barnabas.testing.ports import HOST, checked_admin_port

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


class AdminPort:
    """HTTP service of the admin port, made by `open`. Web pages cannot reach it: see `refusal`."""

    body_bytes_max = DOCUMENT_BYTES_MAX

    def __init__(self, routes: AdminRoutes, port: int) -> None:
        self.routes = routes
        self.server = HttpServer(self, "admin port")
        self.number = port

    @classmethod
    async def open(cls, routes: AdminRoutes, port: object) -> AdminPort:
        """Port 0 takes a free one. Raises KitError."""
        self = cls(routes, checked_admin_port(port))
        try:
            self.server = await HttpServer.open(self, AsyncioNetwork(), HOST, self.number, name="admin port")
        except OSError as error:
            raise KitError(f"admin_port={port}: {error.strerror}; choose another one, or 0 for a free one") from None
        self.number = self.server.address[1]
        return self

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.number}"

    def close(self) -> None:
        self.server.close()

    # -- runtime.http_server.Service

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Refuses browsers: a page sends its name in `Origin` or, after DNS rebinding, in `Host`."""
        if "origin" in request.headers:
            return HttpRefusal(403, "a web page may not use the admin port: the request has an Origin")
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in LOCAL_HOSTS:
            return HttpRefusal(403, f"the Host {host[:100]!r} is not this machine's: use 127.0.0.1 or localhost")
        return None

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Raises HttpRefusal."""
        status, value = await self.routes.answer(request.method, request.target, request.body)
        return _as_json(status, value)

    def told(self, refusal: HttpRefusal) -> HttpAnswer:
        return _as_json(refusal.status, {"error": str(refusal)}, refusal.headers)


def _as_json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, "application/json", (json.dumps(value).encode() + b"\n",), headers or {})
