"""The admin port: faults and brokers of a cluster over HTTP on 127.0.0.1, for tests in any language. Off by default.

| route | what it does |
|---|---|
| GET, POST, DELETE /v1/faults | lists, installs, removes faults; the body of POST is a document (`faults/document.py`) |
| POST /v1/faults/verify | 409 if a strict fault has hit nothing |
| GET, DELETE /v1/faults/ID | a fault with its requests; `?hits=2&timeout=10` waits for hits; removes it |
| POST /v1/faults/ID/release | serves the held requests |
| GET /v1/brokers, POST /v1/brokers/ID/ACTION | lists the brokers; kills, stops, pauses, resumes, restarts one |
| GET /v1/leaders?topic=T&partition=0, POST /v1/leaders | the leader of a partition; moves it to another broker |
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

from barnabas.runtime.http_server import HttpAnswer, HttpRefusal, HttpRequest, HttpServer
from barnabas.runtime.network import AsyncioNetwork
from barnabas.testing.errors import KitError, KitTimeout, unknown
from barnabas.testing.faults.document import DOCUMENT_BYTES_MAX, parse_json, wanted
from barnabas.testing.faults.rule import Rule
from barnabas.testing.ports import HOST, checked_admin_port
from barnabas.testing.running import Running

if TYPE_CHECKING:
    from barnabas.testing.faults.handles import Fault, Faults

WAIT_S: Final = 10.0  # for hits, unless the request says otherwise
WAIT_S_MAX: Final = 120.0
HITS_MAX: Final = 2**31 - 1
DIGITS_MAX: Final = 10  # of a number in a path
ACTIONS: Final = ("kill", "stop", "pause", "resume", "restart")


class _Request(NamedTuple):
    ids: tuple[str, ...]  # the variable parts of the path
    query: dict[str, str]
    body: bytes


_Work = Callable[[_Request], Awaitable[tuple[int, Any]]]


class _Cluster(Running, Protocol):
    @property
    def faults(self) -> Faults: ...


class AdminRoutes:
    """The routes of one cluster."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._routes: dict[str, dict[str, _Work]] = {
            "/v1/faults": {"GET": self._list, "POST": self._install, "DELETE": self._clear},
            "/v1/faults/verify": {"POST": self._verify},
            "/v1/faults/*": {"GET": self._show, "DELETE": self._remove},
            "/v1/faults/*/release": {"POST": self._release},
            "/v1/brokers": {"GET": self._brokers},
            "/v1/brokers/*/*": {"POST": self._act},
            "/v1/leaders": {"GET": self._leader, "POST": self._move_leader},
        }

    async def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        """Returns the status and a JSON value. Raises HttpRefusal."""
        path, _, query = target.partition("?")
        pattern, ids = self._found(path)
        work = self._routes[pattern].get(method)
        if work is None:
            allowed = ", ".join(self._routes[pattern])
            raise HttpRefusal(405, f"{method} is not possible for {pattern}: use {allowed}", {"allow": allowed})
        try:
            return await work(_Request(ids, _query(query), body))
        except KitTimeout as error:
            raise HttpRefusal(504, str(error)) from None
        except KitError as error:
            raise HttpRefusal(409, str(error)) from None

    def _found(self, path: str) -> tuple[str, tuple[str, ...]]:
        if path in self._routes:
            return path, ()
        parts = path.split("/")
        for pattern in self._routes:
            wanted_parts = pattern.split("/")
            if len(wanted_parts) == len(parts) and all(
                each in ("*", part) for each, part in zip(wanted_parts, parts, strict=True)
            ):
                return pattern, tuple(
                    unquote(part) for each, part in zip(wanted_parts, parts, strict=True) if each == "*"
                )
        raise HttpRefusal(404, unknown("path", path[:200], self._routes))

    # -- faults

    async def _list(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        faults = self._cluster.faults
        await self._within(faults.settled())
        return 200, {"faults": [each.to_json() for each in faults.all()]}

    async def _install(self, request: _Request) -> tuple[int, Any]:
        _no_query(request)
        document, found = _checked(request.body)
        made = await self._within(self._cluster.faults.add(found))
        told = [each.to_json() for each in made]
        single = isinstance(document, Mapping) and "faults" not in document
        return 201, told[0] if single else {"faults": told}

    async def _clear(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        return 200, {"removed": await self._within(self._cluster.faults.cleared())}

    async def _verify(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        await self._within(self._cluster.faults.verified())
        return 200, {}

    async def _show(self, request: _Request) -> tuple[int, Any]:
        fault = self._fault(request)
        _no_body(request)
        hits = _number(request.query, "hits", None, HITS_MAX)
        timeout_s = _seconds(request.query)
        _no_more(request.query, "hits", "timeout")
        if hits is not None:
            await fault.aio.wait(hits, timeout_s)
        else:
            await self._within(self._cluster.faults.settled())
        return 200, fault.to_json(requests=True)

    async def _remove(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        return await self._tell("remove_fault", self._fault(request))

    async def _release(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        return await self._tell("release_fault", self._fault(request))

    async def _tell(self, command: str, fault: Fault) -> tuple[int, Any]:
        faults = self._cluster.faults
        await self._within(faults.told(command, fault))
        await self._within(faults.settled())
        return 200, fault.to_json(requests=True)

    def _fault(self, request: _Request) -> Fault:
        text, faults = request.ids[0], self._cluster.faults
        fault = faults.get(int(text)) if _is_number(text) else None
        if fault is None:
            known = ", ".join(str(each.number) for each in faults.all()[-10:]) or "there is none"
            raise HttpRefusal(404, f"unknown fault {text[:50]!r}; the latest: {known}")
        return fault

    # -- brokers

    async def _brokers(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        backend = self._cluster.backend("brokers")
        listed = []
        for each in backend.broker_ids:
            host, port = backend.address(each)
            listed.append({"id": each, "address": f"{host}:{port}", "state": backend.state(each)})
        return 200, {"bootstrap_servers": backend.bootstrap_servers, "mode": backend.mode, "brokers": listed}

    async def _act(self, request: _Request) -> tuple[int, Any]:
        _nothing_else(request)
        text, action = request.ids
        core = self._cluster.core()
        if action not in ACTIONS:
            raise HttpRefusal(404, unknown("action", action[:50], ACTIONS))
        try:
            broker_id = core.check_broker(int(text) if _is_number(text) else text[:50])
        except KitError as error:
            raise HttpRefusal(404, str(error)) from None
        actions: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill": core.kill,
            "stop": core.stop_broker,
            "pause": core.pause,
            "resume": core.resume,
            "restart": core.restart,
        }
        await actions[action](broker_id)
        return 200, {"id": broker_id, "state": core.backend.state(broker_id)}

    async def _leader(self, request: _Request) -> tuple[int, Any]:
        _no_body(request)
        _no_more(request.query, "topic", "partition")
        if "topic" not in request.query:
            raise HttpRefusal(400, "topic is missing: /v1/leaders?topic=orders&partition=0")
        partition = _number(request.query, "partition", 0, HITS_MAX) or 0
        return 200, {"leader": await self._cluster.core().leader(request.query["topic"], partition)}

    async def _move_leader(self, request: _Request) -> tuple[int, Any]:
        _no_query(request)
        try:
            given = parse_json(request.body)
        except KitError as error:
            raise HttpRefusal(400, str(error)) from None
        if not isinstance(given, dict):
            raise HttpRefusal(400, 'write an object, for example {"topic": "orders", "partition": 0, "to": 2}')
        for key in given:
            if key not in ("topic", "partition", "to"):
                raise HttpRefusal(400, unknown("key", key[:50], ("topic", "partition", "to")))
        topic, partition, to = given.get("topic"), given.get("partition", 0), given.get("to")
        if not isinstance(topic, str):
            raise HttpRefusal(400, 'topic: write a name, for example {"topic": "orders"}')
        if not _is_int(partition) or not (to is None or _is_int(to)):
            raise HttpRefusal(400, "partition and to are whole numbers")
        return 200, {"leader": await self._cluster.core().move_leader(topic, partition, to=to)}

    async def _within(self, work: Awaitable[Any]) -> Any:
        """Awaits work without a deadline of its own."""
        limit_s = self._cluster.core().timeout_s
        try:
            async with asyncio.timeout(limit_s) as deadline:
                return await work
        except TimeoutError:
            if not deadline.expired():
                raise
            raise KitTimeout(f"the brokers did not answer the kit within {limit_s:g} s") from None


def _checked(body: bytes) -> tuple[object, list[Rule]]:
    try:
        document = parse_json(body)
        return document, wanted(document)
    except KitError as error:
        raise HttpRefusal(400, str(error)) from None


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=10)
    except ValueError as error:
        raise HttpRefusal(400, f"the query of the path: {error}") from None
    if len(dict(pairs)) < len(pairs):
        raise HttpRefusal(400, "a key of the query is there twice")
    return dict(pairs)


def _nothing_else(request: _Request) -> None:
    _no_query(request)
    _no_body(request)


def _no_query(request: _Request) -> None:
    _no_more(request.query)


def _no_body(request: _Request) -> None:
    if request.body.strip() not in (b"", b"{}"):
        raise HttpRefusal(400, "this request takes no body")


def _no_more(query: Mapping[str, str], *known: str) -> None:
    for key in query:
        if key not in known:
            raise HttpRefusal(400, unknown("key of the query", key[:50], known))


def _number(query: Mapping[str, str], key: str, default: int | None, largest: int) -> int | None:
    if key not in query:
        return default
    text = query[key]
    if not _is_number(text) or int(text) > largest:
        raise HttpRefusal(400, f"{key}={text[:50]}: write a whole number, 0 to {largest}")
    return int(text)


def _seconds(query: Mapping[str, str]) -> float:
    text = query.get("timeout", str(WAIT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= WAIT_S_MAX:
        raise HttpRefusal(400, f"timeout={text[:50]}: write seconds, 0 to {WAIT_S_MAX:g}")
    return seconds


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
